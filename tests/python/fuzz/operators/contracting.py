"""Contractions, attention, experts, embeddings and recurrent layers."""

from __future__ import annotations

from ..pool import Pool
from .registry import operator


@operator("contraction")
def linear(p: Pool) -> None:
    a = p.float(1, 4)
    k, n = a.t.shape[-1], p.shape(1)[0]
    bias = p.rng.choice(["", f", {p.leaf((n,))}"])
    p.step(f"F.linear({a}, {p.operand(n, k)}{bias})")


@operator("contraction")
def linear_module(p: Pool) -> None:
    a = p.float(1, 4, lambda t: t.shape[-1] > 0)
    module = p.module(f"nn.Linear({a.t.shape[-1]}, {p.rng.choice(p.sizes)}, bias={p.rng.random() < 0.7})")
    p.step(f"{module}({a})")


@operator("contraction")
def linear_twice(p: Pool) -> None:
    """One weight, two uses; the second transposed."""
    a = p.float(1, 3)
    w = p.operand(p.rng.choice(p.sizes), a.t.shape[-1])
    h = p.step(f"F.linear({a}, {w})")
    p.step(f"{p.rng.choice(['{}.tanh()', '{}'])} @ {{{w.name}}}".replace("{}", str(h)))


@operator("contraction")
def mlp(p: Pool) -> None:
    a = p.float(1, 3, lambda t: t.shape[-1] > 0)
    k, n = a.t.shape[-1], p.rng.choice([4, 6, 8])
    up, down = p.leaf((n, k), kind="param"), p.leaf((k, n), kind="param")
    h = p.step(f"F.gelu(F.linear({a}, {up}, {p.leaf((n,), kind='param')}))")
    p.step(f"{a} + F.linear({h}, {down})")


@operator("contraction")
def matmul(p: Pool) -> None:
    a = p.float(1, 4)
    b = p.operand(a.t.shape[-1], *p.shape(p.rng.randint(0, 1)))
    p.step(f"{a} @ {b}")


@operator("contraction")
def matmul_batched(p: Pool) -> None:
    a = p.float(2, 4)
    lead = p.narrowed(tuple(a.t.shape[:-2]))
    p.step(f"torch.matmul({a}, {p.leaf((*lead, a.t.shape[-1], p.rng.choice(p.sizes)))})")


@operator("contraction")
def gram(p: Pool) -> None:
    a = p.float(2, 3)
    p.step(f"{a} @ {a}.mT")


@operator("contraction")
def bmm(p: Pool) -> None:
    a = p.float(3, 3)
    p.step(f"torch.bmm({a}, {p.operand(a.t.shape[0], a.t.shape[2], p.rng.choice(p.sizes))})")


@operator("contraction")
def addmm(p: Pool) -> None:
    a = p.float(2, 2)
    n = p.rng.choice(p.sizes)
    c = p.beside((a.t.shape[0], n))
    p.step(
        f"torch.addmm({c}, {a}, {p.operand(a.t.shape[1], n)}{p.rng.choice(['', ', beta=0.3', ', alpha=0.3'])})"
    )


@operator("contraction")
def einsum(p: Pool) -> None:
    a = p.float(2, 3)
    k = a.t.shape[-1]
    lead = "b" * (a.t.dim() - 2)
    line = p.rng.choice(["{l}ik,jk->{l}ij", "{l}ik,jk->{l}ji", "{l}ik,jk->{l}i", "{l}ik,jk->j{l}"])
    p.step(f"torch.einsum('{line.format(l=lead)}', {a}, {p.operand(p.rng.choice(p.sizes), k)})")


@operator("contraction")
def vectors(p: Pool) -> None:
    a = p.float(1, 1)
    b = p.operand(a.t.shape[0])
    line = p.rng.choice(["torch.dot({}, {})", "torch.outer({}, {})", "torch.vdot({}, {})"])
    p.step(line.format(a, b))


@operator("contraction")
def mv(p: Pool) -> None:
    a = p.float(2, 2)
    p.step(f"torch.mv({a}, {p.operand(a.t.shape[1])})")


@operator("attention")
def attention(p: Pool) -> None:
    a = p.float(3, 4, lambda t: min(t.shape) > 0)
    *lead, time, width = a.t.shape
    keys = p.rng.choice([time, *p.sizes])
    k, v = p.operand(*lead, keys, width), p.operand(*lead, keys, width)
    mask = p.rng.choice(["", "", ", is_causal=True", f", attn_mask={p.leaf((time, keys))}", ", scale=0.3"])
    p.step(f"F.scaled_dot_product_attention({a}, {k}, {v}{mask})")


