"""Times and sizes: `python benches/run.py`. What each bench measures is in `docs/reference/benchmarks.md`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import page
from measure import machine
from tables import Table

BENCHES = {
    "compile": "compile_time",
    "fleet": "fleet",
    "proved": "proved",
    "models": "many_models",
    "one-device": "one_device",
    "compiled": "compiled",
    "two-ranks": "two_ranks",
    "memory": "memory",
    "memory-told": "memory_told",
    "coshard": "coshard",
    "sequence": "sequence",
    "interlaced": "interlaced",
    "bubbles": "bubbles",
    "schedules": "schedules",
    "ilp": "ilp",
    "largest": "largest",
    "search": "search",
    "curves": "curves",
    "constraints": "constraints",
    "found": "found",
    "paper": "paper",
    "published": "published",
    "measured": "measured_runs",
    "predicted": "predicted",
    "predicted-4": "predicted_4",
    "shaped": "shaped",
    "start": "start",
    "report": "reports",
    "host": "host",
    "integrations": "integrations",
    "lightning": "lightning_trainer",
    "equal-losses": "equal_losses",
}
# What takes rights that not everybody has, or half an hour: only by name.
APART = {
    *("published", "measured", "shaped", "found", "paper", "search", "curves", "report"),
    *("integrations", "lightning", "equal-losses"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=BENCHES, help="one bench; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few repetitions: to see that it works")
    parser.add_argument("--json", action="store_true", help="the numbers as JSON, nothing else on stdout")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="rewrites the numbers of this page")
    given = parser.parse_args()
    if given.markdown and given.only:
        parser.error("--markdown writes all benches: leave --only out")
    words, tables = machine(), []
    if not given.json:
        print("\n".join(f"{name}: {text}" for name, text in words.items()), end="\n\n")
    for name in given.only or [name for name in BENCHES if name not in APART]:
        for table in _run(name, given.quick):
            tables.append(table)
            if not given.json:
                print(table.markdown(), flush=True)
    if given.json:
        print(json.dumps({"machine": words, "quick": given.quick, "benches": [t.json() for t in tables]}))
    if given.markdown:
        page.rewrite(given.markdown, tables, words, given.quick)
    return 0


def _run(name: str, quick: bool) -> Iterable[Table]:
    """Most have one."""
    start = time.perf_counter()
    print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
    tables: Table | list[Table] = importlib.import_module(BENCHES[name]).bench(quick)
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return tables if isinstance(tables, list) else [tables]


if __name__ == "__main__":
    raise SystemExit(main())
