"""How large a report's page is, and how long it takes to make it and to open it in a browser."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tables import Table, size_of, time_of

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "python"))

from browser import CHROMIUM, Browser

VIEWS = ("overview", "timeline", "memory", "model", "communication", "compare", "program")


@dataclass(frozen=True)
class Case:
    model: str
    plan: str
    cluster: str
    devices: int
    more: tuple[str, ...]


CASES = [
    Case("gpt2-24l", "stages:2 x data:2 x 1f1b", "dgx-h100:4x1", 4, ("--micro-batches", "8")),
    Case(
        "llama-3-8b", "stages:2 x zero1:4 x megatron:8 x 1f1b", "dgx-h100:8x8", 64, ("--micro-batches", "8")
    ),
    Case(
        "llama-3-405b",
        "stages:16 x zero1:64 x megatron:8 x 1f1b",
        "dgx-h100:8x1024",
        8192,
        ("--batch", "2048", "--micro-batches", "32"),
    ),
    Case(
        "alphafold2-3.2b",
        "stages:4 x megatron:8 x 1f1b x recompute",
        "dgx-v100:16x2",
        32,
        ("--batch", "2", "--batches", "128"),
    ),
]


def bench(quick: bool) -> Table:
    repeats = 1 if quick else 3
    table = Table(
        "report",
        "Reports",
        "Models in full size, captured before, so that the graph comes from the cache. *Made* are the"
        " processor's seconds for `shardwright report` from start to end in a fresh process: graph, plan,"
        " proof, simulation, page. *Opened* is how long headless Chromium takes from the file's address to"
        f" the first view as it is drawn, *all views* to draw the other {len(VIEWS) - 1} one after the other."
        f" Each is the least of {repeats}.",
        ["model", "plan", "devices", "made", "page", "opened", "all views"],
    )
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES[:1] if quick else CASES:
            page = Path(folder) / f"{case.model}.html"
            _made(case, page)
            made = [_made(case, page) for _ in range(repeats)]
            opened = [_opened(page) for _ in range(repeats)] if CHROMIUM else []
            table.values[case.model] = {"made": made, "opened": opened, "bytes": page.stat().st_size}
            shown = [time_of(min(each)) for each in zip(*opened, strict=True)] or ["no Chromium", ""]
            size = size_of(page.stat().st_size)
            table.add(case.model, f"`{case.plan}`", f"{case.devices:,}", time_of(min(made)), size, *shown)
    return table


def _made(case: Case, page: Path) -> float:
    command = [sys.executable, "-m", "shardwright", "report", case.model, "--plan", case.plan]
    command += ["--cluster", case.cluster, *case.more, "-o", str(page)]
    env = {**os.environ, "SHARDWRIGHT_PROGRESS": "off"}
    before = _processor()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=3600)
    # A plan that does not fit has its page, too.
    if done.returncode not in (0, 3):
        raise RuntimeError(f"{case.model}: {done.stderr}")
    return _processor() - before


def _processor() -> float:
    """Its seconds for processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _opened(page: Path) -> tuple[float, float]:
    """Seconds to the first view, and of all others."""
    with Browser() as browser:
        start = time.perf_counter()
        browser.open(page)
        browser.drawn()
        first = time.perf_counter() - start
        start = time.perf_counter()
        for view in VIEWS[1:]:
            browser.click(f"#tab-{view}")
            browser.drawn()
        rest = time.perf_counter() - start
        assert browser.errors == [], browser.errors
    return first, rest
