"""The page of a run, from what its parts found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def page(parts: Mapping[str, Any]) -> str:
    return "\n".join(section(name, part) for name, part in parts.items())


def section(name: str, part: Mapping[str, Any]) -> str:
    lines = [f"## {name.capitalize()} ({part.get('seconds', 0)} s)", ""]
    for table in part["tables"]:
        lines += [f"**{table['title']}**", "", *_table(table["columns"], table["rows"]), ""]
        lines += [line for note in table["notes"] for line in (note, "")]
    lines += [f"- FAILED: {why}" for why in part["failures"]]
    return "\n".join([*lines, ""]) if part["failures"] else "\n".join(lines)


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    ruled = ["---"] + ["---:"] * (len(columns) - 1)
    return [f"| {' | '.join(cells)} |" for cells in (columns, ruled, *rows)]
