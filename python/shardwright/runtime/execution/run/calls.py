"""Calls of local code, what they keep, and their backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ...communication.local_work import BACKWARD, FORWARD
from ...programs.program import name_of_call
from ..calls import Saved, call_forgetting, call_giving, call_in_halves, call_saving, call_sending, match
from ..offload import KeptAway
from ..profiles import spanned
from ..split_backward import first_half
from .executing import Executing
from .gathered import Gathered


class Calls(Gathered):
    @spanned
    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        at: int | None = None,
        recompute: bool = False,
        forget: bool = False,
        offload: bool = False,
    ) -> Any:
        first, last = self._numbers(function, at)
        number = first if recompute else last
        read = self._await(args)
        if self.worker.local:
            function = self.worker.local.compiled(function)
        with Executing(self, FORWARD, number, function):
            if not self._saving:
                return self._own(function(*args), read)
            needs = self.worker.role.grads.get(number)
            if recompute:
                return self._own(call_forgetting(function, args, self.leaves.index, needs), read)
            given = (function, args, self.leaves.index, needs)
            halves = self._gathered(read) if self.worker.splits(number) else None
            if offload:
                results, saved = call_sending(*given, self._away(read), forget=forget, halves=halves)
            elif forget:
                results, saved = call_giving(*given, halves=halves)
            else:
                results, saved = call_saving(*given) if halves is None else call_in_halves(*given, halves)
            self._saved[number] = saved
            self._read[number] = read
            return self._own(results, read)

    def keep(self, number: int, *xs: Tensor, offload: bool = False) -> None:
        """For a later code, which takes them."""
        if self._saving or len(self.worker.code.blocks) > 1:
            on_host = offload and self._saving
            self._kept[number] = KeptAway(self._away(frozenset()), xs) if on_host else xs

    def take(self, number: int) -> Any:
        kept = self._kept.pop(number)
        values = kept.take() if isinstance(kept, KeptAway) else kept
        return values[0] if len(values) == 1 else values

    def fetch(
        self, *, call: Callable[..., Any] | None = None, at: int | None = None, keep: int | None = None
    ) -> None:
        """What is on the host of a call, or is kept there; it is here when that is read."""
        sent = self._saved[self._last(call, at)] if call else self._kept[keep]  # type: ignore[index]
        assert not isinstance(sent, tuple) and sent.away is not None
        sent.away.fetch()

    @spanned
    def grad(
        self,
        function: Callable[..., Any],
        *grads: Tensor | None,
        at: int | None = None,
        again: Sequence[Tensor] = (),
    ) -> Any:
        number = self._last(function, at)
        return self._whole(number, self._returned(number), grads, again)

    @spanned
    def grad_inputs(
        self,
        function: Callable[..., Any],
        *grads: Tensor | None,
        at: int | None = None,
        again: Sequence[Tensor] = (),
    ) -> Any:
        """The first half of a `grad`."""
        number = self._last(function, at)
        saved = self._returned(number)
        if saved.boxes is None:
            self._left[number] = None
            return self._whole(number, saved, grads, again)
        if saved.forgotten:
            saved.forgotten.give(again)
        local = self.worker.local
        edges, given = match(saved, grads)
        executing = Executing(self, BACKWARD, number, edges=edges)
        with executing, local.first_half() if local else nullcontext():
            gradients, left = first_half(saved.entries, edges, given, saved.boxes)
        for slot, grad in zip(saved.slots, gradients, strict=True):
            slot.grad = grad
        saved.edges, saved.entries = [], []
        self._left[number] = left
        return _taken(saved)

    @spanned
    def grad_weights(self, function: Callable[..., Any], at: int | None = None) -> None:
        """The second half of a `grad`, and the end of the message that runs meanwhile."""
        number = self._last(function, at)
        left = self._left.pop(number)
        if left is not None:
            with Executing(self, BACKWARD, number):
                left.backward()
        while self._in_flight:
            self._in_flight.pop()()

    # Inside.

    def _numbers(self, function: Callable[..., Any], at: int | None) -> tuple[int, int]:
        """Of a call, and of that which computes it again."""
        return self.worker.role.calls[name_of_call(function, at)]

    def _last(self, function: Callable[..., Any], at: int | None) -> int:
        return self._numbers(function, at)[1]

    def _returned(self, number: int) -> Saved:
        """What a call has kept, once it is here with all that the call reads."""
        saved = self._saved.pop(number)
        if saved.away:
            saved.away.wait()
        self._arrive(self._read.pop(number))
        return saved

    def _whole(
        self, number: int, saved: Saved, grads: Sequence[Tensor | None], again: Sequence[Tensor]
    ) -> Any:
        """Of a call all gradients."""
        edges, given = match(saved, grads)
        executing = Executing(self, BACKWARD, number, edges=edges)
        with executing, saved.forgotten.given(again) if saved.forgotten else nullcontext():
            if edges:
                torch.autograd.backward(edges, given)
        return _taken(saved)


def _taken(saved: Saved) -> Any:
    values = tuple(slot.take() for slot in saved.slots)
    return values[0] if len(values) == 1 else values
