"""The model of a checkpoint as safetensors files, without a model, ranks or a process group."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint.metadata import Place
from ..checkpoint.reading import Checkpoint, Target
from ..runtime import LocalComm
from ..runtime.communication.local import LocalWorld
from ..runtime.programs.boxes import boxes
from .writing import Stream, write_streams


def merge(checkpoint: str | Path, to: str | Path, max_shard_size: int | str = "5GB") -> list[str]:
    """Writes the parameters and buffers of a checkpoint; the names of those that are written.

    `to` is a folder, of files of at most this size, or one `.safetensors` file, of any size. Of the
    names of one tensor the first is written.
    """
    saved = Checkpoint(Path(checkpoint))
    saved.warn_without_digests()
    seen: set[Hashable] = set()
    streams = []
    for place in saved.places("model"):
        tensor = saved.tensor(place)
        where = saved.files_of(place)
        if tensor is None or where in seen:
            continue
        seen.add(where)
        size = tensor.size.numel() * tensor.properties.dtype.itemsize
        streams.append(Stream(str(place[1]), size, partial(_read, saved, place)))
    write_streams(LocalComm(LocalWorld(1), 0), streams, Path(to), max_shard_size)
    return [str(stream.name) for stream in streams]


def _read(checkpoint: Checkpoint, place: Place) -> Tensor:
    tensor = checkpoint.tensor(place)
    assert tensor is not None
    shape = tuple(tensor.size)
    whole = torch.empty(shape, dtype=tensor.properties.dtype)
    region = tuple((0, size) for size in shape)
    checkpoint.fill([Target(place, boxes(region, [[size] for size in shape]), whole)])
    return whole
