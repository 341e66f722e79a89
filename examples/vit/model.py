"""ViT of torchvision, as it is, with its loss behind it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import VisionTransformer


class Classifier(nn.Module):
    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        self.vit = VisionTransformer(**sizes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.vit(images).float(), labels)


def tiny() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "num_classes": 10}
    model = Classifier(hidden_dim=32, mlp_dim=64, **sizes)
    nn.init.normal_(model.vit.heads.head.weight, std=0.02)  # torchvision begins with zeros
    return model, {"images": torch.randn(8, 3, 32, 32), "labels": torch.randint(10, (8,))}


def full() -> tuple[nn.Module, dict[str, Tensor]]:
    """ViT-H/14 with 632 million parameters, without memory, and 1024 images."""
    with torch.device("meta"):
        sizes = {"image_size": 224, "patch_size": 14, "num_layers": 32, "num_heads": 16}
        model = Classifier(hidden_dim=1280, mlp_dim=5120, **sizes).bfloat16()
        images = torch.zeros(1024, 3, 224, 224, dtype=torch.bfloat16)
        return model, {"images": images, "labels": torch.zeros(1024, dtype=torch.int64)}
