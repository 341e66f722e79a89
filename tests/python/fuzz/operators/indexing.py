"""Indices, values made in the model, and random numbers."""

from __future__ import annotations

import torch

from ..pool import Pool, Unfit
from .registry import operator


@operator("indexing")
def gather(p: Pool) -> None:
    a = p.float(1, 3, lambda t: min(t.shape) > 0)
    at = p.rng.randrange(a.t.dim())
    shape = list(a.t.shape)
    shape[at] = p.rng.choice(p.sizes)
    p.step(f"torch.gather({a}, {at}, {p.ints(a.t.shape[at], *shape)})")


@operator("indexing")
def index(p: Pool) -> None:
    a = p.float(1, 4, lambda t: t.shape[0] > 0)
    p.step(f"{a}[{p.ints(a.t.shape[0], *p.shape(p.rng.randint(1, 2)))}]")


@operator("indexing")
def index_second(p: Pool) -> None:
    a = p.float(2, 4, lambda t: t.shape[1] > 0)
    i = p.ints(a.t.shape[1], *p.shape(1))
    p.step(f"{a}[:, {i}]" if p.rng.random() < 0.6 else f"{a}[torch.arange({a.t.shape[0]})[:, None], {i}]")


@operator("indexing")
def index_constant(p: Pool) -> None:
    a = p.float(1, 3, lambda t: t.shape[-1] > 1)
    n = a.t.shape[-1]
    p.step(f"{a}[..., torch.tensor({[n - 1, 0, n // 2]})]")


@operator("indexing")
def index_select(p: Pool) -> None:
    a = p.float(1, 4, lambda t: min(t.shape) > 0)
    at = p.rng.randrange(a.t.dim())
    p.step(f"torch.index_select({a}, {at}, {p.ints(a.t.shape[at], *p.shape(1))})")


@operator("indexing")
def index_put(p: Pool) -> None:
    a = p.float(1, 3, lambda t: t.shape[0] > 0)
    i = p.ints(a.t.shape[0], *p.shape(1))
    v = p.leaf((i.t.shape[0], *a.t.shape[1:]))
    p.step(f"torch.index_put({a}, ({i},), {v}, accumulate=True)")


@operator("indexing")
def scatter_add(p: Pool) -> None:
    a = p.float(1, 3, lambda t: min(t.shape) > 0)
    at = p.rng.randrange(a.t.dim())
    i = p.ints(a.t.shape[at], *a.t.shape)
    p.step(
        p.rng.choice([f"{a}.scatter_add({at}, {i}, {p.operand(*a.t.shape)})", f"{a}.scatter({at}, {i}, 0.5)"])
    )


@operator("indexing")
def index_add(p: Pool) -> None:
    a = p.float(1, 3, lambda t: t.shape[0] > 0)
    i = p.ints(a.t.shape[0], *p.shape(1))
    p.step(f"{a}.index_add(0, {i}, {p.leaf((i.t.shape[0], *a.t.shape[1:]))})")


@operator("indexing")
def one_hot(p: Pool) -> None:
    n = p.rng.choice([2, 3, 5])
    p.step(f"F.one_hot({p.ints(n, *p.shape(p.rng.randint(1, 2)))}, {n}).double()")


@operator("indexing")
def triangle(p: Pool) -> None:
    p.step(f"{p.float(2, 4)}.{p.rng.choice(['tril()', 'triu(1)', 'tril(-1)'])}")


@operator("indexing")
def masked_scatter(p: Pool) -> None:
    a = p.float(1, 3)
    p.step(f"{a}.masked_scatter({p.bools(*a.t.shape)}, {p.operand(*a.t.shape)})")


@operator("indexing")
def take_along(p: Pool) -> None:
    a = p.float(1, 3, lambda t: t.shape[-1] > 1)
    order = p.step(f"{a}.argsort(-1)")
    p.step(f"torch.take_along_dim({a}, {order}, -1)")


@operator("creation")
def zeros(p: Pool) -> None:
    a = p.float(1)
    shape = "".join(f"{s}, " for s in a.t.shape)
    made = p.rng.choice([f"torch.zeros(({shape}), dtype=D)", f"torch.ones(({shape}), dtype=D)", f"{a}.new_zeros(({shape}))",
                         f"torch.full(({shape}), 0.5, dtype=D)", f"{a}.new_ones(({shape}))"])  # fmt: skip
    z = p.step(made)
    p.step(
        f"{a} + {z}"
        if p.rng.random() < 0.5
        else f"{z}.{p.rng.choice(['add', 'copy', 'add_', 'copy_'])}({a})".replace(".copy(", ".add(")
    )


@operator("creation")
def zeros_filled(p: Pool) -> None:
    """A buffer made in the forward, written part by part."""
    a = p.float(2, 3, lambda t: t.shape[1] > 0)
    shape = "".join(f"{s}, " for s in (a.t.shape[0], a.t.shape[1] + 1, *a.t.shape[2:]))
    z = p.step(
        p.rng.choice(
            ["torch.zeros(({s}), dtype=D)", "torch.ones(({s}), dtype=D)", "{a}.new_zeros(({s}))"]
        ).format(s=shape, a=a)
    )
    p.statement(f"{z}[:, 1:] = {a}", z)
    if p.rng.random() < 0.5:
        p.statement(f"{z}[:, 0] += 0.5", z)


