"""Lightning's trainer with our strategy: a step's time beside that of one's own loop, and a run's losses.

Both sides have the same model and optimizer in the same processes; loading is left out of the times.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from small_llama import (
    BATCH,
    CLIP,
    COLUMNS,
    DECAY,
    LARGE,
    RATE,
    SMALL,
    Paired,
    Share,
    launched,
    llama,
    times,
    words,
)
from tables import Table
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from shardwright.integrations.lightning import ShardwrightStrategy

STEPS, QUICK = 48, 6


def bench(quick: bool) -> Table:
    table = Table(
        "lightning",
        "Lightning's trainer with a plan",
        f"A Llama of four layers on two processes, batches of {BATCH} rows, clipping, weight decay, warm-up,"
        " cosine, float32; pipelines cut a batch into 4.",
        COLUMNS,
    )
    with tempfile.TemporaryDirectory() as folder:
        return times(table, timed, folder, QUICK if quick else STEPS)


class Rows(Dataset[Tensor]):
    def __init__(self, count: int, length: int):
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return words(index, self.length)


class Llama(L.LightningModule):
    def __init__(self, sizes: dict[str, int], steps: int):
        super().__init__()
        self.model = llama(sizes)
        self.steps = steps

    def training_step(self, words: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.model(input_ids=words, labels=words).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=RATE, weight_decay=DECAY)
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, Share(self.steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


class Notes(Callback):
    """Losses."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, _: Any, __: Any, outputs: Any, *___: Any) -> None:
        self.losses.append(float(outputs["loss"]))


class Clock(Callback):
    def __init__(self) -> None:
        self.paired = Paired()
        rows = torch.utils.data.default_collate([Rows(BATCH, 64)[at] for at in range(BATCH)])
        self._batch = "training_step", rows, None

    def on_train_batch_start(self, *_: Any) -> None:
        self.paired.begin()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        model = trainer.strategy._running.running.model
        self.paired.end(lambda: model.train_step(self._batch), model, trainer.optimizers[0])


def plain(folder: str, steps: int) -> list[float]:
    """The losses of Lightning on one device."""
    return trained(0, 0, "", folder, steps, True)


def trained(rank: int, world: int, plan: str, folder: str, steps: int, whole: bool) -> list[float]:
    """An epoch is half of the steps."""
    notes = Notes()
    trainer = made(rank, world, plan, folder, 2 if whole else 1, notes)
    loader = DataLoader(Rows(BATCH * steps // 2, 16), BATCH)
    last = str(Path(folder, "last.ckpt")) if world and whole else None
    trainer.fit(Llama(SMALL, steps), loader, ckpt_path=last)
    return notes.losses


by_plan = launched(trained)


def timed(rank: int, world: int, plan: str, folder: str, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of the trainer's steps, and of as many of a loop with the same model and optimizer."""
    clock = Clock()
    trainer = made(rank, world, plan, folder, 1, clock)
    trainer.fit(Llama(LARGE, steps), DataLoader(Rows(BATCH * steps, 64), BATCH))
    return clock.paired.seconds()


def made(rank: int, world: int, plan: str, folder: str, epochs: int, notes: Callback) -> Any:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    chosen: dict[str, Any] = {"devices": 1}
    if world:
        # As torchrun says it, by which Lightning knows that processes are there already.
        os.environ.update(GROUP_RANK="0", TORCHELASTIC_RUN_ID="bench")
        cut = {"micro_batches": 4} if "stages" in plan else {}
        chosen = {"devices": world, "strategy": ShardwrightStrategy(plan, progress=False, **cut)}
    return L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        gradient_clip_val=CLIP,
        callbacks=[notes, ModelCheckpoint(folder, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **chosen,
    )
