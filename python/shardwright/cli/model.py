"""The model that a command names, and the plan for it."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CaptureError, RuntimeFault, ShardwrightError
from ..nearby import did_you_mean, nearby
from ..shipped.table import SHIPPED
from .parser import suggest

if TYPE_CHECKING:
    from torch import nn

    from .._core import Graph, Plan
    from ..runtime.execution.inputs import Arguments


PLANS = (
    "auto",
    "replicate",
    "data",
    "expert",
    "megatron",
    "sequence",
    "zigzag",
    "ulysses",
    "image",
    "coshard",
    "coshard:2",
    "data x recompute",
    "zero1",
    "zero2",
    "zero3",
    "zero3 x offload",
    "zero3 x whole-updates",
    "stages:2 x 1f1b",
    "stages:2 x gpipe",
    "stages:2 x interlaced",
    "stages:2 x interleaved:2",
    "stages:2 x bidirectional",
    "stages:2 x zb-h1",
    "stages:2 x zb-v",
    "stages:2 x 2bw",
    "stages:2 x kf1b",
    "stages:2 x tokens:4",
)
"""What completion offers; `_core.plan_names` has the names."""


def add_arguments(parser: argparse.ArgumentParser, needs_cluster: bool = False) -> None:
    from .cluster import add_cluster

    add_model(parser)
    parser.add_argument(
        "--devices", type=int, help="for how many; without it, what the plan itself says, or the cluster has"
    )
    plan = parser.add_argument(
        "--plan", default="auto", help="a name, the path of a plan file, or `auto` (of all, the quickest)"
    )
    suggest(plan, PLANS)
    add_cluster(parser, needs_cluster)
    parser.add_argument("--json", action="store_true", help="print what is known as JSON")


def add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory", metavar="SIZE", help="of each device, such as 16GiB: a plan that needs more is refused"
    )
    parser.add_argument(
        "--optimizer", default="adamw", help="whose state is counted: adamw, sgd, sgd-momentum, none, ..."
    )


def limit_of(arguments: argparse.Namespace) -> tuple[int | str, str] | None:
    """What a rank has, and the optimizer whose state is in it."""
    return (arguments.memory, arguments.optimizer) if arguments.memory else None


def add_model(parser: argparse.ArgumentParser, optional: str = "") -> None:
    """What `source_of` reads; `optional` says what holds without a model."""
    model = parser.add_argument(
        "model",
        nargs="?" if optional else None,
        help="a name such as llama-3-8b (`shardwright models` lists them); FILE.py:FUNCTION, which returns"
        " a module and its example inputs; a graph's file; or hf:CLASS:config.json, a class of Transformers"
        " without weights" + optional,
    )
    suggest(model, tuple(SHIPPED))
    add_sizes(parser)
    parser.add_argument(
        "--micro-batches",
        type=int,
        metavar="N",
        help="the batch in N parts, one after the other; without it 1, or where a plan is chosen as many as"
        " are best",
    )
    parser.add_argument(
        "--discover", action="store_true", help="look for rules of what runs as it is, by running it in parts"
    )
    parser.add_argument(
        "--known-inputs",
        default="",
        metavar="NAME,...",
        help="arguments that the model reads in Python, '*' for all: a program is for what it reads",
    )


def add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, help="of a model with a name, or from hf: (8)")
    parser.add_argument("--sequence", type=int, help="of such a model, in tokens (128 from hf:) or residues")


def require_cluster(arguments: argparse.Namespace) -> None:
    """Before a model is captured: nothing can be chosen without."""
    from ..choosing import AUTO
    from ..planning import no_cluster

    if arguments.plan == AUTO and arguments.cluster is None:
        raise no_cluster()


def plan_of(arguments: argparse.Namespace, graph: Graph, plan: str | None = None) -> Plan:
    from ..choosing import AUTO
    from ..constraints import nothing_to_choose
    from ..planning import make_plan
    from .cluster import choice_of

    named = plan or arguments.plan
    if arguments.constraints is not None and named != AUTO:
        raise nothing_to_choose(named)
    chooses = named == AUTO and arguments.cluster is not None
    choice = choice_of(arguments) if chooses else None
    return make_plan(graph, named, devices_of(arguments, graph, named), choice)


def devices_of(arguments: argparse.Namespace, graph: Graph | None, plan: str) -> int | None:
    """As many as somebody says: the call, the plan itself, or else the cluster."""
    if arguments.devices is not None or arguments.cluster is None:
        devices: int | None = arguments.devices
        return devices
    from .._core import cluster_devices
    from ..choosing import cluster_of
    from ..planning import stated_devices

    stated = None if graph is None else stated_devices(graph, plan)
    return stated or cluster_devices(*cluster_of(arguments.cluster))


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
    from ..example_sizes import no_sizes

    model: str = arguments.model
    if model in SHIPPED:
        return _Shipped(model, arguments.batch, arguments.sequence)
    if model.startswith("hf:"):
        from ..transformers_models import BATCH, from_config

        batch = BATCH if arguments.batch is None else arguments.batch
        module, kwargs = from_config(model, batch, arguments.sequence)
        return _Module(module, ((), kwargs), _capturing(arguments))
    if arguments.batch is not None or arguments.sequence is not None:
        raise no_sizes(model)
    if Path(model).name == model and not Path(model).exists() and not _like_a_file(model):
        raise _no_name(model)
    path, _, name = model.rpartition(":")
    if not name.isidentifier() or not path:
        return _Text(model)
    module, inputs = _module_of(called(function_of(Path(path), name), model), model)
    return _Module(module, (tuple(inputs), {}), _capturing(arguments))


class _Shipped(Source):
    def __init__(self, model: str, batch: int | None, sequence: int | None):
        from ..shipped.graph import example_of

        super().__init__()
        self._whole = example_of(SHIPPED[model], batch, sequence)
        self.rows = self._whole.batch

    def _of(self, parts: int) -> tuple[str, list[str], AsPython]:
        from ..shipped.graph import graph_of

        found = graph_of(replace(self._whole, micro_batches=parts))
        return found.text, found.notes, {}


class _Text(Source):
    """A graph's file."""

    def __init__(self, model: str):
        super().__init__()
        self._model, self._text = model, _graph_text(Path(model))

    def _of(self, parts: int) -> tuple[str, list[str], AsPython]:
        if parts != 1:
            raise _captured(self._model)
        return self._text, [], {}


