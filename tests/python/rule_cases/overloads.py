"""Further overloads: operators that are called by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import CASES, aten, between, bools, case, data, given, ints, normal
from .rarer import MATRICES

FIRST = len(CASES)


def by_name(names: str, *more: Any, **keywords: Any) -> Callable[..., list[Any]]:
    """Calls overloads by their full names, each with all operands and these further arguments."""

    def call(*operands: Tensor) -> list[Any]:
        results = []
        for name in names.split():
            operator, _, overload = name.partition(".")
            result = getattr(getattr(aten, operator), overload or "default")(*operands, *more, **keywords)
            results += [result] if isinstance(result, Tensor) else list(result)
        return results

    return call


def named(name: str, names: str, *operands: Any, more: tuple[Any, ...] = (), **keywords: Any) -> None:
    case(name, names, by_name(names, *more), *operands, **keywords)


# fmt: off
# ---- pointwise -----------------------------------------------------------------------------

named("scalars", "add.Scalar sub.Scalar rsub.Scalar", normal(5, 6), more=(2.5,), dims="a=5 b=6")
named("scalars-linear", "mul.Scalar div.Scalar multiply.Scalar divide.Scalar true_divide.Scalar", normal(5,
    6),
    more=(2.5,), made=(0,), dims="a=5 b=6")
named("scalars-alias", "subtract.Scalar", normal(5, 6), more=(2.5,), dims="a=5 b=6")
named("scalars-bits",
    "bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar bitwise_left_shift.Tensor_Scalar"
    " bitwise_right_shift.Tensor_Scalar __and__.Scalar __or__.Scalar __xor__.Scalar __lshift__.Scalar"
    " __rshift__.Scalar floor_divide.Scalar", ints(9, 5, 6), more=(2,), dims="a=5 b=6")
named("tensors-bits", "__and__.Tensor __or__.Tensor __xor__.Tensor", ints(9, 5, 6), ints(9, 6),
    dims="a=5 b=6")
case("shifts-of-numbers",
    "bitwise_left_shift.Scalar_Tensor bitwise_right_shift.Scalar_Tensor remainder.Scalar_Tensor",
    lambda x: [aten.bitwise_left_shift.Scalar_Tensor(5, x), aten.bitwise_right_shift.Scalar_Tensor(5, x),
        aten.remainder.Scalar_Tensor(7, x + 1)], ints(3, 5, 6), others="add.Tensor", dims="a=5 b=6")
case("div-modes", "div.Scalar_mode divide.Scalar_mode divide.Tensor_mode",
    lambda x, y: [aten.div.Scalar_mode(x, 0.7, rounding_mode="trunc"),
        aten.divide.Scalar_mode(x, 0.7, rounding_mode="floor"),
        aten.divide.Tensor_mode(x, y, rounding_mode="floor")], data(5, 6), ("input", between(1, 2, 6)[1]),
    dims="a=5 b=6")
named("bounds", "clamp_max.Tensor clamp_min.Tensor fmod.Tensor", normal(5, 6),
    ("input", between(0.5, 1, 6)[1]), dims="a=5 b=6")
case("clip", "clip round.decimals", lambda x: [aten.clip(x, -0.5, 0.5), aten.round.decimals(x, decimals=1)],
    normal(5, 6), dims="a=5 b=6")
named("logit", "logit", between(0.1, 0.9, 5, 6), dims="a=5 b=6")
named("heaviside", "heaviside", data(5, 6), data(6), dims="a=5 b=6")
case("fill", "fill.Scalar fill.Tensor", lambda x, v: [aten.fill(x, 1.5), aten.fill(x, v)], data(5, 6), data(),
    dims="a=5 b=6")
case("where-scalars", "where.Scalar", lambda c: torch.where(c, 1.5, 2.5), bools(5, 6), dims="a=5 b=6")
case("fake_quantize-tensors", "fake_quantize_per_tensor_affine.tensor_qparams",
    lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z.int(), 0, 20), normal(5, 6), given([0.1]),
    given([3]), others="_to_copy", about=True, dims="a=5 b=6")

# ---- splitting, indexing, creation ---------------------------------------------------------

case("concat", "concat", lambda x, y: aten.concat([x, y], 1), normal(4, 5), normal(4, 3), made=(0, 1),
    dims="a=4")
named("constant_pad", "constant_pad_nd", normal(5, 7), more=([1, 2], 1.5), dims="a=5")
case("unsafe_index_put", "_unsafe_index_put", lambda x, i, v: aten._unsafe_index_put(x, [i], v), normal(5, 7),
    given([3, 0]), normal(2, 7), made=(0, 2), dims="b=7")
case("embedding_bag-plain", "embedding_bag", lambda w, i, o: aten.embedding_bag(w, i, o)[0], normal(7, 6),
    ints(7, 9), given([0, 2, 5]), about=True, dims="width=6")
case("windows-all",
    "hann_window.periodic hamming_window hamming_window.periodic_alpha hamming_window.periodic_alpha_beta"
    " blackman_window blackman_window.periodic bartlett_window bartlett_window.periodic kaiser_window"
    " kaiser_window.periodic kaiser_window.beta",
    lambda x: [w * x for w in (
        torch.hann_window(7, False, dtype=x.dtype), torch.hamming_window(7, dtype=x.dtype),
        torch.hamming_window(7, True, 0.5, dtype=x.dtype), torch.hamming_window(7, True, 0.5, 0.4,
        dtype=x.dtype),
        torch.blackman_window(7, dtype=x.dtype), torch.blackman_window(7, False, dtype=x.dtype),
        torch.bartlett_window(7, dtype=x.dtype), torch.bartlett_window(7, False, dtype=x.dtype),
        torch.kaiser_window(7, dtype=x.dtype), torch.kaiser_window(7, False, dtype=x.dtype),
        torch.kaiser_window(7, True, 11.0, dtype=x.dtype))],
    normal(7), others="mul.Tensor", dims="")
case("ranges", "eye.m", lambda x: torch.eye(5, 7) * x, normal(5, 7), others="mul.Tensor", dims="")
case("range-start", "arange.start", lambda x: aten.arange.start(2, 9) * x, normal(7), others="mul.Tensor",
    dims="a=7")

# ---- reductions ----------------------------------------------------------------------------

case("any-dims", "any.dims all.dims", lambda x: [x.any((0, 1)), x.all((0, 1))], bools(5, 7), dims="a=5 b=7")
named("deviations", "std var", normal(5, 7), dims="")
case("deviations-dim", "var.correction std.dim",
    lambda x: [aten.var.correction(x, [1], correction=0), aten.std.dim(x, [1])], normal(5, 7), dims="a=5")
case("deviations-pairs", "var_mean.correction std_mean.correction",
    lambda x: [*torch.var_mean(x, 1, correction=0), *torch.std_mean(x, 1, correction=0)], normal(5, 7),
    dims="a=5")
named("deviations-all", "var_mean std_mean", normal(5, 7), dims="")
case("norms", "norm.Scalar", lambda x: aten.norm.Scalar(x), normal(5, 7), dims="")
case("norms-dim", "norm.ScalarOpt_dim", lambda x: aten.norm.ScalarOpt_dim(x, 2, [1]), normal(5, 7),
    dims="a=5")
case("argsort-stable", "argsort.stable", lambda x: torch.argsort(x, stable=True, dim=1), data(5, 7),
    dims="a=5")
case("trapz", "trapz.dx trapz.x cumulative_trapezoid.x",
    lambda x, y: [torch.trapz(x, dx=0.3, dim=1), torch.trapz(x, y, dim=1),
        torch.cumulative_trapezoid(x, y, dim=1)], normal(5, 7), data(5, 7), about=True, dims="a=5")
case("nanquantile", "nanquantile", lambda x, q: x.nanquantile(q, 1), normal(5, 7),
    ("input", between(0, 1, 4)[1]), halves=False, about=True, dims="a=5")

# ---- softmax, losses, products -------------------------------------------------------------

named("softmaxes", "_softmax _log_softmax", normal(5, 7), more=(1, False), dims="a=5 b=7")
named("ger", "ger", normal(5), normal(7), made=(0,), dims="m=5 n=7")
case("chain_matmul", "chain_matmul", lambda x, y, z: aten.chain_matmul([x, y, z]), normal(4, 5), normal(5, 6),
    normal(6, 3), made=(1,), about=True, dims="k0=4 k1=5 k2=6 k3=3")
case("solve_ex", "linalg_solve_ex", lambda a, b: torch.linalg.solve_ex(a, b)[0], MATRICES,
    normal(5, 3, 4), halves=False, about=True, dims="a=5")

# ---- convolution, pooling ------------------------------------------------------------------

case("conv2d-same", "conv2d.padding", lambda x, w, b: F.conv2d(x, w, b, padding="same"), normal(3, 4, 4, 3),
    normal(5, 4, 3, 3), normal(5), dims="n=3 i=4 o=5")
case("conv3d-same", "conv3d.padding", lambda x, w: F.conv3d(x, w, padding="same"), normal(3, 4, 3, 2, 2),
    normal(5, 4, 3, 1, 1), made=(0,), dims="n=3 i=4 o=5")
case("conv_transpose3d", "conv_transpose3d.input", F.conv_transpose3d, normal(3, 4, 2, 2, 2),
    normal(4, 5, 2, 2, 2), dims="n=3 i=4 o=5")
case("convolution", "convolution",
    lambda x, w: aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), normal(3, 4, 4, 3),
    normal(5, 4, 2, 2), made=(0,), dims="n=3 i=4 o=5")
case("pools-1d", "adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 2), normal(3, 4, 5), made=(0,),
    dims="a=3 b=4")
case("pools-3d", "adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, 2), normal(3, 4, 4, 3, 2),
    made=(0,), halves=False, dims="a=3 b=4")
case("pools-3d-rows", "avg_pool3d", lambda x: F.avg_pool3d(x, 2), normal(3, 4, 4, 3, 2), made=(0,),
    halves=False, dims="a=3 b=4 y0=2")
case("max-pools", "adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 2), normal(3, 4, 5),
    dims="a=3 b=4")
case("max-pools-3d", "adaptive_max_pool3d max_pool3d_with_indices",
    lambda x: [F.adaptive_max_pool3d(x, 2), *F.max_pool3d(x, 2, return_indices=True)],
    normal(3, 4, 4, 3, 2), dims="a=3 b=4")
case("max-pools-3d-rows", "max_pool3d", lambda x: F.max_pool3d(x, 2), normal(3, 4, 4, 3, 2),
    dims="a=3 b=4 y0=2")
named("max-pools-indices", "max_pool1d_with_indices", normal(3, 4, 5), more=([2],), dims="a=3 b=4")
case("unpools-3d", "max_unpool3d", lambda x, i: F.max_unpool3d(x, i, 2), normal(3, 4, 1, 1, 2),
    given([[[[[0, 10]]]] * 4] * 3), made=(0,), dims="a=3 b=4")
case("fractions-3d", "fractional_max_pool3d",
    lambda x, r: F.fractional_max_pool3d(x, 2, output_size=2, _random_samples=r), normal(3, 4, 4, 4, 4),
    ("input", between(0.1, 0.9, 3, 4, 3)[1]), dims="a=3 b=4")
named("pads-3d", "reflection_pad3d replication_pad3d", normal(3, 4, 2, 3, 3), more=([1, 1, 0, 1, 1, 0],),
    made=(0,), dims="a=3 b=4")
case("lines-up", "upsample_linear1d.vec upsample_nearest1d.vec",
    lambda x: [F.interpolate(x, 5, mode="linear"), F.interpolate(x, 5)], normal(3, 4, 3), made=(0,),
    dims="a=3 b=4")
case("lines-up-sizes", "upsample_linear1d upsample_nearest1d _upsample_nearest_exact1d",
    lambda x: [aten.upsample_linear1d(x, [5], False), aten.upsample_nearest1d(x, [5]),
        aten._upsample_nearest_exact1d(x, [5])], normal(3, 4, 3), made=(0,), dims="a=3 b=4")
case("images-up", "upsample_bicubic2d.vec _upsample_nearest_exact2d.vec _upsample_bilinear2d_aa.vec"
    " _upsample_bicubic2d_aa.vec",
    lambda x: [F.interpolate(x, (4, 5), mode="bicubic"), F.interpolate(x, (4, 5), mode="nearest-exact"),
        F.interpolate(x, (4, 5), mode="bilinear", antialias=True),
        F.interpolate(x, (4, 5), mode="bicubic", antialias=True)], normal(3, 4, 3, 3), made=(0,),
    halves=False, dims="a=3 b=4")
named("images-up-sizes", "_upsample_bilinear2d_aa _upsample_bicubic2d_aa", normal(3, 4, 3, 3),
    more=([4, 5], False), made=(0,), halves=False, dims="a=3 b=4")
named("images-near", "upsample_nearest2d _upsample_nearest_exact2d", normal(3, 4, 3, 3), more=([4, 5],),
    made=(0,), dims="a=3 b=4")
case("volumes-up", "upsample_nearest3d.vec _upsample_nearest_exact3d.vec upsample_trilinear3d"
    " upsample_nearest3d _upsample_nearest_exact3d",
    lambda x: [F.interpolate(x, (3, 3, 3)), F.interpolate(x, (3, 3, 3), mode="nearest-exact"),
        aten.upsample_trilinear3d(x, [3, 3, 3], False), aten.upsample_nearest3d(x, [3, 3, 3]),
        aten._upsample_nearest_exact3d(x, [3, 3, 3])], normal(3, 4, 2, 2, 2), made=(0,), dims="a=3 b=4")
case("grids", "grid_sampler_2d", lambda x, g: aten.grid_sampler_2d(x, g, 0, 0, False), normal(3, 4, 3, 3),
    between(-0.9, 0.9, 3, 5, 3, 2), made=(0,), dims="a=3 b=4 c=5 d=3")
case("grids-3d", "grid_sampler_3d", lambda x, g: aten.grid_sampler_3d(x, g, 0, 0, False),
    normal(3, 4, 2, 2, 2), between(-0.9, 0.9, 3, 3, 2, 2, 3), made=(0,), dims="a=3 b=4 c=3 d=2 e=2")
case("istft", "istft", lambda x, w: torch.istft(torch.view_as_complex(x), 4, 2, window=w), normal(3, 3, 6, 2),
    ("input", lambda: torch.hann_window(4, dtype=torch.float64) + 0.5), others="contiguous view_as_complex",
    halves=False, about=True, dims="a=3")
case("random-plain", "rand randn bernoulli.p",
    lambda x: [torch.rand(5, 7, dtype=x.dtype) * x, torch.randn(5, 7, dtype=x.dtype) * x,
        torch.bernoulli(torch.empty_like(x.detach()), 0.3) * x], normal(5, 7),
    others="mul.Tensor zeros_like detach", random=True, dims="")
# fmt: on

CASES[FIRST:] = [replace(it, parts=(3,)) for it in CASES[FIRST:]]
