"""What is asked for of a model's results: names of outputs to what leaves the program of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from .._core import Graph
from ..capture import Captured
from ..errors import RuntimeFault

# "loss", "all", a name or pattern, several of them, or for each what leaves: "whole" or "local".
Asked = str | Sequence[str] | Mapping[str, str]
WORDS = ("loss", "all")
WAYS = ("whole", "local")


def require_outputs(asked: Asked) -> Mapping[str, str]:
    """By pattern what leaves; nothing for the two words that stand for themselves."""
    if isinstance(asked, str):
        return {} if asked in WORDS else {asked: "whole"}
    given: list[tuple[object, object]] = []
    if isinstance(asked, Mapping):
        given = list(asked.items())
    elif isinstance(asked, Sequence):
        given = [(name, "whole") for name in asked]
    named = {name: way for name, way in given if isinstance(name, str) and isinstance(way, str)}
    if len(named) != len(given) or not named or not set(named.values()) <= set(WAYS):
        raise RuntimeFault(
            "SW0732",
            f"outputs={asked!r} is unknown",
            why="it has neither names of outputs, nor says which leave whole or in part",
            fix='give "loss", "all", names, or a dict such as {"logits": "whole", "states.*": "local"}',
        )
    return named


def resolve(asked: Asked, captured: Captured, graph: Graph, *, lenient: bool = False) -> str | list[str]:
    """For each output of the graph "none", "whole" or "local".

    The loss always leaves, whole. `lenient` lets patterns be that no output has.
    """
    patterns = require_outputs(asked)
    if isinstance(asked, str) and asked in WORDS:
        return asked
    names, outputs = captured.output_names(), graph.outputs
    present = [name for name, output in zip(names, outputs, strict=True) if output is not None]
    for pattern in patterns if not lenient else ():
        if not any(_matches(name, pattern) for name in present):
            raise RuntimeFault(
                "SW0730",
                f"the model has no output `{pattern}`",
                why=f"its outputs are {', '.join(present) or 'none'}",
                fix="name one of them, or a pattern such as `hidden_states.*`",
            )
    return [
        _way(name, patterns, scalar=output[1] == []) if output is not None else "none"
        for name, output in zip(names, outputs, strict=True)
    ]


def _way(name: str, patterns: Mapping[str, str], *, scalar: bool) -> str:
    """The last pattern that matches decides; a scalar has no parts."""
    if scalar:
        return "whole"
    return next((patterns[p] for p in reversed(list(patterns)) if _matches(name, p)), "none")


def _matches(name: str, pattern: str) -> bool:
    """A name stands also for everything below it."""
    return fnmatchcase(name, pattern) or name.startswith(pattern + ".")
