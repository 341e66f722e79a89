"""What a bench gives: named rows, as a markdown table and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Table:
    name: str
    title: str
    conditions: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    """The numbers behind the rows, for machines."""

    def add(self, *cells: str) -> None:
        assert len(cells) == len(self.columns), (cells, self.columns)
        self.rows.append(list(cells))

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", self.conditions, ""]
        lines += [_row(self.columns), _row(["---"] + ["---:"] * (len(self.columns) - 1))]
        lines += [_row(row) for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"

    def json(self) -> dict[str, Any]:
        return asdict(self)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def time_of(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def size_of(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"


def ratio_of(quantiles: tuple[float, float, float]) -> str:
    middle, low, high = quantiles
    return f"{middle:.3f}x [{low:.3f}, {high:.3f}]"
