"""What a checkpoint holds, from its table alone, and whether its files are as they were saved."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ..report.memory import size_of
from ..report.summary import count_of
from .digests import noted
from .metadata import key_of, read_metadata
from .reading import Checkpoint

_PARTS = ("model", "optimizer", "extra", "shardwright")


def info(checkpoint: str | Path) -> dict[str, Any]:
    """Tensors by part with dtype and shape, the names of all else, and the files; plain data.

    No value is read.
    """
    folder = Path(checkpoint)
    table = read_metadata(folder)
    places: Mapping[str, tuple[Any, ...]] = table.planner_data or {}
    parts: dict[str, dict[str, Any]] = {name: {"tensors": {}, "others": []} for name in _PARTS}
    for key, table_entry in table.state_dict_metadata.items():
        place = places.get(key) or tuple(key.split(".", 1))
        part = parts.setdefault(str(place[0]), {"tensors": {}, "others": []})
        name = key_of(place[1:])
        if isinstance(table_entry, TensorStorageMetadata):
            dtype = table_entry.properties.dtype
            part["tensors"][name] = {
                "dtype": str(dtype).removeprefix("torch."),
                "shape": list(table_entry.size),
                "bytes": prod(table_entry.size) * dtype.itemsize,
            }
        else:
            part["others"].append(name)
    files = sorted({str(stored.relative_path) for stored in table.storage_data.values()})
    return {
        "checkpoint": str(checkpoint),
        "parts": {name: part for name, part in parts.items() if part["tensors"] or part["others"]},
        "files": {name: _size(folder / name) for name in files},
        "digests": noted(table) is not None,
    }


def verified(checkpoint: str | Path) -> dict[str, Any]:
    """The same, once all data is seen to be as it was saved; damage is an error that names it."""
    Checkpoint(Path(checkpoint)).verify()
    return {**info(checkpoint), "verified": True}


def lines_of(facts: Mapping[str, Any], every: bool = False) -> list[str]:
    """The same for people: the tensors of the model, and how much there is of all else.

    Tensors of layers that are alike are one line, unless `every` one is asked for.
    """
    files: Mapping[str, int | None] = facts["files"]
    missing = [name for name, size in files.items() if size is None]
    total = size_of(sum(size or 0 for size in files.values()))
    lines = [f"{facts['checkpoint']}: {count_of(len(files), 'file')}, {total}"]
    if missing:
        lines.append(f"  missing: {', '.join(missing)}")
    if facts.get("verified"):
        lines.append("  all of it is as it was saved")
    elif not facts["digests"]:
        lines.append("  without digests of its data: damage would not be seen")
    for name, part in facts["parts"].items():
        tensors = part["tensors"]
        size = size_of(sum(tensor["bytes"] for tensor in tensors.values()))
        said = [f"{count_of(len(tensors), 'tensor')} ({size})"] if tensors else []
        lines.append(f"{name}: {', '.join([*said, *_others(name, part['others'])])}")
        if name == "model":
            lines += _table(tensors, every)
    return [
        *lines,
        f"next: `shardwright ckpt merge {facts['checkpoint']} -o model.safetensors` has its model alone",
    ]


def _table(tensors: Mapping[str, Mapping[str, Any]], every: bool) -> list[str]:
    counts: dict[tuple[str, str, str], int] = {}
    for name, at in tensors.items():
        shown = name if every else re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
        key = shown, at["dtype"], str(at["shape"])
        counts[key] = counts.get(key, 0) + 1
    width = max((len(name) for name, _, _ in counts), default=0)
    rows = [
        (f"  {name:{width}}  {dtype:8}  {shape}", count) for (name, dtype, shape), count in counts.items()
    ]
    return [row + (f"  ({count} times)" if count > 1 else "") for row, count in rows]


def _others(part: str, names: Collection[str]) -> list[str]:
    return [count_of(len(names), "other value" if part != "extra" else "value")] if names else []


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None
