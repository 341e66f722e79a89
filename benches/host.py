"""Microseconds that the runtime takes on the host, as `make gpu` measures them, on the CPU."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from tables import Table

SCRIPTS = Path(__file__).parent.parent / "scripts" / "gpu"


def bench(quick: bool) -> Table:
    sys.path.insert(0, str(SCRIPTS))
    from finding import Finding, Setting
    from parts import host

    class Here(Setting):
        @property
        def device(self) -> torch.device:
            return torch.device("cpu")

    with tempfile.TemporaryDirectory() as folder:
        finding = Finding(Path(folder) / "host.json")
        host.run(Here(dry=quick, planted=False), finding)
    assert not finding.failures, finding.failures
    [measured] = finding.tables
    table = Table(
        "host",
        "The host's time",
        f"{measured['title']}. One rank of so many, which has no others: messages take no time.",
        measured["columns"],
        measured["rows"],
    )
    table.values = finding.values
    return table
