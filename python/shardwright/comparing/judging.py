"""Every tensor of all ranks beside that of the model: how far it is, and whether that is rounding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, prod

import torch
from torch import Tensor

from ..capture.graph_text import DTYPES
from ..runtime.programs.regions import Factors, Region, cut, local_factors, shape_of, window
from .order import Order
from .ranks import Part, Rank
from .result import KINDS, Row
from .rounding import FINE, LAMBDA, SMALL, Spread, Spreads, unit_of
from .step import RATE, Values


@dataclass
class Gap:
    """How far the parts of a tensor are from the whole."""

    parts: dict[Region, float] = field(default_factory=dict)
    """Of each region the norm of the difference on the rank where it is largest."""
    by_rank: dict[int, float] = field(default_factory=dict)
    note: str = ""
    where: Part | None = None
    """That which is furthest."""

    @property
    def size(self) -> float:
        return inf if self.note else sum(gap * gap for gap in self.parts.values()) ** 0.5


def gap_of(expected: Tensor, parts: Iterable[tuple[int, Part]]) -> Gap:
    """Copies count once, and all regions together have to be the whole."""
    result = Gap()
    covered = torch.zeros(expected.shape, dtype=torch.bool)
    furthest = -1.0
    for rank, part in parts:
        if part.value is None:
            continue  # no gradient: then others have it, or the regions are not the whole
        shape = shape_of(local_factors(part.region, part.factors))
        if tuple(part.value.shape) != tuple(shape) or prod(map(prod, part.factors)) != expected.numel():
            return Gap(note=f"its shape is {tuple(part.value.shape)}", by_rank={rank: inf}, where=part)
        gap = apart(part.value, cut(expected, part.factors, part.region).reshape(shape))
        result.parts[part.region] = max(gap, result.parts.get(part.region, 0.0))
        result.by_rank[rank] = max(gap, result.by_rank.get(rank, 0.0))
        window(covered, part.factors, part.region).fill_(True)
        if gap > furthest:
            furthest, result.where = gap, part
    if not bool(covered.all()):
        result.note = "no rank has all of it"
    return result


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The norm of the difference; what is not finite has to be the same."""
    ours, theirs = _wide(ours), _wide(theirs)
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    error = torch.where(same, torch.zeros_like(ours), ours - theirs)
    norm = float(torch.linalg.vector_norm(error))
    return inf if norm != norm else norm


def norm_of(tensor: Tensor) -> float:
    wide = _wide(tensor)
    return float(torch.linalg.vector_norm(torch.where(wide.isfinite(), wide, torch.zeros_like(wide))))


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


