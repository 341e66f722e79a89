"""Model, optimizer and schedule of a run, from what its file says."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..errors import RuntimeFault
from ..runtime import ParallelModule
from ..runtime.optimizers.optimizer import optimizer
from ..weights import deferred
from .config import ModelConfig, OptimizerConfig, ScheduleConfig
from .importing import load


def module_of(config: ModelConfig, seed: int, folder: Path) -> nn.Module:
    """The same on all ranks."""
    if (config.path is None) == (config.transformers is None):
        raise _refusal("the model is given twice" if config.path else "there is no model")
    build = partial(_own if config.path is not None else _of_transformers, config, folder)
    torch.manual_seed(seed)
    made = deferred(build, seed) if config.deferred else build()
    if not isinstance(made, nn.Module):
        raise _refusal(f"`{config.path}` gave a {type(made).__name__}, which is no `nn.Module`")
    return made.train()


def _own(config: ModelConfig, folder: Path) -> Any:
    return load(str(config.path), folder)(**config.arguments)


def _of_transformers(config: ModelConfig, folder: Path) -> Any:
    import transformers

    maker = getattr(transformers, config.auto_class, None)
    if maker is None:
        raise _refusal(f"Transformers has no {config.auto_class}")
    place = folder / str(config.transformers)
    source = str(place) if place.exists() else str(config.transformers)
    if place.is_dir() and any(place.glob("*.safetensors")) and config.weights is None:
        return maker.from_pretrained(source, use_cache=False, **config.arguments)
    made = transformers.AutoConfig.from_pretrained(source, use_cache=False, **config.arguments)
    return maker.from_config(made) if hasattr(maker, "from_config") else maker(made)


def optimizer_of(model: ParallelModule, config: OptimizerConfig, folder: Path) -> Optimizer:
    groups = [{"params": group.params, **group.options} for group in config.groups]
    made: Optimizer = optimizer(
        model, load(config.path, folder), groups or None, lr=config.lr, **config.options
    )
    return made


def schedule_of(made: Optimizer, config: ScheduleConfig, steps: int) -> LambdaLR:
    shapes = {"constant": _constant, "linear": _linear, "cosine": _cosine}
    if config.kind not in shapes:
        raise _refusal(f"`schedule.kind` is {config.kind}, not one of {', '.join(shapes)}")
    return LambdaLR(made, partial(_share, config, shapes[config.kind], steps))


def _share(config: ScheduleConfig, shape: Any, steps: int, step: int) -> float:
    """Of the highest rate, at a step."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    done = min(1.0, (step - config.warmup) / max(1, steps - config.warmup))
    return float(config.final + (1 - config.final) * shape(done))


def _constant(done: float) -> float:
    return 1.0


def _linear(done: float) -> float:
    return 1 - done


def _cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


def _refusal(why: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0855",
        "the run cannot be built",
        why=why,
        fix="`shardwright train --schema` says what `model`, `optimizer` and `schedule` may be",
    )
