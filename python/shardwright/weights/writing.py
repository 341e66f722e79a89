"""Safetensors files of a model whose values are spread over ranks; no rank ever holds all of them.

Rank 0 gathers tensor by tensor, and writes a file whenever the next tensor would make it too large.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from ..checkpoint.parts import Parts, parts_of
from ..errors import RuntimeFault
from ..runtime import Comm
from ..runtime.agreement.together import each
from ..runtime.shards.state import gather_to_rank_0
from .files import INDEX, SINGLE

_OURS = re.compile(r"model-\d{5}-of-\d{5}\.safetensors|model\.safetensors")
_UNITS = {
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


def save_safetensors(
    model: nn.Module, folder: str | Path, max_shard_size: int | str = "5GB", *, names: Choose | None = None
) -> Path:
    """Writes `model.safetensors`, or numbered files of at most this size and their index.

    All ranks must call this. A tensor of several names is written under the first, or the one that
    `names` chooses; under none, if it chooses none. If it fails, files that were there are as before.
    """
    parts = parts_of(model)
    streams = list(_streams(parts, names or (lambda all_names: all_names[0])))
    write_streams(parts.comm, streams, Path(folder), max_shard_size)
    return Path(folder)


def write_streams(comm: Comm, streams: Sequence[Stream], to: Path, max_shard_size: int | str) -> None:
    """Writes tensors in their order to a folder, or all to one file if `to` is a `.safetensors` file."""
    wanted = [stream for stream in streams if stream.name is not None]
    one = to.suffix == ".safetensors" and not to.is_dir()
    target = to.parent if one else to
    files = {to.name: wanted} if one else _planned(wanted, _bytes(max_shard_size))
    first = comm.rank == 0
    each(comm, lambda: _prepare(target) if first else None)
    for name, group in files.items():
        gathered = {stream.name: stream.gather() for stream in group}
        each(comm, partial(_write, target, name, gathered) if first else lambda: None)
    each(comm, lambda: _finish(target, files, alone=one) if first else None)


# Of the names of one tensor the one to write.
Choose = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True)
class Stream:
    """A tensor to come; `gather` gives it on rank 0."""

    name: str | None
    bytes: int
    gather: Callable[[], Tensor | None]


def _streams(parts: Parts, choose: Choose) -> Iterator[Stream]:
    for prefix, model in parts.parallel.items():
        for tensor in model.program.saved_tensors():
            name = choose([prefix + name for name in model.names_of(tensor)])
            size = prod(tensor.shape) * tensor.dtype.itemsize
            yield Stream(name, size, partial(gather_to_rank_0, model.shards, model.comm, tensor, cpu=True))
    for names, value in parts.plain:
        yield Stream(choose(names), value.nbytes, partial(_copied, value))


def _copied(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous()


def _planned(streams: Sequence[Stream], limit: int) -> dict[str, list[Stream]]:
    """The files, and what is in each: a tensor larger than the limit has one of its own."""
    groups: list[list[Stream]] = [[]]
    size = 0
    for stream in streams:
        if groups[-1] and size + stream.bytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(stream)
        size += stream.bytes
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {f"model-{at + 1:05}-of-{len(groups):05}.safetensors": group for at, group in enumerate(groups)}


def _prepare(target: Path) -> None:
    with explained(target):
        target.mkdir(parents=True, exist_ok=True)
        for left in target.glob(".*.safetensors.partial"):
            left.unlink()


def _write(target: Path, name: str, gathered: Mapping[Any, Any]) -> None:
    partial = _partial(target, name)
    with explained(target):
        try:
            # safetensors makes files that only their owner may read: this has the user's own mode.
            partial.touch()
            mode = partial.stat().st_mode
            save_file(dict(gathered), partial, metadata={"format": "pt"})
            partial.chmod(mode)
            with partial.open("rb") as written:
                os.fsync(written.fileno())
        except BaseException:
            for left in target.glob(".*.safetensors.partial"):
                with suppress(OSError):
                    left.unlink()
            raise


def _finish(target: Path, files: Mapping[str, Sequence[Stream]], *, alone: bool) -> None:
    """The index goes first and comes last: whoever reads in between finds none, and no mixture.

    A file that is `alone` takes only the place of itself.
    """
    with explained(target):
        if not alone:
            (target / INDEX).unlink(missing_ok=True)
        for name in files:
            os.replace(_partial(target, name), target / name)
        if alone:
            return
        for old in target.iterdir():
            if _OURS.fullmatch(old.name) and old.name not in files:
                old.unlink()
        if len(files) > 1:
            index = {
                "metadata": {"total_size": sum(stream.bytes for group in files.values() for stream in group)},
                "weight_map": {str(stream.name): name for name, group in files.items() for stream in group},
            }
            text = json.dumps(index, indent=2, sort_keys=True) + "\n"
            _partial(target, INDEX).write_text(text, encoding="utf-8")
            os.replace(_partial(target, INDEX), target / INDEX)


def _partial(target: Path, name: str) -> Path:
    return target / f".{name}.partial"


def _bytes(size: int | str) -> int:
    if isinstance(size, int) and size > 0:
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?B)\s*", str(size).upper())
    if match is None:
        raise RuntimeFault(
            "SW0752",
            f"max_shard_size={size!r} is no size",
            why="it is a number of bytes, or a number and a unit",
            fix='write "500MB" or "5GB"',
        )
    return int(float(match[1]) * _UNITS[match[2]])


@contextmanager
def explained(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RuntimeFault(
            "SW0752",
            f"weights cannot be written to {target}",
            why=str(error),
            fix="name a folder on a disk that can be written and has room",
        ) from error
