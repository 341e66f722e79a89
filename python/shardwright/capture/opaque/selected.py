"""What `masked_select` gives while a model is traced: a list whose length only values tell.

It is put off until someone looks at it. A loss that takes the list and how many of it are of each row needs
no such list: it takes the rows, with what is selected of each in front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx

from ... import as_python
from ..fx_nodes import node_of
from ..static_inputs.static_evaluation import is_known

_ATEN = torch.ops.aten
_CASTS = (_ATEN.to.dtype, _ATEN._to_copy.default)
_COUNTS = (torch.int64, torch.int32)


class Selected:
    """To the model it is a tensor. Whatever asks for anything of it is what reads values."""

    def __init__(self, source: Tensor, mask: Tensor, look: Callable[..., Tensor]) -> None:
        self._source, self._mask, self._look = source, mask, look
        self._version = source._version

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(
            *(cls.looked_at(arg) for arg in args),
            **{name: cls.looked_at(arg) for name, arg in (kwargs or {}).items()},
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.looked_at(self), name)

    @staticmethod
    def looked_at(one: Any) -> Any:
        return one._look(one._source, one._mask) if type(one) is Selected else one

    def rows(self, lengths: Any) -> Tensor | None:
        """What is selected of each row, in front of it, if that is what `lengths` count."""
        # Of a mask that was never written, what counts it counts what is selected.
        written = self._mask._version or self._source._version != self._version
        if written or not _is_count(lengths, self._mask):
            return None
        order = self._mask.logical_not().to(torch.int64).sort(dim=-1, stable=True).indices
        return self._source.gather(-1, order)


def _looking(name: str) -> Callable[..., Any]:
    def look(one: Selected, *args: Any, **kwargs: Any) -> Any:
        return getattr(Selected.looked_at(one), name)(*args, **kwargs)

    return look


for _name in dir(Tensor):
    # Python finds these at the class alone.
    defined = hasattr(object, _name) or hasattr(Selected, _name)
    if _name.startswith("__") and not defined and callable(getattr(Tensor, _name)):
        setattr(Selected, _name, _looking(_name))


@contextmanager
def selecting_late() -> Iterator[None]:
    """While a model is traced."""
    with (
        mock.patch.object(Tensor, "masked_select", _late(Tensor.masked_select)),
        mock.patch.object(torch, "masked_select", _late(torch.masked_select)),
    ):
        yield


def _late(original: Callable[..., Tensor]) -> Callable[..., Any]:
    looking = False

    @wraps(original)  # others know a function by its name
    def masked_select(*args: Any, **kwargs: Any) -> Any:
        plain = len(args) == 2 and not kwargs and not as_python.is_inside()
        if plain and not looking and node_of(args[1]) is not None and _may_be_rows(*args):
            source, mask = args
            return Selected(source, mask, look)
        return original(*args, **kwargs)

    def look(*args: Any) -> Tensor:
        """PyTorch finds what it calls by name, which is the function above."""
        nonlocal looking
        looking = True
        try:
            return original(*args)
        finally:
            looking = False

    return masked_select


def _may_be_rows(source: Tensor, mask: Tensor) -> bool:
    knows = is_known(source) and is_known(mask)
    return source.dim() == 2 and source.shape == mask.shape and mask.dtype == torch.bool and not knows


def _is_count(lengths: Any, mask: Tensor) -> bool:
    """Whether these are how many of each row are selected."""
    node, masked = _without_casts(node_of(lengths)), node_of(mask)
    if node is None or masked is None or node.target is not _ATEN.sum.dim_IntList or len(node.args) != 2:
        return False
    summed: Any = node.args[0]
    return _without_casts(summed) is masked and node.args[1] in ([-1], [1])


def _without_casts(node: fx.Node | None) -> fx.Node | None:
    """Counts are the same in either of these."""
    while node is not None and node.target in _CASTS and node.meta["val"].dtype in _COUNTS:
        node = node.args[0]  # type: ignore[assignment]
    return node
