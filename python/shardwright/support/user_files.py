"""Python files of users, from wherever they lie: the one place where they are imported."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_imported: set[str] = set()
"""Names of modules that were made here: another file of the same name takes the place of such a one."""


def imported(file: Path, rerun: bool = False) -> ModuleType | None:
    """The module of a file, by the file's own name; none where there is no such file of Python.

    What it imports is looked for beside it, too. A file that is known is not run a second time, unless
    `rerun` says so. Modules of others keep their names.
    """
    spec = importlib.util.spec_from_file_location(_name(file), file) if file.is_file() else None
    if spec is None or spec.loader is None:
        return None
    known = sys.modules.get(spec.name)
    if known is not None and not rerun and getattr(known, "__file__", None) == spec.origin:
        return known
    look_in(file.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _imported.add(spec.name)
    spec.loader.exec_module(module)
    return module


def look_in(folder: Path) -> None:
    """For modules that are imported from now on."""
    if str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))


def _name(file: Path) -> str:
    known = sys.modules.get(file.stem)
    free = known is None or file.stem in _imported or _is_of(known, file)
    return file.stem if free and file.stem not in sys.stdlib_module_names else f"file_{file.stem}"


def _is_of(module: ModuleType, file: Path) -> bool:
    place = getattr(module, "__file__", None)
    return place is not None and Path(place).resolve() == file.resolve()
