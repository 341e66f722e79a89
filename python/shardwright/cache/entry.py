"""What is kept of a compilation, as text files and one file of constants."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import safetensors.torch

from ..capture import CallSpec, Captured, Compared, ResultSpec

_PROGRAM = "program/"


@dataclass
class Entry:
    """A program with the graph and the plan that it was made from, and its summary."""

    files: dict[str, str]
    digest: str
    plan: str
    devices: int
    captured: Captured
    proof: str
    graph_text: str
    """The model's graph, as it was captured: what the plan is about and the program was proved equal to."""
    plan_text: str
    summary: dict[str, Any]

    def write(self) -> dict[str, bytes]:
        captured = self.captured
        info = {
            "digest": self.digest,
            "plan": self.plan,
            "devices": self.devices,
            "in_spec": captured.in_spec.text(),
            "out_spec": captured.out_spec.text(),
            "buffer_aliases": captured.buffer_aliases,
            "verified": captured.verified,
            "compared": captured.compared and captured.compared.plain(),
            "notes": captured.notes,
            "dtypes": captured.dtypes(),
            "fixed": captured.fixed,
            "for_backward": captured.for_backward,
            "summary": self.summary,
        }
        texts = {
            **{_PROGRAM + name: text for name, text in self.files.items()},
            "graph.txt": self.graph_text,
            "plan.txt": self.plan_text,
            "proof.txt": self.proof,
            "info.json": json.dumps(info, indent=1),
        }
        encoded = {name: text.encode() for name, text in texts.items()}
        constants = {name: value.cpu().contiguous() for name, value in captured.constants.items()}
        return {**encoded, "constants.safetensors": safetensors.torch.save(constants)}

    @staticmethod
    def read(files: dict[str, bytes], forward: Callable[..., Any]) -> Entry:
        info = json.loads(files["info.json"])
        captured = Captured(
            graph_text="",
            constants=safetensors.torch.load(files["constants.safetensors"]),
            in_spec=CallSpec.from_text(info["in_spec"], forward),
            out_spec=ResultSpec.from_text(info["out_spec"]),
            buffer_aliases=info["buffer_aliases"],
            verified=info["verified"],
            compared=Compared(**info["compared"]) if info["compared"] else None,
            notes=info["notes"],
            fixed=info["fixed"],
            for_backward=info["for_backward"],
        ).with_dtypes(info["dtypes"])
        program = {n.removeprefix(_PROGRAM): b.decode() for n, b in files.items() if n.startswith(_PROGRAM)}
        return Entry(
            files=program,
            digest=info["digest"],
            plan=info["plan"],
            devices=info["devices"],
            captured=captured,
            proof=files["proof.txt"].decode(),
            graph_text=files["graph.txt"].decode(),
            plan_text=files["plan.txt"].decode(),
            summary=info["summary"],
        )
