"""Safetensors files: what is in them, and parts of it, without reading the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import RuntimeFault
from ..runtime.agreement.agreement import number_of
from ..runtime.programs.boxes import boxes
from ..runtime.programs.program import TensorInfo
from ..runtime.programs.regions import Region, local_factors, shape_of

# What two files are compared by: so many pieces of so many bytes.
SAMPLES, SAMPLE = 256, 4096

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


class Files:
    """One file, several, or a folder with `model.safetensors` or its index."""

    def __init__(self, given: str | Path | Sequence[str | Path]):
        single = isinstance(given, (str, Path))
        paths = _files_of(Path(given)) if single else [Path(path) for path in given]  # type: ignore[arg-type,union-attr]
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self._homes: dict[str, Path] = {}
        self._open: dict[Path, Any] = {}
        self._marks: dict[Path, int] = {}
        for path in paths:
            self._list(path)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keeps files open between reads."""
        with ExitStack() as stack:
            for path in set(self._homes.values()):
                self._open[path] = stack.enter_context(_opened(path))
            try:
                yield
            finally:
                self._open = {}

    def part(self, name: str, tensor: TensorInfo, region: Region, device: torch.device) -> Tensor:
        """A region of a tensor; inside of `opened`. No more of the file is read."""
        path = self._homes[name]
        stored = self._open[path].get_slice(name)
        local = shape_of(local_factors(region, tensor.factors))
        device = torch.device("cpu") if tensor.on_host else device
        part = torch.empty(local, dtype=tensor.dtype, device=device)
        try:
            for box in boxes(region, tensor.factors):
                ends = zip(box.offsets, box.sizes, strict=True)
                read = stored[tuple(slice(low, low + size) for low, size in ends) or ...]
                box.view_of(part).copy_(read)
        except SafetensorError as error:
            raise _unreadable(path, error) from error
        return part

    def mark(self, name: str) -> int:
        """Another number where the file is another, as samples of it tell."""
        path = self._homes[name]
        if path not in self._marks:
            self._marks[path] = _sampled(path)
        return number_of(f"{name} {self._marks[path]}".encode())

    def _list(self, path: Path) -> None:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118, it is no dict
                if name in self._homes:
                    raise RuntimeFault(
                        "SW0750",
                        f"the weights have {name} twice",
                        why=f"it is in {self._homes[name]} and in {path}",
                        fix="give the files of one model",
                    )
                stored = file.get_slice(name)
                self._homes[name] = path
                self.shapes[name] = tuple(stored.get_shape())
                self.dtypes[name] = _DTYPES.get(stored.get_dtype(), torch.uint8)


def _sampled(path: Path) -> int:
    """Of its length, its beginning with the table of tensors, and pieces at equal distances."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        pieces = []
        for at in range(SAMPLES):
            file.seek(length * at // SAMPLES)
            pieces.append(file.read(SAMPLE))
    return number_of(length.to_bytes(8, "little") + b"".join(pieces))


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if (path / INDEX).exists():
        return _indexed(path / INDEX)
    if (path / SINGLE).exists():
        return [path / SINGLE]
    raise RuntimeFault(
        "SW0750",
        f"there are no weights in {path}",
        why=f"the folder has neither {INDEX} nor {SINGLE}",
        fix="name files, or a folder that `save_pretrained` or `save_safetensors` has written",
    )


def _indexed(index: Path) -> list[Path]:
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted({index.parent / str(name) for name in names})
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise _unreadable(index, error) from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        # A stack, so that what happens inside is not taken for an error of opening.
        stack = ExitStack()
        file = stack.enter_context(safe_open(path, framework="pt"))
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error
    with stack:
        yield file


def _unreadable(path: Path, error: Exception) -> RuntimeFault:
    lost = isinstance(error, FileNotFoundError)
    why = "it is not there" if lost else f"it is cut short, or of another kind: {error}"
    return RuntimeFault(
        "SW0750", f"the weights in {path} cannot be read", why=why, fix="give whole safetensors files"
    )
