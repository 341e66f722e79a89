"""How much of a model one step of an optimizer looks at: known for PyTorch's own, tried for others."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...errors import RuntimeFault


class Reach(Enum):
    """What the new value of an element depends on, besides its own history."""

    ELEMENT = "each element by itself"
    TENSOR = "the whole tensor"
    MODEL = "all tensors together"


def _known() -> dict[Any, Reach]:
    elements = (
        "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adagrad", "Adadelta", "Adamax", "RMSprop", "ASGD",
        "Rprop",
    )  # fmt: skip
    reaches = {getattr(torch.optim, name): Reach.ELEMENT for name in elements}
    for name in ("Adafactor", "Muon"):
        if hasattr(torch.optim, name):
            reaches[getattr(torch.optim, name)] = Reach.TENSOR
    return {**reaches, torch.optim.LBFGS: Reach.MODEL}


KNOWN = _known()

# Beyond sizes at which some methods begin to factor their statistics.
SHAPES = ((130, 134), (5, 4, 3, 3), (12,))
# Of gradients, step by step: a limit that depends on a norm is met from both sides.
SCALES = (1.0, 1e-3, 1e3, 1.0)

_tried: dict[Any, Reach] = {}
_trying = threading.Lock()


def reach_of(
    cls: Callable[..., Optimizer],
    options: Mapping[str, Any],
    group: Mapping[str, Any],
    device: torch.device,
) -> Reach:
    """PyTorch's own by name; another class by stepping it on small tensors, whole and in pieces."""
    if cls in KNOWN:
        return KNOWN[cls]
    key = (cls, device.type, repr(sorted(options.items())), repr(sorted(group.items())))
    # Ranks may be threads, and share the generator that a trial puts back.
    with _trying:
        if key not in _tried:
            trial = _Trial(cls, options, group, device)
            with torch.random.fork_rng(), torch.enable_grad():
                _tried[key] = trial.reach()
        return _tried[key]


class _Trial:
    """The same steps from the same start, with tensors and optimizers cut in different ways."""

    def __init__(
        self,
        cls: Callable[..., Optimizer],
        options: Mapping[str, Any],
        group: Mapping[str, Any],
        device: torch.device,
    ):
        self.cls, self.options, self.group = cls, options, group
        generator = torch.Generator().manual_seed(0)

        def random(shape: Sequence[int]) -> Tensor:
            return torch.randn(shape, generator=generator).to(device)

        self.start = [random(shape) for shape in SHAPES]
        self.gradients = [[random(shape) * scale for shape in SHAPES] for scale in SCALES]

    def reach(self) -> Reach:
        whole = self._steps([[(at, 0, 1, 0) for at in range(len(SHAPES))]])
        alone = self._steps([[(at, 0, 1, 0)] for at in range(len(SHAPES))])
        if not self._same(whole, alone):
            return Reach.MODEL
        for dim in (0, 1):
            halves = [[(at, dim, 2, half) for at in range(len(SHAPES))] for half in (0, 1)]
            if not self._same(whole, self._steps(halves)):
                return Reach.TENSOR
        return Reach.ELEMENT

    def _steps(self, optimizers: Sequence[Sequence[tuple[int, int, int, int]]]) -> list[Tensor]:
        """Each optimizer has its own list of (tensor, dim, number of parts, part)."""
        updated: list[dict[int, Tensor]] = [{} for _ in SHAPES]
        dims = [0] * len(SHAPES)
        for pieces in optimizers:
            try:
                for (at, dim, _, part), value in zip(pieces, self._run(pieces), strict=True):
                    updated[at][part] = value
                    dims[at] = min(dim, len(SHAPES[at]) - 1)
            except Exception as error:
                raise self._unknown(f"{type(error).__name__}: {str(error).strip()}") from error
        return [
            torch.cat([parts[at] for at in sorted(parts)], dim)
            for parts, dim in zip(updated, dims, strict=True)
        ]

    def _run(self, pieces: Sequence[tuple[int, int, int, int]]) -> list[Tensor]:
        params = [nn.Parameter(_piece(self.start, piece).clone()) for piece in pieces]
        optimizer = self.cls(
            [{**copy.deepcopy(dict(self.group)), "params": params}], **copy.deepcopy(dict(self.options))
        )
        for gradients in self.gradients:
            for param, piece in zip(params, pieces, strict=True):
                param.grad = _piece(gradients, piece).clone()
            optimizer.step()
        return [param.detach() for param in params]

    def _same(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
        for a, b, start in zip(ours, theirs, self.start, strict=True):
            moved = float((a - start).abs().max())
            if not 0 < moved < float("inf"):
                raise self._unknown("a step with gradients moves nothing, or gives no numbers")
            if not float((a - b).abs().max()) <= 1e-4 * moved:
                return False
        return True

    def _unknown(self, why: str) -> RuntimeFault:
        name = getattr(self.cls, "__name__", repr(self.cls))
        return RuntimeFault(
            "SW0760",
            f"it is not known whether {name} works on parts of a tensor",
            why=f"a few steps on small tensors, whole and in pieces, would tell, but failed: {why}",
            fix="if it treats each element by itself, say so: `sw.optimizer(..., elementwise=True)`",
        )


def _piece(tensors: Sequence[Tensor], piece: tuple[int, int, int, int]) -> Tensor:
    at, dim, count, part = piece
    tensor = tensors[at]
    return tensor.chunk(count, min(dim, tensor.dim() - 1))[part]
