"""Convolutions and pooling."""

from __future__ import annotations

from torch import Tensor

from ..pool import Pool, Value
from .registry import operator


def _image(p: Pool, spatial: int) -> Value:
    def fits(t: Tensor) -> bool:
        return min(t.shape) > 0 and min(t.shape[2:]) > 2

    try:
        return p.any(
            lambda t: t.dim() == spatial + 2 and t.is_floating_point() and t.itemsize == 8 and fits(t)
        )
    except Exception:
        sizes = [p.rng.choice(p.sizes), p.rng.choice([1, 2, 3, 4, 6])] + [
            p.rng.choice([3, 4, 5, 6]) for _ in range(spatial)
        ]
        return p.leaf(tuple(sizes), kind=p.rng.choice(["param", "input"]))


@operator("convolution")
def convolution(p: Pool) -> None:
    spatial = p.rng.choice([1, 2, 2, 3])
    a = _image(p, spatial)
    channels = a.t.shape[1]
    groups = p.rng.choice([1, 1, *[n for n in (2, channels) if channels % n == 0]])
    out = groups * p.rng.choice([1, 2, 3])
    kernel = [p.rng.choice([1, 2, 3]) for _ in range(spatial)]
    w = p.leaf((out, channels // groups, *kernel), kind="param")
    bias = p.rng.choice(["", f", {p.leaf((out,))}"])
    more = p.rng.choice(
        ["", ", padding=1", ", stride=2, padding=1", ", padding='same'", ", dilation=2, padding=2"]
    )
    p.step(f"F.conv{spatial}d({a}, {w}{bias}{more}, groups={groups})")


@operator("convolution")
def convolution_transposed(p: Pool) -> None:
    spatial = p.rng.choice([1, 2, 3])
    a = _image(p, spatial)
    kernel = [2] * spatial
    w = p.leaf((a.t.shape[1], p.rng.choice([1, 2, 3]), *kernel), kind="param")
    p.step(f"F.conv_transpose{spatial}d({a}, {w}{p.rng.choice(['', ', stride=2'])})")


@operator("convolution")
def convolution_block(p: Pool) -> None:
    a = _image(p, 2)
    c, out = a.t.shape[1], p.rng.choice([2, 3, 4])
    conv = p.module(f"nn.Conv2d({c}, {out}, 3, padding=1, bias=False)")
    norm = p.module(f"nn.BatchNorm2d({out}, eps=0.1)")
    p.step(f"F.relu({norm}({conv}({a})))")


POOLING = {
    "max_pool": "F.max_pool{n}d({a}, 2)",
    "avg_pool": "F.avg_pool{n}d({a}, 2, stride=1, padding=1)",
    "adaptive_avg_pool": "F.adaptive_avg_pool{n}d({a}, 2)",
    "adaptive_max_pool": "F.adaptive_max_pool{n}d({a}, 2)",
    "upsample": "F.interpolate({a}, scale_factor=2)",
    "lp_pool": "F.lp_pool{n}d({a}.abs() + 0.5, 2, 2)",
}


def _pool(p: Pool, line: str) -> None:
    spatial = p.rng.choice([1, 2, 2] if "lp_pool" in line else [1, 2, 2, 3])
    p.step(line.format(a=_image(p, spatial), n=spatial))


for _name, _line in POOLING.items():
    operator("pooling", _name)(lambda p, line=_line: _pool(p, line))


@operator("pooling")
def interpolate(p: Pool) -> None:
    mode = p.rng.choice(["bilinear", "bicubic", "nearest-exact"])
    p.step(f"F.interpolate({_image(p, 2)}, size=(4, 5), mode='{mode}')")


@operator("pooling")
def shuffled(p: Pool) -> None:
    a = p.leaf((p.rng.choice(p.sizes), 4, 2, 4))
    p.step(p.rng.choice([f"F.pixel_shuffle({a}, 2)", f"F.pixel_unshuffle({a}, 2)", f"F.unfold({a}, (2, 2))"]))


@operator("pooling")
def grid_sample(p: Pool) -> None:
    a = _image(p, 2)
    grid = p.leaf((a.t.shape[0], 3, 2, 2), "unit", "input")
    p.step(f"F.grid_sample({a}, {grid}, align_corners=False)")
