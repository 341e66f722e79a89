"""The folder of a checkpoint: torch.distributed.checkpoint's format, changed in one step.

Data files are `__RANK_NUMBER.distcp`, and `.metadata` says which of them hold what. A save writes
files under new numbers beside those of the checkpoint that is there, and then puts a new `.metadata`
in the place of the old: until that moment the old checkpoint is whole, from then on the new one.
Data files that `.metadata` does not name are left over from a save that did not end well.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from ..errors import RuntimeFault
from ..runtime.programs.boxes import Box
from .digests import Digesting, note, seal
from .metadata import METADATA, Place, key_of, read_metadata
from .plain import packed

DATA = re.compile(r"__\d+_(\d+)\.distcp")


@dataclass(frozen=True)
class Value:
    """Plain data."""

    place: Place
    value: Any
    held: bytes | None = None
    """What it was when it was copied."""

    def packed(self) -> bytes:
        return packed(self.value) if self.held is None else self.held


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor; `places` are those of all names that the tensor has."""

    places: Sequence[Place]
    shape: Sequence[int]
    dtype: torch.dtype
    box: Box
    data: Callable[[], Tensor]
    held: Tensor | None = None
    """What it was when it was copied."""

    def tensor(self) -> Tensor:
        return self.box.view_of(self.data()).detach() if self.held is None else self.held


@dataclass(frozen=True)
class Written:
    """What one rank has written: small, and picklable."""

    items: list[WriteItem]
    places: dict[str, list[Place]]
    results: list[Any] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)
    """Of what each result says was written."""


def prepare(path: Path) -> int:
    """Makes the folder, removes what earlier saves have left over; gives this save its number."""
    with _explained(path):
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(20, "it is a file", str(path))
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{METADATA}.tmp").unlink(missing_ok=True)
        kept = _named_files(path)
        for file in _data_files(path) - kept:
            (path / file).unlink(missing_ok=True)
        return max((_number(file) + 1 for file in _data_files(path)), default=0)


def write(path: Path, rank: int, number: int, items: Sequence[Value | Chunk]) -> Written:
    """Writes one rank's file. What cannot be written whole is removed again."""
    items_of = {_index(item): item for item in items}
    planned = [_write_item(index, item) for index, item in items_of.items()]
    # The writer itself appends the number of the file, which is always 0.
    prefix = f"__{rank}_{number or ''}"
    plan = SavePlan(planned, storage_data=SimpleNamespace(prefix=prefix))
    try:
        writer = _Writer(path)
        with _explained(path):
            results: Any = writer.write_data(plan, _Planner(items_of)).wait()  # type: ignore[arg-type]
        digests = [writer.digest_of(result.storage_data) for result in results]
    except BaseException:
        with suppress(OSError):
            (path / f"{prefix}0.distcp").unlink(missing_ok=True)
        raise
    places = {index.fqn: _places(item) for index, item in items_of.items()}
    return Written(planned, places, list(results), digests)


def commit(path: Path, written: Sequence[Written]) -> None:
    """From here on the folder is the new checkpoint."""
    files = {result.storage_data.relative_path for one in written for result in one.results}
    _refuse_unseen(path, written)
    table = _metadata(written)
    note(table, _digests(written))
    with _explained(path):
        _Writer(path).finish(table, [_with_aliases(one) for one in written])
    for file in _data_files(path) - files:
        with suppress(OSError):
            (path / file).unlink()


class _Folder(FileSystem):
    """Files are on the disk when they are closed, and take another's place in one step."""

    def __init__(self) -> None:
        super().__init__()
        # Of the files that were written, by name.
        self.digests: dict[str, dict[int, int]] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            digesting = Digesting(cast(IO[bytes], stream))
            self.digests[Path(path).name] = digesting.digests
            yield digesting
        if Path(path).name == f"{METADATA}.tmp":
            seal(path)
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rm_file(self, path: Any) -> None:
        """What would be removed is about to be replaced."""

    def rename(self, path: Any, new_path: Any) -> None:
        os.replace(path, new_path)
        _sync_folder(Path(new_path).parent)


class _Writer(FileSystemWriter):
    def __init__(self, path: Path):
        super().__init__(path, thread_count=1)
        self.fs = self._folder = _Folder()

    def digest_of(self, written: Any) -> int:
        return self._folder.digests[written.relative_path][written.offset]

    def storage_meta(self) -> StorageMeta:
        """Without the folder's path: a checkpoint may be moved."""
        return StorageMeta(save_id=self.save_id)


