"""`shardwright manifest`: what ranks communicate in a step, before the run."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .parser import Commands


def add(commands: Commands) -> None:
    from .step import add_arguments

    manifest = commands.add_parser("manifest", help="list what ranks communicate in a step, for tuning")
    add_arguments(manifest)
    manifest.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ..report.memory import status_of
    from .step import simulated

    _, _, found, _ = simulated(arguments)
    if arguments.json:
        print(found.manifest)
        return status_of(found)
    for line in lines_of_manifest(json.loads(found.manifest)):
        print(line)
    return status_of(found)


def lines_of_manifest(manifest: dict[str, Any]) -> list[str]:
    """For each role what it communicates; what repeats in a row is one line."""
    from ..report.summary import set_of

    lines = []
    for role in manifest["roles"]:
        ranks = ", ".join(set_of(a, b) for a, b in role["ranks"])
        lines.append(f"ranks {ranks}, as rank {role['rank']} does:")
        rows: list[tuple[str, int]] = []
        for row in map(_row, role["communications"]):
            last, count = rows.pop() if rows else ("", 0)
            rows += [(row, count + 1)] if last == row else [(last, count), (row, 1)]
        lines += [row + (f"  ({count} times)" if count > 1 else "") for row, count in rows if count]
    return lines


def _row(one: dict[str, Any]) -> str:
    from ..report.memory import size_of
    from ..report.summary import time_of

    group = f"{len(one['group'])} ranks" if len(one["group"]) > 8 else one["group"]
    size = ("~" if one["bytes_expected"] else "") + size_of(one["bytes"])
    where = f"{one['pass']} {one['block']}, micro-batch {one['micro_batch']}"
    return (
        f"  {where:<28} {one['kind']:<17} {size:>10} {one['dtype'] or '':<5}"
        f" {time_of(one['expected_seconds']):>9}, {one['share_of_link']:>4.0%} of its link,"
        f" {time_of(one['exposed_seconds']):>9} waited for  {group}"
    )
