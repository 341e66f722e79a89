"""Random operators, and tensors that are made of nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .case import case, data, ints, normal

# fmt: off
# ---- random --------------------------------------------------------------------------------

case("dropout", "native_dropout", lambda x: F.dropout(x, 0.4), normal(4, 5, 7), random=True,
    dims="a=4 b=5 c=7")
case("dropout-transposed", "native_dropout", lambda x: F.dropout(x.transpose(0, 1), 0.4), normal(5, 7),
    others="transpose.int", random=True, dims="a=7 b=5")
case("dropout-moved", "native_dropout", lambda x: F.dropout(x.permute(2, 0, 1).contiguous(), 0.4),
    normal(4, 5, 7), others="permute", random=True, dims="a=7 b=4 c=5")
case("random-likes", "rand_like randn_like",
    lambda x: [torch.rand_like(x.t()) * x.t(), torch.randn_like(x.t()) * x.t()],
    normal(5, 7), others="t mul.Tensor", random=True, dims="")
case("native_dropout", "native_dropout", lambda x: torch.native_dropout(x, 0.4, True), normal(5, 7),
    random=True, dims="a=5 b=7")

# ---- creation ------------------------------------------------------------------------------

case("zeros", "zeros ones full add.Tensor",
    lambda x: [torch.zeros(5, 7) + x, torch.ones(5, 7) + x, torch.full((5, 7), 2.5) + x], normal(5, 7),
    dims="a=5 b=7")
case("new_zeros", "new_zeros new_ones new_full",
    lambda x: [x.new_zeros(4, 5), x.new_ones(4, 5), x.new_full((4, 5), 2.5)], data(7), dims="a=4 b=5")
case("arange", "arange", lambda x: [torch.arange(7) + x], ints(5, 7), others="add.Tensor", dims="a=7")
case("arange-step", "arange.start_step", lambda x: torch.arange(3, 25, 4) * x, normal(6), others="mul.Tensor",
    dims="a=6")
case("arange-floats", "arange", lambda x: torch.arange(7.0) * x, normal(7), others="mul.Tensor", dims="")
case("eye", "eye", lambda x: torch.eye(5) * x, normal(5, 5), others="mul.Tensor", dims="")
