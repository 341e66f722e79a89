"""Transformers' Trainer with a plan: a step's time beside that of a loop of one's own, and a run's losses.

Both sides have the same model and optimizer in the same processes; loading is left out of the times.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from small_llama import (
    BATCH,
    COLUMNS,
    DECAY,
    LARGE,
    RATE,
    SMALL,
    WARM_UP,
    Paired,
    Rows,
    launched,
    llama,
    times,
)
from tables import Table
from transformers import TrainerCallback, TrainingArguments

ACCUMULATED = 4
STEPS, QUICK = 48, 6


def bench(quick: bool) -> Table:
    table = Table(
        "integrations",
        "Transformers' Trainer with a plan",
        f"A Llama of four layers on two processes, {ACCUMULATED} batches of {BATCH} rows accumulated in a"
        " step, clipping, weight decay, warm-up, cosine, float32.",
        COLUMNS,
    )
    with tempfile.TemporaryDirectory() as folder:
        return times(table, timed, folder, QUICK if quick else STEPS)


def plain(folder: str, steps: int) -> list[float]:
    """The losses of the plain Trainer in one process."""
    return trained(0, 1, "", folder, steps, False)


def trained(rank: int, world: int, plan: str, folder: str, steps: int, resume: bool) -> list[float]:
    trainer = made(world, plan, folder, arguments(world, folder, steps))
    return losses_of(trainer, plan, steps, resume)


by_plan = launched(trained)


def losses_of(trainer: Any, plan: str, steps: int, resume: bool) -> list[float]:
    """Of a run that is whole, or a half: what was resumed has the log of before, too."""
    trainer.add_callback(Stops(steps // 2 if plan and not resume else steps))
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses[len(losses) // 2 :] if resume else losses


def timed(rank: int, world: int, plan: str, folder: str, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of the Trainer's steps, and of as many of a loop with the same model and optimizer."""
    trainer = made(world, plan, folder, arguments(world, folder, steps), LARGE, 64)
    batch = torch.utils.data.default_collate([Rows(BATCH, 64)[index] for index in range(BATCH)])
    batch["num_items_in_batch"] = torch.tensor(float(ACCUMULATED * BATCH * 63))
    clock = _Clock(trainer, [batch] * ACCUMULATED)
    trainer.add_callback(clock)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return clock.paired.seconds()


def made(
    world: int, plan: str, folder: str, given: dict[str, Any], sizes: Any = SMALL, length: int = 16
) -> Any:
    kind: Any = transformers.Trainer
    if plan:
        from shardwright.integrations.transformers import Trainer

        kind = functools.partial(Trainer, plan=plan)
    rows = Rows(64 * BATCH, length)
    return kind(llama(sizes), TrainingArguments(folder, **given), train_dataset=rows)


def arguments(world: int, folder: str, steps: int) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": BATCH // world,
        "gradient_accumulation_steps": ACCUMULATED,
        "max_steps": steps,
        "learning_rate": RATE,
        "warmup_steps": WARM_UP,
        "lr_scheduler_type": "cosine",
        "weight_decay": DECAY,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }


class Stops(TrainerCallback):
    """Saves and ends in the middle; the schedule is that of the whole run."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step < state.max_steps:
            control.should_save = control.should_training_stop = True


class _Clock(TrainerCallback):
    def __init__(self, trainer: Any, group: list[Any]) -> None:
        self.paired = Paired()
        self._trainer, self._group = trainer, group

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.paired.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, optimizer = self._trainer.model_wrapped, self._trainer.optimizer.optimizer
        self.paired.end(lambda: model.train_step(self._group, scale=1.0), model, optimizer)


if __name__ == "__main__":
    print(Path(__file__).name, bench(True).markdown())
