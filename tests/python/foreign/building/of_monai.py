"""Networks of MONAI for images of the body, most in three dimensions."""

from __future__ import annotations

from typing import Any

import torch

from .built import BATCH, Built, NotBuilt, finished, said

SIZE = 32
_FLAT: dict[str, Any] = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
_DEEP: dict[str, Any] = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
_WIDTHS: dict[str, Any] = {"channels": (4, 8, 16), "strides": (2, 2)}
_VIT: dict[str, Any] = {"hidden_size": 32, "mlp_dim": 64, "num_heads": 4}

NETS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "unet": ("UNet", _DEEP | _WIDTHS | {"num_res_units": 2}, (1, SIZE, SIZE, SIZE)),
    "unet-2d": ("UNet", _FLAT | _WIDTHS, (1, SIZE, SIZE)),
    "attention-unet": ("AttentionUnet", _DEEP | _WIDTHS, (1, 16, 16, 16)),
    "basic-unet": ("BasicUNet", _DEEP | {"features": (4, 4, 8, 8, 16, 4)}, (1, SIZE, SIZE, SIZE)),
    "basic-unet-plus-plus": ("BasicUNetPlusPlus", _FLAT | {"features": (4, 4, 8, 8, 16, 4)}, (1, SIZE, SIZE)),
    "segresnet": ("SegResNet", _DEEP | {"init_filters": 8}, (1, SIZE, SIZE, SIZE)),
    "segresnet-vae": ("SegResNetVAE", _DEEP | {"init_filters": 8, "input_image_size": (SIZE,) * 3}, (1, SIZE, SIZE, SIZE)),
    "segresnet-ds": ("SegResNetDS", _DEEP | {"init_filters": 8}, (1, SIZE, SIZE, SIZE)),
    "vnet": ("VNet", {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}, (1, SIZE, SIZE)),
    "dynunet": (
        "DynUNet",
        _FLAT | {"kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [4, 8, 16]},
        (1, SIZE, SIZE),
    ),
    "unetr": (
        "UNETR",
        {"in_channels": 1, "out_channels": 2, "img_size": SIZE, "feature_size": 4, "spatial_dims": 3, **_VIT},
        (1, SIZE, SIZE, SIZE),
    ),
    "swin-unetr": ("SwinUNETR", _FLAT | {"feature_size": 12, "depths": (1, 1, 1, 1), "num_heads": (2, 2, 2, 2)}, (1, 64, 64)),
    "vit": (
        "ViT",
        {"in_channels": 1, "img_size": (SIZE,) * 2, "patch_size": (8, 8), "num_layers": 2, "classification": True,
         "spatial_dims": 2, **_VIT},
        (1, SIZE, SIZE),
    ),
    "vit-autoencoder": (
        "ViTAutoEnc",
        {"in_channels": 1, "img_size": (SIZE,) * 2, "patch_size": (4, 4), "num_layers": 2, "spatial_dims": 2, **_VIT},
        (1, SIZE, SIZE),
    ),
    "densenet": ("DenseNet", _FLAT | {"init_features": 8, "growth_rate": 4, "block_config": (2, 2)}, (1, SIZE, SIZE)),
    "resnet": (
        "ResNet",
        {"block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [4, 8, 8, 16], "spatial_dims": 3,
         "n_input_channels": 1, "num_classes": 3},
        (1, SIZE, SIZE, SIZE),
    ),
    "efficientnet": (
        "EfficientNetBN",
        {"model_name": "efficientnet-b0", "pretrained": False, "spatial_dims": 2, "in_channels": 1, "num_classes": 3},
        (1, 64, 64),
    ),
    "highresnet": ("HighResNet", {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}, (1, 16, 16)),
    "autoencoder": ("AutoEncoder", _FLAT | _WIDTHS | {"strides": (2, 2, 2)}, (1, SIZE, SIZE)),
    "varautoencoder": (
        "VarAutoEncoder",
        _WIDTHS | {"spatial_dims": 2, "in_shape": (1, SIZE, SIZE), "out_channels": 2, "latent_size": 4, "strides": (2, 2, 2)},
        (1, SIZE, SIZE),
    ),
    "classifier": ("Classifier", {"in_shape": (1, SIZE, SIZE), "classes": 3, **_WIDTHS}, (1, SIZE, SIZE)),
    "regressor": ("Regressor", {"in_shape": (1, SIZE, SIZE), "out_shape": (2,), **_WIDTHS}, (1, SIZE, SIZE)),
    "fullyconnected": ("FullyConnectedNet", {"in_channels": 8, "out_channels": 2, "hidden_channels": [16, 16]}, (8,)),
    "quicknat": ("Quicknat", {"num_classes": 2, "num_filters": 8}, (1, SIZE, SIZE)),
    "milmodel": ("MILModel", {"num_classes": 2, "pretrained": False, "backbone": "resnet18"}, (2, 3, SIZE, SIZE)),
    "voxelmorph": ("VoxelMorphUNet", {"spatial_dims": 2, "in_channels": 2, "unet_out_channels": 8, "channels": (4, 4, 4, 4, 4, 4, 4, 4), "final_conv_channels": (4, 4)}, (2, SIZE, SIZE)),
}  # fmt: skip


def names() -> list[str]:
    return list(NETS)


def build(name: str) -> Built:
    from monai.networks import nets

    kind, options, shape = NETS[name]
    torch.manual_seed(0)
    try:
        module = getattr(nets, kind)(**options)
    except Exception as error:
        raise NotBuilt(said(error)) from error
    return finished(
        module, args=(torch.randn(BATCH, *shape, dtype=torch.float64),), task="images of the body"
    )
