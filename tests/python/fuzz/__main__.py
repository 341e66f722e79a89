"""`python -m fuzz`: minutes of random programs, what was found as files that can be run, and what was met."""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from . import workers
from .session import PLANS, Tally
from .shrinking import snippet


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=None, help="of all programs and plans; a new one unless given"
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--pairs", type=int, default=0, help="stop after so many")
    parser.add_argument("--plans", type=int, default=PLANS, help="for each program")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds for making a finding small")
    parser.add_argument("--folder", type=Path, default=None, help="where findings are written")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}: {given.minutes:g} minutes, {given.jobs} jobs", flush=True)
    begin = time.monotonic()
    teller = _Teller(begin, given.folder)
    tally = workers.run(
        seed,
        jobs=given.jobs,
        minutes=given.minutes,
        pairs=given.pairs,
        plans=given.plans,
        shrink=given.shrink,
        tell=teller,
    )
    return _report(tally, seed, time.monotonic() - begin)


class _Teller:
    """Prints each new kind of finding once, and now and then how far it is."""

    def __init__(self, begin: float, folder: Path | None):
        self.begin, self.folder, self.latest = begin, folder, begin
        self.seen: set[str] = set()

    def __call__(self, part: Tally, tally: Tally) -> None:
        for finding in part.findings:
            if finding.key in self.seen:
                continue
            self.seen.add(finding.key)
            print(f"\n---- finding {len(self.seen)} ----\n{snippet(finding)}", flush=True)
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / f"finding_{len(self.seen)}.py").write_text(snippet(finding, header=True))
        if time.monotonic() - self.latest > 30:
            self.latest = time.monotonic()
            print(f"{self.latest - self.begin:.0f} s: {_line(tally)}", flush=True)


def _line(tally: Tally) -> str:
    counts = tally.counts
    return (
        f"{counts['programs']} programs, {counts['pairs']} pairs, {counts['pairs, equal']} equal,"
        f" {sum(tally.known.values())} known, {len(tally.findings)} findings,"
        f" {counts['programs refused by capture']} programs refused by capture,"
        f" {counts['unstable programs']} programs and {counts['unstable pairs']} pairs depend on rounding"
    )


def _report(tally: Tally, seed: int, seconds: float) -> int:
    print(f"\nseed {seed}, {seconds:.0f} s: {_line(tally)}")
    for name, count in tally.refused.most_common(20):
        print(f"  refused {count} times: {name}")
    for name, count in sorted(tally.known.items()):
        print(f"  known, {count} times: {name}")
    targets = [name for name in tally.counts if name.startswith("target ")]
    print(f"  {len(targets)} different operators of PyTorch were met")
    missing = tally.missing()
    if missing:
        print(f"  never met, so this run tests less than it seems: {', '.join(missing)}")
    return 1 if tally.findings or missing else 0


if __name__ == "__main__":
    sys.exit(main())
