"""What operators take, forward and backward, by kind, type and size.

Sizes are counted as the cost model counts them: a graph of the one operator says what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from .._core import Graph
from ..runtime.communication.comm import Comm
from .clock import seconds

DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Rows and columns of what is computed row by row.
ROWS, LARGE_ROWS = ((32, 32), (256, 64), (512, 256), (2048, 768)), ((4096, 4096), (16384, 8192))
# Several at a time, each on tensors of its own: backward of one alone would be mostly its beginning, and
# caches would hold what in a step they do not. At least and at most so many, that read so many bytes.
FEWEST, MOST = 4, 64
ENOUGH = {"cpu": 32 << 20, "cuda": 256 << 20}
PASSES = 20
"""How often AdamW's step reads or writes as many bytes as parameters have, as the compiler counts."""

Operands = list[Tensor]
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """One operator that stands for all of its kind: `name` is its own, or that of a family."""

    name: str
    target: str
    # What it is called with after its tensors, in a graph.
    rest: str
    # Given the sizes of one: shapes of what it reads; numbers below so many where that is not zero.
    shapes: Callable[[Sizes], list[tuple[Sizes, int]]]
    result: Callable[[Sizes], Sizes]
    call: Callable[..., Tensor]
    sizes: Sequence[Sizes]
    by_operations: bool = False
    # On a GPU besides, which computes the others sooner than they are launched.
    larger: Sequence[Sizes] = LARGE_ROWS

    def sizes_on(self, device: torch.device) -> list[Sizes]:
        return [*self.sizes, *(self.larger if device.type == "cuda" else ())]


@dataclass
class Curve:
    kind: str
    dtype: str
    way: str
    by_operations: bool
    points: list[tuple[float, float]] = field(default_factory=list)


KINDS = [
    Kind(
        "contraction", "aten.linear.default", "",
        lambda s: [((s[0], s[1]), 0), ((s[2], s[1]), 0)], lambda s: (s[0], s[2]), F.linear,
        [(16, 64, 64), (64, 192, 256), (192, 256, 768), (256, 768, 1024), (512, 1024, 1536)], True,
        [(2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192)],
    ),
    Kind(
        "attention", "aten.scaled_dot_product_attention.default", ", None, 0.0, True",
        lambda s: [(s, 0)] * 3, lambda s: s, partial(F.scaled_dot_product_attention, is_causal=True),
        [(1, 2, 16, 16), (2, 4, 32, 32), (4, 6, 96, 48), (4, 8, 256, 64)], True,
        [(4, 16, 1024, 128), (2, 32, 4096, 128)],
    ),
    Kind("pointwise", "aten.mul.Tensor", "", lambda s: [(s, 0)] * 2, lambda s: s, torch.mul, ROWS),
    Kind("aten.add", "aten.add.Tensor", "", lambda s: [(s, 0)] * 2, lambda s: s, torch.add, ROWS),
    Kind("aten.gelu", "aten.gelu.default", "", lambda s: [(s, 0)], lambda s: s, F.gelu, ROWS),
    Kind("aten.silu", "aten.silu.default", "", lambda s: [(s, 0)], lambda s: s, F.silu, ROWS),
    Kind(
        "norms", "aten.rms_norm.default", ", [{1}]",
        lambda s: [(s, 0)], lambda s: s, lambda x: F.rms_norm(x, x.shape[1:]), ROWS,
    ),
    Kind(
        "aten.layer_norm", "aten.layer_norm.default", ", [{1}]",
        lambda s: [(s, 0)], lambda s: s,
        lambda x: F.layer_norm(x, x.shape[1:]), ROWS,
    ),
    Kind(
        "softmax", "aten.softmax.int", ", -1",
        lambda s: [(s, 0)], lambda s: s, lambda x: x.softmax(-1), ROWS,
    ),
    Kind(
        "reductions", "aten.sum.dim_IntList", ", [-1]",
        lambda s: [(s, 0)], lambda s: s[:1], lambda x: x.sum([-1]), ROWS,
    ),
    Kind(
        "losses", "aten.cross_entropy_loss.default", "",
        lambda s: [(s, 0), (s[:1], s[1])], lambda s: (), F.cross_entropy,
        [(16, 64), (64, 768), (128, 6144), (256, 12288)], larger=[(2048, 32000), (4096, 128256)],
    ),
    Kind(
        "embedding", "aten.embedding.default", "",
        lambda s: [(s[1:], 0), (s[:1], s[1])], lambda s: (s[0], s[2]), lambda w, at: F.embedding(at, w),
        [(16, 64, 32), (128, 768, 96), (256, 3072, 192), (512, 12288, 192)],
        larger=[(4096, 32000, 2048), (16384, 128256, 4096)],
    ),
]  # fmt: skip


def measured(comm: Comm, dtypes: Sequence[str]) -> list[Curve]:
    """The curves of all kinds; all ranks call this."""
    curves: list[Curve] = []
    for dtype in dtypes:
        for kind in KINDS:
            curves += _curves(comm, kind, dtype)
        curves += [_copies(comm, dtype)]
    return [*curves, _optimizer(comm)]


