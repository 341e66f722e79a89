"""The families of torchvision by their smallest models: classes, segments, boxes, videos, flow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .built import Built, NotBuilt, finished, image, said

CLASSES = [
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "efficientnet_v2_s",
    "googlenet",
    "inception_v3",
    "maxvit_t",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "regnet_x_400mf",
    "regnet_y_400mf",
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "shufflenet_v2_x0_5",
    "squeezenet1_1",
    "swin_t",
    "swin_v2_t",
    "vgg11",
    "vgg11_bn",
]
SEGMENTS = ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")
BOXES = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large", "retinanet_resnet50_fpn",
    "fcos_resnet50_fpn",
)  # fmt: skip
VIDEOS = ("r3d_18", "mc3_18", "r2plus1d_18", "s3d", "swin3d_t", "mvit_v2_s")
SMALLEST = {"maxvit_t": 224, "inception_v3": 96}
SIZE = 64


def names() -> list[str]:
    return [*CLASSES, "vision_transformer", *SEGMENTS, *BOXES, *VIDEOS, "raft_small"]


def build(name: str) -> Built:
    torch.manual_seed(0)
    try:
        module, args, task = _made(name)
    except Exception as error:
        raise NotBuilt(said(error)) from error
    return finished(module, args=args, task=task)


def _made(name: str) -> tuple[Any, tuple[Any, ...], str]:
    import torchvision

    if name == "vision_transformer":
        module = torchvision.models.VisionTransformer(SIZE, 16, 2, 4, 32, 64, num_classes=5)
        return module, (image(3, SIZE),), "images"
    if name == "raft_small":
        module = torchvision.models.optical_flow.raft_small(weights=None)
        return module, (image(3, 128, 2), image(3, 128, 2)), "flow"
    if name in BOXES:
        return _detector(name), (list(image(3, SIZE, 2)), [_boxes(), _boxes()]), "boxes"
    options: dict[str, Any] = {"weights_backbone": None} if name in SEGMENTS else {}
    if name in ("googlenet", "inception_v3"):
        options = {"init_weights": False, "aux_logits": False}
    module = torchvision.models.get_model(name, weights=None, num_classes=5, **options)
    if name in VIDEOS:
        size = 224 if name == "mvit_v2_s" else SIZE
        return module, (torch.randn(2, 3, 16, size, size, dtype=torch.float64),), "videos"
    return module, (image(3, SMALLEST.get(name, SIZE)),), "segments" if name in SEGMENTS else "images"


def _detector(name: str) -> Any:
    import torchvision

    return torchvision.models.get_model(
        name, weights=None, weights_backbone=None, num_classes=5, min_size=SIZE, max_size=SIZE
    ) if "ssd" not in name else torchvision.models.get_model(
        name, weights=None, weights_backbone=None, num_classes=5
    )  # fmt: skip


def _boxes() -> dict[str, Tensor]:
    corner = torch.tensor([[4.0, 6.0], [20.0, 10.0]], dtype=torch.float64)
    return {"boxes": torch.cat([corner, corner + 24.0], 1), "labels": torch.tensor([1, 3])}
