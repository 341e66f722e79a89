"""What was found, a line of JSON for each model, from which a run goes on where it was ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Found = dict[str, Any]
PLANS = ("data", "megatron", "random")
Key = tuple[str, str]


def key_of(entry: Found) -> Key:
    return entry["package"], entry["name"]


def read(file: Path) -> dict[Key, Found]:
    """The latest of each model. A line that was cut off is none."""
    entries: dict[Key, Found] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            entry = json.loads(line)
            entries[key_of(entry)] = entry
        except (ValueError, KeyError, TypeError):
            continue
    return entries


def append(file: Path, entry: Found) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    cut_off = file.exists() and not file.read_bytes().endswith(b"\n")
    with file.open("a", encoding="utf-8") as out:
        out.write(("\n" if cut_off else "") + json.dumps(entry) + "\n")


def left(keys: Iterable[Key], known: dict[Key, Found], again: bool = False) -> list[Key]:
    """Those not tried yet, or not in all ways; with `again` also those that did not come through."""
    return [
        key
        for key in keys
        if key not in known or is_of_before(known[key]) or (again and not came_through(known[key]))
    ]


def is_of_before(entry: Found) -> bool:
    """A result from when no inputs were known unless they were named, where that may matter; or one without
    some plans."""
    if entry["state"] == "tried" and not all(plan in entry["plans"] for plan in PLANS):
        return True
    reads_may_matter = entry["state"] in ("refused", "differs") or bool(entry.get("opaque"))
    return "reads" not in entry and reads_may_matter


def came_through(entry: Found) -> bool:
    if entry["state"] != "tried":
        return False
    return all(plan["outcome"] in ("equal", "nothing", "rounding") for plan in entry["plans"].values())
