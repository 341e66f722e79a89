"""What is computed element by element."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import alike, between, bools, case, data, ints, normal

# fmt: off

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
