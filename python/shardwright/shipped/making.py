"""A shipped model on meta, and an example."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from . import evoformer
from .table import EVOFORMER, Shipped

if TYPE_CHECKING:
    from ..runtime.execution.inputs import Arguments


def made(
    model: Shipped, batch: int, sequence: int | None, device: str = "meta"
) -> tuple[nn.Module, Arguments]:
    """In training mode, with the arguments of a call that gives the loss. On meta without weights; on another
    device with those of its own initialisation."""
    with _default(getattr(torch, model.dtype)), torch.device(device):
        if model.kind == EVOFORMER:
            assert sequence is not None
            config = evoformer.Config(residues=sequence, **model.config)
            return evoformer.Evoformer(config).train(), (evoformer.batch(config, batch), {})
        from ..integrations.transformers_models import of_class

        module, kwargs = of_class(model.kind, model.config, model.name, batch, sequence, device)
        return module, ((), kwargs)


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
