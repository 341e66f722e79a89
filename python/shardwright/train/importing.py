"""`package.module:name` and `file.py:name`: what a run's file names of its user's own code."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from ..errors import RuntimeFault
from ..support.suggestions import did_you_mean
from ..support.user_files import imported, look_in


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
    module = imported(file)
    if module is None:
        raise _no_such(path, f"there is no file {file}")
    return module


def _module(folder: Path, place: str, path: str) -> Any:
    look_in(folder)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise _no_such(path, f"there is no module {error.name}") from None


def _no_such(path: str, why: str, fix: str | None = None) -> RuntimeFault:
    return RuntimeFault(
        "SW0852",
        f"`{path}` names nothing that can be imported",
        why=why,
        fix=fix or "write `package.module:name`, or `file.py:name` with a path from the run's file",
    )
