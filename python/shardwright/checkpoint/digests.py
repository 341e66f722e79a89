"""Digests of all that a checkpoint holds, so that a flipped bit is not taken for a number.

Each item of a data file has one, made of what is written while it is written; they are in the table. The
table ends with a seal, a digest of itself, which PyTorch's own reader does not look at.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import blake2b
from typing import IO, Any
from zlib import crc32

from torch.distributed.checkpoint.metadata import Metadata

# By file, of the item that begins at each place.
Digests = Mapping[str, Mapping[int, int]]

# The table's attribute, which no other reader knows.
_ATTRIBUTE = "shardwright_digests"
_MARK = b"shardwright seal "
_HEX = 32
_PIECE = 1 << 20


class Digesting:
    """A file that is written; whoever writes asks for its place where an item begins, and where it ends."""

    def __init__(self, stream: IO[bytes]):
        self._stream = stream
        self._start = self._digest = 0
        self.digests: dict[int, int] = {}

    def write(self, data: Any) -> int:
        self._digest = crc32(data, self._digest)
        return self._stream.write(data)

    def tell(self) -> int:
        at = self._stream.tell()
        if at != self._start:
            self.digests[self._start] = self._digest
            self._start, self._digest = at, 0
        return at

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        self._stream.close()

    @property
    def closed(self) -> bool:
        return self._stream.closed


def digest_at(stream: IO[bytes], offset: int, length: int) -> int:
    """That of so many bytes, or of as many as there are."""
    stream.seek(offset)
    digest, left = 0, length
    while left and (piece := stream.read(min(left, _PIECE))):
        digest, left = crc32(piece, digest), left - len(piece)
    return digest


def note(table: Metadata, digests: Digests) -> None:
    setattr(table, _ATTRIBUTE, digests)


def noted(table: Metadata) -> Digests | None:
    """Nothing in the table of a checkpoint that was written without."""
    digests: Digests | None = getattr(table, _ATTRIBUTE, None)
    return digests


def seal(path: str | os.PathLike[str]) -> None:
    """Ends a table that has been written."""
    with open(path, "r+b") as stream:
        stream.write(_seal_of(stream.read()))


def unsealed(data: bytes) -> tuple[bytes, bool]:
    """The table itself, and whether its seal is there and right. A wrong one is an error."""
    table, end = data[: -len(_MARK) - _HEX], data[-len(_MARK) - _HEX :]
    if not end.startswith(_MARK):
        return data, False
    if _seal_of(table) != end:
        raise ValueError("it is not as it was written: its digest is another")
    return table, True


def _seal_of(table: bytes) -> bytes:
    return _MARK + blake2b(table, digest_size=_HEX // 2).hexdigest().encode()
