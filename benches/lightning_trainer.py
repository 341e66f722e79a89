"""Lightning's trainer with our strategy: losses beside Lightning alone, and time beside a loop of one's own.

A run of 50 steps is saved in the middle and goes on in another number of processes. Its losses are those of
Lightning on one device. Time is that of a step, without loading, in the same processes.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from measure import ratio
from tables import Table, ratio_of, time_of
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM

import shardwright as sw
from shardwright.integrations.lightning import ShardwrightStrategy

PLANS = ("data", "zero3", "megatron", "stages:2 x 1f1b")
FOUR = {"stages:2 x 1f1b": "stages:2 x megatron:2 x 1f1b"}
BATCH, STEPS, QUICK, TIMED = 8, 50, 6, 24
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
LARGE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}


def bench(quick: bool) -> Table:
    steps = QUICK if quick else STEPS
    table = Table(
        "lightning",
        "Lightning's trainer with a plan",
        f"{steps} steps of a Llama of four layers, batches of {BATCH} rows, clipping, weight decay, warm-up,"
        " cosine, float32; pipelines cut a batch into 4. In the middle each run is saved, and goes on in the"
        " other number of processes.",
        ["plan", "processes", "largest difference of a loss", "step, Trainer", "step, own loop", "ratio"],
    )
    with tempfile.TemporaryDirectory() as folder:
        expected = trained(0, 0, "", f"{folder}/plain", steps, 2)
        for plan in PLANS:
            for first, second in ((2, 4), (4, 2)):
                cells = _row(plan, first, second, f"{folder}/{plan}-{first}", steps, expected)
                table.add(*cells)
                print(*cells, sep=" | ", flush=True)
    return table


def _row(plan: str, first: int, second: int, folder: str, steps: int, expected: list[float]) -> list[str]:
    plans = {2: plan, 4: FOUR.get(plan, plan)}
    begun = sw.launch(trained, first, (first, plans[first], folder, steps, 1))
    ended = sw.launch(trained, second, (second, plans[second], folder, steps, 2, True))
    assert len(begun) == len(ended) == steps // 2 and len(expected) == steps
    worst = max(abs(a - b) / abs(b) for a, b in zip([*begun, *ended], expected, strict=True))
    named = [f"`{plans[first]}`, then `{plans[second]}`", f"{first}, then {second}", f"{worst:.1e}"]
    if first == 4:
        return [*named, "", "", ""]
    ours, loop = sw.launch(timed, first, (first, plan, f"{folder}-timed"))
    middle = [time_of(statistics.median(times)) for times in (ours, loop)]
    return [*named, *middle, ratio_of(ratio(ours, loop))]


class Rows(Dataset[Tensor]):
    def __init__(self, count: int, length: int):
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return torch.randint(0, 128, (self.length,), generator=torch.Generator().manual_seed(index))


class Llama(L.LightningModule):
    def __init__(self, sizes: dict[str, int], steps: int):
        super().__init__()
        torch.manual_seed(0)
        shape = {"vocab_size": 128, "num_attention_heads": 4, "max_position_embeddings": 64}
        self.model = LlamaForCausalLM(LlamaConfig(**shape, **sizes))
        self.steps = steps

    def training_step(self, words: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.model(input_ids=words, labels=words).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.1)
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, Rate(self.steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


class Rate:
    """Warm-up and cosine."""

    def __init__(self, steps: int):
        self.steps = steps

    def __call__(self, step: int) -> float:
        return min((step + 1) / 3, 0.5 + 0.5 * math.cos(math.pi * step / self.steps))


class Notes(Callback):
    """Losses and seconds of steps."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._start = 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, _: Any, __: Any, outputs: Any, *___: Any) -> None:
        self.losses.append(float(outputs["loss"]))
        self.seconds.append(time.perf_counter() - self._start)


def trained(
    rank: int, world: int, plan: str, folder: str, steps: int, epochs: int, resume: bool = False
) -> list[float]:
    """The losses of a run's steps; an epoch is half of them."""
    trainer, notes = made(rank, world, plan, folder, epochs)
    loader = DataLoader(Rows(BATCH * steps // 2, 16), BATCH)
    last = str(Path(folder, "last.ckpt")) if resume else None
    trainer.fit(Llama(SMALL, steps), loader, ckpt_path=last)
    return notes.losses


def timed(rank: int, world: int, plan: str, folder: str) -> tuple[list[float], list[float]]:
    """Seconds of the trainer's steps, and of as many of a loop with the same model and optimizer."""
    trainer, notes = made(rank, world, plan, folder, 1)
    trainer.fit(Llama(LARGE, TIMED), DataLoader(Rows(BATCH * TIMED, 64), BATCH))
    model, optimizer = trainer.strategy._running.running.model, trainer.optimizers[0]
    batch = "training_step", torch.utils.data.default_collate([Rows(8, 64)[at] for at in range(BATCH)]), None
    model.train()
    loop = []
    for _ in range(TIMED):
        start = time.perf_counter()
        model.train_step(batch).item()
        sw.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loop.append(time.perf_counter() - start)
    return notes.seconds[2:], loop[2:]


def made(rank: int, world: int, plan: str, folder: str, epochs: int) -> tuple[Any, Notes]:
    warnings.filterwarnings("ignore")
    notes = Notes()
    chosen: dict[str, Any] = {"devices": 1}
    if world:
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        ranks |= {"GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "bench"}  # as torchrun says it
        os.environ.update({name: str(value) for name, value in ranks.items()})
        cut = {"micro_batches": 4} if "stages" in plan else {}
        chosen = {"devices": world, "strategy": ShardwrightStrategy(plan, progress=False, **cut)}
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        gradient_clip_val=1.0,
        callbacks=[notes, ModelCheckpoint(folder, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **chosen,
    )
    return trainer, notes
