"""The console command `shardwright`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from .capture.lines import place_of_error
from .errors import CaptureError, ShardwrightError


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except ShardwrightError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output, `head` say, has seen enough; Python would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shardwright",
        description="Turns a PyTorch model for one device into a program for many, proved equal.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="a small GPT on local processes, beside the single-device run")
    demo.add_argument("--devices", type=int, default=4)
    demo.add_argument("--plan", default="data:2 x megatron:2")
    demo.add_argument("--to", help="folder for the emitted program")
    demo.set_defaults(run=_demo)

    emit = commands.add_parser("emit", help="compile a model and write its program; no device needed")
    _model_arguments(emit)
    emit.add_argument("-o", "--to", required=True, help="folder for the program")
    emit.add_argument("--outputs", choices=["loss", "all"], default="loss")
    emit.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="whether to tell on stderr what is done; also $SHARDWRIGHT_PROGRESS",
    )
    emit.set_defaults(run=_emit)

    plan = commands.add_parser("plan", help="print a plan, one line for each operator")
    _model_arguments(plan)
    plan.set_defaults(run=_plan)

    check = commands.add_parser("check", help="prove a program that was emitted")
    check.add_argument("program", help="its folder")
    check.set_defaults(run=_check)

    cache = commands.add_parser("cache", help="the programs that are kept for the next start")
    cache.add_argument("action", nargs="?", choices=["list", "clear"], default="list")
    cache.add_argument("--json", action="store_true")
    cache.set_defaults(run=_cache)

    doctor = commands.add_parser("doctor", help="what this environment can do, and what is wrong with it")
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_doctor)

    ckpt = commands.add_parser("ckpt", help="what to do with checkpoints")
    actions = ckpt.add_subparsers(required=True, metavar="ACTION")
    merge = actions.add_parser("merge", help="the model of a checkpoint as safetensors files")
    merge.add_argument("checkpoint", help="its folder")
    merge.add_argument("-o", "--to", required=True, help="a .safetensors file, or a folder for several")
    merge.add_argument("--max-shard-size", default="5GB", help="of a file in a folder")
    merge.set_defaults(run=_merge)

    ops = commands.add_parser("ops", help="the operators that have rules")
    ops.set_defaults(run=_ops)
    return parser


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="FILE.py:FUNCTION, which returns a module and its example inputs; a graph's file; or"
        " hf:CLASS:config.json, a class of Transformers without weights",
    )
    parser.add_argument("--batch", type=int, default=8, help="of a model from hf:")
    parser.add_argument("--sequence", type=int, default=128, help="of a model from hf:, in tokens")
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--plan", default="data", help="a name, or the path of a plan file")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _demo(arguments: argparse.Namespace) -> int:
    from . import demo

    return demo.main(arguments.devices, arguments.plan, arguments.to)


def _emit(arguments: argparse.Namespace) -> None:
    from ._core import compile
    from .api import write_files
    from .compiling import make_plan
    from .progress import Progress, wanted
    from .summary import lines_of, seconds_of, summary_of

    progress = Progress(wanted(arguments.progress))
    with progress.phases(arguments.model) as phases:
        phases.begin("capture")
        graph = _graph(arguments.model, arguments.batch, arguments.sequence)
        phases.begin("plan")
        plan = make_plan(graph, arguments.plan, arguments.devices)
        compiled = compile(plan, arguments.outputs, phases.begin)
        phases.begin("keep")
        write_files({**compiled.files, "graph.txt": compiled.graph_text}, arguments.to)
    summary = summary_of(graph.model, plan, compiled)
    if arguments.json:
        print(json.dumps(_summary(compiled) | {"summary": summary}))
        return
    print(compiled.proof.rstrip())
    print(f"\nThe program is in {arguments.to}.")
    sys.stdout.flush()
    progress.say(*lines_of(summary, seconds_of(phases.seconds, phases.total), f"in {arguments.to}"))


def _summary(compiled: Any) -> dict[str, Any]:
    return {
        "digest": compiled.digest,
        "files": sorted(compiled.files),
        "communications": [dict(counts) for counts in compiled.counts],
        "bytes_held": list(compiled.held),
        "operators_without_rule": list(compiled.unknown),
        "seconds": dict(compiled.phases),
    }


def _plan(arguments: argparse.Namespace) -> None:
    from .compiling import make_plan

    print(
        make_plan(
            _graph(arguments.model, arguments.batch, arguments.sequence), arguments.plan, arguments.devices
        ).text,
        end="",
    )


def _check(arguments: argparse.Namespace) -> None:
    from ._core import verify

    folder = Path(arguments.program)
    files = {file.name: _read(file) for file in [*sorted(folder.glob("*.py")), folder / "program.json"]}
    print(verify(_read(folder / "graph.txt"), files).rstrip())


def _cache(arguments: argparse.Namespace) -> None:
    from .cache import cache_folder, open_cache
    from .summary import count_of, size_of

    cache, folder = open_cache(), cache_folder()
    if arguments.action == "clear":
        removed = 0 if cache is None else cache.clear()
        print(f"{count_of(removed, 'program')} removed from {folder}")
        return
    entries = [] if cache is None else cache.entries()
    if arguments.json:
        named = None if folder is None else str(folder)
        print(json.dumps({"folder": named, "entries": [vars(entry) for entry in entries]}))
        return
    print(f"{folder}: {size_of(sum(e.bytes for e in entries))}" if folder else "the cache is off")
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        what = f"{entry.model}, plan `{entry.plan}`, {count_of(entry.devices, 'device')}"
        print(f"{entry.key[:12]}  {used}  {size_of(entry.bytes):>10}  {what}")


def _doctor(arguments: argparse.Namespace) -> int:
    from . import doctor

    return doctor.main(arguments.json)


def _merge(arguments: argparse.Namespace) -> None:
    from .weights.merging import merge

    names = merge(arguments.checkpoint, arguments.to, arguments.max_shard_size)
    print(f"{len(names)} tensors are in {arguments.to}.")


def _ops(_: argparse.Namespace) -> None:
    from ._core import operators_table

    print(operators_table(), end="")


def _graph(model: str, batch: int = 8, sequence: int = 128) -> Any:
    from ._core import Graph
    from .capture import capture

    if model.startswith("hf:"):
        from .transformers_models import from_config

        module, kwargs = from_config(model, batch, sequence)
        return Graph(capture(module, (), kwargs).graph_text)
    path, _, name = model.partition(":")
    if not name:
        return Graph(_read(Path(path)))
    module, inputs = _call(_function(Path(path), name), f"{path}:{name}")
    return Graph(capture(module, inputs).graph_text)


def _function(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise _no_model(f"there is no Python file {path}")
    file = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = file
    sys.path.insert(0, str(path.parent))
    with _explained(f"{path} cannot be imported"):
        spec.loader.exec_module(file)
    function = getattr(file, name, None)
    if not callable(function):
        raise _no_model(f"{path} has no function {name}")
    return function


def _no_model(what: str) -> CaptureError:
    return CaptureError(
        "SW0116",
        what,
        why="a model is the function that returns it, in a Python file",
        fix="name it as FILE.py:FUNCTION",
    )


def _call(function: Any, name: str) -> tuple[Any, Any]:
    """The module and its example inputs."""
    with _explained(f"{name} failed"):
        found = function()
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], nn.Module):
        inputs = found[1]
        return found[0], inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    raise CaptureError(
        "SW0119",
        f"{name} returned no model",
        why=f"it returned a {type(found).__name__}",
        fix="return a module and a tuple of its example inputs",
    )


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """An exception of the user's own file, without our frames."""
    try:
        yield
    except ShardwrightError:
        raise
    except Exception as error:
        raise CaptureError(
            "SW0119",
            what,
            place=place_of_error(error),
            why="".join(traceback.format_exception_only(type(error), error)).strip(),
            fix="run the file with Python alone first",
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CaptureError(
            "SW0117",
            f"{path} cannot be read",
            why=getattr(error, "strerror", None) or "it is not text",
            fix="name a file that exists; a model is FILE.py:FUNCTION",
        ) from None
