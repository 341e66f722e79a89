"""Transformers' Trainer with a plan: losses beside the plain Trainer, and time beside a loop of one's own.

A run of 50 steps is interrupted in the middle and goes on in another number of processes. Its losses are
those of the plain Trainer in one process, with the same global batch. Time is that of a step, without
loading, in the same processes.
"""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from measure import ratio
from tables import Table, ratio_of, time_of
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

import shardwright as sw

PLANS = ("data", "zero3", "megatron", "stages:2 x 1f1b")
FOUR = {"stages:2 x 1f1b": "stages:2 x megatron:2 x 1f1b"}
BATCH, ACCUMULATED = 8, 4
STEPS, QUICK = 50, 6
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
LARGE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}


def bench(quick: bool) -> Table:
    steps = QUICK if quick else STEPS
    table = Table(
        "integrations",
        "Transformers' Trainer with a plan",
        f"{steps} steps of a Llama of four layers, {ACCUMULATED} batches of {BATCH} rows accumulated in a"
        " step, clipping, weight decay, warm-up, cosine, float32. In the middle each run is saved, and goes"
        " on in the other number of processes.",
        ["plan", "processes", "largest difference of a loss", "step, Trainer", "step, own loop", "ratio"],
    )
    with tempfile.TemporaryDirectory() as folder:
        expected = trained(0, 1, "plain", folder + "/plain", steps)
        for plan in PLANS:
            for first, second in ((2, 4), (4, 2)):
                cells = _row(plan, first, second, f"{folder}/{plan}-{first}", steps, expected)
                table.add(*cells)
                print(*cells, sep=" | ", flush=True)
    return table


def _row(plan: str, first: int, second: int, folder: str, steps: int, expected: list[float]) -> list[str]:
    plans = {2: plan, 4: FOUR.get(plan, plan)}
    begun = sw.launch(trained, first, (first, plans[first], folder, steps, steps // 2))
    ended = sw.launch(trained, second, (second, plans[second], folder, steps, steps, True))
    # What was resumed has the log of before, too.
    assert ended[: len(begun)] == begun and len(ended) == len(expected) == steps
    worst = max(abs(a - b) / abs(b) for a, b in zip(ended, expected, strict=True))
    named = [f"`{plans[first]}`, then `{plans[second]}`", f"{first}, then {second}", f"{worst:.1e}"]
    if first == 4:
        return [*named, "", "", ""]
    ours, loop = sw.launch(timed, first, (first, plan, folder + "-timed", min(steps, 24)))
    return [
        *named,
        time_of(statistics.median(ours)),
        time_of(statistics.median(loop)),
        ratio_of(ratio(ours, loop)),
    ]


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, length: int):
        self.length = length

    def __len__(self) -> int:
        return 64 * BATCH

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        words = torch.randint(0, 128, (self.length,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


def trained(
    rank: int, world: int, plan: str, folder: str, steps: int, stop: int | None = None, resume: bool = False
) -> list[float]:
    """The losses of a run's steps."""
    trainer = made(rank, world, plan, folder, steps, SMALL, 16, [_Stops(stop or steps)])
    trainer.train(resume_from_checkpoint=resume)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def timed(rank: int, world: int, plan: str, folder: str, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of the Trainer's steps, and of as many of a loop with the same model and optimizer."""
    clock = _Clock()
    trainer = made(rank, world, plan, folder, steps, LARGE, 64, [clock])
    trainer.train()
    model, optimizer = trainer.model_wrapped, trainer.optimizer.optimizer
    batch = torch.utils.data.default_collate([Rows(64)[index] for index in range(BATCH)])
    batch["num_items_in_batch"] = torch.tensor(float(ACCUMULATED * BATCH * 63))
    model.train()
    loop = []
    for _ in range(steps):
        start = time.perf_counter()
        model.train_step([batch] * ACCUMULATED, scale=1.0).item()
        sw.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loop.append(time.perf_counter() - start)
    return clock.seconds[2:], loop[2:]


def made(
    rank: int, world: int, plan: str, folder: str, steps: int, sizes: Any, length: int, callbacks: Any
) -> Any:
    if world > 1:  # as torchrun says it
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ.update({name: str(value) for name, value in ranks.items()})
    torch.manual_seed(0)
    shape = {"vocab_size": 128, "num_attention_heads": 4, "max_position_embeddings": 64}
    model = LlamaForCausalLM(LlamaConfig(**shape, **sizes))
    args = TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH // world,
        gradient_accumulation_steps=ACCUMULATED,
        max_steps=steps,
        learning_rate=1e-3,
        warmup_steps=3,
        lr_scheduler_type="cosine",
        weight_decay=0.1,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    kind: Any = transformers.Trainer
    if plan != "plain":
        from shardwright.integrations.transformers import Trainer

        kind = functools.partial(Trainer, plan=plan)
    trainer = kind(model, args, train_dataset=Rows(length), callbacks=callbacks)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


class _Stops(TrainerCallback):
    """Saves and ends in the middle; the schedule is that of the whole run."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step < state.max_steps:
            control.should_save = control.should_training_stop = True


class _Clock(TrainerCallback):
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._start = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter() - self._start)


if __name__ == "__main__":
    print(Path(__file__).name, bench(True).markdown())
