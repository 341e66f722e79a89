"""Parameters that ranks hold in parts, stepped whole: each by the one rank that the program names.

Between steps an optimizer has this rank's parts, as always: clipping, scaling and `zero_grad` see nothing
else. For a step it has in their place the whole parameters that this rank updates, with their gradients, and
none of the others. After it everybody gets the new values of the parts, and the state of a whole parameter
stays with the rank that has updated it, at its first part there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..communication.comm import Comm
from ..guards.part_gradients import plain
from ..shards.shards import Shards
from .carrying import Piece, carry, to_hand_out, to_make_whole

_of: weakref.WeakKeyDictionary[Optimizer, Wholes] = weakref.WeakKeyDictionary()


def wholes_of(optimizer: Optimizer) -> Wholes | None:
    return _of.get(optimizer)


class Wholes:
    """Those of one optimizer. All ranks know of all of them."""

    def __init__(self, shards: Shards, comm: Comm, tensors: Iterable[int] = ()):
        self._shards, self._comm = shards, comm
        self._gathered: list[Piece] = []
        self._handed_out: list[Piece] = []
        # Those that this rank updates: without memory between steps.
        self._own: dict[int, nn.Parameter] = {}
        self._parts: dict[int, int] = {}
        self._lent: list[list[Tensor]] | None = None
        self.add(tensors)

    def __bool__(self) -> bool:
        return bool(self._gathered)

    def add(self, tensors: Iterable[int]) -> None:
        program = self._shards.program
        for number in sorted(tensors):
            self._gathered += to_make_whole(program, number)
            self._handed_out += to_hand_out(program, number)
            self._parts.update((id(s.data), number) for s in self._shards.held if s.tensor.id == number)
            if program.updates[number] == self._comm.rank:
                part = self._place(number)
                self._own[number] = nn.Parameter(part.data.new_empty(0), part.requires_grad)

    def serve(self, optimizer: Optimizer) -> None:
        """From now on each of its steps has them whole."""
        if optimizer not in _of:
            _of[optimizer] = self
            optimizer.register_step_pre_hook(self._before)
            optimizer.register_step_post_hook(self._after)

    def has(self, part: Tensor) -> bool:
        """Whether it is stepped with the other parts as one."""
        return id(part) in self._parts

    def has_state_at(self, part: Tensor) -> bool:
        """Whether the state of all parts together is at this one."""
        return any(part is place for _, place in self._places())

    def fetch(self) -> None:
        """The values as they are now."""
        for number, there in self._own.items():
            there.data = there.data.new_empty(self._shards.program.tensors[number].shape)
        self._carry(self._gathered, {number: there.data for number, there in self._own.items()}, _value)

    def instead_of(self, params: Iterable[Tensor]) -> list[Tensor]:
        """What an optimizer is given for parts: each parameter once, where its update is computed."""
        placed = {id(place): there for there, place in self._places()}
        return [
            placed.get(id(param), param) for param in params if id(param) in placed or not self.has(param)
        ]

    def settle(self, optimizer: Optimizer, params: Sequence[list[Tensor]]) -> None:
        """The optimizer has groups of parts again, and the states of what was whole are at these."""
        for group, parts in zip(optimizer.param_groups, params, strict=True):
            group["params"] = parts
        for there, place in self._places():
            if there in optimizer.state:
                optimizer.state[place] = optimizer.state.pop(there)
            there.data, there.grad = there.data.new_empty(0), None

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if self._lent is not None:  # the last step failed
            self.settle(optimizer, self._lent)
        args, kwargs = _computed(args, kwargs)
        self.fetch()
        self._fetch_gradients()
        self._lent = [group["params"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["params"] = self.instead_of(group["params"])
        for there, place in self._places():
            if place in optimizer.state:
                optimizer.state[there] = optimizer.state.pop(place)
        return args, kwargs

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        lent, self._lent = self._lent, None
        assert lent is not None
        self._carry(self._handed_out, {number: there.data for number, there in self._own.items()}, _value)
        self.settle(optimizer, lent)

    def _fetch_gradients(self) -> None:
        """Of parameters of which some rank has any; else a step leaves them out, as on one device."""
        numbers = sorted({piece.tensor.id for piece in self._gathered})
        mine = {shard.tensor.id for shard in self._shards.held if shard.data.grad is not None}
        flags = [int(number in mine) for number in numbers]
        counts = flags if self._comm.world == 1 else self._comm.tally(flags, "the optimizer's step")
        arrived = {number for number, count in zip(numbers, counts, strict=True) if count}
        for number in arrived & self._own.keys():
            self._own[number].grad = torch.empty_like(self._own[number])
        pieces = [piece for piece in self._gathered if piece.tensor.id in arrived]
        self._carry(pieces, {number: there.grad for number, there in self._own.items()}, _gradient)

    def _carry(self, pieces: Sequence[Piece], wholes: Any, of_part: Any) -> None:
        parts = [of_part(s.data) if self.has(s.data) else s.data for s in self._shards.held]
        carry(self._comm, self._shards, pieces, parts, wholes)

    def _place(self, number: int) -> Tensor:
        return next(shard.data for shard in self._shards.held if shard.tensor.id == number)

    def _places(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """The whole parameters of this rank, and where their states are between steps."""
        for number, there in self._own.items():
            yield there, self._place(number)


def _value(part: Tensor) -> Tensor:
    return part.data


def _gradient(part: Tensor) -> Tensor:
    return torch.zeros_like(part.data) if part.grad is None else plain(part.grad)


def _computed(args: Any, kwargs: Any) -> Any:
    """A closure is called before the step, which gets its result: its gradients are yet to be gathered."""
    optimizer, *given = args  # as PyTorch gives them to hooks
    closure = given[0] if given else kwargs.get("closure")
    if closure is None:
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    others = {key: value for key, value in kwargs.items() if key != "closure"}
    return (optimizer, lambda: loss, *given[1:]), others
