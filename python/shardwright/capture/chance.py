"""Random numbers of a model: those that all ranks draw alike, and others, which are refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from ..errors import CaptureError
from . import lines

# Drawn by keys, so that copies agree and parts differ.
_KEYED = {
    "aten.bernoulli.p",
    "aten.dropout.default",
    "aten.native_dropout.default",
    "aten.rand.default",
    "aten.rand_like.default",
    "aten.randn.default",
    "aten.randn_like.default",
    "aten.scaled_dot_product_attention.default",
}


def refuse_chance(program: ExportedProgram) -> None:
    """Each rank would draw other numbers, and copies of one tensor would differ."""
    for node in program.graph.nodes:
        if _draws(node) and str(node.target) not in _KEYED:
            raise CaptureError(
                "SW0132",
                f"the model draws random numbers with `{node.target}`",
                place=lines.with_source(node.stack_trace),
                why="ranks would draw different ones for copies of one tensor",
                fix="use `torch.rand`, `torch.randn` or dropout, or give the numbers as an input",
            )


def _draws(node: fx.Node) -> bool:
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    named = _arguments(node)
    # Recurrent layers draw only for their dropout, and in training.
    return "dropout" not in named or bool(named["dropout"] and named.get("train", True))


def _arguments(node: fx.Node) -> dict[str, Any]:
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return dict(zip(names, node.args, strict=False)) | node.kwargs
