"""The loop: what `shardwright train` does on each rank."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..api import parallelize
from ..errors import RuntimeFault
from ..runtime import ParallelModule, clip_grad_norm_
from ..runtime.execution.inputs import arguments_of
from ..weights.writing import save_safetensors
from .batches import Batches, tokens_of
from .building import module_of, optimizer_of, schedule_of
from .checkpoints import Checkpoints
from .config import Config
from .datasets import dataset_of, encoder_of
from .hooks import Hooks
from .importing import load
from .loggers import Logger, loggers_of
from .measuring import Measuring
from .overview import Overview, overview_of, program_folder
from .stopping import TEMPORARY_FAILURE, Stopping


@dataclass(frozen=True)
class Data:
    train: Batches
    held_out: Batches | None


def data_of(config: Config, folder: Path) -> Data:
    encode = encoder_of(config.tokenizer, folder)

    def batches_of(data: Any) -> Batches:
        return Batches(dataset_of(data, encode, folder), data, config.seed, folder)

    return Data(
        batches_of(config.data), None if config.evaluation is None else batches_of(config.evaluation.data)
    )


def train(config: Config, folder: Path) -> int:
    """`folder` is that of the run's file. The exit status: 0 at the end, else `TEMPORARY_FAILURE`."""
    training = Training(config, folder)
    try:
        with Stopping(training.model.comm) as stopping:
            return training.run(stopping)
    finally:
        for logger in training.loggers:
            logger.close()


class Training:
    """A run under way, as hooks see it."""

    def __init__(self, config: Config, folder: Path):
        self.config, self.folder = config, folder
        self.data = data_of(config, folder)
        self.steps = self._steps()
        module = module_of(config.model, config.seed, folder)
        plan = config.plan
        self.model: ParallelModule = parallelize(
            module,
            self.data.train.first(),
            plan=plan.name,
            cluster=plan.cluster if plan.name == "auto" else None,
            constraints=plan.constraints,
            micro_batches=plan.micro_batches,
            precision=config.precision,
            weights=config.model.weights,
            memory=plan.memory,
            compile=plan.compile,
            save_to=program_folder(config, folder),
            seed=config.seed,
        )
        self.optimizer = optimizer_of(self.model, config.optimizer, folder)
        self.schedule = schedule_of(self.optimizer, config.schedule, self.steps)
        self.hooks = Hooks([load(path, folder)() for path in config.hooks])
        self.checkpoints = Checkpoints(config.checkpoints, folder, self.model.comm)
        self.loggers: list[Logger] = loggers_of(config, folder, self._overview) if self.leads else []
        self._measuring = Measuring(self.model, plan.cluster, self._micro_batches())
        self.step = 0
        """Optimizer steps that are done."""

    @property
    def leads(self) -> bool:
        """Whether this rank is the one that says things."""
        return self.model.comm.rank == 0

    def run(self, stopping: Stopping) -> int:
        self._resume()
        self.hooks.call("begin", self)
        if self.step < self.steps:
            for batch in self.data.train:
                self._step(batch)
                stopped = self.step < self.steps and stopping.is_asked()
                if stopped or self.checkpoints.is_due(self.step) or self.step == self.steps:
                    self.save()
                if stopped:
                    return self._stop()
                if self.step == self.steps:
                    break
        self.checkpoints.finish()
        self._export()
        self.hooks.call("end", self)
        return 0

    def save(self) -> None:
        extra = {
            "step": self.step,
            "data": self.data.train.state_dict(),
            "schedule": self.schedule.state_dict(),
        }
        target = self.checkpoints.save(self.model, self.optimizer, self.step, extra)
        if target is not None:
            self.hooks.call("saved", self, str(target))

    @torch.no_grad()
    def evaluate(self) -> float:
        """The mean loss of the held-out batches, each counted by its samples' number."""
        assert self.config.evaluation is not None and self.data.held_out is not None
        self.model.eval()
        total = count = 0.0
        for batch in self.data.held_out.once(self.config.evaluation.batches):
            args, kwargs = arguments_of(batch)
            samples = float(_samples(batch))
            total, count = total + samples * float(_loss(self.model(*args, **kwargs))), count + samples
        self.model.train()
        if not count:
            raise RuntimeFault(
                "SW0854",
                "there is no batch in the evaluation's data",
                why="it has fewer samples than a batch",
                fix="give a smaller `evaluation.data.batch`, or `drop_last: false`",
            )
        return total / count

    def _steps(self) -> int:
        config = self.config
        if (config.steps is None) == (config.epochs is None):
            raise RuntimeFault(
                "SW0855",
                "the run cannot be built",
                why=f"`steps` and `epochs` are {'both' if config.steps else 'neither'} given",
                fix="give one of them: `steps: 1000`",
            )
        return config.steps if config.steps is not None else int(config.epochs or 0) * len(self.data.train)

    def _overview(self) -> Overview:
        return overview_of(self.model, self.config, self.folder, self._micro_batches())

    def _micro_batches(self) -> int:
        """Of a step, however their number was found."""
        cut = self.model._micro_batches
        return 1 if cut is None else self.config.data.batch // cut.rows

    def _resume(self) -> None:
        resumed = self.checkpoints.resume(self.config.resume, self.model, self.optimizer, self.folder)
        if resumed is None:
            return
        path, extra = resumed
        self.step = extra["step"]
        self.schedule.load_state_dict(extra["schedule"])
        self.data.train.load_state_dict(extra["data"])
        if self.leads:
            print(f"resumed from {path}: {self.step} of {self.steps} steps are done", flush=True)

    def _step(self, batch: Any) -> None:
        start = time.perf_counter()
        batch = self.hooks.batch(self, batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model.train_step(batch)
        clip = self.config.optimizer.clip
        norm = clip_grad_norm_(self.model, math.inf if clip is None else clip)
        rate = self.schedule.get_last_lr()[0]
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        measured = {
            "loss": None if loss is None else float(loss),
            "gradient_norm": float(norm),
            "lr": rate,
            "epoch": self.data.train.epoch,
        }
        measured |= self._measuring.of_step(time.perf_counter() - start, tokens_of(batch))
        self.hooks.call("step", self, measured)
        self._log(measured)
        self._evaluate_if_due()

    def _evaluate_if_due(self) -> None:
        evaluation = self.config.evaluation
        if evaluation is None or (self.step % evaluation.every and self.step != self.steps):
            return
        measured = {"evaluation_loss": self.evaluate()}
        self.hooks.call("evaluated", self, measured)
        self._log(measured)
        if self.checkpoints.note_best(self.step, measured["evaluation_loss"]):
            self.save()

    def _log(self, measured: dict[str, Any]) -> None:
        for logger in self.loggers:
            logger.log(self.step, measured)

    def _stop(self) -> int:
        self.checkpoints.finish()
        if self.leads:
            print(f"stopped by a signal after step {self.step}: start it again, and it goes on", flush=True)
        return TEMPORARY_FAILURE

    def _export(self) -> None:
        export = self.config.checkpoints.export
        if export is None:
            return
        target = self.folder / export
        if hasattr(self.model, "save_pretrained"):
            self.model.save_pretrained(str(target))
        else:
            save_safetensors(self.model, target)


def _loss(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output
    return output["loss"] if hasattr(output, "keys") else output[0]


def _samples(batch: Any) -> int:
    args, kwargs = arguments_of(batch)
    first = next(x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor))
    return int(first.shape[0])
