"""Norms and softmax: what reads all of a dim, and keeps it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .case import buffer, case, normal

# fmt: off
# ---- norms ---------------------------------------------------------------------------------

case("layer_norm", "layer_norm", lambda x, w, b: F.layer_norm(x, (7,), w, b), normal(4, 5, 7), normal(7),
    normal(7), dims="a=4 b=5")
case("layer_norm-bare", "layer_norm", lambda x: F.layer_norm(x, (5, 7)), normal(5, 5, 7), dims="a=5")
case("rms_norm", "rms_norm", lambda x, w: F.rms_norm(x, (7,), w), normal(4, 5, 7), normal(7), dims="a=4 b=5")
case("native_layer_norm", "native_layer_norm", lambda x, w, b: torch.native_layer_norm(x, (7,), w, b, 1e-5),
    normal(4, 5, 7), normal(7), normal(7), dims="a=4 b=5")
case("group_norm", "group_norm", lambda x, w, b: F.group_norm(x, 3, w, b), normal(5, 6, 4), normal(6),
    normal(6), dims="a=5 b=3 c=4")
case("group_norm-images", "group_norm", lambda x, w, b: F.group_norm(x, 2, w, b, 0.1), normal(3, 6, 4, 5),
    normal(6), normal(6), dims="a=3 b=2 c=4 d=5")
case("group_norm-bare", "group_norm", lambda x: F.group_norm(x, 2), normal(3, 4, 5, 3),
    dims="a=3 b=2 c=5 d=3")
case("group_norm-weight", "group_norm", lambda x, w: F.group_norm(x, 2, w), normal(3, 4, 5), normal(4),
    dims="a=3 b=2 c=5")
case("group_norm-one", "group_norm", lambda x, w, b: F.group_norm(x, 1, w, b), normal(5, 6, 4), normal(6),
    normal(6), dims="a=5 c=4")
case("group_norm-one-value", "group_norm", lambda x, w, b: F.group_norm(x, 5, w, b), normal(4, 5), normal(5),
    normal(5), dims="a=4 b=5")
case("group_norm-each", "group_norm", lambda x, w, b: F.group_norm(x, 5, w, b), normal(4, 5, 7), normal(5),
    normal(5), dims="a=4 b=5 c=7")
case("instance_norm", "instance_norm", lambda x, w, b: F.instance_norm(x, None, None, w, b), normal(4, 5, 7),
    normal(5), normal(5), dims="a=4 b=5 c=7")
case("instance_norm-images", "instance_norm", lambda x: F.instance_norm(x, eps=0.1), normal(2, 3, 5, 4),
    dims="a=2 b=3 c=5 d=4")
STATS = (buffer(-1, 1, 5), buffer(0.5, 2, 5))
LEGIT = "_native_batch_norm_legit_functional"
case("batch_norm", LEGIT, lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True, 0.3), normal(7, 5, 3, 2),
    *STATS, normal(5), normal(5), dims="a=7 b=5 c=3 d=2")
case("batch_norm-1d", LEGIT, lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True, 0.3), normal(7, 5),
    *STATS, normal(5), normal(5), dims="a=7 b=5")
case("batch_norm-bare", LEGIT, lambda x, m, v: F.batch_norm(x, m, v, training=True), normal(7, 5, 3), *STATS,
    dims="a=7 b=5 c=3")
case("batch_norm-no-stats", "_native_batch_norm_legit.no_stats",
    lambda x, w, b: F.batch_norm(x, None, None, w, b, True), normal(7, 5, 3), normal(5), normal(5),
    dims="a=7 b=5 c=3")
case("batch_norm-eval", "_native_batch_norm_legit_no_training",
    lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, False), normal(7, 5, 3), *STATS, normal(5), normal(5),
    dims="a=7 b=5 c=3")

# ---- softmax -------------------------------------------------------------------------------

case("softmax", "softmax.int", lambda x: x.softmax(-1), normal(4, 5, 7), dims="a=4 b=5 c=7")
case("softmax-first", "softmax.int", lambda x: x.softmax(0), normal(5, 7), dims="a=5 b=7")
case("log_softmax", "log_softmax.int", lambda x: x.log_softmax(1), normal(4, 7, 5), dims="a=4 b=7 c=5")
case("softmax-cast", "softmax.int", lambda x: x.softmax(1, dtype=torch.float64), normal(5, 7), dims="a=5 b=7")
