"""What a value executes: functions with what they refer to, classes, and the files that hold them.

Code of the user is described by itself (its instructions as they were loaded, the values that it
refers to, the text of its files and of those that they import). Installed code stands for itself by
the version of its distribution.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..support.short_paths import short_path
from .describe import Describer

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_STDLIB = os.path.join(sysconfig.get_paths()["stdlib"], "")
_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
_OF_EVERY_CLASS = {"__dict__", "__weakref__", "__doc__", "__module__", "__abstractmethods__", "_abc_impl"}
_OF_EVERY_CLASS |= {"__firstlineno__", "__static_attributes__"}
_ENVIRONMENT = {"environ", "getenv"}
# How code reads values by names that are not in it.
_BY_NAME, _OWN_GLOBALS, _ANYTHING = {"getattr", "vars", "__dict__"}, {"globals"}, {"eval", "exec"}


class Reach:
    """Follows values to code. Files and distributions are collected and described at the end."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.packages: set[str] = set()
        self._modules: set[str] = set()

    def __call__(self, to: Describer, value: Any) -> None:
        if isinstance(value, types.ModuleType):
            to.put("python module", value.__name__)
            self.module(value)
        elif isinstance(value, type):
            self._class(to, value)
        else:
            self._function(to, value)

    def finish(self, to: Describer) -> None:
        for name in sorted(self.files):
            to.put("file", name, self.files[name])
        for package in sorted(self.packages):
            to.put("package", package, _version(package))

    def module(self, module: types.ModuleType | None) -> None:
        """The text of a module of the user, and of all that it imports."""
        if module is None or module.__name__ in self._modules:
            return
        self._modules.add(module.__name__)
        file = getattr(module, "__file__", None)
        if is_installed(file) if file is not None else module.__name__ != "__main__":
            self._installed(module.__name__)
        else:
            if file is not None:
                self._file(file)
            for value in list(vars(module).values()):
                home = value if isinstance(value, types.ModuleType) else _home(value)
                if home is not module:
                    self.module(home)

    def _installed(self, module: str) -> None:
        top = module.partition(".")[0]
        if top not in sys.stdlib_module_names and top != "__main__":
            self.packages.add(top)

    def _file(self, file: str) -> None:
        if short_path(file) not in self.files or not is_installed(file):
            try:
                self.files[short_path(file)] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
            except OSError:
                self.files[short_path(file)] = "unreadable"

    def _class(self, to: Describer, kind: type) -> None:
        to.put("class", kind.__module__, kind.__qualname__)
        if type(kind) is not type:
            to.named("metaclass", type(kind))
        for base in kind.__mro__:
            home = sys.modules.get(base.__module__)
            file = getattr(home, "__file__", None)
            to.put("base", base.__module__, base.__qualname__)
            self.module(home)
            installed = base.__module__ in sys.stdlib_module_names or (file and is_installed(file))
            if installed and file and issubclass(base, nn.Module) and not file.startswith(_TORCH):
                self._file(file)  # people do change models where they are installed
            for name, value in sorted(vars(base).items()):
                if name in _OF_EVERY_CLASS or isinstance(value, _SLOTS):
                    continue
                if not installed or _is_users(value):
                    to.named(name, value)

    def _function(self, to: Describer, function: types.FunctionType) -> None:
        to.put("function", str(function.__module__), function.__qualname__)
        home = sys.modules.get(str(function.__module__))
        self.module(home)
        users = not is_installed(function.__code__.co_filename)
        if users:
            _code(to, function.__code__)
            self._names(to, function)
        to.named("defaults", (function.__defaults__, function.__kwdefaults__))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            value = _content(cell)
            if users or isinstance(value, (types.FunctionType, types.MethodType, type)):
                to.named(name, value)
        for name, value in sorted(vars(function).items()):
            if users or name == "__wrapped__":
                to.named(name, value)

    def _names(self, to: Describer, function: types.FunctionType) -> None:
        """The values of globals that a function refers to, and what it imports inside."""
        package = str(function.__globals__.get("__package__") or "")
        for code in _nested(function.__code__):
            for name in sorted(set(code.co_names)):
                if name in function.__globals__:
                    value = function.__globals__[name]
                    to.named(name, value)
                    if isinstance(value, types.ModuleType):
                        self._attributes(to, value, code.co_names)
                for imported in (name, f"{package}.{name}"):
                    self.module(sys.modules.get(imported))
            self._by_computed_names(to, function, set(code.co_names))
            if _ENVIRONMENT & set(code.co_names):
                for text in _texts(code, function.__globals__):
                    to.put("environment", text, os.environ.get(text, ""), str(text in os.environ))

    def _by_computed_names(self, to: Describer, function: types.FunctionType, names: set[str]) -> None:
        """What a function may read by a name that it makes: all data of the modules that it refers to."""
        if names & _ANYTHING:
            raise to.unknown(f"code that runs `{sorted(names & _ANYTHING)[0]}`")
        if names & _OWN_GLOBALS:
            self._data(to, function.__globals__)
        if names & _BY_NAME:
            for name in sorted(names & function.__globals__.keys()):
                value = function.__globals__[name]
                file = getattr(value, "__file__", None) if isinstance(value, types.ModuleType) else None
                if file is not None and not is_installed(file):
                    self._data(to, vars(value))

    def _data(self, to: Describer, names: dict[str, Any]) -> None:
        for name, value in sorted(names.items()):
            code = isinstance(value, (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type))
            if not code and not name.startswith("__"):
                to.named(name, value)

    def _attributes(self, to: Describer, module: types.ModuleType, names: tuple[str, ...]) -> None:
        file = getattr(module, "__file__", None)
        if file is not None and not is_installed(file):
            for name in sorted(set(names) & vars(module).keys()):
                to.named(name, vars(module)[name])


_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType)


def is_installed(file: str) -> bool:
    """Whether code stands for itself by a version: of Python, of a distribution, of this package."""
    if file.startswith(("<frozen", _OURS, _TORCH)):
        return True
    path = os.path.abspath(file)
    return any(folder in path for folder in _INSTALLED) or (
        not file.startswith("<") and path.startswith(_STDLIB)
    )


def _is_users(value: Any) -> bool:
    """A function of the user in a class that is not: somebody put it there."""
    function = getattr(value, "__func__", value)
    return isinstance(function, types.FunctionType) and not is_installed(function.__code__.co_filename)


def _home(value: Any) -> types.ModuleType | None:
    if isinstance(value, (types.FunctionType, type)):
        return sys.modules.get(str(value.__module__))
    return None


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _texts(code: types.CodeType, names: dict[str, Any]) -> list[str]:
    """The texts that code has, and those of the globals that it reads."""
    read = [names.get(name) for name in code.co_names]
    return sorted({text for text in (*code.co_consts, *read) if isinstance(text, str)})


def _code(to: Describer, code: types.CodeType) -> None:
    """Instructions as they were loaded: a file may have changed since."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    to.put("code", code.co_name, str(counts), str(code.co_firstlineno), short_path(code.co_filename))
    to.put(code.co_code, code.co_linetable)
    to.put(*code.co_names, "|", *code.co_varnames, "|", *code.co_freevars, "|", *code.co_cellvars)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _code(to, constant)
        else:
            to.value(constant)


@functools.cache
def _version(package: str) -> str:
    for name in (package, *_distributions().get(package, ())):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "no version"


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return {
        name: sorted(set(distributions))
        for name, distributions in importlib.metadata.packages_distributions().items()
    }
