"""What reads or writes where an index says."""

from __future__ import annotations

import torch.nn.functional as F

from .case import bools, case, given, ints, normal

# fmt: off

case("gather", "gather", lambda x, i: x.gather(1, i), normal(5, 7), ints(7, 5, 6), made=(0,),
    dims="a=5 index=6")
case("gather-fewer-rows", "gather", lambda x, i: x.gather(1, i), normal(5, 7), ints(7, 4, 6), dims="index=6")
case("index", "index.Tensor", lambda x, i: x[i], normal(5, 7), ints(5, 4, 3), made=(0,), dims="b=7 i0=4 i1=3")
case("index-middle", "index.Tensor", lambda x, i, j: x[:, i, j], normal(5, 4, 6), ints(4, 7), ints(6, 3, 1),
    dims="a=5 i1=7 i0=3")
case("index-apart", "index.Tensor", lambda x, i, j: x[i, :, j], normal(5, 4, 6), ints(5, 7), ints(6, 7),
    dims="b=4 i0=7")
case("index_select", "index_select", lambda x, i: x.index_select(1, i), normal(5, 7), ints(7, 6), made=(0,),
    dims="a=5 index=6")
case("index_put", "index_put", lambda x, i, v: x.index_put((i,), v), normal(5, 7), given([3, 0]),
    normal(2, 7), made=(0, 2), dims="b=7")
case("index_put-add", "index_put", lambda x, i, v: x.index_put((i,), v, accumulate=True), normal(5, 7),
    given([3, 0, 3]), normal(3, 7), dims="b=7")
case("index_put-mask", "index_put", lambda x, m, v: x.index_put((m,), v), normal(5, 4, 6), bools(5, 4),
    normal(6), made=(0, 2), dims="a=5 b=4 c=6")
case("index_put-mask-add", "index_put", lambda x, m, v: x.index_put((m,), v, accumulate=True), normal(5, 6),
    bools(5), normal(1), dims="a=5 b=6")
case("scatter", "scatter.src", lambda x, i, s: x.scatter(1, i, s), normal(5, 7), given([[0, 3]] * 5),
    normal(5, 2), made=(0, 2), dims="a=5")
case("scatter-value", "scatter.value", lambda x, i: x.scatter(1, i, 1.5), normal(5, 7), ints(7, 5, 3),
    dims="a=5")
case("scatter_add", "scatter_add", lambda x, i, s: x.scatter_add(1, i, s), normal(5, 7), ints(7, 5, 6),
    normal(5, 6), made=(0, 2), dims="a=5")
case("scatter_reduce-sum", "scatter_reduce.two", lambda x, i, s: x.scatter_reduce(1, i, s, "sum"),
    normal(5, 7), ints(7, 5, 6), normal(5, 6), made=(0, 2), dims="a=5")
case("scatter_reduce-most", "scatter_reduce.two", lambda x, i, s: [
    x.scatter_reduce(1, i, s, "amax"), x.scatter_reduce(1, i, s, "mean", include_self=False)], normal(5, 7),
    ints(7, 5, 6), normal(5, 6), dims="a=5")
case("index_add-scaled", "index_add", lambda x, i, s: x.index_add(1, i, s, alpha=0.3), normal(5, 7),
    ints(7, 6), normal(5, 6), made=(0, 2), dims="a=5")
case("index_copy-rows", "index_copy", lambda x, i, s: x.index_copy(0, i, s), normal(5, 7), given([3, 0, 4]),
    normal(3, 7), made=(0, 2), dims="b=7")
case("one_hot", "one_hot", lambda i: F.one_hot(i, 6), ints(6, 4, 5), dims="a=4 b=5")
case("tril", "tril triu", lambda x: [x.tril(), x.triu(1)], normal(4, 5, 7), made=(0,), dims="a=4")
case("masked_scatter", "masked_scatter", lambda x, m, s: x.masked_scatter(m, s), normal(5, 6), bools(5, 6),
    normal(30), made=(0, 2), dims="")
