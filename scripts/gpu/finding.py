"""What a part of the run finds: tables for a person, values for a machine, failures for both."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Setting:
    dry: bool
    """On the CPU and small: whether a part works, not what it measures."""
    planted: bool
    """The part plants its fault, which it has to find."""

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry else "cuda")

    def sized(self, full: Any, small: Any) -> Any:
        return small if self.dry else full


@dataclass
class Finding:
    path: Path
    tables: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def table(self, title: str, columns: Sequence[str]) -> Table:
        self.tables.append({"title": title, "columns": list(columns), "rows": [], "notes": []})
        return Table(self, self.tables[-1])

    def fail(self, why: str) -> None:
        self.failures.append(why)
        self.write()

    def expect(self, holds: bool, why: str) -> bool:
        if not holds:
            self.fail(why)
        return holds

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """What goes wrong inside is a failure of this row alone."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.fail(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:400]}")

    def write(self) -> None:
        written = {"tables": self.tables, "values": self.values, "failures": self.failures}
        self.path.write_text(json.dumps(written, indent=1) + "\n")


@dataclass
class Table:
    finding: Finding
    content: dict[str, Any]

    def row(self, *cells: object) -> None:
        """Written at once: a part that is ended later has what it has found."""
        self.content["rows"].append([_cell(cell) for cell in cells])
        self.finding.write()

    def note(self, text: str) -> None:
        self.content["notes"].append(text)
        self.finding.write()


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
