"""What the benches of trainers share: a small Llama, its rows, plans, and a table of times."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import ratio
from tables import Table, ratio_of, time_of
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

import shardwright as sw

PLANS = ("data", "zero3", "megatron", "stages:2 x 1f1b")
FOUR = {"stages:2 x 1f1b": "stages:2 x megatron:2 x 1f1b"}
"""On four processes, where that is another plan."""
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
LARGE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
BATCH, VOCABULARY = 8, 128
"""Rows of a batch are those of all processes together."""
RATE, DECAY, WARM_UP, CLIP = 1e-3, 0.1, 3, 1.0


def llama(sizes: dict[str, int] | None = None) -> Any:
    torch.manual_seed(0)
    shape = {"vocab_size": VOCABULARY, "num_attention_heads": 4, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(**shape, **(sizes or SMALL), use_cache=False))


def words(index: int, length: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(index))


class Rows(Dataset[dict[str, Tensor]]):
    def __init__(self, count: int, length: int):
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index >= self.count:
            raise IndexError(index)
        row = words(index, self.length)
        return {"input_ids": row, "labels": row}


class Share:
    """Of the highest learning rate, at a step: warm-up and cosine."""

    def __init__(self, steps: int):
        self.steps = steps

    def __call__(self, step: int) -> float:
        if step < WARM_UP:
            return (step + 1) / WARM_UP
        return 0.5 + 0.5 * math.cos(math.pi * (step - WARM_UP) / (self.steps - WARM_UP))


def launched(trained: Callable[..., list[float]]) -> Callable[..., list[float]]:
    """Of a run by a plan, which `trained` is a rank of: the losses of its first half, or of the rest."""

    def by_plan(world: int, plan: str, folder: str, steps: int, resume: bool) -> list[float]:
        losses: list[float] = sw.launch(trained, world, (world, plan, folder, steps, resume))
        return losses

    return by_plan


class Paired:
    """Seconds of a trainer's steps, and after each of them of a step as a loop of one's own takes it.

    So both are of the same moments, with the same model and optimizer.
    """

    def __init__(self) -> None:
        self.trainer: list[float] = []
        self.own: list[float] = []
        self._start = 0.0

    def begin(self) -> None:
        self._start = time.perf_counter()

    def end(self, step: Callable[[], Tensor], model: Any, optimizer: Any) -> None:
        self.trainer.append(time.perf_counter() - self._start)
        self.begin()
        step().item()
        sw.clip_grad_norm_(model, CLIP)
        optimizer.step()
        optimizer.zero_grad()
        self.own.append(time.perf_counter() - self._start)

    def seconds(self) -> tuple[list[float], list[float]]:
        """Without the first two."""
        return self.trainer[2:], self.own[2:]


def times(table: Table, timed: Callable[..., tuple[list[float], list[float]]], *given: Any) -> Table:
    """A row for each plan on two processes: a trainer's step beside that of a loop of one's own."""
    for plan in PLANS:
        ours, loop = sw.launch(timed, 2, (2, plan, *given))
        middle = [time_of(statistics.median(seconds)) for seconds in (ours, loop)]
        table.add(f"`{plan}`", *middle, ratio_of(ratio(ours, loop)))
        print(*table.rows[-1], sep=" | ", flush=True)
    return table


COLUMNS = ["plan", "step, trainer", "step, own loop", "ratio"]
