"""A later step makes the host wait for nothing: batches on the host and on the GPU, clipping, AdamW."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import models
import shardwright as sw
from finding import Finding, Setting
from shardwright.runtime.communication.alone import Alone

PLANS = [
    ("replicate", 1),
    ("data", 8),
    ("megatron", 8),
    ("zero3 x recompute", 8),
    ("stages:2 x data:4", 8),
    ("data x offload:activations", 8),
    ("data x offload:state", 8),
]
BATCHES = 4
# How many labels each micro-batch has decides what its loss counts: read once a step, where they are.
COUNTS = "execution/micro_batches.py"
# Operators whose result the host reads.
# PyTorch's own, which on a GPU are fused.
OPTIMIZERS = "torch/optim"
OURS = ("shardwright", "scripts/gpu")
READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::is_nonzero")


def run(setting: Setting, finding: Finding) -> None:
    table = finding.table(
        f"The 4th step, of {BATCHES} micro-batches: what waits for the GPU", ["plan", "batch on", "waits"]
    )
    for plan, ranks in PLANS[: setting.sized(len(PLANS), 2)]:
        for where in ("cpu", setting.device.type)[: setting.sized(2, 1)]:
            with finding.trying(f"{plan}, batch on {where}"):
                waits = _waits(setting, plan, ranks, where)
                table.row(plan, where, "; ".join(waits) or "none")
                waits = [wait for wait in waits if COUNTS not in wait]
                finding.expect(not waits, f"{plan}, batch on {where}: {'; '.join(waits)}")
        if setting.planted:
            return


def _waits(setting: Setting, plan: str, ranks: int, where: str) -> list[str]:
    module, batch = models.llama(
        8 * BATCHES, 16, 4, 64, vocab_size=64, num_attention_heads=8, num_key_value_heads=8
    )
    comm = Alone(0, ranks, setting.device)
    model = sw.parallelize(
        module,
        (),
        batch,
        plan=plan,
        devices=ranks,
        micro_batches=BATCHES,
        comm=comm,
        cache=False,
        progress=False,
    )
    adamw = sw.optimizer(model, torch.optim.AdamW, lr=1e-3)
    batch = {key: x.to(where) for key, x in batch.items()}

    def step() -> None:
        loss = model.train_step(batch)
        if setting.planted and loss is not None:
            float(loss)
        sw.clip_grad_norm_(model, 1.0)
        adamw.step()
        adamw.zero_grad()

    for _ in range(3):
        step()
    with _watched(setting) as waits:
        step()
    return sorted(set(waits))


@contextmanager
def _watched(setting: Setting) -> Iterator[list[str]]:
    """On a GPU what CUDA itself says; elsewhere what operators say."""
    waits: list[str] = []
    if setting.dry:
        with _Reads(waits):
            yield waits
        return
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode("default")
    warned = [w for w in caught if "synchroniz" in str(w.message)]
    waits += [_place(w.filename, w.lineno) for w in warned]


def _place(filename: str, line: int | None) -> str:
    return f"{'/'.join(filename.split('/')[-3:])}:{line}"


class _Reads(TorchDispatchMode):
    def __init__(self, reads: list[str]):
        super().__init__()
        self._found = reads

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in READS:
            frames = traceback.extract_stack()[:-1]
            ours = [f for f in frames if any(part in f.filename for part in (OPTIMIZERS, *OURS))][-1]
            if OPTIMIZERS not in ours.filename:
                self._found.append(f"{func._schema.name} in {_place(ours.filename, ours.lineno)}")
        return func(*args, **(kwargs or {}))
