"""Products that sum over a dim, attention included."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .case import bools, case, normal

# fmt: off
# ---- contraction ---------------------------------------------------------------------------

case("linear", "linear", F.linear, normal(5, 7), normal(6, 7), normal(6), dims="b=5 k=7 n=6")
case("linear-3d", "linear", F.linear, normal(4, 5, 7), normal(3, 7), normal(3), dims="b=4 s=5 k=7 n=3")
case("linear-no-bias", "linear", F.linear, normal(4, 5, 7), normal(6, 7), made=(0,), dims="b=4 s=5 k=7 n=6")
case("linear-weight-made", "linear", F.linear, normal(5, 7), normal(6, 7), made=(1,), dims="b=5 k=7 n=6")
case("linear-1d", "linear", F.linear, normal(7), normal(5, 7), normal(5), dims="k=7 n=5")
case("matmul", "matmul", torch.matmul, normal(5, 7), normal(7, 6), made=(0,), dims="m=5 k=7 n=6")
case("matmul-batch", "matmul", torch.matmul, normal(4, 5, 7), normal(4, 7, 6), made=(1,),
    dims="b=4 m=5 k=7 n=6")
case("matmul-broadcast", "matmul", torch.matmul, normal(4, 1, 5, 7), normal(3, 7, 2), made=(0,),
    dims="b=4 m=5 k=7 s=3 n=2")
case("matmul-wide", "matmul", torch.matmul, normal(4, 5, 7), normal(7, 6), made=(0,), dims="b=4 m=5 k=7 n=6")
case("matmul-vector", "matmul", torch.matmul, normal(4, 5, 7), normal(7), made=(1,), dims="b=4 m=5 k=7")
case("vector-matmul", "matmul", torch.matmul, normal(7), normal(7, 5), made=(0,), dims="k=7 n=5")
case("matmul-dot", "matmul", torch.matmul, normal(7), normal(7), made=(0,), dims="k=7")
case("mm", "mm", torch.mm, normal(5, 7), normal(7, 6), made=(1,), dims="m=5 k=7 n=6")
case("bmm", "bmm", torch.bmm, normal(4, 5, 7), normal(4, 7, 6), made=(0,), dims="b=4 m=5 k=7 n=6")
case("addmm", "addmm", torch.addmm, normal(6), normal(5, 7), normal(7, 6), dims="n=6 m=5 k=7")
case("addmm-beta", "addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.3), normal(5, 1), normal(5, 7),
    normal(7, 6), dims="m=5 k=7 n=6")
case("addmm-alpha", "addmm", lambda c, a, b: torch.addmm(c, a, b, alpha=0.3), normal(6), normal(5, 7),
    normal(7, 6), dims="n=6 m=5")
case("baddbmm", "baddbmm", torch.baddbmm, normal(1, 5, 6), normal(4, 5, 7), normal(4, 7, 6),
    dims="m=5 n=6 b=4 k=7")
case("einsum", "einsum", lambda a, b: torch.einsum("bik,jk->bij", a, b), normal(4, 5, 7), normal(6, 7),
    made=(0,), dims="b=4 i=5 k=7 j=6")
case("einsum-implicit", "einsum", lambda a, b: torch.einsum("ik,kj", a, b), normal(5, 7), normal(7, 6),
    made=(1,), dims="i=5 k=7 j=6")
case("einsum-dots", "einsum", lambda a, b: torch.einsum("...ik,kj->...ji", a, b), normal(4, 5, 7),
    normal(7, 3), made=(0,), dims="dots0=4 i=5 k=7 j=3")
case("einsum-three", "einsum", lambda a, b, c: torch.einsum("ai,bi,ci->abc", a, b, c), normal(3, 7),
    normal(4, 7), normal(5, 7), dims="a=3 i=7 b=4 c=5")
case("einsum-sum", "einsum", lambda a: torch.einsum("ijk->j", a), normal(4, 5, 7), made=(0,),
    dims="i=4 j=5 k=7")
case("dot", "dot", torch.dot, normal(7), normal(7), made=(0,), dims="k=7")
case("vdot", "vdot", torch.vdot, normal(7), normal(7), made=(1,), dims="k=7")
case("mv", "mv", torch.mv, normal(5, 7), normal(7), made=(0,), dims="m=5 k=7")
case("outer", "outer", torch.outer, normal(5), normal(7), made=(0,), dims="m=5 n=7")

# ---- attention -----------------------------------------------------------------------------

attend = F.scaled_dot_product_attention
SDPA = "scaled_dot_product_attention"
QKV = (normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 6))

case("attention", SDPA, attend, *QKV, made=(2,), dims="b=2 h=3 l=5 d=6")
case("attention-causal", SDPA, lambda q, k, v: attend(q, k, v, is_causal=True), *[normal(2, 3, 5, 4)] * 3,
    dims="b=2 h=3 l=5 d=4")
case("attention-causal-more-keys", SDPA, lambda q, k, v: attend(q, k, v, is_causal=True, scale=0.3),
    normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4), dims="b=2 h=3 l=5 d=4")
case("attention-causal-fewer-keys", SDPA, lambda q, k, v: attend(q, k, v, is_causal=True), normal(3, 5, 4),
    normal(3, 4, 4), normal(3, 4, 6), dims="h=3 l=5 d=6")
case("attention-mask", SDPA, lambda q, k, v, m: attend(q, k, v, m), *QKV, bools(2, 1, 5, 7),
    dims="b=2 h=3 l=5 d=6")
case("attention-bias", SDPA, lambda q, k, v, m: attend(q, k, v, m), *QKV, normal(3, 5, 7),
    dims="b=2 h=3 l=5 d=6")
case("attention-rows-bias", SDPA, lambda q, k, v, m: attend(q, k, v, m), normal(2, 3, 2, 5, 4),
     normal(2, 3, 2, 7, 4), normal(2, 3, 2, 7, 4), normal(2, 1, 2, 5, 7), dims="b=2 r=3 h=2 l=5 d=4")
case("attention-scale", SDPA, lambda q, k, v: attend(q, k, v, scale=0.3), *QKV, dims="b=2 h=3 l=5 d=6")
case("attention-3d", SDPA, attend, normal(5, 5, 4), normal(5, 7, 4), normal(5, 7, 6), dims="h=5 l=5 d=6")
case("attention-gqa", SDPA, lambda q, k, v: attend(q, k, v, enable_gqa=True), normal(2, 6, 5, 4),
    normal(2, 3, 7, 4), normal(2, 3, 7, 4), made=(2,), dims="b=2 h=3 g=2 l=5 d=4")
case("attention-mqa", SDPA, lambda q, k, v: attend(q, k, v, enable_gqa=True, is_causal=True),
    normal(2, 5, 5, 4), normal(2, 1, 5, 4), normal(2, 1, 5, 4), dims="b=2 g=5 l=5 d=4")
case("attention-dropout", SDPA, lambda q, k, v: attend(q, k, v, dropout_p=0.4, is_causal=True),
    *[normal(2, 3, 5, 4)] * 3, random=True, dims="b=2 h=3 l=5")
case("attention-dropout-mask", SDPA, lambda q, k, v, m: attend(q, k, v, m, dropout_p=0.4), *QKV, normal(5, 7),
    random=True, dims="b=2 h=3 l=5")
