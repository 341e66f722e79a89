"""One operator, or a few that are alike, with operands: what `test_rules.py` splits.

`dims` is what the rule of these operators must allow, with sizes: `b=5 k=7`. Sizes are small, and many
do not divide. Float operands are parameters, so that their gradients are compared; those in `made` are
computed by another operator (a sum over a leading dim of three), so that they may be partial sums too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import registering
from shardwright.capture.passes.operator_aliases import KNOWN

Spec = tuple[str, Callable[[], Tensor]]
"""What an operand is (`param`, `input`, `buffer`), and how it is made, under a seed."""

aten = torch.ops.aten
_OURS = ("expert_", "experts.", "function.", "written.")


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    targets: frozenset[str]
    """The operators that are split: all of them have the same dims."""
    fn: Callable[..., Any]
    operands: tuple[Spec, ...]
    dims: dict[str, int]
    made: tuple[int, ...] = ()
    """Operands in which the operators are jointly linear."""
    others: frozenset[str] = frozenset()
    """Further operators of the function, which stay whole."""
    random: bool = False
    halves: bool = True
    """Whether PyTorch has these operators in 16 bits."""
    parts: tuple[int, ...] = (2, 3)
    """In how many parts each dim is split, if it has as many elements; else in two."""
    about: bool = False
    """Whether they are composed of several steps: what they keep is then told to a factor of three."""


CASES: list[Case] = []


def case(
    name: str, targets: str, fn: Callable[..., Any], *operands: Spec, dims: str = "", **more: Any
) -> None:
    """`targets` without `aten.`, and without `.default`."""
    sizes = dict(dim.split("=") for dim in dims.split())
    CASES.append(
        Case(
            name,
            overloads(targets),
            fn,
            operands,
            {dim: int(size) for dim, size in sizes.items()},
            others=overloads(more.pop("others", "")),
            **more,
        )
    )


def overloads(names: str) -> frozenset[str]:
    """`expert_linear`, `experts`, `function` and `written` are ours, all others are ATen's, by the names that
    captured graphs have."""
    listed = (name if "." in name else f"{name}.default" for name in names.split())
    return frozenset(f"shardwright.{n}" if n.startswith(_OURS) else _captured(n) for n in listed)


def _captured(name: str) -> str:
    packet, overload = name.split(".")
    target = getattr(getattr(aten, packet), overload)
    return str(KNOWN.get(target, target))


def normal(*shape: int) -> Spec:
    return "param", lambda: torch.randn(shape, dtype=torch.float64)


def between(low: float, high: float, *shape: int) -> Spec:
    return "param", lambda: low + (high - low) * torch.rand(shape, dtype=torch.float64)


def data(*shape: int) -> Spec:
    """Floats without a gradient."""
    return "input", lambda: torch.randn(shape, dtype=torch.float64)


def ints(bound: int, *shape: int) -> Spec:
    return "input", lambda: torch.randint(bound, shape)


def bools(*shape: int) -> Spec:
    return "input", lambda: torch.rand(shape) < 0.6


def given(values: Any, kind: str = "input") -> Spec:
    return kind, lambda: torch.tensor(values)


def buffer(low: float, high: float, *shape: int) -> Spec:
    return "buffer", between(low, high, *shape)[1]


def each(names: str) -> Callable[..., list[Any]]:
    """Calls the ATen operators of these names with the same operands."""
    return lambda *args: [getattr(aten, name.split(".")[0])(*args) for name in names.split()]


def alike(name: str, names: str, *operands: Spec, **more: Any) -> None:
    case(name, names, each(names), *operands, **more)


# fmt: off
# ---- pointwise -----------------------------------------------------------------------------

alike("unary",
    "abs angle asinh atan cos cosh erf erfc exp exp2 expm1 neg sgn sigmoid sign sin sinc sinh square tan tanh"
    " frac ceil floor round trunc nan_to_num special_expit",
    normal(5, 6), dims="a=5 b=6")
alike("unary-positive", "digamma lgamma log log10 log1p log2 reciprocal rsqrt special_log1p sqrt acosh",
    between(1.1, 3, 7), dims="a=7")
alike("unary-unit", "acos asin atanh erfinv", between(-0.9, 0.9, 5, 6), dims="a=5 b=6")
alike("activations",
    "celu elu gelu hardsigmoid hardswish hardtanh leaky_relu log_sigmoid mish relu relu6 selu silu softplus",
    normal(5, 6), dims="a=5 b=6")
case("gelu-tanh", "gelu leaky_relu elu",
    lambda x: [F.gelu(x, approximate="tanh"), F.leaky_relu(x, 0.3), F.elu(x, 0.7)], normal(4, 1, 7),
    dims="a=4 c=7")
alike("predicates", "isfinite isinf isnan signbit logical_not", normal(5, 6), dims="a=5 b=6")
case("zero", "zero", torch.ops.aten.zero, normal(5, 6), made=(0,), dims="a=5 b=6")
case("likes", "zeros_like ones_like full_like",
    lambda x: [torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 3.5)], data(5, 6), dims="a=5 b=6")
alike("compared", "eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor", ints(3, 5, 6), ints(3, 6),
    dims="a=5 b=6")
case("compared-scalar", "eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar",
    lambda x: [x == 1, x != 1, x < 1, x <= 1, x > 1, x >= 1], ints(3, 5, 6), dims="a=5 b=6")
alike("bits",
    "bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor logical_and logical_or logical_xor"
    " bitwise_left_shift.Tensor bitwise_right_shift.Tensor floor_divide remainder.Tensor",
    ints(7, 5, 1), ("input", lambda: torch.randint(1, 4, (5, 6))), dims="a=5 b=6")
case("bitwise_not", "bitwise_not", torch.bitwise_not, bools(5, 6), dims="a=5 b=6")
alike("add", "add.Tensor sub.Tensor rsub.Tensor", normal(5, 6), normal(5, 6), made=(0, 1), dims="a=5 b=6")
case("add-alpha", "add.Tensor", lambda x, y: torch.add(x, y, alpha=0.3), normal(5, 6), normal(6), made=(0, 1),
    dims="a=5 b=6")
case("add-scalar", "add.Tensor", lambda x: x + 2.5, normal(5, 6), dims="a=5 b=6")
case("add-self", "add.Tensor", lambda x: x + x, normal(5, 6), made=(0,), dims="a=5 b=6")
case("mul", "mul.Tensor", torch.mul, normal(5, 6), normal(5, 6), made=(1,), dims="a=5 b=6")
case("mul-broadcast", "mul.Tensor", torch.mul, normal(5, 1, 4), normal(7, 1), made=(0,), dims="a=5 b=7 c=4")
case("mul-self", "mul.Tensor", lambda x: x * x, normal(5, 6), dims="a=5 b=6")
case("mul-0d", "mul.Tensor", torch.mul, normal(5, 6), normal(), made=(1,), dims="a=5 b=6")
case("div", "div.Tensor", torch.div, normal(5, 6), between(1, 2, 6), dims="a=5 b=6")
case("div-scalar", "div.Tensor mul.Tensor", lambda x: [x / 3, x * 0.3], normal(5, 6), made=(0,),
    dims="a=5 b=6")
case("div-mode", "div.Tensor_mode", lambda x, y: torch.div(x, y, rounding_mode="floor"), normal(5, 6),
    between(1, 2, 6), dims="a=5 b=6")
alike("binary-other", "max.other min.other", normal(5, 1, 4), normal(7, 1), dims="a=5 b=7 c=4")
alike("binary", "atan2 fmax fmin hypot logaddexp maximum minimum", normal(5, 1, 4), normal(7, 1),
    dims="a=5 b=7 c=4")
case("pow", "pow.Tensor_Tensor", torch.pow, between(0.5, 2, 5, 6), normal(6), dims="a=5 b=6")
case("pow-scalar", "pow.Tensor_Scalar", lambda x: [x**3, x**0.5], between(0.5, 2, 5, 6), dims="a=5 b=6")
case("scalar-pow", "pow.Scalar", lambda x: 2.0**x, normal(5, 6), dims="a=5 b=6")
case("remainder", "remainder.Scalar fmod.Scalar", lambda x: [x % 0.7, torch.fmod(x, 0.7)], normal(5, 6),
    dims="a=5 b=6")
case("clamp", "clamp clamp_min clamp_max", lambda x: [x.clamp(-0.5, 0.5), x.clamp_min(0.1), x.clamp_max(0.1)],
    normal(5, 6), dims="a=5 b=6")
case("clamp-tensor", "clamp.Tensor", lambda x, lo: torch.clamp(x, lo), normal(5, 6), normal(6),
    dims="a=5 b=6")
case("xlogy", "xlogy.Tensor", torch.xlogy, normal(5, 6), between(0.5, 2, 5, 1), dims="a=5 b=6")
case("where", "where.self", torch.where, bools(5, 6), normal(5, 1), normal(6), made=(1, 2), dims="a=5 b=6")
case("where-scalar", "where.ScalarOther", lambda c, x: torch.where(c, x, 0.0), bools(6), normal(5, 6),
    made=(1,), dims="a=5 b=6")
case("where-self-scalar", "where.ScalarSelf", lambda c, x: torch.where(c, 1.5, x), bools(6), normal(5, 6),
    dims="a=5 b=6")
case("masked_fill", "masked_fill.Scalar", lambda x, m: x.masked_fill(m, -3.0), normal(5, 6), bools(6),
    dims="a=5 b=6")
case("masked_fill-zero", "masked_fill.Scalar", lambda x, m: x.masked_fill(m, 0), normal(5, 6), bools(5, 1),
    made=(0,), dims="a=5 b=6")
case("masked_fill-tensor", "masked_fill.Tensor", lambda x, m, v: x.masked_fill(m, v), normal(5, 6),
    bools(5, 6), normal(), made=(0, 2), dims="a=5 b=6")
case("lerp", "lerp.Tensor", torch.lerp, normal(5, 6), normal(5, 6), normal(6), made=(0, 1), dims="a=5 b=6")
case("lerp-scalar", "lerp.Scalar", lambda x, y: torch.lerp(x, y, 0.3), normal(5, 6), normal(5, 6),
    made=(0, 1), dims="a=5 b=6")
case("addcmul", "addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.3), normal(6), normal(5, 6),
    normal(5, 1), made=(0, 2), dims="a=5 b=6")
case("addcdiv", "addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=0.3), normal(6), normal(5, 6),
    between(1, 2, 5, 1), made=(0, 1), dims="a=5 b=6")
case("prelu", "prelu", F.prelu, normal(4, 5, 3), normal(5), dims="a=4 b=5 c=3")
case("prelu-one", "prelu", F.prelu, normal(4, 5, 3), normal(1), dims="a=4 b=5 c=3")
case("threshold", "threshold", lambda x: F.threshold(x, 0.1, 2.0), normal(5, 6), dims="a=5 b=6")
case("to", "_to_copy", lambda x: x.float(), normal(5, 6), dims="a=5 b=6")
case("detach", "detach mul.Tensor", lambda x: x.detach() * x, normal(5, 6), dims="a=5 b=6")
case("no_grad", "exp sub.Tensor", lambda x: x - _without_gradient(x), normal(5, 6), dims="a=5 b=6")


def _without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.exp()


# ---- views ---------------------------------------------------------------------------------

case("view-merge", "reshape", lambda x: x.view(4, 35), normal(4, 5, 7), made=(0,), dims="a=4 b=5 c=7")
case("view-split", "reshape", lambda x: x.view(4, 3, 5, 2), normal(4, 30), made=(0,), dims="a=4 b=3 c=5 d=2")
case("view-regroup", "reshape", lambda x: x.reshape(8, 9), normal(4, 18), dims="a=4 b=2 c=9")
case("view-whole", "reshape", lambda x: x.reshape(5, 6, 4), normal(5, 4, 6), made=(0,), dims="a=5")
case("view-ones", "reshape", lambda x: x.reshape(1, 5, 1, 7), normal(5, 1, 7), dims="a=5 b=7")
case("view-twice", "reshape", lambda x: [x.view(4, -1), x.view(4, 35)], normal(4, 5, 7), dims="a=4 b=5 c=7")
case("flatten", "reshape", lambda x: x.flatten(1), normal(4, 5, 7), dims="a=4 b=5 c=7")
case("unflatten", "reshape", lambda x: x.unflatten(-1, (3, 5)), normal(4, 15), dims="a=4 b=3 c=5")
case("squeeze", "squeeze.dim", lambda x: x.squeeze(1), normal(5, 1, 6), made=(0,), dims="a=5 b=6")
case("squeeze-all", "squeeze squeeze.dims", lambda x, y: [x.squeeze(), y.squeeze((1, 3))], normal(5, 1, 6, 1),
    normal(5, 1, 6, 1), dims="a=5 b=6")
case("unsqueeze", "unsqueeze", lambda x: [x.unsqueeze(1), x.unsqueeze(-1)], normal(5, 6), made=(0,),
    dims="a=5 b=6")
case("transpose", "transpose.int", lambda x: x.transpose(1, 2), normal(4, 5, 7), made=(0,),
    dims="a=4 b=5 c=7")
case("t", "t", lambda x: x.t(), normal(5, 7), dims="a=5 b=7")
case("mT", "transpose.int", lambda x: x.mT, normal(4, 5, 7), dims="a=4 b=5 c=7")
case("permute", "permute", lambda x: x.permute(2, 0, 1), normal(4, 5, 7), made=(0,), dims="a=4 b=5 c=7")
case("movedim", "permute", lambda x: [x.movedim(0, 2), x.movedim((0, 1), (2, 0))], normal(4, 5, 7),
    dims="a=4 b=5 c=7")
case("expand", "expand", lambda x: x.expand(4, 5, 7), normal(5, 1), made=(0,), dims="b=5 a=4 c=7")
case("expand_as", "expand", lambda x, y: x.expand_as(y), normal(5, 1), data(4, 5, 7), dims="b=5 a=4 c=7")
case("repeat", "repeat", lambda x: x.repeat(3, 1, 2), normal(5, 7), made=(0,),
    dims="b=5 c=7 a_copy=3 c_copy=2")
case("tile", "tile", lambda x: x.tile((2, 3)), normal(5, 7), dims="a=5 b=7 a_copy=2 b_copy=3")
case("repeat_interleave", "repeat_interleave.self_int", lambda x: x.repeat_interleave(3, 1), normal(4, 5, 7),
    made=(0,), dims="a=4 b=5 c=7 b_copy=3")
case("unfold", "unfold", lambda x: x.unfold(1, 3, 2), normal(4, 7, 5), made=(0,), dims="a=4 c=5")
case("diagonal", "diagonal", lambda x: x.diagonal(0, 1, 2), normal(5, 4, 4), made=(0,), dims="a=5")
case("meshgrid", "meshgrid.indexing", lambda x, y: torch.meshgrid(x, y, indexing="ij"), normal(5), normal(7),
    dims="a=5 b=7")
case("meshgrid-xy", "meshgrid.indexing", lambda x, y: torch.meshgrid(x, y, indexing="xy"), normal(5),
    normal(7), dims="a=5 b=7")


def _heads(x: Tensor, w: Tensor) -> list[Tensor]:
    return [part.view(4, 5, 2).transpose(0, 1) for part in F.linear(x, w).split(10, dim=1)]


case("fused-linear", "linear", _heads, normal(4, 3), normal(30, 3),
    others="split.Tensor reshape transpose.int", dims="b=4 k=3 n.0=3 n.1=5 n.2=2")
case("fused-split", "split.Tensor", _heads, normal(4, 3), normal(30, 3),
    others="linear reshape transpose.int", dims="a=4 b.0=5 b.1=2")
case("fused-view", "reshape", _heads, normal(4, 3), normal(30, 3), others="linear split.Tensor transpose.int",
    dims="a=4 b=5 c=2")
case("fused-unbind", "unbind.int", lambda x: x.view(4, 3, 5, 2).unbind(1), normal(4, 30), others="reshape",
    dims="a=4 c=5 d=2")

# ---- splitting -----------------------------------------------------------------------------

case("split", "split.Tensor", lambda x: x.split(5, 1), normal(4, 15), made=(0,), dims="a=4 b=5")
case("split-uneven", "split.Tensor", lambda x: x.split(4, 1), normal(4, 10), made=(0,), dims="a=4")
case("split_with_sizes", "split_with_sizes", lambda x: x.split([2, 5, 1], 0), normal(8, 5), made=(0,),
    dims="b=5")
case("chunk", "split.Tensor", lambda x: x.chunk(2, -1), normal(4, 10), made=(0,), dims="a=4 b=5")
case("chunk-uneven", "split.Tensor", lambda x: x.chunk(3, -1), normal(4, 7), dims="a=4")
case("chunk-one-read", "split.Tensor", lambda x: x.chunk(2, -1)[1], normal(4, 10), dims="a=4 b=5")
case("unbind", "unbind.int", lambda x: x.unbind(1), normal(5, 2, 7), made=(0,), dims="a=5 c=7")
case("cat", "cat", lambda x, y: torch.cat([x, y], 1), normal(4, 5), normal(4, 5), made=(0, 1), dims="a=4 b=5")
case("cat-uneven", "cat", lambda x, y: torch.cat([x, y], 1), normal(4, 5), normal(4, 3), made=(0, 1),
    dims="a=4")
case("cat-multiples", "cat", lambda x, y, z: torch.cat([x, y, z], 1), normal(4, 6), normal(4, 3),
    normal(4, 9), made=(0, 1, 2), dims="a=4 b=3")
case("cat-same", "cat", lambda x: torch.cat([x, x], 0), normal(4, 5), made=(0,), dims="a=4 b=5")
case("stack", "stack", lambda x, y: torch.stack([x, y], 1), normal(4, 5), normal(4, 5), made=(0, 1),
    dims="a=4 c=5")
case("glu", "glu", lambda x: F.glu(x, 1), normal(4, 10), dims="a=4 b=5")
case("select", "select.int", lambda x: x[:, -2], normal(4, 5, 7), made=(0,), dims="a=4 c=7")
case("slice", "slice.Tensor", lambda x: x[:, 1:6:2], normal(4, 7), made=(0,), dims="a=4")
case("narrow", "slice.Tensor", lambda x: x.narrow(1, 2, 3), normal(5, 7), dims="a=5")
case("pad", "pad", lambda x: F.pad(x, (1, 2)), normal(5, 7), made=(0,), dims="a=5")
case("pad-value", "pad", lambda x: F.pad(x, (0, 0, 1, 2), value=1.5), normal(5, 7), dims="b=7")
case("pad-reflect", "pad", lambda x: F.pad(x, (1, 2), mode="reflect"), normal(5, 3, 7), made=(0,),
    dims="a=5 b=3")
case("slice_scatter", "slice_scatter", lambda x, v: x.slice_scatter(v, 1, 2, 5), normal(5, 7), normal(5, 3),
    made=(0, 1), dims="a=5")
case("slice_scatter-all", "slice_scatter", lambda x, v: x.slice_scatter(v, 0), normal(5, 7), normal(5, 7),
    dims="b=7")
case("select_scatter", "select_scatter", lambda x, v: x.select_scatter(v, 1, -2), normal(4, 5, 7),
    normal(4, 7), made=(0, 1), dims="a=4 c=7")
case("diff", "diff", lambda x: x.diff(dim=1), normal(5, 7), made=(0,), dims="a=5")
case("diff-twice", "diff", lambda x, v, w: x.diff(2, 0, prepend=v, append=w), normal(5, 7), normal(2, 7),
    normal(1, 7), made=(0, 1, 2), dims="b=7")
case("roll", "roll", lambda x: x.roll(2, 1), normal(5, 7), made=(0,), dims="a=5")
case("roll-flat", "roll", lambda x: x.roll(2), normal(5, 7), dims="")
case("diff-bools", "diff", lambda x: x.diff(dim=0), bools(4, 5), dims="b=5")
case("flip", "flip", lambda x: x.flip(0), normal(5, 7), made=(0,), dims="b=7")

# ---- contraction ---------------------------------------------------------------------------

case("linear", "linear", F.linear, normal(5, 7), normal(6, 7), normal(6), dims="b=5 k=7 n=6")
case("linear-3d", "linear", F.linear, normal(4, 5, 7), normal(3, 7), normal(3), dims="b=4 s=5 k=7 n=3")
case("linear-no-bias", "linear", F.linear, normal(4, 5, 7), normal(6, 7), made=(0,), dims="b=4 s=5 k=7 n=6")
case("linear-weight-made", "linear", F.linear, normal(5, 7), normal(6, 7), made=(1,), dims="b=5 k=7 n=6")
case("linear-1d", "linear", F.linear, normal(7), normal(5, 7), normal(5), dims="k=7 n=5")
case("matmul", "matmul", torch.matmul, normal(5, 7), normal(7, 6), made=(0,), dims="m=5 k=7 n=6")
case("matmul-batch", "matmul", torch.matmul, normal(4, 5, 7), normal(4, 7, 6), made=(1,),
    dims="b=4 m=5 k=7 n=6")
case("matmul-broadcast", "matmul", torch.matmul, normal(4, 1, 5, 7), normal(3, 7, 2), made=(0,),
    dims="b=4 m=5 k=7 s=3 n=2")
case("matmul-wide", "matmul", torch.matmul, normal(4, 5, 7), normal(7, 6), made=(0,), dims="b=4 m=5 k=7 n=6")
case("matmul-vector", "matmul", torch.matmul, normal(4, 5, 7), normal(7), made=(1,), dims="b=4 m=5 k=7")
case("vector-matmul", "matmul", torch.matmul, normal(7), normal(7, 5), made=(0,), dims="k=7 n=5")
case("matmul-dot", "matmul", torch.matmul, normal(7), normal(7), made=(0,), dims="k=7")
case("mm", "mm", torch.mm, normal(5, 7), normal(7, 6), made=(1,), dims="m=5 k=7 n=6")
case("bmm", "bmm", torch.bmm, normal(4, 5, 7), normal(4, 7, 6), made=(0,), dims="b=4 m=5 k=7 n=6")
case("addmm", "addmm", torch.addmm, normal(6), normal(5, 7), normal(7, 6), dims="n=6 m=5 k=7")
case("addmm-beta", "addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.3), normal(5, 1), normal(5, 7),
    normal(7, 6), dims="m=5 k=7 n=6")
case("addmm-alpha", "addmm", lambda c, a, b: torch.addmm(c, a, b, alpha=0.3), normal(6), normal(5, 7),
    normal(7, 6), dims="n=6 m=5")
case("baddbmm", "baddbmm", torch.baddbmm, normal(1, 5, 6), normal(4, 5, 7), normal(4, 7, 6),
    dims="m=5 n=6 b=4 k=7")
case("einsum", "einsum", lambda a, b: torch.einsum("bik,jk->bij", a, b), normal(4, 5, 7), normal(6, 7),
    made=(0,), dims="b=4 i=5 k=7 j=6")
case("einsum-implicit", "einsum", lambda a, b: torch.einsum("ik,kj", a, b), normal(5, 7), normal(7, 6),
    made=(1,), dims="i=5 k=7 j=6")
case("einsum-dots", "einsum", lambda a, b: torch.einsum("...ik,kj->...ji", a, b), normal(4, 5, 7),
    normal(7, 3), made=(0,), dims="dots0=4 i=5 k=7 j=3")
case("einsum-three", "einsum", lambda a, b, c: torch.einsum("ai,bi,ci->abc", a, b, c), normal(3, 7),
    normal(4, 7), normal(5, 7), dims="a=3 i=7 b=4 c=5")
case("einsum-sum", "einsum", lambda a: torch.einsum("ijk->j", a), normal(4, 5, 7), made=(0,),
    dims="i=4 j=5 k=7")
case("dot", "dot", torch.dot, normal(7), normal(7), made=(0,), dims="k=7")
case("vdot", "vdot", torch.vdot, normal(7), normal(7), made=(1,), dims="k=7")
case("mv", "mv", torch.mv, normal(5, 7), normal(7), made=(0,), dims="m=5 k=7")
case("outer", "outer", torch.outer, normal(5), normal(7), made=(0,), dims="m=5 n=7")

# ---- attention -----------------------------------------------------------------------------

attend = F.scaled_dot_product_attention
SDPA = "scaled_dot_product_attention"
QKV = (normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 6))

case("attention", SDPA, attend, *QKV, made=(2,), dims="b=2 h=3 l=5 d=6")
case("attention-causal", SDPA, lambda q, k, v: attend(q, k, v, is_causal=True), *[normal(2, 3, 5, 4)] * 3,
    dims="b=2 h=3 l=5 d=4")
case("attention-causal-more-keys", SDPA, lambda q, k, v: attend(q, k, v, is_causal=True, scale=0.3),
    normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4), dims="b=2 h=3 l=5 d=4")
case("attention-causal-fewer-keys", SDPA, lambda q, k, v: attend(q, k, v, is_causal=True), normal(3, 5, 4),
    normal(3, 4, 4), normal(3, 4, 6), dims="h=3 l=5 d=6")
case("attention-mask", SDPA, lambda q, k, v, m: attend(q, k, v, m), *QKV, bools(2, 1, 5, 7),
    dims="b=2 h=3 l=5 d=6")
case("attention-bias", SDPA, lambda q, k, v, m: attend(q, k, v, m), *QKV, normal(3, 5, 7),
    dims="b=2 h=3 l=5 d=6")
case("attention-rows-bias", SDPA, lambda q, k, v, m: attend(q, k, v, m), normal(2, 3, 2, 5, 4),
     normal(2, 3, 2, 7, 4), normal(2, 3, 2, 7, 4), normal(2, 1, 2, 5, 7), dims="b=2 r=3 h=2 l=5 d=4")
case("attention-scale", SDPA, lambda q, k, v: attend(q, k, v, scale=0.3), *QKV, dims="b=2 h=3 l=5 d=6")
case("attention-3d", SDPA, attend, normal(5, 5, 4), normal(5, 7, 4), normal(5, 7, 6), dims="h=5 l=5 d=6")
case("attention-gqa", SDPA, lambda q, k, v: attend(q, k, v, enable_gqa=True), normal(2, 6, 5, 4),
    normal(2, 3, 7, 4), normal(2, 3, 7, 4), made=(2,), dims="b=2 h=3 g=2 l=5 d=4")
case("attention-mqa", SDPA, lambda q, k, v: attend(q, k, v, enable_gqa=True, is_causal=True),
    normal(2, 5, 5, 4), normal(2, 1, 5, 4), normal(2, 1, 5, 4), dims="b=2 g=5 l=5 d=4")
case("attention-dropout", SDPA, lambda q, k, v: attend(q, k, v, dropout_p=0.4, is_causal=True),
    *[normal(2, 3, 5, 4)] * 3, random=True, dims="b=2 h=3 l=5")
case("attention-dropout-mask", SDPA, lambda q, k, v, m: attend(q, k, v, m, dropout_p=0.4), *QKV, normal(5, 7),
    random=True, dims="b=2 h=3 l=5")

# ---- norms ---------------------------------------------------------------------------------

case("layer_norm", "layer_norm", lambda x, w, b: F.layer_norm(x, (7,), w, b), normal(4, 5, 7), normal(7),
    normal(7), dims="a=4 b=5")
case("layer_norm-bare", "layer_norm", lambda x: F.layer_norm(x, (5, 7)), normal(5, 5, 7), dims="a=5")
case("rms_norm", "rms_norm", lambda x, w: F.rms_norm(x, (7,), w), normal(4, 5, 7), normal(7), dims="a=4 b=5")
case("native_layer_norm", "native_layer_norm", lambda x, w, b: torch.native_layer_norm(x, (7,), w, b, 1e-5),
    normal(4, 5, 7), normal(7), normal(7), dims="a=4 b=5")
case("group_norm", "group_norm", lambda x, w, b: F.group_norm(x, 3, w, b), normal(5, 6, 4), normal(6),
    normal(6), dims="a=5 b=3 c=4")
case("group_norm-images", "group_norm", lambda x, w, b: F.group_norm(x, 2, w, b, 0.1), normal(3, 6, 4, 5),
    normal(6), normal(6), dims="a=3 b=2 c=4 d=5")
case("group_norm-bare", "group_norm", lambda x: F.group_norm(x, 2), normal(3, 4, 5, 3),
    dims="a=3 b=2 c=5 d=3")
case("group_norm-weight", "group_norm", lambda x, w: F.group_norm(x, 2, w), normal(3, 4, 5), normal(4),
    dims="a=3 b=2 c=5")
case("group_norm-one", "group_norm", lambda x, w, b: F.group_norm(x, 1, w, b), normal(5, 6, 4), normal(6),
    normal(6), dims="a=5 c=4")
case("group_norm-one-value", "group_norm", lambda x, w, b: F.group_norm(x, 5, w, b), normal(4, 5), normal(5),
    normal(5), dims="a=4 b=5")
case("group_norm-each", "group_norm", lambda x, w, b: F.group_norm(x, 5, w, b), normal(4, 5, 7), normal(5),
    normal(5), dims="a=4 b=5 c=7")
case("instance_norm", "instance_norm", lambda x, w, b: F.instance_norm(x, None, None, w, b), normal(4, 5, 7),
    normal(5), normal(5), dims="a=4 b=5 c=7")
case("instance_norm-images", "instance_norm", lambda x: F.instance_norm(x, eps=0.1), normal(2, 3, 5, 4),
    dims="a=2 b=3 c=5 d=4")
STATS = (buffer(-1, 1, 5), buffer(0.5, 2, 5))
LEGIT = "_native_batch_norm_legit_functional"
case("batch_norm", LEGIT, lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True, 0.3), normal(7, 5, 3, 2),
    *STATS, normal(5), normal(5), dims="a=7 b=5 c=3 d=2")
case("batch_norm-1d", LEGIT, lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True, 0.3), normal(7, 5),
    *STATS, normal(5), normal(5), dims="a=7 b=5")
case("batch_norm-bare", LEGIT, lambda x, m, v: F.batch_norm(x, m, v, training=True), normal(7, 5, 3), *STATS,
    dims="a=7 b=5 c=3")
case("batch_norm-no-stats", "_native_batch_norm_legit.no_stats",
    lambda x, w, b: F.batch_norm(x, None, None, w, b, True), normal(7, 5, 3), normal(5), normal(5),
    dims="a=7 b=5 c=3")
case("batch_norm-eval", "_native_batch_norm_legit_no_training",
    lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, False), normal(7, 5, 3), *STATS, normal(5), normal(5),
    dims="a=7 b=5 c=3")

# ---- softmax -------------------------------------------------------------------------------

case("softmax", "softmax.int", lambda x: x.softmax(-1), normal(4, 5, 7), dims="a=4 b=5 c=7")
case("softmax-first", "softmax.int", lambda x: x.softmax(0), normal(5, 7), dims="a=5 b=7")
case("log_softmax", "log_softmax.int", lambda x: x.log_softmax(1), normal(4, 7, 5), dims="a=4 b=7 c=5")
case("softmax-cast", "softmax.int", lambda x: x.softmax(1, dtype=torch.float64), normal(5, 7), dims="a=5 b=7")

# ---- experts -------------------------------------------------------------------------------

case("expert_linear-column", "expert_linear", lambda x, w, i: torch.bmm(w[i], x.unsqueeze(-1)).squeeze(-1),
    normal(7, 5), normal(4, 6, 5), ints(4, 7), made=(0,), dims="s=7 k=5 e=4 n=6")
case("expert_linear-row", "expert_linear", lambda x, w, i: torch.bmm(x.unsqueeze(1), w[i]).squeeze(1),
    normal(7, 5), normal(4, 5, 6), given([2, 2, 0, 0, 2, 2, 0]), made=(1,), dims="s=7 k=5 e=4 n=6")
case("expert_linear-kept", "expert_linear", lambda x, w, i: torch.bmm(w[i], x.unsqueeze(2)), normal(7, 5),
    normal(1, 6, 5), ints(1, 7), dims="s=7 k=5 n=6", others="unsqueeze")

def mixture(activation: str, gated: bool, transposed: bool = False, drops: bool = False) -> Any:
    return lambda x, i, w, up, down: torch.ops.shardwright.experts(
        x, i, w, up, down, activation, gated, transposed, drops)


case("experts", "experts", mixture("silu", True), normal(7, 5), ints(4, 7, 2), between(0, 1, 7, 2),
    normal(4, 12, 5), normal(4, 3, 6), made=(2,), dims="t=7 e=4 n=6 m=3")
case("experts-transposed", "experts", mixture("gelu", False, True), normal(7, 5), given([[2, -1]] * 7),
    between(0, 1, 7, 2), normal(4, 5, 6), normal(4, 6, 3), made=(4,), dims="t=7 e=4 n=6 m=3")
case("experts-relu", "experts", mixture("relu", False), normal(7, 5), ints(4, 7, 1), between(0, 1, 7, 1),
    normal(4, 6, 5), normal(4, 3, 6), dims="t=7 e=4 n=6 m=3")
case("experts-dropped", "experts", mixture("gelu_tanh", True, drops=True), normal(7, 5),
    given([[0, 1], [-5, 3], [2, -5], [-5, -5], [1, 0], [1, 2], [3, 1]]), between(0, 1, 7, 2),
    normal(4, 12, 5), normal(4, 3, 6), dims="t=7 e=4 n=6 m=3")

case("written", "written", lambda held, value: torch.ops.shardwright.written(held, value), normal(5, 6),
    data(5, 6), dims="a=5 b=6")

# ---- embedding -----------------------------------------------------------------------------

case("embedding", "embedding", lambda i, w: F.embedding(i, w), ints(7, 4, 5), normal(7, 6),
    dims="vocab=7 width=6 a=4 b=5")
case("embedding-padding", "embedding", lambda i, w: F.embedding(i, w, padding_idx=3), ints(7, 4, 5),
    normal(7, 6), dims="vocab=7 width=6 a=4 b=5")
case("embedding-last-padding", "embedding", lambda i, w: F.embedding(i, w, padding_idx=-1), ints(7, 4, 5),
    normal(7, 3), dims="vocab=7 width=3 a=4 b=5")
case("embedding-made", "embedding", lambda i, w: F.embedding(i, w), ints(5, 7), normal(5, 4), made=(1,),
    dims="vocab=5 width=4 a=7")

# ---- losses --------------------------------------------------------------------------------

LABELS = given([-100, -100, 3, -100, 6, 0, 2])
NLL = "nll_loss_nd"
case("cross_entropy", "cross_entropy_loss", F.cross_entropy, normal(7, 8), LABELS, dims="b=7 v=8")
case("cross_entropy-ignore", "cross_entropy_loss", lambda x, t: F.cross_entropy(x, t, ignore_index=3),
    normal(7, 7), given([3, 3, 3, 0, 1, 6, 2]), dims="b=7 v=7")
case("cross_entropy-sum", "cross_entropy_loss", lambda x, t: F.cross_entropy(x, t, reduction="sum"),
    normal(7, 8), LABELS, dims="b=7 v=8")
case("cross_entropy-none", "cross_entropy_loss", lambda x, t: F.cross_entropy(x, t, reduction="none"),
    normal(7, 8), LABELS, dims="b=7 v=8")
case("cross_entropy-weight", "cross_entropy_loss", lambda x, t, w: F.cross_entropy(x, t, w, reduction="sum"),
    normal(7, 8), LABELS, data(8), dims="b=7")
case("cross_entropy-smooth", "cross_entropy_loss",
    lambda x, t: F.cross_entropy(x, t, reduction="none", label_smoothing=0.1), normal(7, 8), LABELS,
    dims="b=7")
case("cross_entropy-probabilities", "cross_entropy_loss", lambda x, t: F.cross_entropy(x, t, reduction="sum"),
    normal(7, 8), between(0, 1, 7, 8), dims="b=7")
case("cross_entropy-images", "cross_entropy_loss", F.cross_entropy, normal(3, 8, 5),
    given([[-100] * 5, [1, 2, -100, 4, 5], [7, 0, 0, 3, 1]]), dims="b=3 v=8 s=5")
case("cross_entropy-one-row", "cross_entropy_loss", F.cross_entropy, normal(7), given(5), dims="v=7")
case("nll_loss", NLL, F.nll_loss, normal(7, 8), LABELS, dims="b=7 v=8")
case("nll_loss-sum", NLL, lambda x, t: F.nll_loss(x, t, reduction="sum"), normal(7, 8), LABELS,
    dims="b=7 v=8")
case("nll_loss-none", NLL, lambda x, t: F.nll_loss(x, t, reduction="none"), normal(7, 8), LABELS,
    dims="b=7 v=8")
case("nll_loss-images", NLL, F.nll_loss, normal(3, 8, 5, 2), ints(8, 3, 5, 2), dims="b=3 v=8 s=5 t=2")

# ---- distances -----------------------------------------------------------------------------

WAYS = {"none": 0, "mean": 1, "sum": 2}
PAIR = (normal(5, 7), normal(5, 7))
PROBABILITY = (between(0.1, 0.9, 5, 7), between(0.1, 0.9, 5, 7))


def distances(name: str, target: str, fn: Callable[..., Tensor], *operands: Spec, **more: Any) -> None:
    """With each of the reductions."""
    ways = ("mean", "sum", "none")
    case(name, target, lambda *args: [fn(*args, reduction=way) for way in ways], *operands, **more)


distances("mse_loss", "mse_loss", F.mse_loss, *PAIR, dims="a=5 b=7")
distances("l1_loss", "l1_loss", F.l1_loss, *PAIR, dims="a=5 b=7")
distances("smooth_l1_loss", "smooth_l1_loss",
    lambda x, y, reduction: F.smooth_l1_loss(x, y, reduction=reduction, beta=0.7), *PAIR, dims="a=5 b=7")
distances("huber_loss", "huber_loss",
    lambda x, y, reduction: F.huber_loss(x, y, reduction=reduction, delta=0.7), *PAIR, dims="a=5 b=7")
distances("bce", "binary_cross_entropy", F.binary_cross_entropy, *PROBABILITY, dims="a=5 b=7")
distances("bce-weight", "binary_cross_entropy", F.binary_cross_entropy, *PROBABILITY, data(5, 7),
    others="expand", dims="a=5 b=7")
distances("bce-logits", "binary_cross_entropy_with_logits", F.binary_cross_entropy_with_logits, normal(5, 7),
    between(0.1, 0.9, 5, 7), dims="a=5 b=7")
distances("soft_margin_loss", "soft_margin_loss", F.soft_margin_loss, normal(5, 7), data(5, 7),
    dims="a=5 b=7")
distances("kl_div", "kl_div", lambda x, y, reduction: aten.kl_div(x, y, WAYS[reduction]), normal(5, 7),
    between(0.1, 0.9, 5, 7), dims="a=5 b=7")
distances("kl_div-log", "kl_div",
    lambda x, y, reduction: aten.kl_div(x, y, WAYS[reduction], log_target=True), *PAIR, dims="a=5 b=7")
case("bce-pos-weight", "binary_cross_entropy_with_logits",
    lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w), normal(5, 7), data(5, 7), data(7),
    dims="a=5 b=7")

# ---- reductions ----------------------------------------------------------------------------

case("sum", "sum", torch.sum, normal(5, 7), made=(0,), dims="a=5 b=7")
case("sum-dim", "sum.dim_IntList", lambda x: [x.sum(1), x.sum((0, 2), keepdim=True)], normal(4, 5, 7),
    made=(0,), dims="a=4 b=5 c=7")
case("mean", "mean", torch.mean, normal(5, 7), made=(0,), dims="a=5 b=7")
case("mean-dim", "mean.dim", lambda x: [x.mean(1), x.mean((0, 2), keepdim=True), x.mean(-1, keepdim=True)],
    normal(4, 5, 7), made=(0,), dims="a=4 b=5 c=7")
case("count_nonzero", "count_nonzero count_nonzero.dim_IntList",
    lambda x: [x.count_nonzero(), x.count_nonzero((0, 1))], ints(2, 5, 7), dims="a=5 b=7")
case("count_nonzero-dim", "count_nonzero", lambda x: x.count_nonzero(1), ints(2, 5, 7), dims="a=5 b=7")
case("amax", "amax amin", lambda x: [x.amax(1), x.amin(0, keepdim=True)], data(5, 7), dims="a=5 b=7")
case("amax-gradient", "amax amin", lambda x: [x.round().amax(1), x.round().amin(1)], normal(5, 7),
    others="round", dims="a=5")
case("max", "max min", lambda x: [x.max(), x.min()], ints(50, 5, 7), dims="a=5 b=7")
case("max-gradient", "max min", lambda x: [x.max(), x.min()], normal(5, 7), dims="")
case("max-dim", "max.dim min.dim", lambda x: [*x.max(1), *x.min(1)], normal(5, 7), dims="a=5")
case("any", "any all", lambda x: [x.any(), x.all()], bools(5, 7), dims="a=5 b=7")
case("any-dim", "any.dim all.dim", lambda x: [x.any(1), x.all(0, keepdim=True)], bools(5, 7), dims="a=5 b=7")
case("argmax", "argmax argmin", lambda x: [x.argmax(1), x.argmin(1, keepdim=True)], normal(5, 7), dims="a=5")
case("argmax-all", "argmax", lambda x: x.argmax(), normal(5, 7), dims="")
case("var", "var.dim std.correction", lambda x: [x.var(1), x.std(1, correction=0)], normal(5, 7), dims="a=5")
case("var-dims", "var.dim", lambda x: x.var((0, 2), keepdim=True), normal(4, 5, 7), dims="b=5")
case("var_mean", "var_mean.dim std_mean.dim", lambda x: [*torch.var_mean(x, 1), *torch.std_mean(x, 1)],
    normal(5, 7), dims="a=5")
case("logsumexp", "logsumexp", lambda x: x.logsumexp(1), normal(5, 7), dims="a=5")
case("norm", "linalg_vector_norm",
    lambda x: [torch.linalg.vector_norm(x, 2, 1), torch.linalg.vector_norm(x, 1, 1)], normal(5, 7),
    dims="a=5")
case("prod", "prod.dim_int", lambda x: x.prod(1), normal(5, 7), dims="a=5")
case("prod-all", "prod", lambda x: x.prod(), normal(5, 7), dims="")
case("cumsum", "cumsum", lambda x: x.cumsum(1), normal(5, 7), made=(0,), dims="a=5")
case("scans", "cumprod logcumsumexp cummax cummin",
    lambda x: [x.cumprod(1), x.logcumsumexp(1), *x.cummax(1), *x.cummin(1)], normal(5, 7), dims="a=5")
case("histc", "histc", lambda x: x.histc(6, 0, 2), data(5, 7), dims="a=5 b=7")
case("histc-bounds", "histc", lambda x: x.histc(6), data(5, 7), dims="")
case("topk", "topk", lambda x: x.topk(3, 1), normal(5, 7), dims="a=5")
case("topk-first", "topk", lambda x: x.topk(2, 0, largest=False)[0], normal(5, 7), dims="b=7")
case("sort", "sort argsort", lambda x: [*x.sort(1), x.argsort(1)], normal(5, 7), dims="a=5")
case("sort-stable", "sort.stable", lambda x: torch.sort(x, stable=True, dim=0), normal(5, 7), dims="b=7")

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

# ---- random --------------------------------------------------------------------------------

case("dropout", "native_dropout", lambda x: F.dropout(x, 0.4), normal(4, 5, 7), random=True,
    dims="a=4 b=5 c=7")
case("dropout-transposed", "native_dropout", lambda x: F.dropout(x.transpose(0, 1), 0.4), normal(5, 7),
    others="transpose.int", random=True, dims="a=7 b=5")
case("dropout-moved", "native_dropout", lambda x: F.dropout(x.permute(2, 0, 1).contiguous(), 0.4),
    normal(4, 5, 7), others="permute", random=True, dims="a=7 b=4 c=5")
case("random-likes", "rand_like randn_like",
    lambda x: [torch.rand_like(x.t()) * x.t(), torch.randn_like(x.t()) * x.t()],
    normal(5, 7), others="t mul.Tensor", random=True, dims="")
case("native_dropout", "native_dropout", lambda x: torch.native_dropout(x, 0.4, True), normal(5, 7),
    random=True, dims="a=5 b=7")

# ---- creation ------------------------------------------------------------------------------

case("zeros", "zeros ones full add.Tensor",
    lambda x: [torch.zeros(5, 7) + x, torch.ones(5, 7) + x, torch.full((5, 7), 2.5) + x], normal(5, 7),
    dims="a=5 b=7")
case("new_zeros", "new_zeros new_ones new_full",
    lambda x: [x.new_zeros(4, 5), x.new_ones(4, 5), x.new_full((4, 5), 2.5)], data(7), dims="a=4 b=5")
case("arange", "arange", lambda x: [torch.arange(7) + x], ints(5, 7), others="add.Tensor", dims="a=7")
case("arange-step", "arange.start_step", lambda x: torch.arange(3, 25, 4) * x, normal(6), others="mul.Tensor",
    dims="a=6")
case("arange-floats", "arange", lambda x: torch.arange(7.0) * x, normal(7), others="mul.Tensor", dims="")
case("eye", "eye", lambda x: torch.eye(5) * x, normal(5, 5), others="mul.Tensor", dims="")

# ---- indexing ------------------------------------------------------------------------------

case("gather", "gather", lambda x, i: x.gather(1, i), normal(5, 7), ints(7, 5, 6), made=(0,),
    dims="a=5 index=6")
case("gather-fewer-rows", "gather", lambda x, i: x.gather(1, i), normal(5, 7), ints(7, 4, 6), dims="index=6")
case("index", "index.Tensor", lambda x, i: x[i], normal(5, 7), ints(5, 4, 3), made=(0,), dims="b=7 i0=4 i1=3")
case("index-middle", "index.Tensor", lambda x, i, j: x[:, i, j], normal(5, 4, 6), ints(4, 7), ints(6, 3, 1),
    dims="a=5 i1=7 i0=3")
case("index-apart", "index.Tensor", lambda x, i, j: x[i, :, j], normal(5, 4, 6), ints(5, 7), ints(6, 7),
    dims="b=4 i0=7")
case("index_select", "index_select", lambda x, i: x.index_select(1, i), normal(5, 7), ints(7, 6), made=(0,),
    dims="a=5 index=6")
case("index_put", "index_put", lambda x, i, v: x.index_put((i,), v), normal(5, 7), given([3, 0]),
    normal(2, 7), made=(0, 2), dims="b=7")
case("index_put-add", "index_put", lambda x, i, v: x.index_put((i,), v, accumulate=True), normal(5, 7),
    given([3, 0, 3]), normal(3, 7), dims="b=7")
case("index_put-mask", "index_put", lambda x, m, v: x.index_put((m,), v), normal(5, 4, 6), bools(5, 4),
    normal(6), made=(0, 2), dims="a=5 b=4 c=6")
case("index_put-mask-add", "index_put", lambda x, m, v: x.index_put((m,), v, accumulate=True), normal(5, 6),
    bools(5), normal(1), dims="a=5 b=6")
case("scatter", "scatter.src", lambda x, i, s: x.scatter(1, i, s), normal(5, 7), given([[0, 3]] * 5),
    normal(5, 2), made=(0, 2), dims="a=5")
case("scatter-value", "scatter.value", lambda x, i: x.scatter(1, i, 1.5), normal(5, 7), ints(7, 5, 3),
    dims="a=5")
case("scatter_add", "scatter_add", lambda x, i, s: x.scatter_add(1, i, s), normal(5, 7), ints(7, 5, 6),
    normal(5, 6), made=(0, 2), dims="a=5")
case("scatter_reduce-sum", "scatter_reduce.two", lambda x, i, s: x.scatter_reduce(1, i, s, "sum"),
    normal(5, 7), ints(7, 5, 6), normal(5, 6), made=(0, 2), dims="a=5")
case("scatter_reduce-most", "scatter_reduce.two", lambda x, i, s: [
    x.scatter_reduce(1, i, s, "amax"), x.scatter_reduce(1, i, s, "mean", include_self=False)], normal(5, 7),
    ints(7, 5, 6), normal(5, 6), dims="a=5")
case("index_add-scaled", "index_add", lambda x, i, s: x.index_add(1, i, s, alpha=0.3), normal(5, 7),
    ints(7, 6), normal(5, 6), made=(0, 2), dims="a=5")
case("index_copy-rows", "index_copy", lambda x, i, s: x.index_copy(0, i, s), normal(5, 7), given([3, 0, 4]),
    normal(3, 7), made=(0, 2), dims="b=7")
case("one_hot", "one_hot", lambda i: F.one_hot(i, 6), ints(6, 4, 5), dims="a=4 b=5")
case("tril", "tril triu", lambda x: [x.tril(), x.triu(1)], normal(4, 5, 7), made=(0,), dims="a=4")
case("masked_scatter", "masked_scatter", lambda x, m, s: x.masked_scatter(m, s), normal(5, 6), bools(5, 6),
    normal(30), made=(0, 2), dims="")

# ---- registered ----------------------------------------------------------------------------

case("registered", "function", lambda q, k, v: registering.attend(q, k, v, 3), normal(4, 2, 6),
    normal(4, 7, 6), normal(4, 7, 6), about=True, dims="b=4 h=3")
case("registered-sum", "function", registering.project, normal(4, 2, 6), normal(5, 6), normal(5), made=(0,),
    about=True, dims="_0=4 _1=2 k=6 n=5")

import rule_cases_more  # noqa: E402, F401
import rule_cases_overloads  # noqa: E402, F401
