"""`package.module:name` and `file.py:name`: what a run's file names of its user's own code."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from ..errors import RuntimeFault
from ..support.suggestions import did_you_mean


def load(path: str, folder: Path) -> Any:
    """Files and modules are looked for next to the run's file, too."""
    place, colon, name = path.rpartition(":")
    if not colon or not place or not name:
        raise _no_such(path, "it is not of the form `package.module:name` or `file.py:name`")
    module = _from_file(folder, place, path) if place.endswith(".py") else _module(folder, place, path)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            near = did_you_mean(part, [known for known in vars(value) if not known.startswith("_")])
            raise _no_such(path, f"{place} has no {part}", near)
        value = getattr(value, part)
    return value


def _from_file(folder: Path, place: str, path: str) -> Any:
    file = (folder / place).resolve()
    if not file.is_file():
        raise _no_such(path, f"there is no file {file}")
    name = f"shardwright_train_{file.stem}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    _look_in(file.parent)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _module(folder: Path, place: str, path: str) -> Any:
    _look_in(folder)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise _no_such(path, f"there is no module {error.name}") from None


def _look_in(folder: Path) -> None:
    if str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))


def _no_such(path: str, why: str, fix: str | None = None) -> RuntimeFault:
    return RuntimeFault(
        "SW0852",
        f"`{path}` names nothing that can be imported",
        why=why,
        fix=fix or "write `package.module:name`, or `file.py:name` with a path from the run's file",
    )
