"""What parts may hold shares of, and who may be given these: of each kind of share, each family through which it passes."""

from __future__ import annotations

from ..pool import Pool, Unfit, Value
from .registry import operator

# Of each kind of share: what makes one along a dim that is kept.
MADE = {
    "max": "{a}.detach().amax(0, keepdim=True)",
    "min": "{a}.detach().amin(0, keepdim=True)",
    "any": "({a} > 0.4).any(0, keepdim=True)",
    "all": "({a} > -1.5).all(0, keepdim=True)",
}
# Of each family: a line that passes what is [1, n] on.
PASSED = {
    "views": ["{x}.reshape(-1)", "{x}.squeeze(0)", "{x}.transpose(0, 1)", "{x}.unsqueeze(2).expand(1, {n}, 2)"],
    "indexing": ["{x}[:, :1]", "{x}.flip(1)", "{x}[:, 1:]", "{x}.roll(1, 1)", "{x}[:, torch.tensor([0])]"],
    "splitting": ["{x}.chunk(2, 1)[0]", "torch.cat([{x}, {x}], 1)", "torch.stack([{x}, {x}])", "{x}.split(1, 1)[-1]"],
    "pointwise": ["{x}.clone()", "{x}.logical_not()", "{x} * 2", "{x}.to(D)", "{x}.double().exp()"],
}  # fmt: skip


def _made(p: Pool, kind: str) -> Value:
    a = p.float(2, 2, lambda t: min(t.shape) > 1)
    return p.step(MADE[kind].format(a=a))


def _passed(p: Pool, kind: str, family: str) -> None:
    made = _made(p, kind)
    passed = p.step(p.rng.choice(PASSED[family]).format(x=made, n=made.t.shape[1]))
    b = p.operand(*passed.t.shape)
    p.step(f"({b} * {passed}).sin()")


for _kind in MADE:
    for _family in PASSED:
        operator("shared", f"{_kind} passed by {_family}")(
            lambda p, kind=_kind, family=_family: _passed(p, kind, family)
        )


def _sum(p: Pool, *shape: int) -> Value:
    """Of this shape, made by a contraction whose parts hold shares of a sum."""
    *lead, last = shape
    k = p.rng.choice([2, 3, 4])
    x, w = p.leaf((*lead, k), kind="input"), p.leaf((k, last), kind="param")
    return p.step(f"{x} @ {w}")


@operator("shared", "sum passed by convolution")
def _convolution(p: Pool) -> None:
    x = _sum(p, 2, 2, 5)
    w = p.leaf((4, p.rng.choice([1, 2]), 2), kind="param")
    p.step(f"F.conv1d({x}, {w}, groups={2 // w.t.shape[1]})")


@operator("shared", "sum passed by pooling")
def _pooling(p: Pool) -> None:
    p.step(f"F.avg_pool1d({_sum(p, 2, 3, 6)}, 2)")


@operator("shared", "sum passed by embedding")
def _embedding(p: Pool) -> None:
    p.step(f"F.embedding({p.ints(4, 2, 3)}, {_sum(p, 4, 2)})")


@operator("shared", "sum passed by attention")
def _attention(p: Pool) -> None:
    v = _sum(p, 2, 4, 2)
    q = p.operand(2, 4, 2)
    p.step(f"F.scaled_dot_product_attention({q}, {q}, {v})")


@operator("shared", "sum passed by fourier")
def _fourier(p: Pool) -> None:
    x = _sum(p, 2, 4)
    p.step(p.rng.choice([f"torch.view_as_real(torch.fft.rfft({x}))", f"torch.fft.fftshift({x}, -1)"]))


@operator("shared", "sum passed by products")
def _products(p: Pool) -> None:
    x, b = _sum(p, 2, 3), p.operand(2, 3)
    p.step(p.rng.choice([f"torch.linalg.cross({x}, {b})", f"torch.kron({x}, {b})", f"torch.inner({x}, {b})"]))


@operator("shared", "sum passed by mixtures")
def _mixtures(p: Pool) -> None:
    """What tokens weigh their experts by, or the second matrices of these."""
    e, k, n, m, slots = 2, 3, 2, 2, 2
    up, down = p.leaf((e, n, k), kind="param"), p.leaf((e, m, n), kind="param")
    weights = p.operand(4, slots)
    if p.rng.random() < 0.5:
        down = _sum(p, e, m, n)
    else:
        weights = _sum(p, 4, slots)
    a, i = p.operand(4, k), p.ints(e, 4, slots)
    p.step(f"torch.ops.shardwright.experts({a}, {i}, {weights}, {up}, {down}, 'silu', False, False, False)")


