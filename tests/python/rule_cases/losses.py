"""Embeddings, and losses with each of their reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from .case import Spec, aten, between, case, data, given, ints, normal

# fmt: off
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
