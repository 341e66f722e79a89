"""Maxima and minima without a gradient, and chains of what may follow while each rank has a share of one."""

from __future__ import annotations

from ..pool import Pool, Value
from .registry import operator

# What passes a share of a maximum on, what turns it round, and what must be given the whole.
LINKS = [
    ".exp()", ".neg()", " * 2", " * -0.5", " + 1", ".relu()", ".tanh()", ".clamp(-0.5, 0.5)", ".clone()",
    ".unsqueeze(0).squeeze(0)", ".expand_as({a})", ".flip(0)", ".abs()", ".cos()", ".square()", " * 0",
    ".to(torch.float32).to(D)", ".floor()", ".index_select(0, torch.zeros(1, dtype=torch.int64))",
]  # fmt: skip


def _chain(p: Pool, a: Value, made: Value) -> Value:
    for _ in range(p.rng.randint(1, 4)):
        made = p.step(f"({made})" + p.rng.choice(LINKS).format(a=a))
    return made


@operator("extremes")
def detached_extreme(p: Pool) -> None:
    """As it is taken off before an exponential."""
    a = p.float(1, fits=lambda t: min(t.shape) > 0)
    how, at = p.rng.choice(["amax", "amin"]), p.dim(a.t)
    made = _chain(p, a, p.step(f"{a}.{how}({at}, keepdim=True).detach()"))
    p.step(f"({a} - {made}).tanh()")


@operator("extremes")
def quiet_extreme(p: Pool) -> None:
    a = p.float(2, fits=lambda t: min(t.shape) > 0)
    made = p.step(f"{a}.{p.rng.choice(['amax((0, 1), keepdim=True)', 'max()', 'min()'])}", quiet=True)
    p.step(f"{a} / (2 + {_chain(p, a, made)}.tanh())")


@operator("extremes")
def extremes_together(p: Pool) -> None:
    """Two shares that are put into one tensor, or of which one is chosen."""
    a = p.float(2, fits=lambda t: min(t.shape) > 0)
    both = [p.step(f"{a}.{p.rng.choice(['amax', 'amin'])}(1, keepdim=True).detach()") for _ in range(2)]
    line = p.rng.choice(
        ["torch.cat([{x}, {y}], 1).sum(1, keepdim=True)", "torch.where({x} > 0, {x}, {y})", "torch.maximum({x}, {y})"]
    )  # fmt: skip
    p.step(f"{a} * {p.step(line.format(x=both[0], y=both[1]))}")


@operator("extremes")
def logical_extreme(p: Pool) -> None:
    a = p.float(1, fits=lambda t: min(t.shape) > 0)
    how, at = p.rng.choice(["any", "all"]), p.dim(a.t)
    turned = p.rng.choice(["", ".logical_not()", ".logical_not().unsqueeze(0).squeeze(0)"])
    made = p.step(f"({a} > 0.1).{how}({at}, keepdim=True){turned}")
    p.step(f"{a} * {made}")
