"""Reductions, norms, softmax, losses and distances."""

from __future__ import annotations

from ..pool import Pool
from .registry import operator, texts

texts("reductions", lambda p: (p.float(1),), {
    "sum": "{}.sum()",
    "mean": "{}.mean()",
    "max": "{}.max()",
    "var": "{}.var()",
    "norm": "{}.norm()",
    "prod": "{}.tanh().prod()",
    "count_nonzero": "torch.count_nonzero({} > 0)",
    "any": "({} > 0).any()",
    "argmax": "{}.argmax()",
})  # fmt: skip

ALONG = {
    "sum_dim": "{a}.sum({d}, keepdim={k})",
    "mean_dim": "{a}.mean({d}, keepdim={k})",
    "amax": "{a}.amax({d}, keepdim={k})",
    "amin": "{a}.amin({d}, keepdim={k})",
    "max_dim": "{a}.max({d}, keepdim={k})",
    "min_dim": "{a}.min({d})[0]",
    "var_dim": "{a}.var({d}, correction=0)",
    "std_dim": "({a} + torch.arange({n}, dtype=D).reshape({r})).std({d})",
    "var_mean": "torch.var_mean({a}, {d}, correction=0)",
    "logsumexp": "{a}.logsumexp({d})",
    "vector_norm": "torch.linalg.vector_norm({a}, 2, {d}, keepdim={k})",
    "normalize": "F.normalize({a}, dim={d})",
    "prod_dim": "{a}.tanh().prod({d})",
    "cumsum": "{a}.cumsum({d})",
    "cumprod": "{a}.tanh().cumprod({d})",
    "logcumsumexp": "{a}.logcumsumexp({d})",
    "cummax": "{a}.cummax({d})",
    "sort": "{a}.sort({d})",
    "argsort": "{a}.argsort({d})",
    "argmax_dim": "{a}.argmax({d}, keepdim={k})",
    "any_dim": "({a} > 0.3).any({d})",
    "all_dim": "({a} > -0.7).all({d}, keepdim={k})",
    "softmax": "{a}.softmax({d})",
    "log_softmax": "{a}.log_softmax({d})",
    "softmin": "F.softmin({a}, {d})",
}


def _along(p: Pool, line: str) -> None:
    a = p.float(1)
    at = p.dim(a.t)
    n = a.t.shape[at]
    row = [n if i == at % a.t.dim() else 1 for i in range(a.t.dim())]
    p.several(line.format(a=a, d=at, k=p.rng.random() < 0.4, n=n, r=", ".join(map(str, row))))


for _name, _line in ALONG.items():
    operator("softmax" if "soft" in _name else "reductions", _name)(lambda p, line=_line: _along(p, line))


@operator("reductions")
def sum_dims(p: Pool) -> None:
    a = p.float(2)
    dims = ", ".join(map(str, sorted(p.rng.sample(range(a.t.dim()), 2))))
    p.step(f"{a}.{p.rng.choice(['sum', 'mean', 'amax'])}(({dims}), keepdim={p.rng.random() < 0.4})")


@operator("reductions")
def topk(p: Pool) -> None:
    a = p.float(1)
    at = p.dim(a.t)
    p.several(f"{a}.topk({p.rng.randint(1, max(a.t.shape[at], 1))}, {at})")


@operator("reductions")
def normalized(p: Pool) -> None:
    """Less its mean, by its variance: what it is read for three times."""
    a = p.float(1)
    at = p.dim(a.t)
    p.step(
        f"({a} - {a}.mean({at}, keepdim=True)) * ({a}.var({at}, keepdim=True, correction=0) + 0.1).rsqrt()"
    )


@operator("norms")
def layer_norm(p: Pool) -> None:
    a = p.float(1, fits=lambda t: min(t.shape) > 0)
    last = a.t.shape[-p.rng.choice([1, 1, min(2, a.t.dim())]) :]
    sizes = "".join(f"{s}, " for s in last)
    weights = p.rng.choice(
        ["", f", {p.leaf(tuple(last))}, {p.leaf(tuple(last))}", f", {p.leaf(tuple(last))}"]
    )
    p.step(f"F.layer_norm({a}, ({sizes}){weights}, eps=0.1)")


@operator("norms")
def rms_norm(p: Pool) -> None:
    a = p.float(1, fits=lambda t: min(t.shape) > 0)
    n = a.t.shape[-1]
    p.step(f"F.rms_norm({a}, ({n},), {p.leaf((n,))}, eps=0.1)")


@operator("norms")
def group_norm(p: Pool) -> None:
    a = p.float(2, 4, lambda t: min(t.shape) > 0)
    c = a.t.shape[1]
    groups = p.rng.choice([n for n in range(1, c + 1) if c % n == 0])
    weights = p.rng.choice(["", f", {p.leaf((c,))}, {p.leaf((c,))}"])
    p.step(f"F.group_norm({a}, {groups}{weights}, eps=0.1)")


@operator("norms")
def instance_norm(p: Pool) -> None:
    a = p.float(3, 4, lambda t: min(t.shape) > 0)
    p.step(f"F.instance_norm({a}, eps=0.1)")


@operator("norms")
def batch_norm(p: Pool) -> None:
    a = p.float(2, 4, lambda t: min(t.shape) > 0)
    module = p.module(
        _batch_norm(
            a.t.dim(), a.t.shape[1], p.rng.choice(["", ", affine=False", ", track_running_stats=False"])
        )
    )
    p.step(f"{module}({a})")


