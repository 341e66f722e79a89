"""Views, and taking apart and putting together."""

from __future__ import annotations

from math import prod

import torch

from ..pool import Pool, Unfit, Value
from .registry import operator, texts

texts("views", lambda p: (p.float(1),), {
    "reshape_flat": "{}.reshape(-1)",
    "unsqueeze_first": "{}.unsqueeze(0)",
    "unsqueeze_last": "{}[..., None]",
    "squeeze": "{}.squeeze()",
    "flatten": "{}.flatten(1)",
})  # fmt: skip
texts("views", lambda p: (p.float(2),), {
    "transpose": "{}.transpose(0, 1)",
    "mT": "{}.mT",
    "flatten_last": "{}.flatten(-2)",
    "movedim": "{}.movedim(0, -1)",
    "squeeze_dim": "{}[:, :1].squeeze(1)",
})  # fmt: skip


@operator("views")
def permute(p: Pool) -> None:
    a = p.float(2)
    order = p.rng.sample(range(a.t.dim()), a.t.dim())
    p.step(f"{a}.permute({', '.join(map(str, order))})")


@operator("views")
def view_merged(p: Pool) -> None:
    a = p.float(2)
    at = p.rng.randrange(a.t.dim() - 1)
    shape = list(a.t.shape)
    shape[at : at + 2] = [shape[at] * shape[at + 1]]
    p.step(f"{a}.{p.rng.choice(['view', 'reshape'])}({_sizes(shape)})")


