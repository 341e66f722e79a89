"""Clipping by the norm of the model's gradients, over all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad

from ...errors import RuntimeFault
from ..agreement.alike import require_alike, same_everywhere
from ..communication.comm import Comm
from ..guards.part_gradients import plain
from ..module import ParallelModule
from ..programs.regions import extents, narrow, within
from ..shards.shards import Shards

EVERYTHING = float("inf")


@torch.no_grad()
def clip_grad_norm_(
    model: nn.Module,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """As `torch.nn.utils.clip_grad_norm_` on the single-device model; all ranks must call this.

    `model` is a parallelized one, or an ordinary one that holds some, whose other gradients are the
    same on every rank.
    """
    parallel, ordinary = _parts(model)
    if not parallel:
        parameters = model.parameters()
        return clip_grad.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    _refuse_other_norms(parallel[0].comm, float(max_norm), float(norm_type), bool(error_if_nonfinite))
    total = _Total(float(norm_type), parallel)
    for number, part in enumerate(parallel):
        for at, shard in enumerate(part.shards.held):
            if shard.data.grad is not None:
                total.add((number, shard.tensor.id), _counted(part.shards, at, plain(shard.data.grad)))
    norm = total.over_ranks([p.grad for p in ordinary if p.grad is not None])
    if error_if_nonfinite and not bool(norm.isfinite()):
        raise RuntimeFault(
            "SW0763",
            f"the norm of the gradients is {float(norm)}",
            why="a gradient has an element that is not finite; all ranks get the same norm",
            fix="look for what made it; without `error_if_nonfinite` all gradients become NaN or zero",
        )
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    held = [shard.data for part in parallel for shard in part.shards.held]
    _scale([plain(p.grad) for p in (*held, *ordinary) if p.grad is not None], factor, foreach)
    return norm


def _refuse_other_norms(comm: Comm, *given: float) -> None:
    """On all ranks alike, before they sum up anything."""
    if not same_everywhere(comm, given):
        names = ("max_norm", "norm_type", "error_if_nonfinite")
        require_alike(comm, "sw.clip_grad_norm_", lambda: dict(zip(names, given, strict=True)))


class _Total:
    """A norm over all ranks' gradients in the making."""

    def __init__(self, norm_type: float, models: Sequence[ParallelModule]):
        self.norm_type, self.comm = norm_type, models[0].comm
        self.dtype = _dtype(models)
        numbers = [(at, t.id) for at, model in enumerate(models) for t in model.program.parameters()]
        # The norm of order 0 counts tensors that are not zero; all others are sums over elements.
        self.places = {key: at for at, key in enumerate(numbers)} if norm_type == 0 else {}
        size = len(numbers) if norm_type == 0 else 1
        start = EVERYTHING if norm_type == -EVERYTHING else 0.0
        self.sum = torch.full((size,), start, dtype=torch.float64, device=self.comm.device)
        # Backends may lose it in a maximum.
        self.has_nan = torch.zeros((), dtype=torch.float64, device=self.comm.device)
        self._grads: list[tuple[int, Tensor]] = []

    def add(self, key: tuple[int, int], grad: Tensor) -> None:
        if grad.numel():
            self._grads.append((self.places.get(key, 0), grad))

    def over_ranks(self, everywhere: Sequence[Tensor]) -> Tensor:
        """`everywhere` are gradients that every rank has: they count once."""
        self._add_up()
        if self.comm.world > 1:
            ranks = tuple(range(self.comm.world))
            op = "sum"
            if abs(self.norm_type) == EVERYTHING:
                op = "max" if self.norm_type > 0 else "min"
                self.comm.all_reduce(self.has_nan, ranks, "sum").wait()
            self.comm.all_reduce(self.sum, ranks, op).wait()
        extra = 0
        for grad in everywhere:
            if self.norm_type == 0:
                extra += int(bool(grad.count_nonzero()))
            else:
                self.add((0, 0), grad)
        self._add_up()
        return self._norm(extra).to(self.dtype)

    def _add_up(self) -> None:
        """All gradients of a kind in a few kernels, not some for each of them."""
        kinds: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
        for place, grad in self._grads:
            kinds.setdefault((grad.device, grad.dtype), []).append((place, grad))
        self._grads = []
        for (_, dtype), alike in kinds.items():
            norms = torch.stack(_norms([grad for _, grad in alike], self.norm_type, dtype)).to(self.sum)
            if abs(self.norm_type) == EVERYTHING:
                self.has_nan += norms.isnan().any()
                both = torch.cat([self.sum, norms])
                self.sum[0] = both.amax() if self.norm_type > 0 else both.amin()
            elif self.norm_type == 0:
                places = torch.tensor([place for place, _ in alike], device=self.sum.device)
                self.sum.index_add_(0, places, norms)
            else:
                self.sum[0] += (norms**self.norm_type).sum()

    def _norm(self, extra: int) -> Tensor:
        if self.norm_type == 0:
            return (self.sum.count_nonzero() + extra).to(torch.float64)
        if abs(self.norm_type) == EVERYTHING:
            return torch.where(self.has_nan > 0, torch.full_like(self.sum[0], torch.nan), self.sum[0])
        return self.sum[0] ** (1 / self.norm_type)