@operator("norms")
def batch_norm_twice(p: Pool) -> None:
    a = p.float(2, 3, lambda t: min(t.shape) > 0)
    module = p.module(_batch_norm(a.t.dim(), a.t.shape[1], ""))
    p.step(f"{module}({module}({a}) * 2)")


@operator("norms")
def batch_norm_whole(p: Pool) -> None:
    """With the running statistics, as in evaluation."""
    a = p.float(2, 4, lambda t: min(t.shape) > 0)
    c = a.t.shape[1]
    mean, var = p.leaf((c,), kind="buffer"), p.leaf((c,), "positive", "buffer")
    p.step(f"F.batch_norm({a}, {mean}, {var}, {p.leaf((c,))})")


def _batch_norm(dims: int, width: int, more: str) -> str:
    return f"nn.BatchNorm{max(dims - 2, 1)}d({width}, eps=0.1{more})"


@operator("losses")
def cross_entropy(p: Pool) -> None:
    a = p.float(2, 3, lambda t: min(t.shape) > 0)
    b, v, *rest = a.t.shape
    labels = p.ints(v, b, *rest)
    if p.rng.random() < 0.4:
        labels = p.step(f"{labels}.masked_fill({p.bools(b, *rest)}, -100)")
    more = p.rng.choice(["", ", reduction='sum'", ", reduction='none'", ", label_smoothing=0.1",
                         f", weight={p.leaf((v,), 'positive', 'buffer')}", f", ignore_index={v - 1}"])  # fmt: skip
    p.step(f"F.cross_entropy({a}, {labels}{more})")


@operator("losses")
def cross_entropy_probabilities(p: Pool) -> None:
    a = p.float(2, 2, lambda t: min(t.shape) > 0)
    more = p.rng.choice(["", ", reduction='sum'", ", label_smoothing=0.2"])
    p.step(f"F.cross_entropy({a}, {p.leaf(tuple(a.t.shape), 'unit', 'input')}{more})")


@operator("losses")
def nll_loss(p: Pool) -> None:
    a = p.float(2, 3, lambda t: min(t.shape) > 0)
    b, v, *rest = a.t.shape
    more = p.rng.choice(
        ["", ", reduction='sum'", ", reduction='none'", f", weight={p.leaf((v,), 'positive', 'buffer')}"]
    )
    p.step(f"F.nll_loss({a}.log_softmax(1), {p.ints(v, b, *rest)}{more})")


@operator("losses")
def sequence_loss(p: Pool) -> None:
    """Shifted by one, as language models do."""
    a = p.float(3, 3, lambda t: min(t.shape) > 0 and t.shape[1] > 1)
    b, t, v = a.t.shape
    labels = p.ints(v, b, t)
    p.step(f"F.cross_entropy({a}[:, :-1].reshape(-1, {v}), {labels}[:, 1:].reshape(-1))")


DISTANCES = {
    "mse_loss": "F.mse_loss({a}, {b}{r})",
    "l1_loss": "F.l1_loss({a}, {b}{r})",
    "smooth_l1_loss": "F.smooth_l1_loss({a}, {b}{r}, beta=0.7)",
    "huber_loss": "F.huber_loss({a}, {b}{r}, delta=0.7)",
    "kl_div": "F.kl_div({a}.log_softmax(-1), {b}.softmax(-1){r})",
    "kl_div_log": "F.kl_div({a}.log_softmax(-1), {b}.log_softmax(-1){r}, log_target=True)",
    "kl_div_batch": "F.kl_div({a}.log_softmax(-1), {b}.softmax(-1), reduction='batchmean')",
    "bce": "F.binary_cross_entropy({a}.sigmoid(), {b}.sigmoid(){r})",
    "bce_logits": "F.binary_cross_entropy_with_logits({a}, {b}.sigmoid(){r})",
    "bce_weight": "F.binary_cross_entropy_with_logits({a}, {b}.sigmoid(), weight={w}{r})",
    "bce_pos_weight": "F.binary_cross_entropy_with_logits({a}, {b}.sigmoid(), pos_weight={w}{r})",
    "soft_margin_loss": "F.soft_margin_loss({a}, {b}{r})",
    "mse_weight": "F.mse_loss({a}, {b}, weight={w}.expand_as({a}){r})",
    "cosine": "F.cosine_similarity({a}, {b}, dim=-1)",
    "poisson_nll_loss": "F.poisson_nll_loss({a}.tanh(), {b}.abs(){r})",
    "hinge": "F.hinge_embedding_loss({a}, {b}.sign(){r})",
    "margin_ranking": "F.margin_ranking_loss({a}, {b}, {b}.sign(){r})",
    "gaussian_nll": "F.gaussian_nll_loss({a}, {b}, {a}.abs() + 0.5{r})",
}


def _distance(p: Pool, line: str) -> None:
    a = p.float(1)
    b = p.operand(*a.t.shape)
    way = p.rng.choice(["", ", reduction='mean'", ", reduction='sum'", ", reduction='none'"])
    w = p.leaf((a.t.shape[-1],), "positive", "buffer") if "{w}" in line else ""
    p.step(line.format(a=a, b=b, r=way, w=w))


for _name, _line in DISTANCES.items():
    operator("distances", _name)(lambda p, line=_line: _distance(p, line))
