"""`shardwright manifest`: what ranks communicate in a step, before the run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .parser import Commands


def add(commands: Commands) -> None:
    from .step import add_arguments

    manifest = commands.add_parser("manifest", help="list what ranks communicate in a step, for tuning")
    add_arguments(manifest)
    manifest.add_argument(
        "--trace",
        dest="series",
        metavar="FILE",
        help="write them there by time, as lines of JSON that a tuner can replay",
    )
    manifest.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ..report.memory import status_of
    from .cluster import write
    from .step import simulated

    _, _, result, _ = simulated(arguments)
    manifest = json.loads(result.manifest)
    if arguments.series:
        text = "".join(f"{json.dumps(line)}\n" for line in series_of(manifest))
        write("SW0913", "the series", Path(arguments.series), text)
    if arguments.json:
        print(result.manifest)
        return status_of(result)
    for line in lines_of_manifest(manifest):
        print(line)
    if arguments.series:
        print(f"\nThe series is in {arguments.series}.")
    return status_of(result)


def series_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The communications of all listed ranks by time; each names its entry by rank and order."""
    series = [
        {
            "time": one["start_seconds"],
            "duration": one["expected_seconds"],
            "kind": one["kind"],
            "group": one["group"],
            "bytes": one["bytes"],
            "dtype": one["dtype"],
            "rank": role["rank"],
            "order": one["order"],
        }
        for role in manifest["roles"]
        for one in role["communications"]
    ]
    return sorted(series, key=lambda one: (one["time"], one["rank"], one["order"]))


def lines_of_manifest(manifest: dict[str, Any]) -> list[str]:
    """For each role what it communicates; what repeats in a row is one line."""
    from ..report.summary import batches_of, set_of, time_of

    lines = [
        f"{manifest['model']} under {manifest['plan']} on {manifest['cluster']},"
        f" {batches_of(manifest['micro_batches'])}: a step takes {time_of(manifest['step_seconds'])}"
    ]
    for role in manifest["roles"]:
        ranks = ", ".join(set_of(a, b) for a, b in role["ranks"])
        lines += ["", f"ranks {ranks}, as rank {role['rank']} does: {_summed(role['communications'])}"]
        rows: list[tuple[list[str], int]] = []
        for row in map(_cells, role["communications"]):
            last, count = rows.pop() if rows else ([], 0)
            rows += [(row, count + 1)] if last == row else [(last, count), (row, 1)]
        lines += _table([[*row[:7], str(count), row[7]] for row, count in rows if count])
        lines += _lines_of_links(role["links"], manifest["step_seconds"])
    return [
        *lines,
        "",
        "`bytes`, `takes` and `waits` are of one communication; `--json` has all of it, for tools",
    ]


def _lines_of_links(links: list[dict[str, Any]], step: float) -> Iterator[str]:
    """How a rank's communications are spread over the step."""
    from ..report.memory import size_of
    from ..report.summary import count_of, time_of

    for link in links:
        bursts = link["bursts"]
        sizes = sorted(burst["bytes"] for burst in bursts)
        each = f"{size_of(sizes[0])} to {size_of(sizes[-1])}" if sizes[0] != sizes[-1] else size_of(sizes[0])
        share = link["busy_seconds"] / step if step > 0 else 0.0
        many = count_of(len(bursts), "burst")
        yield f"  {SAID[link['link']]}: busy for {share:.1%} of the step, in {many} of {each}"
        if link["period_seconds"] is not None:
            yield f"    one every {time_of(link['period_seconds'])}, {link['regular']:.0%} of them regularly"


# What links are called: right of a cluster of one node, too.
SAID = {"inside its node": "inside nodes", "between nodes": "between nodes"}
HEAD = ["pass", "batch", "kind", "bytes", "takes", "link", "waits", "times", "group"]
# Columns of words; figures stand at the right.
LEFT = (0, 2, 8)


def _summed(communications: list[dict[str, Any]]) -> str:
    from ..report.memory import size_of
    from ..report.summary import count_of, time_of

    size = sum(one["bytes"] for one in communications)
    waits = time_of(sum(one["exposed_seconds"] for one in communications))
    return f"{count_of(len(communications), 'communication')}, {size_of(size)}, {waits} waited for"


def _cells(one: dict[str, Any]) -> list[str]:
    from ..report.memory import size_of
    from ..report.summary import time_of

    group = f"{len(one['group'])} ranks" if len(one["group"]) > 8 else str(one["group"])
    size = ("~" if one["bytes_expected"] else "") + size_of(one["bytes"])
    return [
        f"{one['pass']} {one['block']}",
        str(one["micro_batch"]),
        one["kind"],
        f"{size} {one['dtype'] or ''}".rstrip(),
        time_of(one["expected_seconds"]),
        f"{one['share_of_link']:.0%}",
        time_of(one["exposed_seconds"]),
        group,
    ]


def _table(rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[at]) for row in [HEAD, *rows]) for at in range(len(HEAD))]

    def line(row: list[str]) -> str:
        cells = (
            f"{cell:<{wide}}" if at in LEFT else f"{cell:>{wide}}"
            for at, (cell, wide) in enumerate(zip(row, widths, strict=True))
        )
        return ("  " + "  ".join(cells)).rstrip()

    return [line(HEAD), *map(line, rows)]
