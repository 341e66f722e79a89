"""What gradients do not pass, buffers that are updated, and what needs no rule."""

from __future__ import annotations

import torch

from ..pool import Pool, Unfit
from .registry import operator


@operator("detached")
def detached(p: Pool) -> None:
    a = p.float()
    p.step(
        p.rng.choice(
            ["{a}.detach()", "{a} * {a}.detach()", "({a}.round() - {a}).detach() + {a}", "{a}.detach().sin()"]
        ).format(a=a)
    )


@operator("detached")
def no_grad(p: Pool) -> None:
    a = p.float()
    p.step(f"{a}.{p.rng.choice(['exp().clamp(max=9)', 'sin()', 'mean()', 'abs().max()'])}", quiet=True)


@operator("detached")
def no_grad_branch(p: Pool) -> None:
    """A target network: some lines without gradients, read by a loss."""
    a = p.float(1, 3)
    w = p.operand(a.t.shape[-1], p.rng.choice(p.sizes))
    h = p.step(f"{a} @ {w}", quiet=True)
    target = p.step(f"{h}.softmax(-1)", quiet=True)
    p.step(f"F.mse_loss({a} @ {w}, {target})")


@operator("buffers")
def counted(p: Pool) -> None:
    """A counter, and a running mean that the result reads."""
    a = p.float(1, 3)
    b = p.leaf((a.t.shape[-1],), kind="buffer")
    mean = p.step(f"{a}.detach().reshape(-1, {a.t.shape[-1]}).mean(0)") if a.t.numel() else None
    if mean is None or b.t.requires_grad:
        raise Unfit
    p.statement(
        p.rng.choice([f"{b}.mul_(0.9).add_({mean}, alpha=0.1)", f"{b}.copy_({mean})", f"{b}.add_({mean})"]), b
    )
    if p.rng.random() < 0.6:
        p.step(f"{a} - {b}")


@operator("buffers")
def number_counted(p: Pool) -> None:
    b = p._add("b", "buffer", "torch.zeros((), dtype=torch.int64)", False)
    p.statement(f"{b}.add_(1)", b)


@operator("buffers")
def counted_quietly(p: Pool) -> None:
    a = p.float(2, 2)
    b = p.leaf((a.t.shape[1],), kind="buffer")
    p.statement(f"{b}.lerp_({a}.detach().mean(0), 0.1)", b, quiet=True)


@operator("no rule")
def without_rule(p: Pool) -> None:
    a = p.float(2, 2, lambda t: min(t.shape) > 0)
    p.several(
        p.rng.choice(
            ["torch.corrcoef({a} + torch.arange({m}, dtype=D))", "F.pdist({a}.sin())", "torch.combinations({a}[0])",
             "torch.linalg.qr({a}.mT @ {a} + 2 * torch.eye({m}, dtype=D))[0]"]
        ).format(a=a, m=a.t.shape[1])
    )  # fmt: skip


@operator("detached")
def indices_read(p: Pool) -> None:
    """Integers that come out of floats, and choose."""
    a = p.float(2, 2, lambda t: min(t.shape) > 0)
    top = p.step(f"{a}.argmax(-1)")
    p.step(
        f"{a}.gather(1, {top}[:, None])"
        if p.rng.random() < 0.5
        else f"F.one_hot({top}, {a.t.shape[1]}) * {a}"
    )


@operator("several uses")
def parameter_alone(p: Pool) -> None:
    """A penalty on weights, beside what reads them."""
    names = [x.name for x in p.leaves if x.kind == "param" and x.grad]
    if not names:
        raise Unfit
    w = p.value(p.rng.choice(names))
    if w.t.dtype != torch.float64:
        raise Unfit
    p.step(f"{w}.{p.rng.choice(['pow(2).sum()', 'abs().mean()', 'norm()', 'sum()'])} * 0.1")