class _Planner:
    """What the writer asks for an item's data."""

    def __init__(self, items: dict[MetadataIndex, Value | Chunk]):
        self.items = items

    def resolve_data(self, item: WriteItem) -> Tensor | io.BytesIO:
        planned = self.items[item.index]
        return planned.tensor() if isinstance(planned, Chunk) else io.BytesIO(planned.packed())


def _index(item: Value | Chunk) -> MetadataIndex:
    if isinstance(item, Value):
        return MetadataIndex(key_of(item.place))
    return MetadataIndex(key_of(item.places[0]), item.box.offsets)


def _places(item: Value | Chunk) -> list[Place]:
    return [item.place] if isinstance(item, Value) else list(item.places)


def _write_item(index: MetadataIndex, item: Value | Chunk) -> WriteItem:
    if isinstance(item, Value):
        return WriteItem(index, WriteItemType.BYTE_IO)
    chunk = ChunkStorageMetadata(torch.Size(item.box.offsets), torch.Size(item.box.sizes))
    properties = TensorProperties(dtype=item.dtype)
    data = TensorWriteData(chunk, properties, torch.Size(item.shape))
    return WriteItem(index, WriteItemType.SHARD, tensor_data=data)


def _metadata(written: Sequence[Written]) -> Metadata:
    described: dict[str, Any] = {}
    places: dict[str, Place] = {}
    for one in written:
        for item in one.items:
            data = item.tensor_data
            for place in one.places[item.index.fqn]:
                key = key_of(place)
                places[key] = place
                if data is None:
                    described[key] = BytesStorageMetadata()
                    continue
                tensor = TensorStorageMetadata(data.properties, data.size, [])
                described.setdefault(key, tensor).chunks.append(data.chunk)
    for key, tensor in described.items():
        if isinstance(tensor, TensorStorageMetadata):
            _refuse_gaps(key, tensor)
    return Metadata(described, planner_data=places)


def _digests(written: Sequence[Written]) -> dict[str, dict[int, int]]:
    by_file: dict[str, dict[int, int]] = {}
    for one in written:
        for result, digest in zip(one.results, one.digests, strict=True):
            by_file.setdefault(result.storage_data.relative_path, {})[result.storage_data.offset] = digest
    return by_file


def _with_aliases(one: Written) -> list[Any]:
    """A tensor of several names is in the files once, and in the table under each."""
    return [
        replace(result, index=MetadataIndex(key_of(place), result.index.offset))
        for result in one.results
        for place in one.places[result.index.fqn]
    ]


def _refuse_gaps(key: str, tensor: TensorStorageMetadata) -> None:
    if sum(prod(chunk.sizes) for chunk in tensor.chunks) != prod(tensor.size):
        raise RuntimeFault(
            "SW0740",
            f"{key} cannot be saved",
            why="only some of the ranks that have a part of the parameter have a part of this",
            fix="save after a whole step, which gives every parameter its optimizer state",
        )


def _refuse_unseen(path: Path, written: Sequence[Written]) -> None:
    for rank, one in enumerate(written):
        for result in one.results:
            info = result.storage_data
            file = path / info.relative_path
            if not file.is_file() or file.stat().st_size < info.offset + info.length:
                raise RuntimeFault(
                    "SW0741",
                    f"the checkpoint in {path} is not complete",
                    why=f"rank 0 does not see {info.relative_path}, which rank {rank} has written",
                    fix="save to a folder that all machines share; what was there is as it was",
                )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """A disk that is full shows as `OSError`, or as an error of the writer inside of which it happened."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = next((e for e in _chain(error) if isinstance(e, OSError)), None)
        why = (
            f"{cause.strerror or cause}" + (f": {cause.filename}" if cause.filename else "") if cause else ""
        )
        raise RuntimeFault(
            "SW0741",
            f"the checkpoint cannot be written to {path}",
            why=why or str(error).strip().partition("\n")[0] or type(error).__name__,
            fix="name a folder on a disk that can be written and has room; what was there is as it was",
        ) from error


def _chain(error: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ or at.__context__


def _named_files(path: Path) -> set[str]:
    """The data files of the checkpoint that is there; all of them, if it cannot be read."""
    if not (path / METADATA).exists():
        return set()
    try:
        return {info.relative_path for info in read_metadata(path).storage_data.values()}
    except RuntimeFault:
        return _data_files(path)


def _data_files(path: Path) -> set[str]:
    return {file.name for file in path.iterdir() if DATA.fullmatch(file.name)}


def _number(file: str) -> int:
    match = DATA.fullmatch(file)
    return int(match[1]) // 10 if match else 0


def _sync_folder(path: Path) -> None:
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