@operator("views")
def view_split(p: Pool) -> None:
    """One dim into two or three factors."""
    a = p.float(1, fits=lambda t: any(size in (4, 6, 8, 12, 16, 18, 24) for size in t.shape))
    at = p.rng.choice([i for i, size in enumerate(a.t.shape) if size in (4, 6, 8, 12, 16, 18, 24)])
    size = a.t.shape[at]
    first = p.rng.choice([n for n in range(2, size) if size % n == 0])
    factors = [first, size // first]
    if p.rng.random() < 0.5:
        p.step(f"{a}.unflatten({at}, ({factors[0]}, {factors[1]}))")
    else:
        p.step(f"{a}.reshape({_sizes([*a.t.shape[:at], *factors, *a.t.shape[at + 1 :]])})")


@operator("views")
def view_regrouped(p: Pool) -> None:
    a = p.float(2)
    total = prod(a.t.shape)
    if total < 2:
        raise Unfit
    first = p.rng.choice([n for n in range(1, total + 1) if total % n == 0])
    p.step(f"{a}.reshape({first}, {total // first})")


@operator("views")
def heads(p: Pool) -> None:
    """`(h d)` to heads before time, and back."""
    a = p.float(3, 3, lambda t: t.shape[2] in (4, 6, 8))
    b, t, c = a.t.shape
    h = p.rng.choice([2, c // 2])
    split = p.step(
        f"{a}.view({b}, {t}, {h}, {c // h}).transpose(1, 2)"
        if a.t.is_contiguous()
        else f"{a}.reshape({b}, {t}, {h}, {c // h}).transpose(1, 2)"
    )
    if p.rng.random() < 0.6:
        mixed = p.step(f"{split}.sin()")
        p.step(f"{mixed}.transpose(1, 2).reshape({b}, {t}, {c})")


@operator("views")
def expand(p: Pool) -> None:
    a = p.float(0, 3)
    ones = p.step(f"{a}.unsqueeze({p.rng.randint(0, a.t.dim())})")
    shape = [p.rng.choice(p.sizes) if size == 1 else -1 for size in ones.t.shape]
    lead = [p.rng.choice(p.sizes)] if p.rng.random() < 0.3 else []
    p.step(f"{ones}.expand({_sizes(lead + shape)})")


@operator("views")
def expand_as(p: Pool) -> None:
    a = p.float(1)
    p.step(
        f"{p.leaf(p.narrowed(tuple(a.t.shape)))}.{p.rng.choice(['expand_as({})', 'broadcast_to({}.shape)'])}".replace(
            "{}", str(a)
        )
    )


@operator("views")
def repeat(p: Pool) -> None:
    a = p.float(1, 3)
    times = _sizes([p.rng.choice([1, 2, 3, 4]) for _ in range(a.t.dim() + p.rng.randint(0, 1))])
    line = [f"{a}.repeat({times})", f"{a}.tile(({times},))", f"{a}.repeat_interleave(2, {p.dim(a.t)})"]
    p.step(p.rng.choice(line))


@operator("views")
def unfold(p: Pool) -> None:
    a = p.float(1, 3)
    at = p.dim(a.t)
    p.step(f"{a}.unfold({at}, {p.rng.randint(1, max(a.t.shape[at], 1))}, {p.rng.choice([1, 2])})")


@operator("views")
def diagonal(p: Pool) -> None:
    p.step(f"{p.float(2)}.diagonal(0, -2, -1)")


@operator("views")
def meshgrid(p: Pool) -> None:
    p.several(f"torch.meshgrid({p.float(1, 1)}, {p.float(1, 1)}, indexing='{p.rng.choice(['ij', 'xy'])}')")


@operator("splitting")
def split(p: Pool) -> None:
    a = p.float(1, fits=lambda t: max(t.shape) > 1)
    at = p.rng.choice([i for i, size in enumerate(a.t.shape) if size > 1])
    size = p.rng.randint(1, a.t.shape[at])
    p.several(f"torch.split({a}, {size}, {at})")


@operator("splitting")
def split_sizes(p: Pool) -> None:
    a = p.float(1, fits=lambda t: max(t.shape) > 1)
    at = p.rng.choice([i for i, size in enumerate(a.t.shape) if size > 1])
    cuts = sorted(p.rng.randint(0 if p.zero else 1, a.t.shape[at] - 1) for _ in range(2))
    sizes = [high - low for low, high in zip([0, *cuts], [*cuts, a.t.shape[at]], strict=True)]
    if not p.zero and 0 in sizes:
        raise Unfit
    p.several(f"{a}.split([{_sizes(sizes)}], {at})")


@operator("splitting")
def chunk(p: Pool) -> None:
    a = p.float(1)
    parts = p.several(f"{a}.chunk({p.rng.choice([2, 2, 3])}, {p.dim(a.t)})")
    if p.rng.random() < 0.4 and len({x.t.shape for x in parts}) == 1 and len(parts) == 2:
        p.step(f"{parts[0]} * {parts[1]}.sigmoid()")


@operator("splitting")
def unbind(p: Pool) -> None:
    a = p.float(1, fits=lambda t: 1 <= min(t.shape) <= 4)
    at = p.rng.choice([i for i, size in enumerate(a.t.shape) if 1 <= size <= 4])
    p.several(f"{a}.unbind({at})")


@operator("splitting")
def cat(p: Pool) -> None:
    """Of pieces that may be uneven, of the same one twice, or of zeros."""
    a = p.float(1)
    at = p.rng.randrange(a.t.dim())
    pieces = [str(a)]
    for _ in range(p.rng.randint(1, 2)):
        shape = list(a.t.shape)
        if p.rng.random() < 0.5:
            shape[at] = p.shape(1)[0]
        other = p.rng.choice([lambda: str(a), lambda s=shape: str(p.operand(*s)), lambda s=shape: str(p.operand(*s)),
                              lambda s=shape: str(p.step(f"torch.zeros({_sizes(s)}, dtype=D)"))])  # fmt: skip
        pieces.append(other())
    p.rng.shuffle(pieces)
    p.step(f"torch.cat([{', '.join(pieces)}], {at})")


@operator("splitting")
def stack(p: Pool) -> None:
    a = p.float(0, 4)
    p.step(f"torch.stack([{a}, {p.operand(*a.t.shape)}], {p.rng.choice([0, -1])})")


@operator("splitting")
def rotated(p: Pool) -> None:
    """Halves exchanged, as rotary positions do."""
    a = p.float(1, fits=lambda t: t.shape[-1] % 2 == 0)
    half = a.t.shape[-1] // 2
    p.step(f"torch.cat([-{a}[..., {half}:], {a}[..., :{half}]], -1)")


@operator("splitting")
def glu(p: Pool) -> None:
    a = p.float(1, fits=lambda t: any(size % 2 == 0 for size in t.shape))
    p.step(f"F.glu({a}, {p.rng.choice([i for i, size in enumerate(a.t.shape) if size % 2 == 0])})")


@operator("splitting")
def select(p: Pool) -> None:
    a = p.float(1, fits=lambda t: min(t.shape) > 0)
    at = p.rng.randrange(a.t.dim())
    p.step(f"{a}.select({at}, {p.rng.randrange(a.t.shape[at]) - p.rng.choice([0, a.t.shape[at]])})")


@operator("splitting", "slice")
def sliced(p: Pool) -> None:
    a = p.float(1, fits=lambda t: min(t.shape) > 0)
    at = p.rng.randrange(a.t.dim())
    low = p.rng.randrange(a.t.shape[at])
    high = p.rng.randint(low + (not p.zero), a.t.shape[at])
    step = p.rng.choice(["", "", ":2"])
    p.step(
        f"{a}[{':, ' * at}{low}:{high}{step}]"
        if step or p.rng.random() < 0.5
        else f"{a}.narrow({at}, {low}, {high - low})"
    )


@operator("splitting")
def scattered(p: Pool) -> None:
    a = p.float(1, fits=lambda t: t.shape[0] > 1)
    if p.rng.random() < 0.5:
        p.step(f"{a}.select_scatter({p.operand(*a.t.shape[1:])}, 0, 1)")
    else:
        p.step(f"{a}.slice_scatter({p.operand(a.t.shape[0] - 1, *a.t.shape[1:])}, 0, 1)")


@operator("splitting")
def diff(p: Pool) -> None:
    a = p.float(1)
    p.step(f"{a}.diff(dim={p.dim(a.t)})")


@operator("splitting")
def pad(p: Pool) -> None:
    a = p.float(1)
    before, after = p.rng.choice([(1, 2), (0, 1), (2, 0), (-1, 1)])
    more = p.rng.choice(
        ["", ", value=1.5", ""]
        + [", mode='reflect'"] * (a.t.dim() == 3)
        + [", mode='replicate'"] * (a.t.dim() == 3)
    )
    p.step(f"F.pad({a}, ({before}, {after}){more})")


@operator("splitting")
def roll_or_flip(p: Pool) -> None:
    a = p.float(1)
    at = p.dim(a.t)
    p.step(p.rng.choice([f"{a}.roll(1, {at})", f"{a}.flip({at})", f"{a}.roll(2)"]))


@operator("splitting")
def gradient(p: Pool) -> None:
    a = p.float(1)
    p.several(f"torch.gradient({a}, dim={p.dim(a.t)})")


def _sizes(sizes: list[int] | tuple[int, ...] | torch.Size) -> str:
    return ", ".join(map(str, sizes))


def several_uses(p: Pool, a: Value) -> None:
    """One tensor, read by three that are summed."""
    p.step(f"{a}.sin() + {a}.cos() * {a}")


operator("several uses")(lambda p: several_uses(p, p.float()))
