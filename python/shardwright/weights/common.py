"""Ranks that build one model each must start from one: that of rank 0.

Nobody who seeds nothing gets the same numbers in two processes, and a file may be another one on another
machine. All ranks compare marks of all values, of whole tensors and not of the parts that they hold: parts
of different models are no model. Normally that is one small message. Where marks differ, rank 0's values go
to all, tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..runtime import Comm
from ..runtime.agreement.alike import same_everywhere
from ..runtime.agreement.together import each, from_rank_0
from ..runtime.communication.verdicts import listed
from ..runtime.programs.program import Program, TensorInfo
from ..runtime.programs.regions import whole
from ..runtime.shards.shards import Parts, own_copy
from .values import Values, Wanted


def of_one_model(
    make: Callable[[], Values], program: Program, comm: Comm, say: Callable[[str], None]
) -> Parts:
    """The values of this rank's model, or rank 0's where they are others. All ranks call this."""
    tensors = [tensor for tensor in program.tensors.values() if tensor.held]

    def marked() -> tuple[Values, list[int]]:
        values = make()
        return values, values.marks(tensors) if comm.world > 1 else []

    values, marks = each(comm, marked)
    if same_everywhere(comm, marks):
        return values
    of_ranks = comm.all_gather_objects(marks)
    differing = [
        tensor
        for at, tensor in enumerate(tensors)
        if any(others[at] != of_ranks[0][at] for others in of_ranks)
    ]
    if comm.rank == 0:
        ranks = [rank for rank, others in enumerate(of_ranks) if others != of_ranks[0]]
        say(_said(ranks, differing, len(tensors)))
    return _FromRank0(values, differing, comm)


def one_generator(comm: Comm, generator: torch.Generator) -> None:
    """Masks that are those of the single device are drawn alike on all ranks. All ranks call this."""
    state = generator.get_state()
    if not same_everywhere(comm, state.tolist()):
        generator.set_state(from_rank_0(comm, lambda: state))


def _said(ranks: Sequence[int], differing: Sequence[TensorInfo], count: int) -> str:
    names = ", ".join(tensor.names[0] for tensor in differing[:3])
    more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
    return (
        f"shardwright: {listed(ranks)} started with other values than rank 0 in {len(differing)} of {count}"
        f" tensors ({names}{more}); all ranks have those of rank 0 now."
        " `torch.manual_seed` before the model is built makes it the same one in every run"
    )


@dataclass(frozen=True)
class _FromRank0:
    """`differing` are the tensors whose values only rank 0 gives; all ranks ask for parts together."""

    values: Values
    differing: Sequence[TensorInfo]
    comm: Comm

    def parts(self, wanted: Wanted, device: torch.device) -> list[Tensor]:
        handed = {tensor.id for tensor in self.differing}
        unhanded = [at for at, (tensor, _) in enumerate(wanted) if tensor.id not in handed]
        parts = dict(zip(unhanded, self.values.parts([wanted[at] for at in unhanded], device), strict=True))
        for tensor, full in self._handed(device):
            for at, (other, region) in enumerate(wanted):
                if other.id == tensor.id:
                    parts[at] = own_copy(full, tensor, region, device)
        return [parts[at] for at in range(len(wanted))]

    def _handed(self, device: torch.device) -> Iterator[tuple[TensorInfo, Tensor]]:
        """The whole tensors, one at a time, in the order in which rank 0 has them."""
        source = self._of_rank_0(device) if self.comm.leads else iter(())
        for _ in self.differing:
            full: Tensor | None = None

            def next_one() -> int:
                nonlocal full
                at, value = next(source)
                full = value.to(device)
                return at

            # An error of rank 0's own reaches the others, who wait for a tensor.
            tensor = self.differing[from_rank_0(self.comm, next_one)]
            if full is None:
                full = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
            if full.numel():
                self.comm.broadcast(full.view(-1).view(torch.uint8), 0)
            yield tensor, full

    def _of_rank_0(self, device: torch.device) -> Iterator[tuple[int, Tensor]]:
        return self.values.one_by_one([(tensor, whole(tensor.factors)) for tensor in self.differing], device)