def _norms(grads: list[Tensor], order: float, dtype: torch.dtype) -> list[Tensor]:
    """Computed in single, of what is double in double."""
    wide = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
    if dtype.is_complex or order not in (1, 2, EVERYTHING):
        like = wide.to_complex() if dtype.is_complex else wide
        return [torch.linalg.vector_norm(grad, order, dtype=like) for grad in grads]
    return list(torch._foreach_norm(grads, order, dtype=wide))


def _dtype(models: Sequence[ParallelModule]) -> torch.dtype:
    """That of the gradients, which is the norm's with PyTorch; known on every rank."""
    dtypes = [t.dtype for model in models for t in model.program.parameters() if t.trainable]
    dtype = torch.bfloat16 if not dtypes else dtypes[0]
    for other in dtypes:
        dtype = torch.promote_types(dtype, other)
    return dtype.to_real() if dtype.is_complex else dtype


def _parts(model: nn.Module) -> tuple[list[ParallelModule], list[nn.Parameter]]:
    """The parallel models in it, and the parameters of all else."""
    parallel: dict[ParallelModule, None] = {}
    ordinary: dict[nn.Parameter, None] = {}
    rest, seen = [model], set()
    while rest:
        module = rest.pop()
        # By its type: a parallel model's own modules, which pretend to be the model's, are not met.
        if issubclass(type(module), ParallelModule):
            parallel[module] = None  # type: ignore[index]
        elif module not in seen:
            seen.add(module)
            ordinary.update(
                (parameter, None) for parameter in module._parameters.values() if parameter is not None
            )
            rest += reversed([it for it in module._modules.values() if it is not None])
    ours = {id(shard.data) for part in parallel for shard in part.shards.held}
    return list(parallel), [parameter for parameter in ordinary if id(parameter) not in ours]


def _scale(grads: Sequence[Tensor], factor: Tensor, foreach: bool | None) -> None:
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for grad in grads:
        kinds.setdefault((grad.device, grad.dtype), []).append(grad)
    for (device, dtype), alike in kinds.items():
        by = factor.to(device=device, dtype=dtype)
        if foreach is False:
            for grad in alike:
                grad.mul_(by)
        else:
            torch._foreach_mul_(alike, by)


def _counted(shards: Shards, shard: int, grad: Tensor) -> Tensor:
    """The part of a gradient that no shard before this one has; other ranks' come first."""
    region, earlier = shards.held[shard].region, shards.earlier(shard)
    if region in earlier:
        return grad.new_zeros(0)
    if not earlier:
        return grad
    mine = torch.ones(extents(region), dtype=torch.bool, device=grad.device)
    for overlap in earlier:
        narrow(mine, within(overlap, region)).zero_()
    return grad.reshape(extents(region))[mine]
