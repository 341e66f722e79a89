"""The operators that a command names, and the model in which it looks for examples of them."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from ..errors import CaptureError
from ..support.suggestions import did_you_mean

if TYPE_CHECKING:
    from .._core import Graph


def targets_of(name: str) -> dict[str, tuple[str, bool]]:
    """The operators of this name, with or without what surrounds it: family, and whether rewritten."""
    from .._core import operators_table

    known = {
        target: (row[1], row[2] == "yes")
        for row in re.finditer(r"^\| (\w+) \| (\w*) \| [^|]+ \| (.*) \|$", operators_table(), re.MULTILINE)
        for target in re.findall(r"`([^`]+)`", row[3])
    }
    matching = {target: known[target] for target in known if name in (target, *_short(target))}
    if not matching:
        short = {word for target in known for word in (target, *_short(target))}
        raise CaptureError(
            "SW0158",
            f"no operator {name} has a rule",
            why="every device computes an operator without a rule whole",
            fix=did_you_mean(name, short) or "`shardwright ops` lists those that have one",
        )
    return matching


def _short(target: str) -> tuple[str, str]:
    """`aten.add.Tensor` is also `add.Tensor` and `add`."""
    _, _, name = target.partition(".")
    return name, name.rpartition(".")[0] or name


def graph_of_examples(arguments: argparse.Namespace) -> Graph:
    if arguments.model is not None:
        from .source import graph_of

        return graph_of(arguments)
    from .. import demo
    from .._core import Graph
    from ..capture import capture

    return Graph(capture(demo.build(), demo.batches()[0]).graph_text)
