"""Where a graph and its module part: the model's line, for an error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .. import lines
from ..dispatch import called
from .interpreter import Operator, Watch

_LOST = "torch.export lost something of the module, such as a change of a tensor that it did not see"
_OTHER_WAY = "this line runs only while the model is traced: the model takes another path then"

Sizes = tuple[tuple[int, ...], float]


def where_they_part(
    run_module: Callable[[], object], run_graph: Callable[[Watch], object]
) -> tuple[str | None, str]:
    """The first line of the graph that the module does not run, or that gives it something else; and why."""
    seen = _Seen()
    with seen:
        run_module()
    # Of the operators that one line runs in a row only the last: what is between has many forms.
    gave: list[tuple[str, list[Sizes]]] = []

    def note(op: Operator, result: Any) -> None:
        if gave and gave[-1][0] == op.place:
            gave.pop()
        gave.append((op.place, _sizes(result)))

    run_graph(note)
    for place, results in gave:
        if place and not all(seen.gave(sizes) for sizes in results):
            return place, _LOST if place in seen.places else _OTHER_WAY
    return None, _LOST


class _Seen(TorchDispatchMode):
    """The lines that a module runs, and what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[str] = set()
        self._norms: dict[tuple[int, ...], list[float]] = {}

    def gave(self, sizes: Sizes) -> bool:
        shape, norm = sizes
        near = 1e-3 * max(abs(norm), 1e-6)
        return any(abs(norm - other) <= near for other in self._norms.get(shape, ()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = called(func, args, kwargs)
        self.places.add(lines.short(lines.trace_of_caller(sys._getframe(1))))
        for shape, norm in _sizes(result):
            self._norms.setdefault(shape, []).append(norm)
        return result


def _sizes(result: Any) -> list[Sizes]:
    tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    return [(tuple(t.shape), _norm(t)) for t in tensors]


def _norm(tensor: Tensor) -> float:
    with torch.no_grad():
        wide = tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)
        return float(torch.linalg.vector_norm(wide))