class _Module(Source):
    """What a file's function returns, or a class of Transformers."""

    def __init__(self, module: nn.Module, example: Arguments, capturing: Mapping[str, Any]):
        from ..micro_batches import Parts

        super().__init__()
        self._parts = Parts(module, example, capturing)
        self.rows = self._parts.rows

    def _of(self, parts: int) -> tuple[str, list[str], AsPython]:
        captured = self._parts.captured(parts)
        return captured.graph_text, captured.notes, captured.as_python


def _capturing(arguments: argparse.Namespace) -> dict[str, Any]:
    """What capture is told, where a command asks for it."""
    names = getattr(arguments, "known_inputs", "")
    return {
        "discover": getattr(arguments, "discover", False),
        "known_inputs": tuple(name.strip() for name in names.split(",") if name.strip()),
    }


def graph_of_returned(found: Any, model: str) -> Graph:
    """Of a module and its example inputs, which the function called `model` returned."""
    module, inputs = _module_of(found, model)
    return _Module(module, (tuple(inputs), {}), {}).graph(1)[0]


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
            f"{path} is a file, and not yet a model",
            why="a model is a function in it that returns a module and its example inputs",
            fix="name it: " + " or ".join(f"{path}:{name}" for name in names[:4])
            if names
            else f"write one, and name it as {path}:FUNCTION; the file has no function without arguments",
        )
    return read(path)


def function_of(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise _no_model(f"there is no Python file {path}", "name it as FILE.py:FUNCTION" + _like_file(path))
    file = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = file
    sys.path.insert(0, str(path.parent))
    with explained(f"{path} cannot be imported"):
        spec.loader.exec_module(file)
    function = getattr(file, name, None)
    if not callable(function):
        names = _functions(path)
        known = f"name one of its functions: {', '.join(names[:8])}" if names else "write it"
        raise _no_model(f"{path} has no function {name}", did_you_mean(name, names) or known)
    return function


def _functions(path: Path) -> list[str]:
    """The functions of a file that can be called without an argument, read without running it."""
    try:
        tree = ast.parse(path.read_text())
    except (OSError, ValueError, SyntaxError):
        return []
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [f.name for f in found if not _needs_arguments(f.args) and not f.name.startswith("_")]


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
        f"{path} is a graph, and its batch cannot be cut",
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


def _module_of(found: Any, name: str) -> tuple[Any, Any]:
    """The module and its example inputs."""
    from torch import nn

    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], nn.Module):
        inputs = found[1]
        return found[0], inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    what = "a module without its inputs" if isinstance(found, nn.Module) else f"a {type(found).__name__}"
    raise CaptureError(
        "SW0119",
        f"{name} returned no model",
        why=f"it returned {what}",
        fix="return a module and a tuple of its example inputs",
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
