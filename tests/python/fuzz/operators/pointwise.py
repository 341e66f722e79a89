"""Operators on each element alone, with broadcasting, several dtypes and in place."""

from __future__ import annotations

import torch

from ..pool import Pool, Unfit, Value
from .registry import operator, texts

UNARY = (
    "abs atan cos erf neg sigmoid sin tanh relu square sinc asinh frac sgn round floor ceil trunc isfinite"
)
ACTIVATIONS = (
    "celu elu gelu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus softshrink"
    " hardshrink tanhshrink softsign"
)
POSITIVE = "log sqrt rsqrt reciprocal log1p lgamma log2 digamma"


def _one(p: Pool) -> tuple[Value]:
    return (p.float(),)


def _two(p: Pool) -> tuple[Value, Value]:
    a = p.float()
    b = p.beside(tuple(a.t.shape))
    return (a, b) if p.rng.random() < 0.7 else (b, a)


texts("pointwise", _one, {name: f"torch.{name}({{}})" for name in UNARY.split()})
texts("pointwise", _one, {name: f"F.{name}({{}})" for name in ACTIVATIONS.split()})
texts(
    "pointwise",
    lambda p: (p.float(),),
    {name: f"torch.{name}({{}}.abs() + 0.5)" for name in POSITIVE.split()},
)
texts("pointwise", _one, {
    "exp": "({}.tanh()).exp()",
    "expm1": "torch.expm1({}.sin())",
    "add_scalar": "{} + 1.5",
    "rsub_scalar": "1 - {}",
    "mul_scalar": "0.7 * {}",
    "div_scalar": "{} / 3",
    "pow": "{}.tanh() ** 3",
    "scalar_pow": "2.0 ** {}.tanh()",
    "clamp": "{}.clamp(-0.5, 0.5)",
    "clamp_min": "{}.clamp(min=0.1)",
    "threshold": "F.threshold({}, 0.1, 2.0)",
    "nan_to_num": "{}.nan_to_num()",
    "remainder": "{} % 0.7",
    "logit": "torch.logit({}.sigmoid())",
    "clone": "{}.clone()",
    "contiguous": "{}.contiguous()",
    "zeros_like": "torch.zeros_like({})",
    "ones_like": "torch.ones_like({})",
    "full_like": "torch.full_like({}, 0.25)",
    "to_double": "{}.double()",
    "type": "{}.to(torch.float64)",
})  # fmt: skip
texts("pointwise", _two, {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "add_alpha": "torch.add({}, {}, alpha=0.3)",
    "div": "{} / ({}.abs() + 0.5)",
    "div_floor": "torch.div({}, {}.abs() + 0.5, rounding_mode='floor')",
    "maximum": "torch.maximum({}, {})",
    "minimum": "torch.minimum({}, {})",
    "atan2": "torch.atan2({}, {}.abs() + 0.5)",
    "hypot": "torch.hypot({}.abs() + 0.5, {})",
    "logaddexp": "torch.logaddexp({}, {})",
    "pow_tensor": "({}.abs() + 0.5) ** {}.tanh()",
    "lerp": "torch.lerp(*torch.broadcast_tensors({}, {}), 0.3)",
    "broadcast": "torch.broadcast_tensors({}, {})",
    "clamp_tensor": "torch.clamp({}, {})",
    "lt": "{} < {}",
    "ge": "{} >= {}",
    "ne": "{} != {}",
})  # fmt: skip


@operator("pointwise")
def addcmul(p: Pool) -> None:
    a, b = _two(p)
    c = p.beside(tuple(torch.broadcast_shapes(a.t.shape, b.t.shape)))
    name = p.rng.choice(["torch.addcmul({}, {}, {}, value=0.3)", "torch.addcdiv({}, {}, {}.abs() + 1)"])
    p.step(name.format(a, b, c))


@operator("pointwise")
def prelu(p: Pool) -> None:
    a = p.float(2)
    p.step(f"F.prelu({a}, {p.leaf((p.rng.choice([1, a.t.shape[1]]),), kind='param')})")


@operator("pointwise")
def compared(p: Pool) -> None:
    sign = p.rng.choice(["<", "<=", ">", ">=", "==", "!="])
    p.step(f"{p.float()} {sign} 0.25")


@operator("pointwise")
def where(p: Pool) -> None:
    a, b = _two(p)
    mask = p.bools(*p.narrowed(tuple(torch.broadcast_shapes(a.t.shape, b.t.shape))))
    other = p.rng.choice([str(b), "0.0", "1.5"])
    p.step(f"torch.where({mask}, {a}, {other})")


@operator("pointwise")
def masked_fill(p: Pool) -> None:
    a = p.float()
    p.step(f"{a}.masked_fill({p.bools(*p.narrowed(tuple(a.t.shape)))}, {p.rng.choice(['0', '-3.0'])})")


@operator("pointwise")
def logic(p: Pool) -> None:
    a = p.any(lambda t: t.dtype == torch.bool)
    b = p.bools(*p.narrowed(tuple(a.t.shape)))
    p.step(p.rng.choice(["{} & {}", "{} | ~{}", "torch.logical_xor({}, {})"]).format(a, b))


@operator("pointwise")
def mask_times(p: Pool) -> None:
    """A mask as float32 beside float64: dtypes are promoted."""
    a = p.float()
    mask = p.bools(*p.narrowed(tuple(a.t.shape)))
    p.step(f"{a} * {mask}.{p.rng.choice(['float()', 'double()', 'to(D)', 'long()'])}")


