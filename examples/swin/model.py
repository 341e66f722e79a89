"""A small Swin of Transformers: its first stage has few channels and large maps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import SwinConfig, SwinForImageClassification


def tiny() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    config = SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        drop_path_rate=0.0,
        num_labels=10,
    )
    batch = {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(10, (4,))}
    return SwinForImageClassification(config), batch
