"""Each family of timm by its smallest model, on images as small as it takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .built import Built, NotBuilt, finished, image, said

MOST = 10
"""So many of a family, those whose names promise least, are looked at for the smallest."""
SIZES = (64, 96, 128, 224, 256)
_SMALL = (
    "test_",
    "pico",
    "femto",
    "atto",
    "nano",
    "xxs",
    "xxt",
    "xs",
    "tiny",
    "micro",
    "mini",
    "small",
    "_s",
    "18",
    "_b0",
    "0",
    "_t",
)


def names() -> list[str]:
    import timm

    return [family for family in timm.list_modules() if timm.list_models(module=family)]


def build(name: str) -> Built:
    import timm

    names = sorted(timm.list_models(module=name), key=_rank)[:MOST]
    model = min(names, key=_parameters)
    reason = ""
    for size in SIZES:
        for options in ({"img_size": size}, {}):
            try:
                module = _made(model, options)
                return finished(module, args=(image(3, size),), task="images", model=model, size=size)
            except NotBuilt as error:
                reason = reason or str(error)
    raise NotBuilt(f"{model}: {reason}")


def _rank(name: str) -> tuple[int, int, str]:
    first = next((at for at, word in enumerate(_SMALL) if word in name), len(_SMALL))
    return first, len(name), name


def _parameters(name: str) -> int:
    import timm

    try:
        with torch.device("meta"):
            module = timm.create_model(name, pretrained=False)
        return sum(parameter.numel() for parameter in module.parameters())
    except Exception:
        return 1 << 60


def _made(name: str, options: dict[str, Any]) -> nn.Module:
    import timm

    torch.manual_seed(0)
    try:
        return timm.create_model(name, pretrained=False, num_classes=5, **options)
    except Exception as error:
        raise NotBuilt(said(error)) from error
