"""Random numbers of other distributions, written as PyTorch computes them from those that are drawn by keys.

A normal distribution of any mean is the standard one, scaled and moved; a coin with a probability of its own
for each element is a number between 0 and 1 that is below it. Numbers drawn for a comparison are the same on
both sides: PyTorch takes as many, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from ..fx_nodes import insert, is_no_grad, replace

_ATEN = torch.ops.aten


def in_known_distributions(program: ExportedProgram) -> None:
    for node in list(program.graph.nodes):
        _by_the_default(node)
        write = _WRITTEN.get(node.target)
        written = write(node) if write is not None else None
        if written is not None:
            replace(program, node, written)
            program.graph.erase_node(node)


def _by_the_default(node: fx.Node) -> None:
    """`generator=None` is as if nothing were said."""
    plain = _OF_GENERATORS.get(node.target)
    if plain is not None and node.kwargs.get("generator") is None:
        node.target = plain
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "generator"}


def _normal_in_place(node: fx.Node) -> fx.Node:
    fresh: Any = node.args[0]
    drawn = _like(node, _ATEN.randn_like.default, fresh)
    return _moved(node, drawn, _given(node, 1, "mean", 0.0), _given(node, 2, "std", 1.0))


def _normal(node: fx.Node) -> fx.Node:
    value = node.meta["val"]
    drawn = insert(node, _ATEN.randn.default, (list(value.shape),), {"dtype": value.dtype}, _fresh(value))
    return _moved(node, drawn, node.args[0], node.args[1])


def _normal_of_tensors(node: fx.Node) -> fx.Node | None:
    # Elsewhere mean and deviation have a gradient, of zeros.
    return _normal(node) if is_no_grad(node) else None


def _uniform(node: fx.Node) -> fx.Node:
    fresh: Any = node.args[0]
    low, high = _given(node, 1, "from", 0.0), _given(node, 2, "to", 1.0)
    return _moved(node, _like(node, _ATEN.rand_like.default, fresh), low, high - low)


def _coins(node: fx.Node) -> fx.Node:
    probability: Any = node.args[0]
    value = node.meta["val"]
    drawn = _like(node, _ATEN.rand_like.default, probability)
    below = insert(node, _ATEN.lt.Tensor, (drawn, probability), {}, _fresh(value, torch.bool))
    coins = insert(node, _ATEN._to_copy.default, (below,), {"dtype": value.dtype}, _fresh(value))
    if is_no_grad(node) or probability.target is _ATEN.detach.default:
        return coins
    # The gradient of the probabilities is not absent, but zero.
    nothing = insert(node, _ATEN.mul.Tensor, (probability, 0.0), {}, _fresh(value))
    return insert(node, _ATEN.add.Tensor, (coins, nothing), {}, _fresh(value))


def _integers(node: fx.Node) -> fx.Node:
    low, high, size = node.args
    value = node.meta["val"]
    below: Any = high - low  # type: ignore[operator]
    keywords = {"dtype": value.dtype}
    drawn = insert(node, _ATEN.randint.default, (below, size), keywords, _fresh(value))
    return drawn if low == 0 else insert(node, _ATEN.add.Tensor, (drawn, low), {}, _fresh(value))


_OF_GENERATORS: dict[Any, Any] = {
    _ATEN.rand.generator: _ATEN.rand.default,
    _ATEN.randn.generator: _ATEN.randn.default,
    _ATEN.randint.generator: _ATEN.randint.default,
    _ATEN.randint.low_generator: _ATEN.randint.low,
}

_WRITTEN: dict[Any, Callable[[fx.Node], fx.Node | None]] = {
    _ATEN.normal_functional.default: _normal_in_place,
    _ATEN.normal.float_float: _normal,
    _ATEN.normal.Tensor_float: _normal_of_tensors,
    _ATEN.normal.float_Tensor: _normal_of_tensors,
    _ATEN.normal.Tensor_Tensor: _normal_of_tensors,
    _ATEN.uniform.default: _uniform,
    _ATEN.bernoulli.default: _coins,
    _ATEN.randint.low: _integers,
}


def _given(node: fx.Node, position: int, name: str, default: float) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _like(node: fx.Node, target: Any, like: fx.Node) -> fx.Node:
    value = like.meta["val"]
    with value.fake_mode, torch.no_grad():
        return insert(node, target, (like,), {}, torch.empty_like(value))


def _fresh(value: Any, dtype: torch.dtype | None = None) -> Any:
    with value.fake_mode, torch.no_grad():
        return torch.empty_like(value, dtype=dtype)


def _moved(node: fx.Node, drawn: fx.Node, start: Any, scale: Any) -> fx.Node:
    value = node.meta["val"]
    if isinstance(scale, fx.Node) or scale != 1:
        drawn = insert(node, _ATEN.mul.Tensor, (drawn, scale), {}, _fresh(value))
    if isinstance(start, fx.Node) or start != 0:
        drawn = insert(node, _ATEN.add.Tensor, (drawn, start), {}, _fresh(value))
    return drawn
