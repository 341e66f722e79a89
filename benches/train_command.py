"""`shardwright train` with a plan: the losses of a run, and those of a loop of PyTorch beside it."""

from __future__ import annotations

import json
import os
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from small_llama import BATCH, CLIP, DECAY, RATE, WARM_UP, Rows, Share, llama

from shardwright.data.sampling import PartSampler
from shardwright.train.running import start
from shardwright.train.stopping import TEMPORARY_FAILURE

# An epoch has 20 batches: the middle of 50 steps is in the middle of an epoch.
ROWS, LENGTH = 20 * BATCH, 16


def plain(folder: str, steps: int) -> list[float]:
    """The losses of a loop without anything of ours but the order of the rows."""
    model, losses = llama(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, Share(steps))
    for batch in islice(_batches(), steps):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def _batches() -> Any:
    whole = {BATCH: (0, BATCH)}
    order = PartSampler(ROWS, BATCH, whole, shuffle=True, seed=0, drop_last=True)
    loader = torch.utils.data.DataLoader(Rows(ROWS, LENGTH), batch_sampler=order)
    epoch = 0
    while True:
        order.set_epoch(epoch)
        yield from loader
        epoch += 1


class Stops:
    """As a scheduler does in the middle of a run: one rank is sent a signal."""

    def __init__(self) -> None:
        self._step = int(os.environ["STOPS_AFTER"])

    def step(self, training: Any, measured: dict[str, Any]) -> None:
        if training.step == self._step and training.leads:
            os.kill(os.getpid(), signal.SIGTERM)


def by_plan(world: int, plan: str, folder: str, steps: int, resume: bool) -> list[float]:
    """The losses of the first half of a run, or of the rest."""
    file = Path(folder, "run.yaml")
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(_said(plan, steps)))  # which is YAML, too
    os.environ["STOPS_AFTER"] = "0" if resume else str(steps // 2)
    status = start(str(file), [], world, None)
    assert status == (0 if resume else TEMPORARY_FAILURE), status
    lines = [json.loads(line) for line in Path(folder, "steps.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if (line["step"] > steps // 2) == resume]


def _said(plan: str, steps: int) -> dict[str, Any]:
    return {
        "model": {"path": "small_llama:llama"},
        "data": {"path": "small_llama:Rows", "arguments": {"count": ROWS, "length": LENGTH}, "batch": BATCH},
        "optimizer": {"lr": RATE, "options": {"weight_decay": DECAY}, "clip": CLIP},
        "schedule": {"kind": "cosine", "warmup": WARM_UP},
        "plan": {"name": plan, "micro_batches": 4 if "stages" in plan else 1},
        "steps": steps,
        "checkpoints": {"folder": "checkpoints"},
        "hooks": ["train_command:Stops"],
        "log": {"every": 10 * steps, "json": "steps.jsonl"},
    }
