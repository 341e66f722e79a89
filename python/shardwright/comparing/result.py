"""What a comparison found, as data and as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ..errors import RuntimeFault

KINDS = {
    "loss": "loss",
    "output": "outputs",
    "gradient": "gradients",
    "parameter": "updated parameters",
    "buffer": "updated buffers",
}
STATES = ("equal", "rounding", "differs")


@dataclass(frozen=True)
class Row:
    """One tensor of the parallel program beside that of the model."""

    kind: str
    name: str
    dtype: str
    """In which the step was computed: `float64`, or `model` for the model's own dtypes."""
    line: str
    """Of the model: where the tensor is made, or first read."""
    state: str
    difference: float
    """The norm of what differs over that of the tensor, or of a thousandth of a typical one of its kind."""
    limit: float
    """As far as rounding goes, by the same measure."""
    own: float | None = None
    """How far the model itself is from its float64 run."""
    ours: float | None = None
    """How far the parallel program is from that."""
    ranks: tuple[int, ...] = ()
    """Those whose part differs."""
    note: str = ""


@dataclass(frozen=True)
class First:
    """The first tensor that differs: in the order of the forward, then of the backward."""

    what: str
    line: str
    dtype: str
    difference: float
    limit: float
    ranks: tuple[int, ...]
    part: str = ""
    operator: str = ""
    path: str = ""
    rule: str | None = None
    hint: str = ""


@dataclass
class Comparison:
    """One step of the parallel program beside one of the model. It is printed as a table."""

    model: str
    plan: str
    devices: int
    how: str
    """What the ranks were: `processes` or `threads`."""
    step: str
    """What the step consists of."""
    split: tuple[int, int, int]
    """How many operators are split, computed by several devices, computed by one."""
    rows: list[Row] = field(default_factory=list)
    first: First | None = None
    notes: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    """What could not be compared; then nothing is called equal."""
    proof: str = field(default="", repr=False)

    @property
    def equal(self) -> bool:
        """Whether all was compared, and nothing differs by more than rounding."""
        return bool(self.rows) and not self.not_compared and not self.different

    @property
    def different(self) -> list[Row]:
        """What differs by more than rounding explains."""
        return [row for row in self.rows if row.state == "differs"]

    def raise_if_different(self) -> Comparison:
        """Raises what `equal` denies; else gives back itself."""
        if self.equal:
            return self
        if self.different or not self.not_compared:
            raise RuntimeFault(
                "SW0882",
                f"{self.model} under `{self.plan}` does not compute what the model computes",
                place=(self.first and self.first.line) or None,
                why="\n    ".join(_first_lines(self)) or "nothing was compared",
                fix="`print(comparison)` says more; if no rule of yours is at fault, please report it",
            )
        raise RuntimeFault(
            "SW0883",
            f"not everything of {self.model} under `{self.plan}` was compared",
            why="; ".join(self.not_compared),
            fix="leave out what cannot be compared, such as a dtype (`dtypes=`)",
        )

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        first = None if self.first is None else _plain(self.first)
        return {
            "model": self.model,
            "plan": self.plan,
            "devices": self.devices,
            "ranks_are": self.how,
            "step": self.step,
            "operators": dict(zip(("split", "repeated", "single"), self.split, strict=True)),
            "equal": self.equal,
            "first": first,
            "not_compared": self.not_compared,
            "notes": self.notes,
            "rows": [_plain(row) for row in self.rows],
        }

    def __str__(self) -> str:
        return "\n".join(lines_of(self))


def _plain(record: Row | First) -> dict[str, Any]:
    """JSON has no infinity: what is missing differs by no number."""
    values = {**vars(record), "ranks": list(record.ranks)}
    return {name: None if value == inf else value for name, value in values.items()}


def lines_of(comparison: Comparison) -> Iterator[str]:
    split, repeated, single = comparison.split
    ranks = f"{comparison.devices} {comparison.how}"
    yield f"{comparison.model}, plan `{comparison.plan}`, {ranks}, beside the model on one device"
    yield f"step     {comparison.step}"
    yield f"plan     {split} operators split, {repeated} repeated by several devices, {single} on one"
    for note in comparison.notes:
        yield f"note     {note}"
    yield ""
    yield from _table(comparison.rows)
    yield ""
    for what in comparison.not_compared:
        yield f"NOT COMPARED: {what}"
    yield from _verdict(comparison)


