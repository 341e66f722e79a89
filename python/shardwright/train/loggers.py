"""Where what is measured goes: a line, a file of JSON objects, TensorBoard, Weights & Biases."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from .config import Config, LogConfig
from .overview import PICTURE, Overview


class Logger(Protocol):
    """Only rank 0 has any."""

    def log(self, step: int, measured: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def loggers_of(config: Config, folder: Path, overview: Callable[[], Overview]) -> list[Logger]:
    """`overview` is asked for only if a logger can show it."""
    log = config.log
    made: list[Logger] = [Lines(log)]
    if log.json is not None:
        made.append(JsonLines(folder / log.json))
    if log.tensorboard is not None:
        made.append(TensorBoard(folder / log.tensorboard, overview()))
    if log.wandb is not None:
        made.append(Wandb(log.wandb))
    return made


class Lines:
    def __init__(self, config: LogConfig):
        self._every = max(1, config.every)

    def log(self, step: int, measured: Mapping[str, Any]) -> None:
        if "evaluation_loss" in measured:
            print(f"step {step}: evaluation loss {measured['evaluation_loss']:.6f}", flush=True)
        elif step % self._every == 0 or step == 1:
            print(line_of(step, measured), flush=True)

    def close(self) -> None:
        return


def line_of(step: int, measured: Mapping[str, Any]) -> str:
    """Its first words are what most people look for."""
    parts = [f"step {step}: loss {measured['loss']:.6f}"]
    if measured.get("gradient_norm") is not None:
        parts.append(f"norm {measured['gradient_norm']:.3f}")
    parts.append(f"rate {measured['lr']:.2e}")
    predicted = (
        f", predicted {measured['predicted_seconds']:.3f}" if measured.get("predicted_seconds") else ""
    )
    parts.append(f"{measured['seconds']:.3f} s{predicted}")
    parts.append(f"{measured['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in measured:
        parts.append(f"MFU {measured['mfu']:.1%}")
    parts.append(f"{measured['memory'] / 2**30:.2f} GiB")
    return ", ".join(parts)


class JsonLines:
    def __init__(self, file: Path):
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("a", encoding="utf-8")

    def log(self, step: int, measured: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"step": step, **measured}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    def __init__(self, folder: Path, overview: Overview):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))  # type: ignore[no-untyped-call]
        self._writer.add_text("plan", overview.text)  # type: ignore[no-untyped-call]
        self._writer.flush()  # type: ignore[no-untyped-call]
        if overview.picture is not None:
            (folder / PICTURE).write_text(overview.picture, encoding="utf-8")

    def log(self, step: int, measured: Mapping[str, Any]) -> None:
        for name, value in measured.items():
            if isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._writer.close()  # type: ignore[no-untyped-call]


class Wandb:
    def __init__(self, arguments: Mapping[str, Any]):
        import wandb

        self._run = wandb.init(**arguments)

    def log(self, step: int, measured: Mapping[str, Any]) -> None:
        self._run.log(dict(measured), step=step)

    def close(self) -> None:
        self._run.finish()
