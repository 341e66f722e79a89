"""Reads the table of a checkpoint. It is a pickle: nothing but its own classes may come out of it."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from ..errors import RuntimeFault
from .digests import noted, unsealed

METADATA = ".metadata"
# Where a value is in the nested dict that a checkpoint is.
Place = tuple[Any, ...]

_TORCH = "torch.distributed.checkpoint."
_CLASSES: Mapping[str, set[str]] = {
    f"{_TORCH}metadata": {
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
        "TensorProperties", "_MEM_FORMAT_ENCODING", "MetadataIndex", "StorageMeta",
    },
    f"{_TORCH}filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"},
    "pathlib._local": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"},
    "collections": {"OrderedDict"},
    "builtins": {"set", "frozenset", "slice"},
}  # fmt: skip


def key_of(place: Place) -> str:
    """How the format writes a place: `("model", "head.weight")` is `model.head.weight`."""
    return ".".join(map(str, place))


def read_metadata(path: Path) -> Metadata:
    file = path / METADATA
    try:
        data, is_sealed = unsealed(file.read_bytes())
        metadata = _Reader(io.BytesIO(data)).load()
    except FileNotFoundError:
        raise _no_checkpoint(path) from None
    except NotADirectoryError:
        raise _no_checkpoint(path) from None
    except Exception as error:
        raise RuntimeFault(
            "SW0742",
            f"{file} cannot be read",
            why=f"it is cut short, or no table of a checkpoint: {error}",
            fix="load another checkpoint",
        ) from error
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise RuntimeFault("SW0742", f"{file} is no table of a checkpoint", fix="load another checkpoint")
    if noted(metadata) is not None and not is_sealed:
        raise RuntimeFault(
            "SW0742",
            f"{file} cannot be read",
            why="it is damaged: its own digest, which it ends with, is not there",
            fix="load another checkpoint",
        )
    return metadata


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        if module == "torch":
            known = getattr(torch, name, None)
            if known is torch.Size or isinstance(known, torch.dtype):
                return known
        elif name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it holds `{module}.{name}`, which does not belong there")


def _no_checkpoint(path: Path) -> RuntimeFault:
    if path.is_dir():
        why = f"the folder has no {METADATA}: it was never a checkpoint, or its first save did not end"
    else:
        why = "it is a file" if path.exists() else "there is nothing of this name"
    return RuntimeFault(
        "SW0742",
        f"{path} is no checkpoint",
        why=why,
        fix="name the folder that `shardwright.save` was given",
    )
