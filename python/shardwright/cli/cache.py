"""`shardwright cache`: the programs and graphs that are kept for the next start."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from .parser import Commands

if TYPE_CHECKING:
    from ..support.folder_store import Listed


def add(commands: Commands) -> None:
    cache = commands.add_parser("cache", help="list or clear the cache of programs and graphs")
    cache.add_argument("action", nargs="?", choices=["list", "clear"], default="list")
    cache.add_argument("--json", action="store_true")
    cache.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from ..report.memory import size_of
    from ..schemas import answer
    from ..support.folder_store import cache_folder, open_store

    cache, folder = open_store(), cache_folder()
    if arguments.action == "clear":
        removed = 0 if cache is None else cache.clear()
        print(f"programs and graphs removed from {folder}: {removed}")
        return
    entries = [] if cache is None else cache.entries()
    if arguments.json:
        named = None if folder is None else str(folder)
        print(answer("cache", {"folder": named, "entries": [vars(entry) for entry in entries]}))
        return
    print(f"{folder}: {size_of(sum(e.bytes for e in entries))}" if folder else "the cache is off")
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        print(f"{entry.key[:12]}  {used}  {size_of(entry.bytes):>10}  {_what(entry)}")


def _what(entry: Listed) -> str:
    from ..report.summary import count_of

    if entry.plan:
        return f"{entry.model}, plan `{entry.plan}`, {count_of(entry.devices, 'device')}"
    return f"the graph of {entry.model}" if entry.model else "it cannot be read"
