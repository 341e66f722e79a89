"""The numbers' place in `docs/reference/benchmarks.md`: a marked section that is written anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tables import Table

BEGIN = "<!-- begin: written by `benches/run.py --markdown` -->"
END = "<!-- end -->"


def section(tables: Sequence[Table], machine: Mapping[str, str], quick: bool) -> str:
    words = [f"Measured on {machine['date']}: {machine['machine']}; {machine['versions']};"]
    words.append(machine["conditions"] + (". **Quick: few repetitions.**" if quick else "."))
    return "\n".join([" ".join(words), "", *(table.markdown() for table in tables)]).rstrip() + "\n"


def rewrite(path: Path, tables: Sequence[Table], machine: Mapping[str, str], quick: bool) -> None:
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise SystemExit(f"{path} has no section between `{BEGIN}` and `{END}`")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{section(tables, machine, quick)}\n{END}{after}")
