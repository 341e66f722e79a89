"""TRL's SFTTrainer with a plan: the losses of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import datasets
import trl
from small_llama import BATCH, launched, llama, words

from integrations import arguments, losses_of

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "python"))

from trainer_runs import tokenizer

# It computes its loss of all tokens' results, which no pipeline gives.
PLANS = ("data", "zero3", "megatron", "sequence")


def plain(folder: str, steps: int) -> list[float]:
    """The losses of the plain SFTTrainer in one process."""
    return trained(0, 1, "", folder, steps, False)


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
    return losses_of(trainer, plan, steps, resume)


by_plan = launched(trained)
