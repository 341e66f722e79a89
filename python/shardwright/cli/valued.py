"""A model that a command names, with values, and a call of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..errors import CaptureError
from ..shipped.table import SHIPPED

if TYPE_CHECKING:
    from torch import nn

    from ..runtime.execution.inputs import Arguments

_SEED = 0


def module_and_example(arguments: argparse.Namespace) -> tuple[nn.Module, Arguments]:
    """Without a model the small GPT of the demo."""
    model: str | None = arguments.model
    if model is None:
        from .. import demo

        return demo.build(), (demo.batches()[0], {})
    if model in SHIPPED or model.startswith("hf:"):
        return _initialised(model, arguments)
    from .source import ModuleSource, source_of

    source = source_of(arguments)
    if isinstance(source, ModuleSource):
        return source.module, source.example
    raise CaptureError(
        "SW0116",
        f"{model} is a graph, and cannot be run itself",
        why="it has neither the module nor its values",
        fix="name the model as FILE.py:FUNCTION; `shardwright check` proves a program against a graph",
    )


def _initialised(model: str, arguments: argparse.Namespace) -> tuple[nn.Module, Arguments]:
    """By the model's own initialisation, with an example that is drawn; made without values first, for it may
    be too large."""
    import torch

    from ..comparing.values import require_room

    require_room(_made(model, arguments, "meta")[0])
    torch.manual_seed(_SEED)
    module, (args, kwargs) = _made(model, arguments, "cpu")
    drawn = {name: _drawn(tensor, module) for name, tensor in kwargs.items()}
    return module, (args, drawn)


def _made(model: str, arguments: argparse.Namespace, device: str) -> tuple[nn.Module, Arguments]:
    if model in SHIPPED:
        from ..shipped.graph import example_of
        from ..shipped.making import made

        example = example_of(SHIPPED[model], arguments.batch, arguments.sequence)
        return made(example.model, example.batch, example.sequence, device)
    from ..integrations.transformers_models import BATCH, from_config

    batch = BATCH if arguments.batch is None else arguments.batch
    module, kwargs = from_config(model, batch, arguments.sequence, device)
    return module, ((), kwargs)


def _drawn(tensor: Any, module: Any) -> Any:
    """Words, pixels or classes in the place of a tensor on meta."""
    import torch

    if not tensor.is_meta:
        return tensor
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, dtype=tensor.dtype)
    config = module.config
    many = config.num_labels if tensor.dim() == 1 else getattr(config, "vocab_size", config.num_labels)
    return torch.randint(many, tensor.shape)
