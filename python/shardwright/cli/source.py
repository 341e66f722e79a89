"""The model that a command names: its graph, with the batch in so many parts."""

from __future__ import annotations

import argparse
import ast
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CaptureError, RuntimeFault, ShardwrightError, with_article
from ..shipped.table import SHIPPED
from ..support.suggestions import did_you_mean, nearby

if TYPE_CHECKING:
    from torch import nn

    from .._core import Graph
    from ..runtime.execution.inputs import Arguments


AsPython = dict[str, tuple[str, float]]
"""What of a model runs as the Python that it is, as `Captured` has it; nothing of a graph that is read."""


def graph_of(arguments: argparse.Namespace) -> Graph:
    return graph_and_python(arguments)[0]


def graph_and_python(arguments: argparse.Namespace) -> tuple[Graph, AsPython]:
    parts = getattr(arguments, "micro_batches", None)
    return source_of(arguments).graph(1 if parts is None else parts)


class Source(ABC):
    """A model, with its batch in as many parts as are asked for."""

    rows = 1
    """Of its batch; one where that cannot be cut."""

    def __init__(self) -> None:
        self._noted: set[str] = set()

    def graph(self, parts: int) -> tuple[Graph, AsPython]:
        """Also says what capture has to say, such as that nothing was compared."""
        from .._core import Graph

        text, notes, as_python = self._of(parts)
        for note in notes:
            if note not in self._noted:
                self._noted.add(note)
                print(f"shardwright: {note}", file=sys.stderr)
        return Graph(text), as_python

    @abstractmethod
    def _of(self, parts: int) -> tuple[str, list[str], AsPython]: ...


def source_of(arguments: argparse.Namespace) -> Source:
    from ..support.example_sizes import no_sizes

    model: str = arguments.model
    if model in SHIPPED:
        return _Shipped(model, arguments.batch, arguments.sequence)
    if model.startswith("hf:"):
        from ..integrations.transformers_models import BATCH, from_config

        batch = BATCH if arguments.batch is None else arguments.batch
        module, kwargs = from_config(model, batch, arguments.sequence)
        return ModuleSource(module, ((), kwargs), _capturing(arguments))
    if arguments.batch is not None or arguments.sequence is not None:
        raise no_sizes(model)
    if Path(model).name == model and not Path(model).exists() and not _like_a_file(model):
        raise _no_name(model)
    if is_graph(model):
        return _Text(model)
    path, _, name = model.rpartition(":")
    module, example = _module_of(called(function_of(Path(path), name), model), model)
    return ModuleSource(module, example, _capturing(arguments))


def is_graph(model: str) -> bool:
    """Whether it names a file that has a graph: neither a name of ours nor a function."""
    path, _, name = model.rpartition(":")
    return model not in SHIPPED and not model.startswith("hf:") and not (path and name.isidentifier())


def require_there(model: str) -> None:
    """Refuses a model that is not there by its name alone, without running anything of it."""
    if model in SHIPPED or model.startswith("hf:"):
        return
    if Path(model).name == model and not Path(model).exists() and not _like_a_file(model):
        raise _no_name(model)
    path, _, name = model.rpartition(":")
    if is_graph(model):
        _graph_text(Path(model))
    elif not Path(path).is_file():
        raise _no_file(Path(path))
    else:
        defined = _defined(Path(path))
        if defined is not None and name not in defined:
            raise _no_function(Path(path), name)


class _Shipped(Source):
    def __init__(self, model: str, batch: int | None, sequence: int | None):
        from ..shipped.graph import example_of

        super().__init__()
        self._whole = example_of(SHIPPED[model], batch, sequence)
        self.rows = self._whole.batch

    def _of(self, parts: int) -> tuple[str, list[str], AsPython]:
        from ..shipped.graph import graph_of

        captured = graph_of(replace(self._whole, micro_batches=parts))
        return captured.text, captured.notes, {}


class _Text(Source):
    """A graph's file."""

    def __init__(self, model: str):
        super().__init__()
        self._model, self._text = model, _graph_text(Path(model))

    def _of(self, parts: int) -> tuple[str, list[str], AsPython]:
        if parts != 1:
            raise _captured(self._model)
        return self._text, [], {}


class ModuleSource(Source):
    """What a file's function returns, or a class of Transformers."""

    def __init__(self, module: nn.Module, example: Arguments, capturing: Mapping[str, Any]):
        from ..start.micro_batches import Parts

        super().__init__()
        self.module, self.example = module, example
        self._parts = Parts(module, example, capturing)
        self.rows = self._parts.rows

    def _of(self, parts: int) -> tuple[str, list[str], AsPython]:
        captured = self._parts.captured(parts)
        return captured.graph_text, captured.notes, captured.as_python


def _capturing(arguments: argparse.Namespace) -> dict[str, Any]:
    """What capture is told, where a command asks for it."""
    return {
        "discover": getattr(arguments, "discover", False),
        "known_inputs": known_inputs_of(arguments),
    }


def known_inputs_of(arguments: argparse.Namespace) -> tuple[str, ...] | None:
    """The inputs that are named; none also where a person writes what Python has for that."""
    names: str | None = getattr(arguments, "known_inputs", None)
    if names is None:
        return None
    return () if names in ("()", "none") else tuple(name.strip() for name in names.split(",") if name.strip())


def graph_of_returned(returned: Any, model: str) -> Graph:
    """Of a module and its example inputs, which the function called `model` returned."""
    module, example = _module_of(returned, model)
    return ModuleSource(module, example, {}).graph(1)[0]


