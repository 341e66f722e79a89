"""TRL's SFTTrainer with a plan: the losses of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import datasets
import trl
from small_llama import BATCH, llama, words

import shardwright as sw
from integrations import Stops, arguments, losses_of

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "python"))

from trainer_runs import tokenizer

# It computes its loss of all tokens' results, which no pipeline gives.
PLANS = ("data", "zero3", "megatron", "sequence")


def plain(folder: str, steps: int) -> list[float]:
    """The losses of the plain SFTTrainer in one process."""
    return trained(0, 1, "", folder, steps, False)


def by_plan(world: int, plan: str, folder: str, steps: int, resume: bool) -> list[float]:
    """The losses of the first half of a run, or of the rest."""
    losses: list[float] = sw.launch(trained, world, (world, plan, folder, steps, resume))
    return losses


def trained(rank: int, world: int, plan: str, folder: str, steps: int, resume: bool) -> list[float]:
    rows = datasets.Dataset.from_dict({"input_ids": [words(at, 16).tolist() for at in range(64 * BATCH)]})
    given = {**arguments(world, folder, steps), "gradient_checkpointing": False, "bf16": False}
    args = trl.SFTConfig(folder, **given, max_length=None)
    kind: Any = trl.SFTTrainer
    more: dict[str, Any] = {}
    if plan:
        from shardwright.integrations.transformers import ParallelTrainer

        kind, more = type("SFT", (ParallelTrainer, trl.SFTTrainer), {}), {"plan": plan}
    trainer = kind(llama(), args, train_dataset=rows, processing_class=tokenizer(), **more)
    trainer.add_callback(Stops(steps // 2 if plan and not resume else steps))
    return losses_of(trainer, resume)
