"""What ranks say to each other in the middle of a code: collectives, exchanges, sends and receives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import collectives
from ..exchange import Part, exchange
from ..kinds import require_kind
from ..profiles import spanned
from ..rows import bytes_of
from .state import Ends, State

Sizes = Sequence[int] | None
Factors = Sequence[Sequence[int]] | None


class Messages(State):
    @spanned
    def all_reduce(
        self, x: Tensor | Sequence[Tensor], group: int, op: str = "sum", async_op: bool = False
    ) -> Any:
        """A tuple for a list of tensors."""
        if isinstance(x, Tensor):
            return self._all_reduce([x], group, op, async_op)[0]
        return tuple(self._all_reduce(x, group, op, async_op))

    @spanned
    def all_gather(
        self,
        x: Tensor,
        group: int,
        dim: int,
        sizes: Sizes = None,
        factors: Factors = None,
    ) -> Tensor:
        return self._along(collectives.all_gather, x, group, dim, sizes, factors)

    @spanned
    def reduce_scatter(
        self,
        x: Tensor,
        group: int,
        dim: int,
        sizes: Sizes = None,
        factors: Factors = None,
        async_op: bool = False,
    ) -> Tensor:
        later = self._later(async_op)
        return self._along(collectives.reduce_scatter, x, group, dim, sizes, factors, later=later)

    @spanned
    def all_to_all(
        self,
        x: Tensor,
        group: int,
        send: int,
        receive: int,
        send_sizes: Sizes = None,
        receive_sizes: Sizes = None,
        send_factors: Factors = None,
        receive_factors: Factors = None,
    ) -> Tensor:
        ranks = self._in_group("all_to_all", group, bytes_of(x))
        with torch.no_grad():
            y = collectives.all_to_all(
                self.comm,
                x,
                ranks,
                (send, send_sizes, send_factors),
                (receive, receive_sizes, receive_factors),
            )
        return self._marked(y, x.requires_grad)

    @spanned
    def exchange(self, number: int, *xs: Tensor) -> Any:
        table = self.worker.program.exchanges[number]
        targets = self._exchange("exchange", number, xs)
        needed = any(x.requires_grad for x in xs) if xs else table.grad
        marked = tuple(self._marked(target, needed) for target in targets)
        return marked[0] if len(marked) == 1 else marked

    @spanned
    def send(self, number: int, *xs: Tensor) -> None:
        """For a block that runs later, here or elsewhere; nobody waits."""
        part = self.worker.part(number)
        self._compare(number, part, xs, None)
        dtype = self.worker.exchange_dtype(number)
        self.issued.append(("send", number, part.bytes_sent(self.comm.rank, dtype.itemsize)))
        with torch.no_grad():
            self.worker.mail.send(part, number, self.batch, xs)

    @spanned
    def receive(self, number: int) -> Any:
        worker = self.worker
        self._received.append(number)
        dtype = worker.exchange_dtype(number)
        with torch.no_grad():
            targets = worker.mail.receive(worker.part(number), number, self.batch, dtype)
        needed = worker.program.exchanges[number].grad and torch.is_grad_enabled()
        marked = tuple(self._marked(target, needed) for target in targets)
        return marked[0] if len(marked) == 1 else marked

    # Inside.

    def _exchange(
        self, kind: str, number: int, xs: Sequence[Tensor], dtype: torch.dtype | None = None
    ) -> list[Tensor]:
        part = self.worker.part(number)
        self._compare(number, part, xs, dtype)
        dtype = dtype or self.worker.exchange_dtype(number)
        self.issued.append((kind, number, part.bytes_sent(self.comm.rank, dtype.itemsize)))
        with torch.no_grad():
            return exchange(self.comm, part, xs, dtype)

    def _compare(self, number: int, part: Part, xs: Sequence[Tensor], dtype: torch.dtype | None) -> None:
        """Before the first message of an exchange: all ranks must give what the others expect."""
        worker = self.worker
        if ("exchange", number) in worker.compared:
            return
        tensor = worker.program.tensors[worker.program.exchanges[number].tensor]
        for x, region in zip(xs, part.sources, strict=True):
            require_kind(x, tensor, region, dtype or worker.exchange_dtype(number), worker.role.file)
        worker.compared.add(("exchange", number))

    def _along(
        self,
        how: Callable[..., Tensor],
        x: Tensor,
        group: int,
        dim: int,
        sizes: Sizes,
        factors: Factors,
        **more: Any,
    ) -> Tensor:
        """A collective that cuts or joins along one factor."""
        ranks = self._in_group(how.__name__, group, x.nbytes)
        with torch.no_grad():
            y = how(self.comm, x, ranks, dim, sizes, factors, **more)
        return self._marked(y, x.requires_grad)

    def _all_reduce(self, xs: Sequence[Tensor], group: int, op: str, async_op: bool) -> list[Tensor]:
        ranks = self._in_group("all_reduce", group, sum([x.nbytes for x in xs]))
        with torch.no_grad():
            ys = collectives.all_reduce_together(self.comm, xs, ranks, op, self._later(async_op))
        return [self._marked(y, x.requires_grad) for x, y in zip(xs, ys, strict=True)]

    def _later(self, async_op: bool) -> Ends | None:
        return self._in_flight if async_op else None

    def _in_group_of_several(self, kind: str, group: int, size: int) -> tuple[int, ...]:
        """What a rank does with its own host is no communication."""
        ranks = self.worker.program.group_of(group, self.comm.rank)
        return self._in_group(kind, group, size) if len(ranks) > 1 else ranks

    def _in_group(self, kind: str, group: int, size: int) -> tuple[int, ...]:
        self.issued.append((kind, group, size))
        return self.worker.program.group_of(group, self.comm.rank)

    def _marked(self, y: Tensor, needs_grad: bool) -> Tensor:
        differentiable = y.is_floating_point() or y.is_complex()
        return y.detach().requires_grad_(needs_grad and differentiable and self._saving)
