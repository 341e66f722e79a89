#!/usr/bin/env python3
"""Asserts that the modules of the Python package import each other in no circle.

Imports inside of functions count, too: they only hide a circle. Those for type checkers alone do not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "python"


def main() -> int:
    modules = {name_of(path): path for path in sorted(SOURCES.rglob("*.py"))}
    edges = {name: set(imported(name, path, modules)) for name, path in modules.items()}
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        print(f"error: modules import each other in a circle: {' -> '.join(error.args[1])}", file=sys.stderr)
        return 1
    print(f"{len(modules)} modules, no circle")
    return 0


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(name: str, path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of ours that a module imports, but for the packages that it is in."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for statement in statements(ast.parse(path.read_text())):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names if alias.name in modules)
            continue
        parts = package.split(".")[: len(package.split(".")) - statement.level + 1]
        base = ".".join([*(parts if statement.level else []), *filter(None, [statement.module])])
        for alias in statement.names:
            found = f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
            if found in modules and found != name:
                yield found


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        yield from statements(child)


if __name__ == "__main__":
    raise SystemExit(main())