def _verdict(comparison: Comparison) -> Iterator[str]:
    if comparison.different:
        yield "DIFFERENT: the parallel program does not compute what the model computes."
        yield from _first_lines(comparison)
        yield from _others(comparison)
    elif comparison.not_compared:
        yield "What was compared is equal; not everything was."
    elif not comparison.rows:
        yield "Nothing was compared."
    else:
        dtypes = " and ".join(dict.fromkeys(named(row.dtype) for row in comparison.rows))
        yield f"EQUAL: {len(comparison.rows)} comparisons in {dtypes}; what differs is rounding."


def _first_lines(comparison: Comparison) -> list[str]:
    first = comparison.first
    if first is None:
        return []
    rule = f", rule `{first.rule}`" if first.rule else ""
    return [
        f"first    {first.what}, in {named(first.dtype)}",
        f"at       {first.line or '?'}" + (f" (`{first.path}`)" if first.path else ""),
        *([f"operator {first.operator}{rule}"] if first.operator else []),
        f"by       {first.difference:.0e} of its size; rounding explains {first.limit:.0e}",
        f"ranks    {_ranks(first.ranks)}" + (f", part {first.part}" if first.part else ""),
        *([f"so       {first.hint}"] if first.hint else []),
    ]


def _others(comparison: Comparison) -> Iterator[str]:
    dtype = comparison.first.dtype if comparison.first else comparison.different[0].dtype
    counts = []
    for kind, many in KINDS.items():
        names = {row.name for row in comparison.rows if row.kind == kind}
        wrong = {row.name for row in comparison.different if row.kind == kind}
        if wrong:
            counts.append(f"{len(wrong)} of {len(names)} {many}")
    yield f"in all   {', '.join(counts)} differ; in {named(dtype)}:"
    of_dtype = [row for row in comparison.different if row.dtype == dtype]
    wrong_ones = [row for row in of_dtype if row.kind != "parameter"] or of_dtype
    for row in wrong_ones[:8]:
        said = f"{row.difference:.0e} (rounding: {row.limit:.0e})" + (f", {row.note}" if row.note else "")
        yield f"  {row.kind:9} {row.name}: {said}, {_ranks(row.ranks)}, {row.line}"
    if len(wrong_ones) > 8:
        yield f"  and {len(wrong_ones) - 8} more"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    head = [
        "",
        "tensors",
        "differ",
        "furthest apart",
        "rounding explains",
        "model from float64",
        "parallel from it",
    ]
    cells = [head]
    for dtype in dict.fromkeys(row.dtype for row in rows):
        for kind, many in KINDS.items():
            of_kind = [row for row in rows if (row.dtype, row.kind) == (dtype, kind)]
            if of_kind:
                cells.append([f"{many}, {named(dtype)}", *_figures(of_kind)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    known = [at for at in range(len(head)) if at < 5 or any(row[at] for row in cells[1:])]
    for row in cells:
        aligned = [f"{row[at]:<{widths[at]}}" if at == 0 else f"{row[at]:>{widths[at]}}" for at in known]
        yield "  ".join(aligned).rstrip()


def _figures(rows: Sequence[Row]) -> list[str]:
    """Of the tensor that comes nearest to its limit, or goes furthest beyond."""
    worst = max(rows, key=lambda row: row.difference / row.limit if row.limit else row.difference)
    wrong = sum(row.state == "differs" for row in rows)
    rounding, ours = ("" if x is None else f"{x:.0e}" for x in (worst.own, worst.ours))
    return [str(len(rows)), str(wrong), f"{worst.difference:.0e}", f"{worst.limit:.0e}", rounding, ours]


def named(dtype: str) -> str:
    return "the model's dtypes" if dtype == "model" else dtype


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}" if ranks else "all ranks"