@operator("attention")
def attention_masked(p: Pool) -> None:
    a = p.float(4, 4, lambda t: min(t.shape) > 0)
    b, _, time, _ = a.t.shape
    mask = p.step(f"{p.bools(b, 1, time, time)} | torch.eye({time}, dtype=torch.bool)")
    p.step(f"F.scaled_dot_product_attention({a}, {a}, {p.operand(*a.t.shape)}, attn_mask={mask})")


@operator("attention")
def self_attention(p: Pool) -> None:
    """Written out: one projection, heads, a causal mask made in the model."""
    a = p.float(3, 3, lambda t: min(t.shape) > 0 and t.shape[2] in (4, 6, 8))
    b, t, c = a.t.shape
    qkv = p.step(f"F.linear({a}, {p.leaf((3 * c, c), kind='param')})")
    q, k, v = (x.name for x in p.several(f"{qkv}.split({c}, 2)", count=3))
    view = f".reshape({b}, {t}, 2, {c // 2}).transpose(1, 2)"
    if p.rng.random() < 0.5:
        y = p.step(
            f"F.scaled_dot_product_attention({{{q}}}{view}, {{{k}}}{view}, {{{v}}}{view}, is_causal=True)"
        )
    else:
        s = p.step(f"({{{q}}}{view} @ {{{k}}}{view}.transpose(-2, -1)) * 0.5")
        mask = p.step(f"torch.ones({t}, {t}, dtype=torch.bool).tril()")
        y = p.step(f"{s}.masked_fill(~{mask}, float('-inf')).softmax(-1) @ {{{v}}}{view}")
    p.step(f"{y}.transpose(1, 2).reshape({b}, {t}, {c})")


@operator("experts")
def experts(p: Pool) -> None:
    a = p.float(2, 2, lambda t: min(t.shape) > 0)
    s, k = a.t.shape
    e, n = p.rng.choice([2, 3, 4]), p.rng.choice(p.sizes)
    w, i = p.leaf((e, k, n), kind="param"), p.ints(e, s)
    p.step(f"torch.bmm({a}.unsqueeze(1), {w}[{i}]).squeeze(1)")


@operator("experts")
def mixture(p: Pool) -> None:
    a = p.float(2, 2, lambda t: min(t.shape) > 0)
    s, k = a.t.shape
    e, n, m, slots = p.rng.choice([1, 2, 3, 4]), *(p.rng.choice([1, 2, 3, 4]) for _ in range(3))
    gated = p.rng.random() < 0.5
    up, down = p.leaf((e, 2 * n if gated else n, k), kind="param"), p.leaf((e, m, n), kind="param")
    how = f"'{p.rng.choice(['silu', 'gelu'])}', {gated}, False, False"
    i, w = p.ints(e, s, slots), p.operand(s, slots)
    p.step(f"torch.ops.shardwright.experts({a}, {i}, {w}, {up}, {down}, {how})")


@operator("embedding")
def embedding(p: Pool) -> None:
    n = p.rng.choice([3, 5, 7, 8])
    i = p.ints(n, *p.shape(p.rng.randint(1, 2)))
    w = p.leaf((n, p.shape(1)[0]), kind="param")
    p.step(f"F.embedding({i}, {w}{p.rng.choice(['', ', padding_idx=1'])})")


@operator("embedding")
def embedding_tied(p: Pool) -> None:
    """Words in and words out share one table."""
    n, c = p.rng.choice([5, 7, 8]), p.rng.choice([2, 4, 6])
    i = p.ints(n, *p.shape(2))
    w = p.leaf((n, c), kind="param")
    h = p.step(f"F.embedding({i}, {w})")
    logits = p.step(f"F.linear({h}.sin(), {w})")
    p.step(f"F.cross_entropy({logits}.flatten(0, 1), {i}.flatten(), reduction='sum') * 0.1")


@operator("embedding")
def embedding_module(p: Pool) -> None:
    n = p.rng.choice([4, 5, 8])
    module = p.module(f"nn.Embedding({n}, {p.rng.choice([2, 3, 4])})")
    p.step(f"{module}({p.ints(n, *p.shape(p.rng.randint(1, 2)))})")


@operator("recurrent")
def recurrent(p: Pool) -> None:
    a = p.float(3, 3, lambda t: min(t.shape) > 0)
    kind = p.rng.choice(["LSTM", "GRU", "RNN"])
    more = p.rng.choice(["", ", batch_first=True", ", bidirectional=True"])
    module = p.module(f"nn.{kind}({a.t.shape[2]}, {p.rng.choice([2, 3, 4])}{more})")
    p.step(f"{module}({a})[0]")


@operator("recurrent")
def recurrent_state(p: Pool) -> None:
    a = p.float(3, 3, lambda t: min(t.shape) > 0)
    module = p.module(f"nn.GRU({a.t.shape[2]}, {p.rng.choice([2, 3])})")
    p.several(f"{module}({a})", count=2)