@operator("shared", "sum passed by statistics")
def _statistics(p: Pool) -> None:
    p.step(f"torch.{p.rng.choice(['trapezoid', 'cumulative_trapezoid'])}({_sum(p, 2, 4)}, dim=1)")


@operator("shared", "sum passed by experts")
def _experts(p: Pool) -> None:
    w = p.leaf((2, 2, 3), kind="param")
    p.step(f"torch.bmm({_sum(p, 4, 2)}.unsqueeze(1), {w}[{p.ints(2, 4)}]).squeeze(1)")


@operator("shared", "sum passed by several")
def _several(p: Pool) -> None:
    """Shares that are passed on and on, of which each reader is given some."""
    x = _sum(p, 2, 4)
    for _ in range(p.rng.randint(2, 4)):
        x = p.step(p.rng.choice(["{x} * 0.5", "{x}.flip(1)", "{x}.transpose(0, 1)", "-{x}", "{x}.mean(0, keepdim=True)",
                                 "torch.cat([{x}, {x}], 1)", "{x}[:, :1]", "{x}.cumsum(1)"]).format(x=x))  # fmt: skip
    p.step(f"{x}.sin()")


@operator("checkpointed")
def checkpointed(p: Pool) -> None:
    """A region that PyTorch computes again in backward."""
    a = p.float(2, 2, lambda t: min(t.shape) > 0)
    w = p.operand(a.t.shape[1], a.t.shape[1])
    line = p.rng.choice(["(x @ w).sin()", "x + (x @ w).relu().tanh()", "F.layer_norm(x @ w, (w.shape[0],))"])
    p.step(f"checkpoint(lambda x, w: {line}, {a}, {w}, use_reentrant=False)")


@operator("checkpointed")
def checkpointed_norm(p: Pool) -> None:
    """Its running statistics move as often as PyTorch computes it."""
    a = p.float(2, 2, lambda t: min(t.shape) > 1)
    norm = p.module(f"nn.BatchNorm1d({a.t.shape[1]}, eps=0.1)")
    p.step(f"checkpoint({norm}, {a}, use_reentrant=False)")


@operator("complex")
def complex_values(p: Pool) -> None:
    """Complex values in between, conjugated when they are used."""
    a = p.float(2, 3, lambda t: t.shape[-1] == 2 and min(t.shape) > 0)
    b = p.operand(*a.t.shape)
    x, y = f"torch.view_as_complex({a}.contiguous())", f"torch.view_as_complex({b}.contiguous())"
    line = p.rng.choice(["torch.view_as_real({x} * {y}.conj())", "torch.view_as_real(({x} + {y}).conj().resolve_conj())",
                         "({x}.conj() * {y}).real", "({x} * {y}).abs().square()"])  # fmt: skip
    p.step(line.format(x=x, y=y))


@operator("buffers")
def buffer_between(p: Pool) -> None:
    """A buffer that one layer moves and the next one reads, with parameters on both sides."""
    a = p.float(2, 2, lambda t: min(t.shape) > 1)
    n = a.t.shape[1]
    h = p.step(f"F.linear({a}, {p.leaf((n, n), kind='param')}).tanh()")
    b = p.leaf((n,), kind="buffer")
    if b.t.requires_grad:
        raise Unfit
    p.statement(f"{b}.lerp_({h}.detach().mean(0), 0.25)", b)
    p.step(f"F.linear({h} - {b}, {p.leaf((n, n), kind='param')})")


@operator("convolution")
def depthwise(p: Pool) -> None:
    """A depthwise convolution between pointwise ones, as image models have it."""
    c = p.rng.choice([2, 4])
    x = p.leaf((2, c, 4, 4), kind="input")
    h = p.step(f"F.conv2d({x}, {p.leaf((c, c, 1, 1), kind='param')}).tanh()")
    h = p.step(f"F.conv2d({h}, {p.leaf((c, 1, 3, 3), kind='param')}, padding=1, groups={c}).sin()")
    p.step(f"F.conv2d({h}, {p.leaf((3, c, 1, 1), kind='param')})")
