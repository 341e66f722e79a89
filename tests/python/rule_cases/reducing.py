"""What sums, searches, counts or sorts along dims."""

from __future__ import annotations

import torch

from .case import bools, case, data, ints, normal

# fmt: off

case("sum", "sum", torch.sum, normal(5, 7), made=(0,), dims="a=5 b=7")
case("sum-dim", "sum.dim_IntList", lambda x: [x.sum(1), x.sum((0, 2), keepdim=True)], normal(4, 5, 7),
    made=(0,), dims="a=4 b=5 c=7")
case("mean", "mean", torch.mean, normal(5, 7), made=(0,), dims="a=5 b=7")
case("mean-dim", "mean.dim", lambda x: [x.mean(1), x.mean((0, 2), keepdim=True), x.mean(-1, keepdim=True)],
    normal(4, 5, 7), made=(0,), dims="a=4 b=5 c=7")
case("count_nonzero", "count_nonzero count_nonzero.dim_IntList",
    lambda x: [x.count_nonzero(), x.count_nonzero((0, 1))], ints(2, 5, 7), dims="a=5 b=7")
case("count_nonzero-dim", "count_nonzero", lambda x: x.count_nonzero(1), ints(2, 5, 7), dims="a=5 b=7")
case("amax", "amax amin", lambda x: [x.amax(1), x.amin(0, keepdim=True)], data(5, 7), dims="a=5 b=7")
case("amax-gradient", "amax amin", lambda x: [x.round().amax(1), x.round().amin(1)], normal(5, 7),
    others="round", dims="a=5")
case("max", "max min", lambda x: [x.max(), x.min()], ints(50, 5, 7), dims="a=5 b=7")
case("max-gradient", "max min", lambda x: [x.max(), x.min()], normal(5, 7), dims="")
case("max-dim", "max.dim min.dim", lambda x: [*x.max(1), *x.min(1)], normal(5, 7), dims="a=5")
case("any", "any all", lambda x: [x.any(), x.all()], bools(5, 7), dims="a=5 b=7")
case("any-dim", "any.dim all.dim", lambda x: [x.any(1), x.all(0, keepdim=True)], bools(5, 7), dims="a=5 b=7")
case("argmax", "argmax argmin", lambda x: [x.argmax(1), x.argmin(1, keepdim=True)], normal(5, 7), dims="a=5")
case("argmax-all", "argmax", lambda x: x.argmax(), normal(5, 7), dims="")
case("var", "var.dim std.correction", lambda x: [x.var(1), x.std(1, correction=0)], normal(5, 7), dims="a=5")
case("var-dims", "var.dim", lambda x: x.var((0, 2), keepdim=True), normal(4, 5, 7), dims="b=5")
case("var_mean", "var_mean.dim std_mean.dim", lambda x: [*torch.var_mean(x, 1), *torch.std_mean(x, 1)],
    normal(5, 7), dims="a=5")
case("logsumexp", "logsumexp", lambda x: x.logsumexp(1), normal(5, 7), dims="a=5")
case("norm", "linalg_vector_norm",
    lambda x: [torch.linalg.vector_norm(x, 2, 1), torch.linalg.vector_norm(x, 1, 1)], normal(5, 7),
    dims="a=5")
case("prod", "prod.dim_int", lambda x: x.prod(1), normal(5, 7), dims="a=5")
case("prod-all", "prod", lambda x: x.prod(), normal(5, 7), dims="")
case("cumsum", "cumsum", lambda x: x.cumsum(1), normal(5, 7), made=(0,), dims="a=5")
case("scans", "cumprod logcumsumexp cummax cummin",
    lambda x: [x.cumprod(1), x.logcumsumexp(1), *x.cummax(1), *x.cummin(1)], normal(5, 7), dims="a=5")
case("histc", "histc", lambda x: x.histc(6, 0, 2), data(5, 7), dims="a=5 b=7")
case("histc-bounds", "histc", lambda x: x.histc(6), data(5, 7), dims="")
case("topk", "topk", lambda x: x.topk(3, 1), normal(5, 7), dims="a=5")
case("topk-first", "topk", lambda x: x.topk(2, 0, largest=False)[0], normal(5, 7), dims="b=7")
case("sort", "sort argsort", lambda x: [*x.sort(1), x.argsort(1)], normal(5, 7), dims="a=5")
case("sort-stable", "sort.stable", lambda x: torch.sort(x, stable=True, dim=0), normal(5, 7), dims="b=7")