def read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CaptureError(
            "SW0117",
            f"{path} cannot be read",
            why=getattr(error, "strerror", None) or "it is not text",
            fix="name a file that exists; a model is FILE.py:FUNCTION" + _like_file(path),
        ) from None


def _graph_text(path: Path) -> str:
    """A Python file alone is a model whose function was forgotten."""
    path = Path(str(path).removesuffix(":"))
    if path.suffix == ".py" and path.is_file():
        names = _functions(path)
        raise CaptureError(
            "SW0116",
            f"{path} is a file, not a model",
            why="a model is a function in it that returns a module and its example inputs",
            fix="name it: " + " or ".join(f"{path}:{name}" for name in names[:4])
            if names
            else f"write one, and name it as {path}:FUNCTION; the file has no function without arguments",
        )
    return read(path)


def function_of(path: Path, name: str) -> Any:
    from ..support.user_files import imported

    with explained(f"{path} cannot be imported"):
        file = imported(path, rerun=True)
    if file is None:
        raise _no_file(path)
    function = getattr(file, name, None)
    if not callable(function):
        raise _no_function(path, name)
    return function


def _no_file(path: Path) -> CaptureError:
    return _no_model(f"there is no Python file {path}", "name it as FILE.py:FUNCTION" + _like_file(path))


def _no_function(path: Path, name: str) -> CaptureError:
    names = _functions(path)
    known = f"name one of its functions: {', '.join(names[:8])}" if names else "write it"
    return _no_model(f"{path} has no function {name}", did_you_mean(name, names) or known)


def _defined(path: Path) -> set[str] | None:
    """The names that a file gives to anything; unknown where it imports all of another, or cannot be read."""
    try:
        tree = ast.parse(path.read_text())
    except (OSError, ValueError, SyntaxError):
        return None
    names = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    imported = [
        one for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) for one in node.names
    ]
    names |= {(one.asname or one.name).partition(".")[0] for one in imported}
    return None if "*" in names else names


def _functions(path: Path) -> list[str]:
    """The functions of a file that can be called without an argument, read without running it."""
    try:
        tree = ast.parse(path.read_text())
    except (OSError, ValueError, SyntaxError):
        return []
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [f.name for f in functions if not _needs_arguments(f.args) and not f.name.startswith("_")]


def _needs_arguments(given: ast.arguments) -> bool:
    positional = len(given.posonlyargs) + len(given.args) > len(given.defaults)
    return positional or any(default is None for default in given.kw_defaults)


def _like_file(path: Path) -> str:
    """Files of the same kind that are called nearly so."""
    try:
        names = [file.name for file in path.parent.iterdir() if file.suffix == path.suffix]
    except OSError:
        return ""
    return did_you_mean(path.name, {*names} - {path.name}, "; ")


def _captured(path: str) -> CaptureError:
    return CaptureError(
        "SW0116",
        f"{path} is a graph, so its batch cannot be cut",
        why="micro-batches are proved of the model, which is captured with one of them and with two",
        fix="name the model as FILE.py:FUNCTION, or write the graph of one micro-batch",
    )


def _like_a_file(model: str) -> bool:
    return ":" in model or model.endswith((".py", ".txt"))


def _no_name(model: str) -> RuntimeFault:
    families = {name.partition("-")[0]: name for name in sorted(SHIPPED, reverse=True)}
    alike = [families[family] for family in nearby(model.partition("-")[0], families)]
    return RuntimeFault(
        "SW0773",
        f"no model has the name {model}",
        why="it is neither a shipped one, nor a file, nor FILE.py:FUNCTION",
        fix=did_you_mean(model, SHIPPED)
        or (f"did you mean `{alike[0]}`? " if alike else "") + "`shardwright models` lists the names",
    )


def _no_model(what: str, fix: str) -> CaptureError:
    return CaptureError(
        "SW0116", what, why="a model is the function that returns it, in a Python file", fix=fix
    )


def called(function: Any, named: str) -> Any:
    with explained(f"{named} failed"):
        return function()


def _module_of(returned: Any, name: str) -> tuple[nn.Module, Arguments]:
    """The module and its example inputs: by position, by name in a dict, or both: `model, (x,), {"y": y}`."""
    from torch import nn

    from ..runtime.execution.inputs import arguments_of, plain

    if isinstance(returned, tuple) and len(returned) in (2, 3) and isinstance(returned[0], nn.Module):
        module, batch, *rest = returned
        args, kwargs = arguments_of(batch)
        if rest:
            kwargs = {**kwargs, **rest[0]} if isinstance(rest[0], Mapping) else {}
        if not rest or kwargs:
            return module, (tuple(map(plain, args)), {name: plain(value) for name, value in kwargs.items()})
    what = (
        "a module without its inputs"
        if isinstance(returned, nn.Module)
        else with_article(type(returned).__name__)
    )
    raise CaptureError(
        "SW0119",
        f"{name} did not return a model",
        why=f"it returned {what}",
        fix='return a module and its example inputs: `model, (x, y)`, or by name `model, {"x": x, "y": y}`',
    )


@contextmanager
def explained(what: str) -> Iterator[None]:
    """An exception of the user's own file, without our frames."""
    try:
        yield
    except ShardwrightError:
        raise
    except Exception as error:
        from ..capture.lines import place_of_error

        raise CaptureError(
            "SW0119",
            what,
            place=place_of_error(error),
            why="".join(traceback.format_exception_only(type(error), error)).strip(),
            fix="run the file with Python alone first",
        ) from error
