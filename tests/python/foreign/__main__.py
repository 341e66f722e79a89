"""`python -m foreign`: every model of the packages that are installed, and the page of what became of it."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from . import building, children, figures, results, table, trying
from .results import Found, Key

ROOT = Path(__file__).resolve().parents[3]
RESULTS = Path(__file__).with_name("zoo.jsonl")
PAGE = ROOT / "docs" / "reference" / "zoo.md"
SECONDS = 90.0


def main(words: Sequence[str] | None = None) -> int:
    given = parsed(words)
    torch.set_num_threads(1)
    keys = wanted(given)
    known = results.read(given.results)
    if not given.page_only:
        run(results.left(keys, known, given.retry_failed), given)
    return reported(results.read(given.results), given)


def parsed(words: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="foreign", description=__doc__)
    parser.add_argument("--only", default="", help="packages, or package:name, with commas")
    parser.add_argument("--sample", type=int, default=0, help="so many of them, drawn by a seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each model")
    parser.add_argument("--retry-failed", action="store_true", help="those, too, that did not come through")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--page-only", action="store_true", help="try nothing, and write the page")
    return parser.parse_args(words)


def wanted(given: Any) -> list[Key]:
    """In an order that is drawn, so that what is done of them says something of all; parts of others last."""
    chosen = [word for word in given.only.split(",") if word]
    keys, later = list[Key](), list[Key]()
    for package in building.PACKAGES:
        mentioned = [word for word in chosen if word.split(":")[0] == package]
        if (chosen and not mentioned) or not building.installed(package):
            continue
        only = {word.split(":", 1)[1] for word in mentioned if ":" in word}
        parts = building.parts(package)
        for name in building.names(package):
            if not only or name in only:
                (later if name in parts else keys).append((package, name))
    draw = random.Random(0)
    draw.shuffle(keys)
    draw.shuffle(later)
    return (keys + later)[: given.sample or None]


def run(keys: Sequence[Key], given: Any) -> None:
    """A terminal has a bar with who is at work and for how long. Else each line says how many are done."""
    preload({package for package, _ in keys})
    start = time.monotonic()
    with tqdm(total=len(keys), desc="zoo", unit="model", dynamic_ncols=True, disable=None) as bar:

        def at_work(running: Sequence[Key]) -> None:
            bar.set_postfix_str(", ".join(name for _, name in running))

        found = children.run(keys, trying.tried, given.workers, given.seconds, at_work)
        for number, result in enumerate(found, 1):
            results.append(given.results, result)
            bar.update()
            done = f"{number} of {len(keys)}, {time.monotonic() - start:.0f} s: " if bar.disable else ""
            bar.write(f"{done}{line_of(result)}", file=sys.stdout)


def preload(packages: set[str]) -> None:
    """What each child would import again."""
    import torch._dynamo
    import torch.export  # noqa: F401

    if "transformers" in packages:
        import transformers.models.llama.modeling_llama  # noqa: F401


def line_of(entry: Found) -> str:
    said = entry["state"]
    if said == "tried":
        said = ", ".join(f"{name} {plan['outcome']}" for name, plan in entry["plans"].items())
    return f"{entry['package']} {entry['name']}: {said}"


def reported(known: dict[Key, Found], given: Any) -> int:
    """Writes the page of all that is known. Captures that differ and programs that are wrong are failures."""
    entries = list(known.values())
    packages = [package for package in building.PACKAGES if building.installed(package)]
    listed = {package: len(building.names(package)) for package in packages}
    day = datetime.date.today().isoformat()
    given.page.write_text(table.page(entries, listed, versions(["torch", *packages]), day), encoding="utf-8")
    for figure in figures.figures(entries):
        print(f"{figure.what}: {figure}")
    wrong = figures.failures(entries)
    for entry in wrong:
        print(f"FAILS: {line_of(entry)}")
    return 1 if wrong else 0


def versions(packages: Sequence[str]) -> str:
    return ", ".join(f"{package} {version(package)}" for package in packages)


def version(package: str) -> str:
    for name in (package, package.replace("_", "-")):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def alone() -> None:
    """What holds of a process that is nothing but this command, and for its children."""
    os.environ |= {"SHARDWRIGHT_CACHE": "off", "SHARDWRIGHT_PROGRESS": "off", "CUDA_VISIBLE_DEVICES": ""}
    # What ends it ends its children, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


if __name__ == "__main__":
    alone()
    sys.exit(main())
