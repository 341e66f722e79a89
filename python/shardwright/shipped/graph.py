"""Graphs of shipped models, kept for the next start: that one imports neither PyTorch nor Transformers."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ..support.example_sizes import no_sequence, require_sizes
from ..support.folder_store import open_store
from ..support.package_digest import own_digest
from .table import EVOFORMER, Shipped

if TYPE_CHECKING:
    from ..start.micro_batches import Parts


@dataclass(frozen=True)
class Example:
    """What is captured: a shipped model, with sizes, in parts of the batch."""

    model: Shipped
    batch: int
    sequence: int | None
    micro_batches: int

    def title(self) -> str:
        parts = [self.model.name, f"batch {self.batch}"]
        parts += [f"sequence {self.sequence}"] if self.sequence is not None else []
        parts += [f"one of {self.micro_batches} micro-batches"] if self.micro_batches > 1 else []
        return ", ".join(parts)

    def key(self) -> str:
        """Of everything that the graph depends on."""
        versions = [sys.version, platform.machine(), _version("torch"), *_sources(self.model)]
        sizes = [self.batch, self.sequence, self.micro_batches]
        words = ["graph", own_digest(), versions, self.model.name, self.model.text, sizes]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()


@dataclass(frozen=True)
class Kept:
    text: str
    notes: list[str]
    """What capture had to say."""


def example_of(model: Shipped, batch: int | None, sequence: int | None, micro_batches: int = 1) -> Example:
    """With the model's own sizes where none are given; what is impossible is refused."""
    if sequence is not None and model.sequence is None:
        raise no_sequence(model.name)
    batch = model.batch if batch is None else batch
    sequence = model.sequence if sequence is None else sequence
    require_sizes(model.name, batch, sequence, model.longest)
    return Example(model, batch, sequence, micro_batches)


def graph_of(example: Example) -> Kept:
    """What was captured before, or is now, and kept."""
    store, key = open_store(), example.key()
    files = None if store is None else store.files(key)
    if files is not None:
        return Kept(files["graph.txt"].decode(), json.loads(files["info.json"])["notes"])
    captured = _captured(example)
    if store is not None:
        with contextlib.suppress(OSError):  # it is captured again next time
            store.keep(key, _files(example, captured))
    return captured


def _captured(example: Example) -> Kept:
    from ..report.progress import Progress, wanted

    with Progress(wanted(None)).phases(example.title()) as phases:
        phases.begin("capture")
        captured = _parts(replace(example, micro_batches=1)).captured(example.micro_batches)
    return Kept(captured.graph_text, captured.notes)


_parts_of: dict[str, Parts] = {}
"""Of the example that was captured last: its micro-batches of other sizes are made of the same captures."""


def _parts(whole: Example) -> Parts:
    from ..start.micro_batches import Parts
    from .making import made

    key = whole.key()
    if key not in _parts_of:
        _parts_of.clear()
        _parts_of[key] = Parts(*made(whole.model, whole.batch, whole.sequence))
    return _parts_of[key]


def _files(example: Example, captured: Kept) -> dict[str, bytes]:
    info = {"summary": {"model": example.title()}, "plan": "", "devices": 0, "notes": captured.notes}
    return {"graph.txt": captured.text.encode(), "info.json": json.dumps(info, indent=1).encode()}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _sources(model: Shipped) -> Iterator[str]:
    """Transformers by its version, and the model's own files there, which people do change."""
    spec = None if model.kind == EVOFORMER else importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return
    yield _version("transformers")
    folder = Path(spec.origin).parent / "models" / model.module
    for file in sorted(folder.glob("*.py")):
        yield hashlib.sha256(file.read_bytes()).hexdigest()
