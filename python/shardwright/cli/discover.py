"""`shardwright ops discover`: the rule of a function, or of each operator of a model that has none."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CaptureError
from ..schemas import answer
from ..shipped.table import SHIPPED
from ..support.suggestions import did_you_mean
from .source import called, explained, function_of, graph_of, graph_of_returned
from .style import paint
from .working import working

if TYPE_CHECKING:
    from .._core import Graph
    from ..discovering import Discovered, FoundDim

_MODULE = "shardwright.module.default"


def run(arguments: argparse.Namespace) -> None:
    named = arguments.model
    function = _function_of(named)
    if function is None:
        with working(named, "capture"):
            graph = graph_of(arguments)
        _of_model(graph, arguments.json)
        return
    if _takes_arguments(function):
        raise _no_example(f"{named} is a function that takes arguments, and not yet an example", _name(named))
    returned = called(function, named)
    if _is_model(returned):
        _of_model(graph_of_returned(returned, named), arguments.json)
        return
    from ..discovering import discover

    with working(named, "run on parts"):
        one = discover(*_example_of(returned, named))
    if arguments.json:
        print(answer("ops-discover", {"functions": [_plain(one)]}))
    else:
        print("\n".join(_lines(one)))


def _function_of(named: str) -> Callable[..., Any] | None:
    """None of a model that is named in another way."""
    home, _, name = named.rpartition(":")
    if named in SHIPPED or named.startswith("hf:") or not home or not name.isidentifier():
        return None
    if home.endswith(".py") or not all(part.isidentifier() for part in home.split(".")):
        return function_of(Path(home), name)
    return _imported(home, name)


def _imported(home: str, name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.invalidate_caches()
        with explained(f"{home} cannot be imported"):
            module = importlib.import_module(home)
    finally:
        sys.path.pop(0)
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise CaptureError(
            "SW0116",
            f"{home} has no function {name}",
            why="an example is the function that returns it",
            fix=did_you_mean(name, known) or f"name one of its functions: {', '.join(known[:8])}",
        )
    return function


def _is_model(returned: Any) -> bool:
    from torch import nn

    return isinstance(returned, nn.Module) or (
        isinstance(returned, tuple) and isinstance(returned[0], nn.Module)
    )


def _example_of(returned: Any, named: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A function, and what it is called with."""
    if isinstance(returned, tuple) and len(returned) in (2, 3) and callable(returned[0]):
        function, args, kwargs = (*returned, {})[:3]
        args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
        if isinstance(kwargs, dict):
            return function, args, kwargs
    raise _no_example(f"{named} returned no function with its example arguments", "function")


def _no_example(what: str, function: str) -> CaptureError:
    return CaptureError(
        "SW0141",
        what,
        why="a rule is found by calling the function with parts of its tensors",
        fix="name a function without arguments that returns both:"
        f" `def example(): return {function}, (torch.rand(4, 6), 2)`; or one that returns a model",
    )


def _takes_arguments(function: Callable[..., Any]) -> bool:
    try:
        known = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of builtins nothing is known
        return True
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(one.default is one.empty and one.kind not in several for one in known)


def _name(named: str) -> str:
    return named.rpartition(":")[2]


def _of_model(graph: Graph, as_json: bool) -> None:
    from ..discovering import discover_or_why, examples, has_no_rule

    discovered: list[Discovered | None] = []
    rows = []
    for example in examples(graph, has_no_rule):
        operator = example.operator
        one: Discovered | None = None
        why: str | None = "it is a module that runs as it is, not a function"
        if operator.target != _MODULE:
            one, why = discover_or_why(example.function, example.args, example.kwargs)
        discovered.append(one)
        place = f"{operator.path or graph.model} at {operator.line}"
        if as_json:
            where = {"target": operator.target, "path": operator.path, "line": operator.line}
            rows.append({**where, "skipped": why, **(_plain(one) if one is not None else {})})
        elif one is None:
            print(f"{paint(operator.target, 'bold', sys.stdout)}  {place}\n  not tried: {why}\n")
        else:
            print("\n".join([*_lines(one), f"  in       {place}", ""]))
    if as_json:
        print(answer("ops-discover", {"functions": rows}))
    elif not discovered:
        print(f"all operators of {graph.model} have a rule")
    else:
        good = sum(one is not None and bool(one.dims) for one in discovered)
        print(f"{len(discovered)} calls of {graph.model} have no rule: one was found for {good} of them")


def _lines(one: Discovered) -> Iterator[str]:
    inputs, outputs = one.example
    yield paint(one.name, "bold", sys.stdout) + f"  {_listed(inputs)} -> {_listed(outputs)}"
    if not one.dims:
        yield "  no way to split it was found: it stays whole"
    else:
        yield f"  {paint(one.text, 'green', sys.stdout)}"
        rows = [("dim", "size", "divides", "and the results"), *map(_row, one.dims)]
        widths = [max(len(row[at]) for row in rows) for at in range(3)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            yield f"  {'  '.join([*cells, row[3]])}".rstrip()
    for operands in one.linear:
        yield f"  linear in {_tensors(operands)}"
    yield from (f"  {line}" for line in _how_sure(one))


def _row(dim: FoundDim) -> tuple[str, str, str, str]:
    divides = [f"{_place(place)} of tensor {place[0]}" for place in dim.inputs]
    if dim.argument is not None:
        divides.append(f"`{dim.argument}`")
    results = ", ".join(f"{_place(place)} of result {place[0]}" for place in dim.outputs)
    words = {
        "+": "are summed",
        ">": "are the maximum",
        "<": "are the minimum",
        "|": "are any",
        "&": "are all",
    }
    said = words[dim.mark] if dim.mark else f"have it: {results}"
    if dim.once:
        said += f"; only one part is given {_tensors(dim.once)}"
    return dim.name, str(dim.size), ", ".join(divides), said


def _place(place: tuple[int, int, int]) -> str:
    _, dim, outer = place
    return f"dim {dim}" if outer == 1 else f"dim {dim} inside of {outer}"


def _tensors(operands: list[int]) -> str:
    return (
        f"tensor {operands[0]}" if len(operands) == 1 else f"tensors {', '.join(map(str, operands))} jointly"
    )


def _how_sure(one: Discovered) -> Iterator[str]:
    yield (
        f"tried    {one.splits} splits with up to {one.trials} sets of random numbers and three cuts each,"
        f" {one.calls:,} calls"
    )
    if one.verified:
        sets = "; ".join(_listed(shapes) for shapes in one.shapes)
        yield (
            f"compared {one.verified} ways to split it so, values and gradients in double precision:"
            f" at most {one.difference:.0e} apart"
        )
        yield f"         on tensors of {sets}"
    for what in one.untried:
        yield f"not tried: {what}"
    for what in one.refuted:
        yield f"refuted: {what}"


def _listed(shapes: list[list[int]]) -> str:
    return ", ".join(map(str, shapes))


def _plain(one: Discovered) -> dict[str, Any]:
    return {**asdict(one), "text": one.text}
