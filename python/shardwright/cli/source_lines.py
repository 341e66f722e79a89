"""The text of the model's lines, where their files are at hand."""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..support.short_paths import short_path
from .source import is_graph

if TYPE_CHECKING:
    from .._core import Graph

# Longer lines are cut.
LONGEST = 200


def source_lines(graph: Graph, model: str) -> dict[str, str]:
    """Of each line that an operator names, as in `gpt.py:12`, what it says.

    Nothing of a graph that is read from a file: the files here may have changed since it was written. Nor of
    files that are called alike.
    """
    if is_graph(model):
        return {}
    lines = {operator.line for operator in graph.operators if ":" in operator.line}
    places = [(line, *line.rsplit(":", 1)) for line in lines]
    files = _files({path for _, path, _ in places})
    texts = {path: _lines_of(file) for path, file in files.items()}
    texts_of_lines: dict[str, str] = {}
    for line, path, number in places:
        text = texts.get(path, [])
        if number.isdecimal() and 0 < int(number) <= len(text) and text[int(number) - 1].strip():
            texts_of_lines[line] = text[int(number) - 1].strip()[:LONGEST]
    return dict(sorted(texts_of_lines.items()))


def _files(paths: set[str]) -> dict[str, Path]:
    """The files that are called so, as capture names them: of modules that are imported, or of packages that
    could be. A graph from the cache was made without importing its model."""
    names = {path.rpartition("/")[2] for path in paths}
    by_name: dict[str, set[Path]] = defaultdict(set)
    for module in list(sys.modules.values()):
        file = vars(module).get("__file__")
        if isinstance(file, str) and file.replace("\\", "/").rpartition("/")[2] in names:
            by_name[short_path(file)].add(Path(file).resolve())
    imported = {path: files.pop() for path, files in by_name.items() if path in paths and len(files) == 1}
    packaged = {path: _of_package(path) for path in paths - set(by_name)}
    return imported | {path: file for path, file in packaged.items() if file is not None}


def _of_package(path: str) -> Path | None:
    """That of `transformers/models/llama/modeling_llama.py`, which nobody imports for it."""
    package, slash, inner = path.partition("/")
    spec = importlib.util.find_spec(package) if slash and package.isidentifier() else None
    folders = (spec.submodule_search_locations or ()) if spec else ()
    files = (Path(folder, inner) for folder in folders)
    return next((file for file in files if file.is_file() and short_path(str(file)) == path), None)


def _lines_of(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
