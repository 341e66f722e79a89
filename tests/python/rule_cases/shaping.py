"""Views, and what cuts and joins."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import bools, case, data, normal

# fmt: off
# ---- views ---------------------------------------------------------------------------------

case("view-merge", "reshape", lambda x: x.view(4, 35), normal(4, 5, 7), made=(0,), dims="a=4 b=5 c=7")
case("view-split", "reshape", lambda x: x.view(4, 3, 5, 2), normal(4, 30), made=(0,), dims="a=4 b=3 c=5 d=2")
case("view-regroup", "reshape", lambda x: x.reshape(8, 9), normal(4, 18), dims="a=4 b=2 c=9")
case("view-whole", "reshape", lambda x: x.reshape(5, 6, 4), normal(5, 4, 6), made=(0,), dims="a=5")
case("view-ones", "reshape", lambda x: x.reshape(1, 5, 1, 7), normal(5, 1, 7), dims="a=5 b=7")
case("view-twice", "reshape", lambda x: [x.view(4, -1), x.view(4, 35)], normal(4, 5, 7), dims="a=4 b=5 c=7")
case("flatten", "reshape", lambda x: x.flatten(1), normal(4, 5, 7), dims="a=4 b=5 c=7")
case("unflatten", "reshape", lambda x: x.unflatten(-1, (3, 5)), normal(4, 15), dims="a=4 b=3 c=5")
case("squeeze", "squeeze.dim", lambda x: x.squeeze(1), normal(5, 1, 6), made=(0,), dims="a=5 b=6")
case("squeeze-all", "squeeze squeeze.dims", lambda x, y: [x.squeeze(), y.squeeze((1, 3))], normal(5, 1, 6, 1),
    normal(5, 1, 6, 1), dims="a=5 b=6")
case("unsqueeze", "unsqueeze", lambda x: [x.unsqueeze(1), x.unsqueeze(-1)], normal(5, 6), made=(0,),
    dims="a=5 b=6")
case("transpose", "transpose.int", lambda x: x.transpose(1, 2), normal(4, 5, 7), made=(0,),
    dims="a=4 b=5 c=7")
case("t", "t", lambda x: x.t(), normal(5, 7), dims="a=5 b=7")
case("mT", "transpose.int", lambda x: x.mT, normal(4, 5, 7), dims="a=4 b=5 c=7")
case("permute", "permute", lambda x: x.permute(2, 0, 1), normal(4, 5, 7), made=(0,), dims="a=4 b=5 c=7")
case("movedim", "permute", lambda x: [x.movedim(0, 2), x.movedim((0, 1), (2, 0))], normal(4, 5, 7),
    dims="a=4 b=5 c=7")
case("expand", "expand", lambda x: x.expand(4, 5, 7), normal(5, 1), made=(0,), dims="b=5 a=4 c=7")
case("expand_as", "expand", lambda x, y: x.expand_as(y), normal(5, 1), data(4, 5, 7), dims="b=5 a=4 c=7")
case("repeat", "repeat", lambda x: x.repeat(3, 1, 2), normal(5, 7), made=(0,),
    dims="b=5 c=7 a_copy=3 c_copy=2")
case("tile", "tile", lambda x: x.tile((2, 3)), normal(5, 7), dims="a=5 b=7 a_copy=2 b_copy=3")
case("repeat_interleave", "repeat_interleave.self_int", lambda x: x.repeat_interleave(3, 1), normal(4, 5, 7),
    made=(0,), dims="a=4 b=5 c=7 b_copy=3")
case("unfold", "unfold", lambda x: x.unfold(1, 3, 2), normal(4, 7, 5), made=(0,), dims="a=4 c=5")
case("diagonal", "diagonal", lambda x: x.diagonal(0, 1, 2), normal(5, 4, 4), made=(0,), dims="a=5")
case("meshgrid", "meshgrid.indexing", lambda x, y: torch.meshgrid(x, y, indexing="ij"), normal(5), normal(7),
    dims="a=5 b=7")
case("meshgrid-xy", "meshgrid.indexing", lambda x, y: torch.meshgrid(x, y, indexing="xy"), normal(5),
    normal(7), dims="a=5 b=7")


def _heads(x: Tensor, w: Tensor) -> list[Tensor]:
    return [part.view(4, 5, 2).transpose(0, 1) for part in F.linear(x, w).split(10, dim=1)]


case("fused-linear", "linear", _heads, normal(4, 3), normal(30, 3),
    others="split.Tensor reshape transpose.int", dims="b=4 k=3 n.0=3 n.1=5 n.2=2")
case("fused-split", "split.Tensor", _heads, normal(4, 3), normal(30, 3),
    others="linear reshape transpose.int", dims="a=4 b.0=5 b.1=2")
case("fused-view", "reshape", _heads, normal(4, 3), normal(30, 3), others="linear split.Tensor transpose.int",
    dims="a=4 b=5 c=2")
case("fused-unbind", "unbind.int", lambda x: x.view(4, 3, 5, 2).unbind(1), normal(4, 30), others="reshape",
    dims="a=4 c=5 d=2")

# ---- splitting -----------------------------------------------------------------------------

case("split", "split.Tensor", lambda x: x.split(5, 1), normal(4, 15), made=(0,), dims="a=4 b=5")
case("split-uneven", "split.Tensor", lambda x: x.split(4, 1), normal(4, 10), made=(0,), dims="a=4")
case("split_with_sizes", "split_with_sizes", lambda x: x.split([2, 5, 1], 0), normal(8, 5), made=(0,),
    dims="b=5")
case("chunk", "split.Tensor", lambda x: x.chunk(2, -1), normal(4, 10), made=(0,), dims="a=4 b=5")
case("chunk-uneven", "split.Tensor", lambda x: x.chunk(3, -1), normal(4, 7), dims="a=4")
case("chunk-one-read", "split.Tensor", lambda x: x.chunk(2, -1)[1], normal(4, 10), dims="a=4 b=5")
case("unbind", "unbind.int", lambda x: x.unbind(1), normal(5, 2, 7), made=(0,), dims="a=5 c=7")
case("cat", "cat", lambda x, y: torch.cat([x, y], 1), normal(4, 5), normal(4, 5), made=(0, 1), dims="a=4 b=5")
case("cat-uneven", "cat", lambda x, y: torch.cat([x, y], 1), normal(4, 5), normal(4, 3), made=(0, 1),
    dims="a=4")
case("cat-multiples", "cat", lambda x, y, z: torch.cat([x, y, z], 1), normal(4, 6), normal(4, 3),
    normal(4, 9), made=(0, 1, 2), dims="a=4 b=3")
case("cat-same", "cat", lambda x: torch.cat([x, x], 0), normal(4, 5), made=(0,), dims="a=4 b=5")
case("stack", "stack", lambda x, y: torch.stack([x, y], 1), normal(4, 5), normal(4, 5), made=(0, 1),
    dims="a=4 c=5")
case("glu", "glu", lambda x: F.glu(x, 1), normal(4, 10), dims="a=4 b=5")
case("select", "select.int", lambda x: x[:, -2], normal(4, 5, 7), made=(0,), dims="a=4 c=7")
case("slice", "slice.Tensor", lambda x: x[:, 1:6:2], normal(4, 7), made=(0,), dims="a=4")
case("narrow", "slice.Tensor", lambda x: x.narrow(1, 2, 3), normal(5, 7), dims="a=5")
case("pad", "pad", lambda x: F.pad(x, (1, 2)), normal(5, 7), made=(0,), dims="a=5")
case("pad-value", "pad", lambda x: F.pad(x, (0, 0, 1, 2), value=1.5), normal(5, 7), dims="b=7")
case("pad-reflect", "pad", lambda x: F.pad(x, (1, 2), mode="reflect"), normal(5, 3, 7), made=(0,),
    dims="a=5 b=3")
case("slice_scatter", "slice_scatter", lambda x, v: x.slice_scatter(v, 1, 2, 5), normal(5, 7), normal(5, 3),
    made=(0, 1), dims="a=5")
case("slice_scatter-all", "slice_scatter", lambda x, v: x.slice_scatter(v, 0), normal(5, 7), normal(5, 7),
    dims="b=7")
case("select_scatter", "select_scatter", lambda x, v: x.select_scatter(v, 1, -2), normal(4, 5, 7),
    normal(4, 7), made=(0, 1), dims="a=4 c=7")
case("diff", "diff", lambda x: x.diff(dim=1), normal(5, 7), made=(0,), dims="a=5")
case("diff-twice", "diff", lambda x, v, w: x.diff(2, 0, prepend=v, append=w), normal(5, 7), normal(2, 7),
    normal(1, 7), made=(0, 1, 2), dims="b=7")
case("roll", "roll", lambda x: x.roll(2, 1), normal(5, 7), made=(0,), dims="a=5")
case("roll-flat", "roll", lambda x: x.roll(2), normal(5, 7), dims="")
case("diff-bools", "diff", lambda x: x.diff(dim=0), bools(4, 5), dims="b=5")
case("flip", "flip", lambda x: x.flip(0), normal(5, 7), made=(0,), dims="b=7")
