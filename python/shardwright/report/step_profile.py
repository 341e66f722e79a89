"""A step that was measured, beside what is predicted of it: by module, by communication, and in words."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .._core import profiled_step
from ..errors import RuntimeFault
from ..profiling.origin import device_here, require_from_here
from ..runtime import ParallelModule
from ..runtime.execution.variants import Variant
from ..runtime.programs.program import GRAPH
from ..start.auto_plan import cluster_here, cluster_of
from .summary import time_of

# So many entries are printed.
SHOWN = 12
WIDTH = 100
# More is as good as never predicted.
MOST_TIMES = 1000


class StepProfile:
    """Where a step takes longer than predicted: `print` it. `docs/reference/manifest.md` tells its `data`."""

    def __init__(self, data: dict[str, Any], cluster_text: str, manifest: dict[str, Any]):
        self.data, self.manifest = data, manifest
        self.cluster_text = cluster_text
        """The file of a cluster like the one that was predicted for, with what was measured."""

    @property
    def words(self) -> list[str]:
        """How long a step took, where the largest difference is, and what that tells."""
        return list(self.data["words"])

    @property
    def entries(self) -> list[dict[str, Any]]:
        """Modules and communications, the largest difference first."""
        return list(self.data["entries"])

    def save_cluster(self, path: str | Path) -> None:
        """Writes `cluster_text`; of several ranks one should."""
        _write(path, self.cluster_text)

    def save(self, path: str | Path) -> None:
        """Writes the steps, for `shardwright report --recorded FILE`; of several ranks one should."""
        _write(path, json.dumps(self.manifest, indent=1) + "\n")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        data = self.data
        yield f"{data['model']} under {data['plan']}, predicted for {data['cluster']}"
        for sentence in data["words"]:
            yield textwrap.fill(sentence, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        yield ""
        entries = data["entries"][:SHOWN]
        yield from _table(("of a device's step", "predicted", "measured", "times"), map(_cells, entries))
        if len(data["entries"]) > SHOWN:
            yield f"and {len(data['entries']) - SHOWN} more that differ less (`entries`)"
        yield ""
        parts = [*data["parts"], {"name": "together", **_sum(data["parts"])}]
        yield from _table(("a device's step", "predicted", "measured", "times"), map(_part_cells, parts))
        yield ""
        yield 'next: `profile.save_cluster("here.toml")`, then plan for that: `--cluster here.toml`'


def profile_of(
    model: ParallelModule,
    variant: Variant,
    manifest: dict[str, Any],
    cluster: str | None,
    optimizer: str,
) -> StepProfile:
    """Of what was recorded of a program of a model, for a cluster or for the devices here."""
    program, device = variant.worker.program, variant.worker.comm.device
    if cluster is None:
        here = cluster_here(device.type, program.world)
        named = here.name, here.text
    else:
        named = cluster_of(cluster)
        require_from_here(*named, device)
    data, text = profiled_step(
        program.graph,
        {name: text for name, text in program.files.items() if name != GRAPH},
        named,
        ("the recording", json.dumps(manifest)),
        (device_here(device), torch.__version__, torch.get_num_threads()),
        batches=manifest["micro_batches"],
        optimizer=optimizer,
        kept={name: str(dtype) for name, dtype in variant.captured.kept.items()},
        compile=variant.worker.local is not None,
    )
    return StepProfile(json.loads(data), text, manifest)


def _cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return f"{entry['name']}, {entry['pass']}", *_figures(entry)


def _part_cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return str(entry["name"]), *_figures(entry)


def _figures(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    predicted, measured = entry["predicted"], entry["measured"]
    times = f"{measured / predicted:.1f}" if predicted * MOST_TIMES > measured else ""
    return time_of(predicted), time_of(measured), times


def _sum(parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {key: sum(part[key] for part in parts) for key in ("predicted", "measured")}


def _table(head: tuple[str, ...], entries: Iterator[tuple[str, ...]]) -> Iterator[str]:
    cells = [head, *entries]
    figures = [max(len(entry[at]) for entry in cells) for at in range(1, len(head))]
    first = min(max(len(entry[0]) for entry in cells), WIDTH - 2 * len(figures) - sum(figures))
    for entry in cells:
        name = entry[0] if len(entry[0]) <= first else entry[0][: first - 1] + "…"
        figures_of = [f"{cell:>{wide}}" for cell, wide in zip(entry[1:], figures, strict=True)]
        yield "  ".join([f"{name:<{first}}", *figures_of]).rstrip()


def _write(path: str | Path, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RuntimeFault(
            "SW0863",
            f"what was recorded cannot be written to {path}",
            why=error.strerror or str(error),
            fix="name a file in a folder that exists and can be written to",
        ) from None
