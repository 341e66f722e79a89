"""Operators of ours: experts, and functions that are registered."""

from __future__ import annotations

from typing import Any

import torch

import registering

from .case import between, case, data, given, ints, normal

# fmt: off
# ---- experts -------------------------------------------------------------------------------

case("expert_linear-column", "expert_linear", lambda x, w, i: torch.bmm(w[i], x.unsqueeze(-1)).squeeze(-1),
    normal(7, 5), normal(4, 6, 5), ints(4, 7), made=(0,), dims="s=7 k=5 e=4 n=6")
case("expert_linear-row", "expert_linear", lambda x, w, i: torch.bmm(x.unsqueeze(1), w[i]).squeeze(1),
    normal(7, 5), normal(4, 5, 6), given([2, 2, 0, 0, 2, 2, 0]), made=(1,), dims="s=7 k=5 e=4 n=6")
case("expert_linear-kept", "expert_linear", lambda x, w, i: torch.bmm(w[i], x.unsqueeze(2)), normal(7, 5),
    normal(1, 6, 5), ints(1, 7), dims="s=7 k=5 n=6", others="unsqueeze")

def mixture(activation: str, gated: bool, transposed: bool = False, drops: bool = False) -> Any:
    return lambda x, i, w, up, down: torch.ops.shardwright.experts(
        x, i, w, up, down, activation, gated, transposed, drops)


case("experts", "experts", mixture("silu", True), normal(7, 5), ints(4, 7, 2), between(0, 1, 7, 2),
    normal(4, 12, 5), normal(4, 3, 6), made=(2,), dims="t=7 e=4 n=6 m=3")
case("experts-transposed", "experts", mixture("gelu", False, True), normal(7, 5), given([[2, -1]] * 7),
    between(0, 1, 7, 2), normal(4, 5, 6), normal(4, 6, 3), made=(4,), dims="t=7 e=4 n=6 m=3")
case("experts-relu", "experts", mixture("relu", False), normal(7, 5), ints(4, 7, 1), between(0, 1, 7, 1),
    normal(4, 6, 5), normal(4, 3, 6), dims="t=7 e=4 n=6 m=3")
case("experts-dropped", "experts", mixture("gelu_tanh", True, drops=True), normal(7, 5),
    given([[0, 1], [-5, 3], [2, -5], [-5, -5], [1, 0], [1, 2], [3, 1]]), between(0, 1, 7, 2),
    normal(4, 12, 5), normal(4, 3, 6), dims="t=7 e=4 n=6 m=3")

case("written", "written", lambda held, value: torch.ops.shardwright.written(held, value), normal(5, 6),
    data(5, 6), dims="a=5 b=6")

# ---- registered ----------------------------------------------------------------------------

case("registered", "function", lambda q, k, v: registering.attend(q, k, v, 3), normal(4, 2, 6),
    normal(4, 7, 6), normal(4, 7, 6), about=True, dims="b=4 h=3")
case("registered-sum", "function", registering.project, normal(4, 2, 6), normal(5, 6), normal(5), made=(0,),
    about=True, dims="_0=4 _1=2 k=6 n=5")
