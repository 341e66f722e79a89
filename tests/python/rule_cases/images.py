"""Convolutions and pooling."""

from __future__ import annotations

import torch.nn.functional as F

from .case import between, case, normal

# fmt: off
# ---- convolution ---------------------------------------------------------------------------

case("conv1d", "conv1d", F.conv1d, normal(5, 4, 6), normal(3, 4, 3), normal(3), dims="n=5 i=4 o=3")
case("conv1d-groups", "conv1d", lambda x, w, b: F.conv1d(x, w, b, padding=1, groups=3), normal(4, 6, 5),
    normal(9, 2, 3), normal(9), dims="n=4 g=3 i=2 o=3")
case("conv1d-depthwise", "conv1d", lambda x, w: F.conv1d(x, w, groups=5), normal(4, 5, 6), normal(5, 1, 3),
    made=(0,), dims="n=4 g=5")
case("conv1d-same", "conv1d.padding", lambda x, w, b: F.conv1d(x, w, b, padding="same"), normal(4, 5, 6),
    normal(3, 5, 3), normal(3), dims="n=4 i=5 o=3")
case("conv1d-no-batch", "conv1d", F.conv1d, normal(5, 6), normal(4, 5, 3), dims="i=5 o=4")
case("conv2d", "conv2d", lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), normal(5, 3, 6, 5),
    normal(4, 3, 3, 3), normal(4), dims="n=5 i=3 o=4")
case("conv2d-no-bias", "conv2d", F.conv2d, normal(3, 5, 4, 4), normal(7, 5, 3, 2), made=(0,),
    dims="n=3 i=5 o=7")
case("conv2d-groups", "conv2d", lambda x, w, b: F.conv2d(x, w, b, dilation=2, groups=2), normal(3, 6, 5, 6),
    normal(4, 3, 3, 2), normal(4), dims="n=3 g=2 i=3 o=2")
case("conv3d", "conv3d", F.conv3d, normal(3, 2, 3, 4, 3), normal(5, 2, 2, 2, 2), normal(5),
    dims="n=3 i=2 o=5")
case("conv2d-rows", "conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1), normal(3, 5, 8, 4),
    normal(4, 5, 3, 3), normal(4), dims="n=3 i=5 o=4 p=4")
case("conv2d-rows-steps", "conv2d", lambda x, w: F.conv2d(x, w, stride=2, padding=(3, 2)),
    normal(3, 2, 24, 5), normal(5, 2, 7, 3), made=(1,), dims="n=3 i=2 o=5 p=4")
case("conv2d-rows-far", "conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=2, dilation=2, groups=2),
    normal(1, 6, 8, 6), normal(4, 3, 3, 3), normal(4), dims="g=2 i=3 o=2 p=2")
case("conv2d-rows-left", "conv2d", lambda x, w: F.conv2d(x, w, stride=4, padding=1), normal(3, 1, 8, 4),
    normal(5, 1, 3, 2), dims="n=3 o=5 p=2")
case("conv2d-patches", "conv2d", lambda x, w, b: F.conv2d(x, w, b, stride=3), normal(4, 2, 6, 9),
    normal(5, 2, 3, 3), normal(5), dims="n=4 i=2 o=5 y0=2 y1=3")
case("conv2d-points", "conv2d", lambda x, w: F.conv2d(x, w, stride=(1, 2)), normal(2, 3, 5, 6),
    normal(4, 3, 1, 1), dims="n=2 i=3 o=4 y0=5 y1=3")
case("conv3d-rows", "conv3d", lambda x, w, b: F.conv3d(x, w, b, padding=1), normal(3, 2, 4, 3, 3),
    normal(5, 2, 3, 3, 3), normal(5), dims="n=3 i=2 o=5 p=2")
case("conv_transpose1d", "conv_transpose1d", lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2),
    normal(3, 5, 4), normal(5, 4, 3), normal(4), dims="n=3 i=5 o=4")
case("conv_transpose2d", "conv_transpose2d.input", F.conv_transpose2d, normal(3, 5, 4, 3), normal(5, 4, 2, 2),
    made=(1,), dims="n=3 i=5 o=4")
case("conv_transpose2d-apart", "conv_transpose2d.input",
    lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2),
    normal(3, 5, 4, 2), normal(5, 4, 2, 2), normal(4), dims="n=3 i=5 o=4 x0=4 x1=2")
case("conv_transpose2d-groups", "conv_transpose2d.input", lambda x, w: F.conv_transpose2d(x, w, groups=2),
    normal(3, 6, 4, 3), normal(6, 2, 2, 2), dims="n=3")

# ---- pooling -------------------------------------------------------------------------------

IMAGES = normal(4, 5, 6, 6)
case("max_pool1d", "max_pool1d", lambda x: F.max_pool1d(x, 2), normal(4, 5, 7), dims="a=4 b=5")
case("max_pool2d", "max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), IMAGES, dims="a=4 b=5")
case("max_pool2d-rows", "max_pool2d", lambda x: F.max_pool2d(x, (3, 2), 2, (1, 0)), normal(3, 5, 8, 4),
    dims="a=3 b=5 p=4 y1=2")
case("max_pool2d-indices", "max_pool2d_with_indices", lambda x: F.max_pool2d(x, 2, return_indices=True),
    IMAGES, dims="a=4 b=5")
case("avg_pool", "avg_pool1d", lambda x: F.avg_pool1d(x, 2), normal(4, 5, 7), made=(0,), dims="a=4 b=5")
case("avg_pool2d", "avg_pool2d", lambda x: F.avg_pool2d(x, 2), IMAGES, made=(0,),
    dims="a=4 b=5 y0=3 y1=3")
case("adaptive_avg_pool2d", "adaptive_avg_pool2d",
    lambda x: [F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, 4)], IMAGES, made=(0,), dims="a=4 b=5")
case("adaptive_max_pool2d", "adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 2), IMAGES,
    dims="a=4 b=5")
case("nearest", "upsample_nearest2d.vec", lambda x: F.interpolate(x, scale_factor=2), normal(4, 5, 2, 3),
    made=(0,), dims="a=4 b=5 x0=2 x1=3")
case("bilinear", "upsample_bilinear2d.vec", lambda x: F.interpolate(x, (5, 4), mode="bilinear"),
    normal(4, 5, 2, 3), made=(0,), dims="a=4 b=5")
case("im2col", "im2col", lambda x: F.unfold(x, 2), normal(4, 5, 3, 4), made=(0,), dims="a=4 b=5")
case("pixel_shuffle", "pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), normal(4, 20, 2, 3), made=(0,),
    dims="a=4 b=5")
case("pixel_unshuffle", "pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), normal(4, 5, 4, 2), made=(0,),
    dims="a=4 b=5")
case("grid_sample", "grid_sampler", lambda x, g: F.grid_sample(x, g, align_corners=False), normal(3, 5, 4, 4),
    between(-0.9, 0.9, 3, 6, 7, 2), made=(0,), dims="a=3 b=5 c=6 d=7")
