"""Every type of model that the installed Transformers knows, under the first task that it has."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import time
from typing import Any

import torch
from torch import nn

from .built import Built, NotBuilt, finished, require_small, said
from .transformers_types import examples
from .transformers_types.configs import config_of, fitting
from .transformers_types.shrinking import WAYS, Way
from .transformers_types.tasks import folder_of, tasks

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

MOST_EXAMPLES = 16
SECONDS = 30.0
"""After so long a computation no further way of making a config is begun."""


@functools.cache
def _tasks() -> dict[str, tuple[str, str]]:
    return tasks()


def names() -> list[str]:
    return list(_tasks())


def parts() -> set[str]:
    """Those that are a part of another type, such as its tower for images."""
    folders: set[str] = set()
    names = set()
    for name in _tasks():
        folder = folder_of(name)
        if folder in folders:
            names.add(name)
        folders.add(folder)
    return names


def build(name: str) -> Built:
    """By the first way of making its config small with which the model runs."""
    task, kind = _tasks()[name]
    begin, reasons = time.process_time(), dict[str, str]()
    for way in WAYS:
        try:
            return _built(name, task, kind, way)
        except NotBuilt as error:
            reasons.setdefault(str(error), way.name)
        if time.process_time() - begin > SECONDS:
            break
    raise NotBuilt("; ".join(f"{way}: {reason}" for reason, way in reasons.items()))


def _built(name: str, task: str, kind: str, way: Way) -> Built:
    import transformers

    try:
        model_class = getattr(transformers, kind)
        config = fitting(config_of(name, way), model_class)
        module, attention = _made(model_class, config)
    except NotBuilt:
        raise
    except Exception as error:
        raise NotBuilt(said(error)) from error
    reason = "no example is known for what it takes"
    for at, kwargs in enumerate(examples.examples_for(module, config, kind, task)):
        if at == MOST_EXAMPLES:
            break
        try:
            how = {"way": way.name, "attention": attention, "given": sorted(kwargs)}
            return finished(copy.deepcopy(module), kwargs, task=task, **how)
        except NotBuilt as error:
            reason = str(error) if at == 0 else reason
    raise NotBuilt(reason)


def _made(model_class: Any, config: Any) -> tuple[nn.Module, str | None]:
    """With the attention that most of its users have, where it knows that."""
    make = getattr(model_class, "_from_config", None)
    with torch.device("meta"):
        require_small(_first(make, model_class, config)[0])
    torch.manual_seed(0)
    module, attention = _first(make, model_class, config)
    if any(type(part).__name__.endswith("Experts") for part in module.modules()):
        # The one that is usual has no kernel in float64.
        with contextlib.suppress(Exception):
            module.set_experts_implementation("batched_mm")
    return module, attention


def _first(make: Any, model_class: Any, config: Any) -> tuple[nn.Module, str | None]:
    if make is None:
        return model_class(copy.deepcopy(config)), None
    latest: Exception | None = None
    for attention in ("sdpa", "eager", None):
        options = {} if attention is None else {"attn_implementation": attention}
        try:
            return make(copy.deepcopy(config), **options), attention
        except Exception as error:
            latest = error
    assert latest is not None
    raise latest
