"""What is rarer, and families of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import CASES, alike, aten, between, case, data, given, ints, normal
from .losses import WAYS, distances

FIRST = len(CASES)

# fmt: off
# ---- pointwise -----------------------------------------------------------------------------

alike("unary-special",
    "special_erf special_erfc special_expm1 special_exp2 special_i0 i0 special_i0e special_i1 special_i1e"
    " special_sinc special_ndtr absolute fix arctan arcsinh special_round isneginf isposinf isreal",
    normal(5, 6), dims="a=5 b=6")
alike("unary-special-wide", "special_erfcx special_log_ndtr", normal(5, 6), halves=False, dims="a=5 b=6")
alike("unary-linear", "deg2rad rad2deg negative", normal(5, 6), made=(0,), dims="a=5 b=6")
alike("unary-special-positive", "special_digamma special_psi special_gammaln special_entr arccosh",
    between(1.1, 3, 7), dims="a=7")
alike("unary-special-unit", "special_erfinv arccos arcsin arctanh special_logit",
    between(0.1, 0.9, 5, 6), dims="a=5 b=6")
alike("unary-special-unit-wide", "special_ndtri", between(0.1, 0.9, 5, 6), halves=False, dims="a=5 b=6")
case("polygamma", "polygamma special_polygamma mvlgamma special_multigammaln",
    lambda x: [torch.polygamma(1, x), torch.special.polygamma(2, x), torch.mvlgamma(x, 2),
        torch.special.multigammaln(x, 2)], between(1.1, 3, 5, 6), dims="a=5 b=6")
alike("binary-special", "logaddexp2 copysign.Tensor special_xlogy special_xlog1py ldexp.Tensor",
    normal(5, 1, 4), between(0.5, 2, 7, 1), dims="a=5 b=7 c=4")
alike("binary-plain", "nextafter isclose special_zeta igamma igammac special_gammainc special_gammaincc",
    ("input", between(1.5, 3, 5, 6)[1]), ("input", between(0.5, 2, 6)[1]), halves=False, dims="a=5 b=6")
alike("binary-ints", "gcd lcm", ints(12, 5, 6), ints(12, 6), dims="a=5 b=6")
alike("aliases", "multiply.Tensor", normal(5, 6), normal(5, 6), made=(1,), dims="a=5 b=6")
alike("aliases-add", "subtract.Tensor", normal(5, 6), normal(6), made=(0, 1), dims="a=5 b=6")
alike("aliases-other", "divide.Tensor true_divide.Tensor arctan2", normal(5, 6), between(1, 2, 6),
    dims="a=5 b=6")
alike("aliases-compared",
    "greater.Tensor greater_equal.Tensor less.Tensor less_equal.Tensor not_equal.Tensor",
    ints(3, 5, 6), ints(3, 6), dims="a=5 b=6")
case("aliases-scalar", "greater.Scalar greater_equal.Scalar less.Scalar less_equal.Scalar not_equal.Scalar",
    lambda x: [x.greater(1), x.greater_equal(1), x.less(1), x.less_equal(1), x.not_equal(1)],
    ints(3, 5, 6), dims="a=5 b=6")
case("copysign", "copysign.Scalar", lambda x: torch.copysign(x, -1.0), normal(5, 6), dims="a=5 b=6")
case("xlogy-scalars",
    "xlogy.Scalar_Self xlogy.Scalar_Other special_xlogy.self_scalar special_xlog1py.self_scalar"
    " special_xlogy.other_scalar special_xlog1py.other_scalar",
    lambda x: [torch.xlogy(2.0, x), torch.xlogy(x, 2.0), torch.special.xlogy(2.0, x),
        torch.special.xlog1py(2.0, x), torch.special.xlogy(x, 2.0), torch.special.xlog1py(x, 2.0)],
    between(0.5, 2, 5, 6), dims="a=5 b=6")
case("float_power", "float_power.Tensor_Tensor", torch.float_power, between(0.5, 2, 5, 6), normal(6),
    about=True, dims="a=5 b=6")
case("float_power-scalar", "float_power.Tensor_Scalar float_power.Scalar",
    lambda x: [torch.float_power(x, 3), torch.float_power(2.0, x)], between(0.5, 2, 5, 6),
    about=True, dims="a=5 b=6")
case("clip-tensor", "clip.Tensor", lambda x, lo: torch.clip(x, lo), normal(5, 6), normal(6), dims="a=5 b=6")
case("shifts", "__lshift__.Tensor __rshift__.Tensor", lambda x, y: [x << y, x >> y], ints(7, 5, 6),
    ints(3, 6), dims="a=5 b=6")
case("bits-scalar", "bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor",
    lambda x: [torch.bitwise_and(5, x), torch.bitwise_or(5, x), torch.bitwise_xor(5, x)], ints(7, 5, 6),
    dims="a=5 b=6")
case("fake_quantize", "fake_quantize_per_tensor_affine",
    lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 20), normal(5, 6), dims="a=5 b=6")
case("polar", "polar", lambda r, a: torch.view_as_real(torch.polar(r, a)), normal(5, 6), normal(5, 6),
    others="view_as_real", halves=False, dims="a=5 b=6")
case("complex", "complex", lambda r, i: torch.view_as_real(torch.complex(r, i)), normal(5, 6), normal(5, 6),
    made=(0, 1), others="view_as_real", halves=False,
    dims="a=5 b=6")
case("conjugate", "_conj_physical",
    lambda r, i: torch.view_as_real(torch.complex(r, i).conj().resolve_conj()), normal(5, 6),
    normal(5, 6), made=(0, 1), others="complex view_as_real", halves=False, dims="a=5 b=6")
case("complex-mul", "mul.Tensor",
    lambda x, y: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(y)), normal(5, 6, 2),
    normal(5, 6, 2), others="contiguous view_as_complex view_as_real", halves=False, dims="a=5 b=6")

# ---- views, splitting ----------------------------------------------------------------------

case("view_as_real", "view_as_real", lambda x: torch.view_as_real(torch.complex(x, x)), normal(5, 6),
    others="complex", halves=False, dims="a=5 b=6")
case("view_as_complex", "view_as_complex", lambda x: torch.view_as_real(torch.view_as_complex(x)),
    normal(5, 6, 2), others="contiguous view_as_real", halves=False, dims="a=5 b=6")
case("diag_embed", "diag_embed", lambda x: [torch.diag_embed(x), torch.diag_embed(x, 1, 0, 2)], normal(5, 4),
    made=(0,), dims="a=5")
case("diag", "diag", lambda x, y: [torch.diag(x), torch.diag(y, 1)], normal(4), normal(5, 4), dims="")
case("diagonal_scatter", "diagonal_scatter", lambda x, v: x.diagonal_scatter(v, 0, 1, 2), normal(5, 4, 4),
    normal(5, 4), made=(0, 1), dims="a=5")
case("rot90", "rot90", lambda x: torch.rot90(x, 1, (1, 2)), normal(5, 3, 4), made=(0,), dims="a=5")
case("flips", "flipud", lambda x: x.flipud(), normal(5, 7), made=(0,), dims="b=7")
case("flips-across", "fliplr", lambda x: x.fliplr(), normal(5, 7), made=(0,), dims="a=5")
case("channel_shuffle", "channel_shuffle", lambda x: F.channel_shuffle(x, 3), normal(4, 6, 2, 5), made=(0,),
    dims="a=4 g=3 each=2 c=2 d=5")
case("unsafe_split", "unsafe_split.Tensor", lambda x: x.unsafe_split(5, 1), normal(4, 15), dims="a=4 b=5")
case("unsafe_split_with_sizes", "unsafe_split_with_sizes", lambda x: x.unsafe_split_with_sizes([2, 3], 1),
    normal(4, 5), dims="a=4")
case("stacks", "hstack concatenate", lambda x, y: [torch.hstack([x, y]), torch.concatenate([x, y], 1)],
    normal(4, 5), normal(4, 3), made=(0, 1), dims="a=4")
case("stacks-rows", "vstack row_stack", lambda x, y: [torch.vstack([x, y]), torch.row_stack([x, y])],
    normal(4, 5), normal(3, 5), made=(0, 1), dims="b=5")
case("stacks-1d", "vstack", lambda x, y: torch.vstack([x, y]), normal(5), normal(5), made=(0, 1), dims="b=5")
case("column_stack", "column_stack", lambda x, y: torch.column_stack([x, y]), normal(5), normal(5),
    made=(0, 1), dims="a=5")
case("dstack", "dstack", lambda x, y: torch.dstack([x, y]), normal(4, 5), normal(4, 5), made=(0, 1),
    dims="a=4 b=5")
case("block_diag", "block_diag", lambda x, y: torch.block_diag(x, y), normal(4, 5), normal(2, 3),
    made=(0, 1), dims="")

# ---- contraction, distances of rows --------------------------------------------------------

case("addmv", "addmv", torch.addmv, normal(5), normal(5, 7), normal(7), dims="m=5 k=7")
case("addr", "addr", torch.addr, normal(6), normal(5), normal(6), made=(0, 1), dims="m=5 n=6")
case("inner", "inner", torch.inner, normal(4, 7), normal(5, 7), made=(0,), dims="a=4 k=7 b=5")
case("kron", "kron", torch.kron, normal(2, 3), normal(5, 4), made=(0,), dims="a=2 b=3 c=5 d=4")
case("tensordot", "tensordot", lambda x, y: torch.tensordot(x, y, ([1], [0])), normal(4, 7, 2), normal(7, 5),
    made=(1,), about=True, dims="a=4 k0=7 c=2 y1=5")
case("matmuls", "linalg_matmul", lambda x, y: torch.linalg.matmul(x, y), normal(5, 7), normal(7, 6),
    made=(0,),
    dims="m=5 k=7 n=6")
case("vecdot", "linalg_vecdot", torch.linalg.vecdot, normal(5, 7), normal(5, 7), made=(0,), dims="a=5 b=7")
case("multi_dot", "linalg_multi_dot", lambda x, y, z: torch.linalg.multi_dot([x, y, z]), normal(4, 5),
    normal(5, 6), normal(6, 3), made=(1,), about=True, dims="k0=4 k1=5 k2=6 k3=3")
case("bilinear-form", "bilinear", F.bilinear, normal(5, 4), normal(5, 3), normal(6, 4, 3), normal(6),
    dims="b=5 i=4 j=3 o=6")
case("bilinear-bare", "bilinear", F.bilinear, normal(5, 4), normal(5, 3), normal(6, 4, 3), made=(2,),
    dims="b=5 i=4 j=3 o=6")
case("cross", "linalg_cross", lambda x, y: torch.linalg.cross(x, y, dim=1), normal(5, 3, 4), normal(5, 3, 4),
    made=(0,), dims="a=5 c=4")
case("cross-default", "cross", lambda x, y: torch.cross(x, y, dim=1), normal(5, 3), normal(5, 3), made=(1,),
    dims="a=5")
case("cdist", "cdist", torch.cdist, normal(2, 4, 3), normal(2, 5, 3), halves=False,
    dims="b=2 p=4 r=5")
case("cdist-one", "cdist", lambda x, y: torch.cdist(x, y, p=1.0), normal(4, 3), normal(5, 3), halves=False,
    dims="p=4 r=5")
case("cosine_similarity", "cosine_similarity", lambda x, y: F.cosine_similarity(x, y, dim=1), normal(5, 7),
    normal(5, 7), about=True, dims="a=5")
case("pairwise_distance", "pairwise_distance", F.pairwise_distance, normal(5, 7), normal(5, 7), about=True,
    dims="a=5")

# ---- norms ---------------------------------------------------------------------------------

case("native_group_norm", "native_group_norm",
    lambda x, w, b: torch.native_group_norm(x, w, b, 5, 6, 4, 3, 1e-5)[0], normal(5, 6, 4), normal(6),
    normal(6), dims="a=5")
case("weight_norm", "_weight_norm", lambda v, g: torch._weight_norm(v, g, 0), normal(5, 4, 3),
    normal(5, 1, 1), about=True, dims="a=5")
case("weight_norm-both", "_weight_norm_interface", lambda v, g: aten._weight_norm_interface(v, g, 0),
    normal(5, 7), normal(5, 1), dims="a=5")
case("renorm", "renorm", lambda x: x.renorm(2, 1, 0.5), normal(5, 6, 3), dims="b=6")

# ---- distances -----------------------------------------------------------------------------

distances("poisson_nll_loss", "poisson_nll_loss",
    lambda x, y, reduction: aten.poisson_nll_loss(x, y, True, False, 1e-8, WAYS[reduction]), normal(5, 7),
    data(5, 7), about=True, dims="a=5 b=7")
distances("hinge_embedding_loss", "hinge_embedding_loss",
    lambda x, y, reduction: aten.hinge_embedding_loss(x, y, 1.0, WAYS[reduction]), normal(5, 7),
    given([[1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0]] * 5), about=True, dims="a=5 b=7")
distances("margin_ranking_loss", "margin_ranking_loss",
    lambda x, y, t, reduction: aten.margin_ranking_loss(x, y, t, 0.3, WAYS[reduction]), normal(7), normal(7),
    given([1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0]), about=True, dims="a=7")
distances("cosine_embedding_loss", "cosine_embedding_loss",
    lambda x, y, t, reduction: aten.cosine_embedding_loss(x, y, t, 0.3, WAYS[reduction]), normal(7, 3),
    normal(7, 3), given([1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0]), about=True, dims="a=7")
distances("triplet_margin_loss", "triplet_margin_loss",
    lambda x, y, z, reduction: aten.triplet_margin_loss(x, y, z, 1.0, 2.0, 1e-6, False, WAYS[reduction]),
    normal(7, 3), normal(7, 3), normal(7, 3), about=True, dims="a=7")
distances("multilabel_margin_loss", "multilabel_margin_loss",
    lambda x, t, reduction: aten.multilabel_margin_loss(x, t, WAYS[reduction]), normal(7, 4),
    given([[3, 0, -1, 1]] * 7), halves=False, about=True, dims="a=7")

# ---- reductions ----------------------------------------------------------------------------

case("nansum", "nansum", lambda x: [x.nansum(), x.nansum(1), x.nansum((0, 1), keepdim=True)], normal(5, 7),
    dims="a=5 b=7")
case("nanmean", "nanmean", lambda x: x.nanmean(1), normal(5, 7), about=True, dims="a=5")
case("aminmax", "aminmax", lambda x: [*torch.aminmax(x, dim=1)], data(5, 7), dims="a=5")
case("median", "median.dim nanmedian.dim", lambda x: [*x.median(1), *x.nanmedian(1)], normal(5, 7),
    dims="a=5")
case("median-all", "median nanmedian", lambda x: [x.median(), x.nanmedian()], normal(5, 7), dims="")
case("mode", "mode kthvalue", lambda x: [*x.mode(1), *x.kthvalue(3, 1)], normal(5, 7), dims="a=5")
case("quantile", "quantile quantile.scalar nanquantile.scalar",
    lambda x, q: [x.quantile(q, 1), x.quantile(0.3, 1, keepdim=True), x.nanquantile(0.3, 1)], normal(5, 7),
    ("input", between(0, 1, 4)[1]), halves=False, about=True, dims="a=5")
case("matrix_norm", "linalg_matrix_norm linalg_matrix_norm.str_ord linalg_norm linalg_norm.ord_str",
    lambda x: [torch.linalg.matrix_norm(x, 1), torch.linalg.matrix_norm(x), torch.linalg.norm(x, dim=(1, 2)),
        torch.linalg.norm(x, "fro", (1, 2))], normal(5, 3, 4), about=True, dims="a=5")
case("norms-dtype", "frobenius_norm.dim", lambda x: aten.frobenius_norm(x, [1]), normal(5, 7), dims="a=5")
case("dist", "dist", lambda x, y: torch.dist(x, y), normal(5, 7), normal(5, 7), dims="")
case("trapezoid", "trapezoid.dx trapezoid.x cumulative_trapezoid.dx",
    lambda x, y: [torch.trapezoid(x, dx=0.3, dim=1), torch.trapezoid(x, y, dim=1),
        torch.cumulative_trapezoid(x, dx=0.3, dim=1)],
    normal(5, 7), data(5, 7), about=True, dims="a=5")
case("msort", "msort", lambda x: x.msort(), normal(5, 7), dims="b=7")
case("trace", "trace", torch.trace, normal(5, 5), made=(0,), dims="")
case("special-softmax", "special_softmax special_log_softmax",
    lambda x: [torch.special.softmax(x, 1), torch.special.log_softmax(x, 1)], normal(5, 7), dims="a=5 b=7")
case("special-logsumexp", "special_logsumexp", lambda x: torch.special.logsumexp(x, 1), normal(5, 7),
    dims="a=5")

# ---- pooling -------------------------------------------------------------------------------

case("col2im", "col2im", lambda x: F.fold(x, (3, 4), 2), normal(3, 20, 6), made=(0,), dims="a=3 b=5")
case("max_unpool2d", "max_unpool2d", lambda x, i: F.max_unpool2d(x, i, 2), normal(3, 5, 2, 2),
    given([[[[0, 2], [8, 15]]] * 5] * 3), made=(0,), dims="a=3 b=5")
case("fractional_max_pool2d", "fractional_max_pool2d",
    lambda x, r: F.fractional_max_pool2d(x, 2, output_size=2, _random_samples=r), normal(3, 5, 5, 5),
    ("input", between(0.1, 0.9, 3, 5, 2)[1]), dims="a=3 b=5")
case("pads", "reflection_pad2d replication_pad2d",
    lambda x: [aten.reflection_pad2d(x, [1, 1, 0, 1]), aten.replication_pad2d(x, [1, 1, 0, 1])],
    normal(3, 5, 3, 3), made=(0,), dims="a=3 b=5")
case("pads-1d", "reflection_pad1d replication_pad1d",
    lambda x: [aten.reflection_pad1d(x, [1, 1]), aten.replication_pad1d(x, [1, 1])], normal(3, 5, 3),
    made=(0,), dims="a=3 b=5")
case("nearest-exact", "_upsample_nearest_exact1d.vec",
    lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"), normal(3, 5, 3), made=(0,),
    dims="a=3 b=5")
case("trilinear", "upsample_trilinear3d.vec", lambda x: F.interpolate(x, (3, 3, 3), mode="trilinear"),
    normal(3, 5, 2, 2, 2), made=(0,), dims="a=3 b=5")
case("affine_grid", "affine_grid_generator", lambda t: F.affine_grid(t, [5, 1, 3, 4], align_corners=False),
    normal(5, 2, 3), made=(0,), dims="a=5")
case("grid_sample-3d", "grid_sampler", lambda x, g: F.grid_sample(x, g, align_corners=False),
    normal(3, 5, 3, 3, 3), between(-0.9, 0.9, 3, 2, 2, 2, 3), made=(0,), dims="a=3 b=5 c=2 d=2 e=2")

# ---- random --------------------------------------------------------------------------------

case("random-distributions", "exponential randint randint_like",
    lambda x: [torch.empty_like(x).exponential_(0.5) * x, torch.randint(2, 9, (5, 7)) * x,
        torch.randint_like(x.detach(), 9) * x],
    normal(5, 7), others="empty_like mul.Tensor add.Tensor detach", random=True, dims="")
case("random-written", "rand_like randn_like",
    lambda x: [torch.empty_like(x).uniform_(-1, 2) * x, torch.empty_like(x).normal_(1, 3) * x,
        torch.bernoulli(x.detach().sigmoid()) * x],
    normal(5, 7), others="empty_like mul.Tensor add.Tensor detach sigmoid lt.Tensor _to_copy", random=True,
    dims="")

# ---- creation ------------------------------------------------------------------------------

case("spaces", "linspace logspace", lambda x: [torch.linspace(0, 3, 7, dtype=x.dtype) * x,
    torch.logspace(0, 1, 7, dtype=x.dtype) * x], normal(7), others="mul.Tensor", dims="")
case("windows", "hann_window hamming_window.periodic",
    lambda x: [torch.hann_window(7, dtype=x.dtype) * x, torch.hamming_window(7, False, dtype=x.dtype) * x],
    normal(7), others="mul.Tensor", dims="")
case("tril_indices", "tril_indices triu_indices",
    lambda x: [torch.tril_indices(3, 3) + x, torch.triu_indices(3, 3) + x], ints(5, 6), others="add.Tensor",
    dims="")

# ---- indexing ------------------------------------------------------------------------------

case("index_add", "index_add", lambda x, i, s: [x.index_add(1, i, s), x.index_add(1, i, s, alpha=0.3)],
    normal(5, 7), given([3, 0, 3]), normal(5, 3), made=(0, 2), dims="a=5")
case("index_copy", "index_copy", lambda x, i, s: x.index_copy(1, i, s), normal(5, 7), given([3, 0]),
    normal(5, 2), made=(0, 2), dims="a=5")
case("index_fill", "index_fill.int_Scalar", lambda x, i: x.index_fill(1, i, 1.5), normal(5, 7),
    given([3, 0]), dims="a=5")
case("index_fill-zero", "index_fill.int_Scalar", lambda x, i: x.index_fill(0, i, 0), normal(5, 7),
    given([3, 0]), made=(0,), dims="b=7")
case("index_fill-tensor", "index_fill.int_Tensor", lambda x, i, v: x.index_fill(1, i, v), normal(5, 7),
    given([3, 0]), normal(), made=(0, 2), dims="a=5")
case("scatter_reduce", "scatter_reduce.two",
    lambda x, i, s: [x.scatter_reduce(1, i, s, way) for way in ("sum", "mean", "prod", "amax", "amin")],
    normal(5, 7), ints(7, 5, 6), normal(5, 6), dims="a=5")
case("scatter-reduce-old", "scatter.reduce scatter.value_reduce",
    lambda x, i, s: [x.scatter(1, i, s, reduce="add"), x.scatter(1, i, 1.5, reduce="multiply")],
    data(5, 7), ints(7, 5, 6), data(5, 6), dims="a=5")
case("index_reduce", "index_reduce", lambda x, i, s: x.index_reduce(1, i, s, "amax"), normal(5, 7),
    given([3, 0, 3]), normal(5, 3), dims="a=5")
case("take", "take", lambda x, i: x.take(i), normal(4, 5), ints(20, 7, 3), made=(0,), dims="i0=7 i1=3")
case("take_along_dim", "take_along_dim", lambda x, i: x.take_along_dim(i, 1), normal(5, 7), ints(7, 5, 6),
    made=(0,), dims="a=5 index=6")
case("put", "put", lambda x, i, s: x.put(i, s), normal(4, 5), given([3, 0, 17]), normal(3), made=(0, 2),
    dims="")
case("bucketize", "bucketize.Tensor", lambda x, e: torch.bucketize(x, e), data(5, 7),
    given([-1.0, -0.3, 0.2, 0.9]), dims="a=5 b=7")
case("searchsorted", "searchsorted.Tensor", lambda e, x: torch.searchsorted(e, x),
    given([-1.0, -0.3, 0.2, 0.9]), data(5, 7), dims="a=5 b=7")
case("searchsorted-rows", "searchsorted.Tensor", lambda e, x: torch.searchsorted(e, x),
    given([[-1.0, -0.3, 0.2, 0.9]] * 5), data(5, 7), dims="a=5 b=7")
case("isin", "isin.Tensor_Tensor isin.Tensor_Scalar", lambda x, e: [torch.isin(x, e), torch.isin(x, 3)],
    ints(9, 5, 7), given([3, 5, 6]), dims="a=5 b=7")
case("embedding_bag", "embedding_bag.padding_idx", lambda i, w: F.embedding_bag(i, w, mode="mean"),
    ints(7, 4, 3), normal(7, 6), others="reshape arange.start_step", about=True, dims="width=6")
case("unsafe_index", "_unsafe_index.Tensor", lambda x, i: aten._unsafe_index(x, [i]), normal(5, 7),
    ints(5, 4, 3), made=(0,), dims="b=7 i0=4 i1=3")

# ---- Fourier transforms --------------------------------------------------------------------


def real(complex_value: Tensor) -> Tensor:
    return torch.view_as_real(complex_value)


case("rfft", "fft_rfft", lambda x: real(torch.fft.rfft(x, 5, 1, norm="ortho")), normal(3, 5, 6), made=(0,),
    others="view_as_real", halves=False, dims="a=3 c=6")
case("rfft-last", "fft_rfft", lambda x: real(torch.fft.rfft(x)), normal(3, 5, 6), made=(0,),
    others="view_as_real", halves=False, dims="a=3 b=5")
case("irfft", "fft_irfft", lambda x: torch.fft.irfft(torch.view_as_complex(x), 7), normal(5, 4, 2),
    others="contiguous view_as_complex", halves=False, dims="a=5")
case("fft", "fft_fft fft_ifft",
    lambda x: [real(torch.fft.fft(torch.view_as_complex(x))), real(torch.fft.ifft(torch.view_as_complex(x)))],
    normal(5, 4, 2), others="contiguous view_as_complex view_as_real", halves=False, dims="a=5")
case("fft2", "fft_fft2 fft_rfft2 fft_fftn fft_rfftn",
    lambda x: [real(torch.fft.fft2(x)), real(torch.fft.rfft2(x)), real(torch.fft.fftn(x, dim=(1, 2))),
        real(torch.fft.rfftn(x, s=(4, 3)))],
    normal(5, 3, 4), made=(0,), others="view_as_real", halves=False, about=True, dims="a=5")
case("ifft2", "fft_ifft2 fft_irfft2 fft_ifftn fft_irfftn",
    lambda x: [y if y.dtype == x.dtype else real(y) for y in (
        f(torch.view_as_complex(x), dim=(1, 2)) for f in (
            torch.fft.ifft2, torch.fft.irfft2, torch.fft.ifftn, torch.fft.irfftn))],
    normal(5, 3, 4, 2), others="contiguous view_as_complex view_as_real", halves=False, dims="a=5")
case("hfft", "fft_hfft fft_ihfft",
    lambda x: [torch.fft.hfft(torch.view_as_complex(x)), torch.fft.ihfft(x[..., 0]).abs()], normal(5, 4, 2),
    others="contiguous view_as_complex abs select.int", halves=False, about=True, dims="a=5")
case("fftshift", "fft_fftshift fft_ifftshift", lambda x: [torch.fft.fftshift(x, 1), torch.fft.ifftshift(x,
    1)],
    normal(5, 7), made=(0,), dims="a=5")
case("fftfreq", "fft_fftfreq fft_rfftfreq",
    lambda x: [torch.fft.fftfreq(7, dtype=x.dtype) * x, torch.fft.rfftfreq(12, dtype=x.dtype) * x],
    normal(7), others="mul.Tensor", halves=False, dims="")
case("stft", "stft", lambda x, w: real(torch.stft(x, 4, 2, window=w, center=False, return_complex=True)),
    normal(5, 10), data(4), others="view_as_real", halves=False, about=True, dims="a=5")

# ---- recurrent -----------------------------------------------------------------------------


def layers(kind: str, size: int, hidden: int, directions: int = 1) -> list[Any]:
    """The parameters of a recurrent layer with biases."""
    rows = hidden * {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    one = [normal(rows, size), normal(rows, hidden), normal(rows), normal(rows)]
    return one * directions


case("lstm", "lstm.input",
    lambda x, h, c, *w: torch.lstm(x, (h, c), list(w), True, 1, 0.0, True, False, True), normal(5, 3, 4),
    normal(1, 5, 2), normal(1, 5, 2), *layers("lstm", 4, 2), about=True, dims="b=5")
case("lstm-bidirectional", "lstm.input",
    lambda x, h, c, *w: torch.lstm(x, (h, c), list(w), True, 1, 0.0, True, True, False)[0], normal(3, 5, 4),
    normal(2, 5, 2), normal(2, 5, 2), *layers("lstm", 4, 2, 2), about=True, dims="b=5")
case("gru", "gru.input",
    lambda x, h, *w: torch.gru(x, h, list(w), True, 1, 0.0, True, False, True), normal(5, 3, 4),
    normal(1, 5, 2), *layers("gru", 4, 2), about=True, dims="b=5")
case("rnn", "rnn_tanh.input rnn_relu.input",
    lambda x, h, *w: [*torch.rnn_tanh(x, h, list(w), True, 1, 0.0, True, False, True),
        *torch.rnn_relu(x, h, list(w), True, 1, 0.0, True, False, True)], normal(5, 3, 4),
    normal(1, 5, 2), *layers("rnn", 4, 2), about=True, dims="b=5")
case("lstm_cell", "lstm_cell", lambda x, h, c, *w: torch.lstm_cell(x, (h, c), *w), normal(5, 4),
    normal(5, 2), normal(5, 2), *layers("lstm", 4, 2), about=True, dims="b=5")
case("gru_cell", "gru_cell", lambda x, h, *w: torch.gru_cell(x, h, *w), normal(5, 4), normal(5, 2),
    *layers("gru", 4, 2), about=True, dims="b=5")
case("rnn_cell", "rnn_tanh_cell rnn_relu_cell",
    lambda x, h, *w: [torch.rnn_tanh_cell(x, h, *w), torch.rnn_relu_cell(x, h, *w)], normal(5, 4),
    normal(5, 2), *layers("rnn", 4, 2), about=True, dims="b=5")

# ---- linear algebra ------------------------------------------------------------------------


def positive(x: Tensor) -> Tensor:
    """Symmetric and positive definite."""
    return x @ x.mT + 2 * torch.eye(x.shape[-1], dtype=x.dtype)


MATRICES = ("param", lambda: torch.randn(5, 3, 3, dtype=torch.float64) + 3 * torch.eye(3,
    dtype=torch.float64))
POSITIVE = "matmul transpose.int eye mul.Tensor add.Tensor"

case("inverse", "linalg_inv inverse linalg_inv_ex",
    lambda x: [torch.linalg.inv(x), torch.inverse(x), torch.linalg.inv_ex(x)[0]], MATRICES, halves=False,
    dims="a=5")
case("det", "linalg_det det logdet", lambda x: [torch.linalg.det(x), torch.det(x), torch.logdet(x)],
    MATRICES, halves=False, about=True, dims="a=5")
case("slogdet", "linalg_slogdet slogdet", lambda x: [*torch.linalg.slogdet(x), *torch.slogdet(x)], MATRICES,
    halves=False, dims="a=5")
case("solve", "linalg_solve", lambda a, b: torch.linalg.solve(a, b), MATRICES, normal(5, 3, 4),
    halves=False, dims="a=5")
case("solve-vectors", "linalg_solve", lambda a, b: torch.linalg.solve(a, b), MATRICES, normal(5, 3),
    halves=False, dims="a=5")
case("solve_triangular", "linalg_solve_triangular",
    lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), MATRICES, normal(3, 4), halves=False,
    dims="a=5")
case("cholesky", "linalg_cholesky linalg_cholesky_ex",
    lambda x: [torch.linalg.cholesky(positive(x)), torch.linalg.cholesky_ex(positive(x))[0]], MATRICES,
    others=POSITIVE, halves=False, dims="a=5")
case("cholesky_solve", "cholesky_solve cholesky_inverse",
    lambda b, x: [torch.cholesky_solve(b, x), torch.cholesky_inverse(x)], normal(5, 3, 4), MATRICES,
    halves=False, dims="a=5")
case("matrix_exp", "linalg_matrix_exp linalg_matrix_power",
    lambda x: [torch.linalg.matrix_exp(x), torch.linalg.matrix_power(x, 3)], MATRICES, halves=False,
    about=True, dims="a=5")
case("pinv", "linalg_pinv.atol_rtol_tensor", lambda x: torch.linalg.pinv(x), normal(5, 4, 3), halves=False,
    about=True, dims="a=5")
case("svdvals", "linalg_svdvals linalg_eigvalsh",
    lambda x: [torch.linalg.svdvals(x), torch.linalg.eigvalsh(x)], MATRICES, halves=False, about=True,
    dims="a=5")
# fmt: on

# Each in three parts only: these are many.
CASES[FIRST:] = [replace(it, parts=(3,)) for it in CASES[FIRST:]]