@dataclass
class Judge:
    """Of one dtype. `truth` is the model's step in float64, if there is one to be compared with."""

    dtype: str
    expected: Values
    order: Order
    spreads: Spreads
    outputs: dict[str, str]
    """Names in the graph of the model's results."""
    truth: Values | None = None

    def rows(self, ranks: Sequence[Rank]) -> list[Row]:
        rows = []
        for kind in KINDS:
            whole = self.expected.by_kind.get(kind, {})
            parts = parts_of(ranks, kind)
            sizes = self._sizes(kind)
            owns = self._owns(kind, sizes)
            for name in dict.fromkeys([*whole, *parts]):
                rows.append(self._row(kind, name, whole.get(name), parts.get(name, []), sizes, owns))
        return [row for row in rows if row is not None]

    def _row(
        self,
        kind: str,
        name: str,
        expected: Tensor | None,
        parts: list[tuple[int, Part]],
        sizes: dict[str, float],
        owns: dict[str, float],
    ) -> Row | None:
        if expected is None:
            # Where gradients are reduced, a rank does not know whether others used what it did not.
            wrong = [rank for rank, part in parts if part.value is not None and bool(part.value.any())]
            return self._odd(kind, name, "the model has none", wrong) if wrong else None
        if not parts:
            if kind in ("parameter", "buffer") and name not in self.order.in_graph:
                return None  # the forward does not read it, and nobody trains it
            return self._odd(kind, name, "no rank has it", [])
        gap = gap_of(expected, parts)
        size = sizes[name] or 1.0
        rounding = owns.get(name)
        limit = self._limit(kind, name, rounding, size) if expected.is_floating_point() else 0.0
        difference = gap.size / size
        apart_on = tuple(r for r, x in sorted(gap.by_rank.items()) if not x <= limit * size)
        state = "equal" if difference == 0 else "rounding" if difference <= limit else "differs"
        return Row(
            kind,
            name,
            self.dtype,
            self.line_of(kind, name),
            state,
            difference,
            limit,
            None if rounding is None else rounding,
            self._from_truth(kind, name, parts, size),
            apart_on if state == "differs" else (),
            gap.note,
        )

    def _odd(self, kind: str, name: str, note: str, ranks: Sequence[int]) -> Row:
        line = self.line_of(kind, name)
        return Row(kind, name, self.dtype, line, "differs", inf, 0.0, ranks=tuple(ranks), note=note)

    def line_of(self, kind: str, name: str) -> str:
        if kind in ("loss", "output"):
            tensor = self.outputs.get(name) or next(iter(self.outputs.values()), "")
            made = self.order.maker(tensor)
            return made.line if made else ""
        return self.order.line_of_reader(name)

    def _sizes(self, kind: str) -> dict[str, float]:
        """What a difference is measured by: a gradient that is mathematically zero has no size of its own."""
        norms = {name: norm_of(x) for name, x in self.expected.by_kind.get(kind, {}).items()}
        typical = (sum(n * n for n in norms.values()) / max(len(norms), 1)) ** 0.5
        return {name: max(norm, SMALL * typical) for name, norm in norms.items()}

    def _owns(self, kind: str, sizes: dict[str, float]) -> dict[str, float]:
        """How far the model is from float64: of each tensor, and at least what is usual for its kind."""
        if self.truth is None:
            return {}
        truth = self.truth.by_kind.get(kind, {})
        errors = {
            name: apart(x, truth[name]) / (sizes[name] or 1.0)
            for name, x in self.expected.by_kind.get(kind, {}).items()
            if name in truth and x.is_floating_point()
        }
        usual = (sum(x * x for x in errors.values()) / max(len(errors), 1)) ** 0.5
        return {name: max(x, usual) for name, x in errors.items()}

    def _from_truth(self, kind: str, name: str, parts: list[tuple[int, Part]], size: float) -> float | None:
        truth = None if self.truth is None else self.truth.by_kind.get(kind, {}).get(name)
        if truth is None or not truth.is_floating_point():
            return None
        return gap_of(truth, parts).size / size

    def _limit(self, kind: str, name: str, rounding: float | None, size: float) -> float:
        limit = self._limit_of(kind, name, size).limit(rounding) if kind != "parameter" else 0.0
        if kind == "parameter":
            limit = self._limit_of_parameter(name, size)
        return max(limit, FINE) if self.spreads.is_fine or self.dtype == "float64" else limit

    def _limit_of(self, kind: str, name: str, size: float) -> Spread:
        if kind == "loss":
            return self.spreads.of_loss()
        if kind == "output":
            return self.spreads.of_value(self.outputs.get(name, ""))
        return self.spreads.of_gradient(name) if kind == "gradient" else self.spreads.of_update(name)

    def _limit_of_parameter(self, name: str, size: float) -> float:
        """It is rounded once more, and its gradient's errors are in it."""
        value = self.expected.by_kind["parameter"][name]
        gradient = self.expected.by_kind.get("gradient", {}).get(name)
        once = LAMBDA * unit_of(DTYPES.get(value.dtype, ""))
        if gradient is None:
            return once
        sizes = self._sizes("gradient")
        rounding = self._owns("gradient", sizes).get(name)
        return once + RATE * self.spreads.of_gradient(name).limit(rounding) * sizes[name] / size


def parts_of(ranks: Sequence[Rank], kind: str) -> dict[str, list[tuple[int, Part]]]:
    parts: dict[str, list[tuple[int, Part]]] = {}
    for number, rank in enumerate(ranks):
        for name, value in rank.whole.by_kind.get(kind, {}).items():
            factors, region = _whole(value)
            parts.setdefault(name, []).append((number, Part(kind, name, factors, region, value)))
        for part in rank.parts:
            if part.kind == kind:
                parts.setdefault(part.name, []).append((number, part))
    return parts


def _whole(value: Tensor) -> tuple[Factors, Region]:
    return [[size] for size in value.shape], tuple((0, size) for size in value.shape)