@operator("pointwise")
def integers(p: Pool) -> None:
    a = p.ints(7, *p.shape(p.rng.randint(0, 3)))
    b = p.ints(5, *p.narrowed(tuple(a.t.shape)))
    line = p.rng.choice(
        [
            "{} + {}",
            "{} * {} - 2",
            "{} // ({} + 1)",
            "{} % ({} + 1)",
            "{} & {}",
            "{} ^ {}",
            "{} == {}",
            "({} > {}).sum()",
        ]
    )
    p.step(line.format(a, b))


@operator("pointwise")
def integer_to_float(p: Pool) -> None:
    a = p.any(lambda t: t.dtype in (torch.int64, torch.bool) and t.dim() < 5)
    other = p.beside(tuple(a.t.shape))
    p.step(
        p.rng.choice(["{}.double() * {}", "{} * {}", "{}.to({}.dtype)", "{}.type_as({})"]).format(a, other)
    )


@operator("pointwise")
def exact_float32(p: Pool) -> None:
    """Small whole numbers in float32: exact in any order, beside float64."""
    a = p.float()
    small = p.data(f"small({', '.join(map(str, p.narrowed(tuple(a.t.shape))))})")
    p.step(p.rng.choice(["{} * {}", "{} + {}", "{} - {}.sum()"]).format(a, small))


@operator("pointwise")
def rounded_float32(p: Pool) -> None:
    if not p.single:
        raise Unfit
    a = p.float()
    p.step(p.rng.choice(["{}.float()", "{}.float().sin() + 1.0", "({}.float() * 2).double()"]).format(a))


@operator("pointwise")
def float32_back(p: Pool) -> None:
    if not p.single:
        raise Unfit
    a = p.step(f"{p.float()}.float()")
    p.step(p.rng.choice(["{}.double()", "{} * 0.5", "{} + {}"]).format(a, p.beside(tuple(a.t.shape))))


@operator("in place")
def in_place_unary(p: Pool) -> None:
    a = p.float(fits=_owned)
    name = p.rng.choice(
        ["sin_()", "relu_()", "mul_(0.5)", "add_(1.0)", "clamp_(-1, 1)", "tanh_()", "neg_()", "zero_()"]
    )
    _fresh(p, a, f".{name}")


@operator("in place")
def in_place_binary(p: Pool) -> None:
    a = p.float(fits=_owned)
    b = p.leaf(p.narrowed(tuple(a.t.shape)))
    _fresh(p, a, p.rng.choice([".add_({})", ".mul_({})", ".sub_({}, alpha=0.3)", ".copy_({})"]).format(b))


@operator("in place")
def in_place_activation(p: Pool) -> None:
    a = p.float(fits=_owned)
    name = p.rng.choice(
        ["F.relu({}, inplace=True)", "F.leaky_relu({}, 0.2, True)", "F.elu({}, inplace=True)"]
    )
    p.step(name.format(f"{a}.clone()" if p.rng.random() < 0.5 else f"({a} * 1.5)"))


@operator("in place")
def slice_assigned(p: Pool) -> None:
    a = p.float(1, fits=lambda t: t.shape[0] > 0)
    fresh = p.step(f"{a}.clone()")
    size = fresh.t.shape[0]
    low = p.rng.randrange(size)
    high = p.rng.randint(low + 1, size)
    part = p.beside((high - low, *fresh.t.shape[1:]))
    if torch.broadcast_shapes(part.t.shape, (high - low, *fresh.t.shape[1:])) != (
        high - low,
        *fresh.t.shape[1:],
    ):
        raise Unfit
    p.statement(f"{fresh}[{low}:{high}] = {part}", fresh)


@operator("in place")
def element_assigned(p: Pool) -> None:
    a = p.float(2, fits=lambda t: t.shape[1] > 0)
    fresh = p.step(p.rng.choice([f"{a}.clone()", f"torch.zeros_like({a})"]))
    at = p.rng.randrange(fresh.t.shape[1])
    p.statement(
        f"{fresh}[:, {at}] {p.rng.choice(['=', '+=', '*='])} {p.rng.choice(['0.5', f'{a}[:, 0]'])}", fresh
    )


@operator("in place")
def masked_in_place(p: Pool) -> None:
    a = p.float(1)
    fresh = p.step(f"{a} * 1.5")
    p.statement(f"{fresh}.masked_fill_({p.bools(*p.narrowed(tuple(a.t.shape)))}, 0.0)", fresh)


@operator("in place")
def view_changed(p: Pool) -> None:
    """A change through a view is seen in what it is a view of."""
    a = p.float(2, 3)
    fresh = p.step(f"{a} + 0.5")
    p.statement(
        f"{fresh}.{p.rng.choice(['t()' if a.t.dim() == 2 else 'transpose(0, 2)', 'view(-1)'])}.mul_(0.5)",
        fresh,
    )


def _owned(t: torch.Tensor) -> bool:
    """Not a leaf, and no part of memory is another's."""
    return t.grad_fn is not None and not t._is_view()


def _fresh(p: Pool, a: Value, rest: str) -> None:
    if p.rng.random() < 0.5:
        p.step(f"{a}.clone(){rest}")
    else:
        p.statement(f"{a}{rest}", a)
