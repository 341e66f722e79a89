"""`shardwright cache`: the programs that are kept for the next start."""

from __future__ import annotations

import argparse
import json
import time

from .parser import Commands


def add(commands: Commands) -> None:
    cache = commands.add_parser("cache", help="the programs that are kept for the next start")
    cache.add_argument("action", nargs="?", choices=["list", "clear"], default="list")
    cache.add_argument("--json", action="store_true")
    cache.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from ..cache import cache_folder, open_cache
    from ..memory import size_of
    from ..summary import count_of

    cache, folder = open_cache(), cache_folder()
    if arguments.action == "clear":
        removed = 0 if cache is None else cache.clear()
        print(f"{count_of(removed, 'program')} removed from {folder}")
        return
    entries = [] if cache is None else cache.entries()
    if arguments.json:
        named = None if folder is None else str(folder)
        print(json.dumps({"folder": named, "entries": [vars(entry) for entry in entries]}))
        return
    print(f"{folder}: {size_of(sum(e.bytes for e in entries))}" if folder else "the cache is off")
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        what = f"{entry.model}, plan `{entry.plan}`, {count_of(entry.devices, 'device')}"
        print(f"{entry.key[:12]}  {used}  {size_of(entry.bytes):>10}  {what}")
