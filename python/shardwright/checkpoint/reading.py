"""A checkpoint that is there: what it has, and how parts of it are read."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from ..errors import RuntimeFault
from ..runtime.programs.boxes import Box
from ..runtime.programs.regions import narrow
from .digests import digest_at, noted
from .metadata import Place, read_metadata


@dataclass(frozen=True)
class Target:
    """A contiguous tensor to be filled with boxes of a tensor of the checkpoint."""

    place: Place
    boxes: Sequence[Box]
    into: Tensor


class Checkpoint:
    """Made only of a folder whose table and files are all there, in their full lengths.

    What is read of a file is first compared with its digest, where there are any.
    """

    def __init__(self, path: Path):
        self.path = path
        self.metadata = read_metadata(path)
        self.digests = noted(self.metadata)
        # The places in files that were compared.
        self._verified: set[tuple[str, int]] = set()
        self._reader = FileSystemReader(path)
        self._reader.set_up_storage_reader(self.metadata, is_coordinator=False)
        _refuse_damage(path, self.metadata.storage_data)
        places: Mapping[str, Place] = self.metadata.planner_data or {}
        self._keys = {tuple(places.get(key, (key,))): key for key in self.metadata.state_dict_metadata}

    def places(self, *start: Any) -> list[Place]:
        """All places that start like this."""
        return [place for place in self._keys if place[: len(start)] == start]

    def tensor(self, place: Place) -> TensorStorageMetadata | None:
        stored = self.metadata.state_dict_metadata.get(self._keys.get(place, ""))
        return stored if isinstance(stored, TensorStorageMetadata) else None

    def files_of(self, place: Place) -> frozenset[tuple[str, int]]:
        """Where the chunks of a tensor are: the same for all its names."""
        tensor, key = self.tensor(place), self._keys[place]
        chunks = [] if tensor is None else tensor.chunks
        infos = [self._reader.storage_data[MetadataIndex(key, chunk.offsets)] for chunk in chunks]
        return frozenset((info.relative_path, info.offset) for info in infos)

    def values(self, places: Sequence[Place]) -> dict[Place, Any]:
        """Plain data."""
        planner = _Planner()
        items = [_bytes_item(self._keys[place], number) for number, place in enumerate(places)]
        self._read(items, planner)
        return {place: planner.values[number] for number, place in enumerate(places)}

    def fill(self, targets: Sequence[Target]) -> None:
        """Reads what the boxes meet, and no more of the files than the chunks that they meet."""
        planner = _Planner()
        items: list[ReadItem] = []
        for target in targets:
            key = self._keys[target.place]
            stored = self.metadata.state_dict_metadata[key]
            assert isinstance(stored, TensorStorageMetadata)
            for box in target.boxes:
                # The reader hands back the number of the box.
                number = MetadataIndex(str(len(planner.into)))
                planner.into.append(box.view_of(target.into))
                chunk = ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))
                for item in create_read_items_for_chunk_list(key, stored, [chunk]):
                    items.append(replace(item, dest_index=number))
        self._read(items, planner)

    def verify(self) -> None:
        """Compares all that there is, whoever may read it."""
        if self.digests is None:
            raise RuntimeFault(
                "SW0755",
                f"the checkpoint {self.path} cannot be verified",
                why="it was saved without digests of its data, by an earlier version",
                fix="load it and save it again; what is loaded then is not known to be what was saved",
            )
        self._verify(self.metadata.storage_data)

    def warn_without_digests(self) -> None:
        if self.digests is None:
            warnings.warn(
                f"the checkpoint {self.path} has no digests of its data, so a damaged number would not be"
                " seen: it was saved by an earlier version, and the next save has them",
                stacklevel=4,
            )

    def _read(self, items: Sequence[ReadItem], planner: _Planner) -> None:
        """File by file, so that an error can name its file."""
        self._verify(item.storage_index for item in items)
        by_file: dict[str, list[ReadItem]] = {}
        for item in items:
            by_file.setdefault(self._reader.storage_data[item.storage_index].relative_path, []).append(item)
        for file, wanted in by_file.items():
            try:
                self._reader.read_data(LoadPlan(wanted), planner).wait()  # type: ignore[arg-type]
            except Exception as error:
                raise _damaged(self.path, file, f"{type(error).__name__}: {error}") from error

    def _verify(self, indices: Iterable[MetadataIndex]) -> None:
        if self.digests is None:
            return
        by_file: dict[str, dict[int, tuple[int, str]]] = {}
        for index in indices:
            info = self._reader.storage_data[index]
            if (info.relative_path, info.offset) not in self._verified:
                by_file.setdefault(info.relative_path, {})[info.offset] = info.length, index.fqn
        for file, wanted in by_file.items():
            try:
                with (self.path / file).open("rb") as stream:
                    for offset, (length, key) in sorted(wanted.items()):
                        if digest_at(stream, offset, length) != self.digests.get(file, {}).get(offset):
                            raise _damaged(self.path, file, f"{key} is not as it was saved")
                        self._verified.add((file, offset))
            except OSError as error:
                raise _damaged(self.path, file, f"{type(error).__name__}: {error}") from error


class _Planner:
    """Where the reader puts what it reads."""

    def __init__(self) -> None:
        self.into: list[Tensor] = []
        self.values: dict[int, Any] = {}

    def load_bytes(self, item: ReadItem, value: io.BytesIO) -> None:
        self.values[int(item.dest_index.fqn)] = torch.load(value, map_location="cpu", weights_only=True)

    def resolve_tensor(self, item: ReadItem) -> Tensor:
        intervals = [(low, low + size) for low, size in zip(item.dest_offsets, item.lengths, strict=True)]
        return narrow(self.into[int(item.dest_index.fqn)], intervals)

    def commit_tensor(self, item: ReadItem, tensor: Tensor) -> None:
        """The tensor is a view: it is there."""


def _bytes_item(key: str, number: int) -> ReadItem:
    empty = torch.Size((0,))
    index = MetadataIndex(str(number))
    return ReadItem(LoadItemType.BYTE_IO, index, empty, MetadataIndex(key), empty, empty)


def _refuse_damage(path: Path, storage: Mapping[MetadataIndex, Any]) -> None:
    """Every file that the table names has to be there, and as long as the table says."""
    ends: dict[str, tuple[int, str]] = {}
    for index, info in storage.items():
        end = info.offset + info.length
        ends[info.relative_path] = max(ends.get(info.relative_path, (0, "")), (end, index.fqn))
    for name, (end, key) in ends.items():
        file = path / name
        if not file.is_file():
            raise _damaged(path, name, f"it is not there; it holds {key} and more")
        if file.stat().st_size < end:
            raise _damaged(path, name, f"it has {file.stat().st_size} bytes instead of {end}")


def _damaged(path: Path, file: str, why: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0745",
        f"the file {file} of the checkpoint {path} is damaged",
        why=why,
        fix="load another checkpoint; nothing was loaded from this one",
    )