@operator("creation")
def positions(p: Pool) -> None:
    a = p.float(2, 4)
    t = a.t.shape[-2]
    p.step(
        f"{a} + torch.arange({t}, dtype=D).{p.rng.choice(['mul(0.1)', 'sin()', 'add(1).reciprocal()'])}[:, None]"
    )


@operator("creation")
def position_table(p: Pool) -> None:
    a = p.float(2, 3, lambda t: min(t.shape) > 0)
    t, c = a.t.shape[-2:]
    table = p.leaf((t + 1, c), kind="param")
    p.step(f"{a} + F.embedding(torch.arange({t}), {table})")


@operator("creation")
def mask_made(p: Pool) -> None:
    a = p.float(2, 4)
    t = a.t.shape[-1]
    mask = p.step(p.rng.choice([f"torch.arange({t}) < {t // 2 + 1}", f"torch.ones({t}, dtype=torch.bool)",
                                f"torch.zeros({t}, dtype=torch.bool)"]))  # fmt: skip
    p.step(
        p.rng.choice([f"{a}.masked_fill({mask}, 0.0)", f"{a} * {mask}", f"torch.where({mask}, {a}, -1.0)"])
    )


@operator("creation")
def identity(p: Pool) -> None:
    a = p.float(2, 2, lambda t: t.shape[0] > 0)
    n = a.t.shape[0]
    p.step(
        p.rng.choice(
            [
                f"torch.eye({n}, dtype=D) @ {a}",
                f"{a} @ {a}.mT + torch.eye({n}, dtype=D)",
                f"torch.eye({n}, dtype=D)[:, :1] * {a}",
            ]
        )
    )


@operator("creation")
def scalar(p: Pool) -> None:
    a = p.float()
    p.step(
        p.rng.choice(
            [
                f"{a} * torch.tensor(0.5, dtype=D)",
                f"{a} + torch.tensor([0.5], dtype=D)",
                f"{a} * torch.scalar_tensor(0.3, dtype=D)",
            ]
        )
    )


@operator("random")
def dropout(p: Pool) -> None:
    a = p.float(1)
    p.random = True
    line = p.rng.choice(
        ["F.dropout({}, 0.3)", "F.dropout({}, 0.3, True)", "F.dropout({} * 1.0, 0.4, inplace=True)"]
    )
    p.step(line.format(a))


@operator("random")
def dropout_other(p: Pool) -> None:
    a = p.float(2, 4)
    p.random = True
    lines = (
        ["F.alpha_dropout({}, 0.3, True)"]
        + ["F.dropout1d({}, 0.3)"] * (a.t.dim() in (2, 3))
        + ["F.dropout2d({}, 0.3)"] * (a.t.dim() == 4)
    )
    p.step(p.rng.choice(lines).format(a))


@operator("random")
def dropout_module(p: Pool) -> None:
    a = p.float(1)
    p.random = True
    p.step(f"{p.module('nn.Dropout(0.4)')}({a})")


@operator("random")
def attention_dropout(p: Pool) -> None:
    a = p.float(4, 4, lambda t: min(t.shape) > 0)
    p.random = True
    p.step(f"F.scaled_dot_product_attention({a}, {a}, {p.operand(*a.t.shape)}, dropout_p=0.3)")


@operator("random")
def noise(p: Pool) -> None:
    a = p.float(1)
    p.random = True
    p.step(p.rng.choice(["{a} + torch.randn_like({a})", "{a} * torch.rand_like({a})", "{a} * (torch.rand_like({a}) < 0.5)",
                         "{a} + torch.randn({a}.shape, dtype=D)"]).format(a=a))  # fmt: skip


@operator("indexing")
def cut_by_size(p: Pool) -> None:
    """A table in a buffer, cut to the length of what it is added to."""
    a = p.float(2, 3, lambda t: min(t.shape) > 0)
    t, c = a.t.shape[-2:]
    if t > 8:
        raise Unfit
    table = p.leaf((t + 2, c), kind=p.rng.choice(["buffer", "param"]))
    p.step(f"{a} * {table}[:{a}.shape[-2]]")


@operator("several uses")
def weight_thrice(p: Pool) -> None:
    a = p.float(1, 3)
    w = p.leaf((a.t.shape[-1], a.t.shape[-1]), kind="param")
    p.step(f"{a} @ {w} + ({a} @ {w}.t()).tanh() + {w}.mean()")


@operator("several uses")
def same_twice(p: Pool) -> None:
    a = p.float()
    p.step(
        p.rng.choice(
            ["{a} + {a}", "{a} * {a}", "torch.stack([{a}, {a}])", "torch.maximum({a}, {a} * 0.5)"]
        ).format(a=a)
    )


@operator("creation")
def weight_expanded(p: Pool) -> None:
    """A mean over a weight that is repeated for each of a batch."""
    a = p.float(1, 2)
    w = p.leaf((p.rng.choice(p.sizes),), kind="param")
    b = torch.Size(a.t.shape)[0]
    p.step(
        f"{a}.mean() * {w}.expand({b}, {w.t.shape[0]}).{p.rng.choice(['mean()', 'sum()', 'sin().mean(0)'])}"
    )
