"""The trunk of AlphaFold 2 in tiny size, on random sequences; the model ships with the package."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shardwright.shipped.evoformer import Config, Evoformer, batch


def tiny() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    config = Config(residues=8, sequences=4, blocks=2, msa=16, pair=8)
    return Evoformer(config), batch(config, 4)
