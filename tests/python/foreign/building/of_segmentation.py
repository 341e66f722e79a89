"""The architectures of segmentation-models-pytorch, on a small encoder."""

from __future__ import annotations

from typing import Any

import torch

from .built import Built, NotBuilt, finished, image, said

ENCODERS = {"Segformer": "mit_b0", "DPT": "tu-vit_tiny_patch16_224"}
SIZE = 64


def names() -> list[str]:
    import segmentation_models_pytorch as smp

    return [
        name
        for name, kind in vars(smp).items()
        if isinstance(kind, type) and issubclass(kind, torch.nn.Module) and name[0].isupper()
    ]


def build(name: str) -> Built:
    import segmentation_models_pytorch as smp

    torch.manual_seed(0)
    encoder = ENCODERS.get(name, "resnet18")
    options: dict[str, Any] = {"encoder_name": encoder, "encoder_weights": None, "classes": 3}
    size = {"DPT": 224, "PAN": 128}.get(name, SIZE)
    try:
        module = getattr(smp, name)(**options)
    except Exception as error:
        raise NotBuilt(said(error)) from error
    return finished(module, args=(image(3, size),), task="segments", encoder=encoder)