def _curves(comm: Comm, kind: Kind, dtype: str) -> list[Curve]:
    forward, backward = (Curve(kind.name, dtype, way, kind.by_operations) for way in ("forward", "backward"))
    for sizes in kind.sizes_on(comm.device):
        efforts, times = effort(kind, dtype, sizes), _timed(comm, kind, dtype, sizes)
        for curve, size, time in zip((forward, backward), efforts, times, strict=True):
            curve.points.append((size, time))
    return [forward, backward]


def effort(kind: Kind, dtype: str, sizes: Sizes) -> tuple[float, float]:
    """Operations or bytes, forward and backward, as the cost model counts them."""
    [cost] = [operator.cost for operator in Graph(graph_of(kind, dtype, sizes)).operators]
    assert cost is not None
    if kind.by_operations:
        return cost.flops, sum(cost.gradients)
    return sum(cost.forward), sum(cost.backward)


def graph_of(kind: Kind, dtype: str, sizes: Sizes) -> str:
    """A graph of one operator, whose operands all get gradients that can."""
    lines = ["shardwright-graph 1", 'model "Probe"', 'module "" "Probe"']
    inputs = [(at, shape) for at, (shape, below) in enumerate(kind.shapes(sizes)) if below]
    lines += [f"input %x{at} i64{_list(shape)} {number}" for number, (at, shape) in enumerate(inputs)]
    for at, (shape, below) in enumerate(kind.shapes(sizes)):
        if not below:
            lines.append(f'param %x{at} {dtype}{_list(shape)} "x{at}"')
    operands = ", ".join(f"%x{at}" for at in range(len(kind.shapes(sizes))))
    rest = kind.rest.format(*sizes)
    call = f'{kind.target}({operands}{rest}) in "" at "probe.py:1"'
    lines += [f"op %y {dtype}{_list(kind.result(sizes))} = {call}", "output %y"]
    return "\n".join(lines) + "\n"


def _list(shape: Sizes) -> str:
    return f"[{','.join(map(str, shape))}]"


def _timed(comm: Comm, kind: Kind, dtype: str, sizes: Sizes) -> tuple[float, float]:
    first = _operands(comm, kind, DTYPES[dtype], sizes)
    together = _together(comm, sum(x.nbytes for x in first))
    given = [first, *(_operands(comm, kind, DTYPES[dtype], sizes) for _ in range(together - 1))]
    made: list[Tensor] = []
    seeds = [torch.ones(kind.result(sizes), dtype=DTYPES[dtype], device=comm.device)] * together

    def forward() -> None:
        made[:] = [kind.call(*operands) for operands in given]

    def again() -> None:
        for operands in given:
            for x in operands:
                x.grad = None
        forward()

    there = seconds(comm, forward)
    back = seconds(comm, lambda: torch.autograd.backward(made, seeds), again)
    return there / together, back / together


def _together(comm: Comm, nbytes: int) -> int:
    return max(FEWEST, min(MOST, ENOUGH[comm.device.type] // nbytes))


def _operands(comm: Comm, kind: Kind, dtype: torch.dtype, sizes: Sizes) -> Operands:
    def one(shape: Sizes, below: int) -> Tensor:
        if below:
            return torch.randint(below, shape, device=comm.device)
        return torch.randn(shape, device=comm.device).to(dtype).requires_grad_()

    return [one(shape, below) for shape, below in kind.shapes(sizes)]


def _copies(comm: Comm, dtype: str) -> Curve:
    """What is no operator: it is read and written."""
    curve = Curve("copies", dtype, "forward", False)
    for rows, width in [*ROWS, *(LARGE_ROWS if comm.device.type == "cuda" else ())]:
        x = torch.zeros(rows, width, dtype=DTYPES[dtype], device=comm.device)
        xs = [x.clone() for _ in range(_together(comm, x.nbytes))]
        time = seconds(comm, lambda xs=xs: [x.clone() for x in xs])  # type: ignore[misc]
        curve.points.append((2 * x.nbytes, time / len(xs)))
    return curve


def _optimizer(comm: Comm) -> Curve:
    """AdamW's step over some tensors, by the bytes that the cost model says it moves."""
    curve = Curve("optimizer", "f32", "forward", False)
    # What a step reads and writes before it, so that caches hold nothing of the optimizer's.
    other = torch.zeros(1 << (23 if comm.device.type == "cpu" else 26), device=comm.device)
    larger = (1 << 22, 1 << 24) if comm.device.type == "cuda" else ()
    for size in (1 << 8, 1 << 12, 1 << 16, 1 << 19, *larger):
        tensors = [torch.zeros(size, device=comm.device).requires_grad_() for _ in range(16)]
        for x in tensors:
            x.grad = torch.ones_like(x)
        time = seconds(comm, torch.optim.AdamW(tensors, lr=1e-4).step, before=lambda: other.add_(1))
        curve.points.append((PASSES * sum(x.nbytes for x in tensors), time))
    return curve
