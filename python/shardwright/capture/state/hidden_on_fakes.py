"""What a model without values would keep from one forward to the next: two forwards without data.

Values cannot be compared there. A plain attribute that goes on changing is seen, and so is a tensor that one
forward makes of its inputs or weights and the next one reads; a table made of nothing but constants is the
same in each.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .. import lines
from ..casts import Casting
from ..checkpointed_regions import plain_checkpoint
from ..dispatch import called
from ..settings import capturable_experts
from ..torch_errors import quiet
from .hidden import Place, changes, changing_line, kept_by, kept_error, tensors_in
from .swap import Fake, borrowed


def refuse_what_is_kept(module: nn.Module, args: Any, kwargs: Any, casting: Casting) -> None:
    fake = Fake(casting.computed)

    def run() -> None:
        given = pytree.tree_map_only(Tensor, fake.fresh, (tuple(args), dict(kwargs)))
        following.add([*_tensors(given), *module.parameters(), *module.buffers()])
        with fake.mode, following:
            module(*given[0], **given[1])

    following = _Following()
    with borrowed(module, fake.once), plain_checkpoint(), capturable_experts(module), torch.enable_grad():
        run()
        first = kept_by(module)
        following.kept = {id(t): place for place in first for t in _kept(place) if following.knows(t)}
        run()
        changing = changes(first, kept_by(module))
        if changing:
            place, where = changing[0]
            raise kept_error(place.path + where, changing_line(place, run))
    if following.read is not None:
        place, line = following.read
        raise kept_error(place.path, line)


def run_without_values(module: nn.Module, args: Any, kwargs: Any, casting: Casting) -> None:
    """One forward, not traced. What only tensors without data cannot do is no failure of the model."""
    fake = Fake(casting.computed)
    given = pytree.tree_map_only(Tensor, fake.fresh, (tuple(args), dict(kwargs)))
    with quiet(), borrowed(module, fake.once), plain_checkpoint(), capturable_experts(module), fake.mode:
        try:
            module(*given[0], **given[1])
        except Exception as error:
            if not _WITHOUT_DATA.search(f"{type(error).__name__} {error}"):
                raise


_WITHOUT_DATA = re.compile("data.?dependent|dynamic.?output|subclass|fake|meta tensor", re.IGNORECASE)


class _Following(TorchDispatchMode):
    """Knows the tensors that depend on inputs, parameters or buffers."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, Tensor] = {}
        self.kept: dict[int, Place] = {}
        """What a forward left in attributes."""
        self.read: tuple[Place, str | None] | None = None

    def add(self, tensors: Iterable[Tensor]) -> None:
        self._known.update({id(tensor): tensor for tensor in tensors})

    def knows(self, tensor: Tensor) -> bool:
        return id(tensor) in self._known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _tensors((args, kwargs or {}))
        place = next((self.kept[id(tensor)] for tensor in given if id(tensor) in self.kept), None)
        if place is not None and self.read is None:
            self.read = place, lines.with_source(lines.trace_of_caller(sys._getframe(1)))
        result = called(func, args, kwargs)
        if any(map(self.knows, given)):
            self.add(_tensors(result))
        return result


def _kept(place: Place) -> list[Tensor]:
    return tensors_in(vars(place.owner).get(place.name))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
