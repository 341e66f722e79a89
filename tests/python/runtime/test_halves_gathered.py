"""Between the halves of a backward what is gathered is given up: the second half reads none of it.

That holds for every operator that has a rule, whatever it reads in its backward: here all its operands are
parameters that are gathered, and their memory is gone when the second half begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

import equality
import rule_cases
from rule_cases import Case
from shardwright.errors import RuntimeFault
from shardwright.runtime import ops
from shardwright.runtime.execution import split_backward
from shardwright.runtime.execution.calls import Saved, call_in_halves, match
from shardwright.runtime.execution.split_backward import Left, first_half
from shardwright.runtime.execution.unread import Unread
from shardwright.runtime.shards.copies import Fleeting
from shardwright.start.compiling import compile_model

torch.set_num_threads(1)
SEED = 5


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class Gathered:
    """Values as leaves, in memory that can be given up."""

    def __init__(self, values: Sequence[Tensor]):
        self.memory = [x.detach().clone() for x in values]
        self.leaves = [
            Tensor._make_subclass(Fleeting, x.detach(), True)  # type: ignore[attr-defined]
            for x in self.memory
        ]

    def addresses(self) -> frozenset[int]:
        return frozenset(x.untyped_storage().data_ptr() for x in self.memory) - {0}

    def release(self) -> None:
        for x in self.memory:
            x.untyped_storage().resize_(0)


def seeds(saved: Saved) -> list[Tensor]:
    """As many as there are results that need a gradient."""
    generator = torch.Generator().manual_seed(3)
    metadata = [edge.node._input_metadata[edge.output_nr] for edge in saved.edges if edge]  # type: ignore[attr-defined]
    made = [torch.randn(tuple(it.shape), dtype=torch.float64, generator=generator) for it in metadata]
    return [x.to(it.dtype) for x, it in zip(made, metadata, strict=True)]


def first(saved: Saved) -> tuple[list[Tensor | None], Left]:
    assert saved.boxes is not None
    edges = [edge for edge in saved.edges if edge is not None]
    return first_half(saved.entries, edges, seeds(saved), saved.boxes)


def in_halves(
    function: Callable[..., Any], args: Sequence[Any], gathered: Gathered, *, release: bool
) -> tuple[list[Tensor | None], list[Tensor | None], int]:
    """Gradients of arguments and of leaves, and how many operators had waited."""
    torch.manual_seed(SEED)
    ids = {id(leaf) for leaf in gathered.leaves}
    _, saved = call_in_halves(function, tuple(args), ids, None, gathered.addresses())
    gradients, left = first(saved)
    waited = len(left.nodes)
    if release:
        gathered.release()
    left.backward()
    return gradients, [leaf.grad for leaf in gathered.leaves], waited


def in_one(function: Callable[..., Any], values: Sequence[Tensor]) -> list[Tensor | None]:
    torch.manual_seed(SEED)
    leaves = [x.detach().clone().requires_grad_() for x in values]
    _, saved = call_in_halves(function, tuple(leaves), {id(x) for x in leaves}, None)
    torch.autograd.backward(*match(saved, seeds(saved)))
    return [leaf.grad for leaf in leaves]


def assert_same(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a.to_dense(), b.to_dense(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", rule_cases.CASES, ids=lambda case: case.name)
def test_no_operator_reads_what_is_gathered_in_the_second_half(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Rank:
        """Instead of a rank that runs, with its keyed numbers."""

        @staticmethod
        def masks(operator: int, slot: int, shape: Any, numbers: Any, device: torch.device) -> Tensor:
            return torch.ones(tuple(shape), dtype=numbers.dtype)

    monkeypatch.setattr(ops, "current_run", lambda: Rank)
    torch.manual_seed(SEED)
    kinds, values = [kind for kind, _ in case.operands], [make() for _, make in case.operands]
    learning = [x for kind, x in zip(kinds, values, strict=True) if kind == "param" and differentiable(x)]

    def function(*leaves: Tensor) -> Any:
        given = iter(leaves)
        operands = zip(kinds, values, strict=True)
        result = case.fn(
            *[next(given) if kind == "param" and differentiable(x) else x.clone() for kind, x in operands]
        )
        return tuple(result) if isinstance(result, list) else result

    tried = function(*[x.clone().requires_grad_() for x in learning])
    if not any(x.requires_grad for x in (tried if isinstance(tried, tuple) else (tried,))):
        pytest.skip("nothing has a gradient")
    gathered = Gathered(learning)
    _, gradients, _ = in_halves(lambda: function(*gathered.leaves), (), gathered, release=True)
    assert_same(gradients, in_one(function, learning))


def differentiable(x: Tensor) -> bool:
    """Whether it may have a gradient."""
    return x.is_floating_point() or x.is_complex()


X, INDICES = rand(2, 4, 6, 6), torch.tensor([[1, 2], [0, 1]])
# What is called with an argument and gathered parameters, and how many operators wait.
Product = tuple[Callable[..., Any], Tensor, list[Tensor], int]
PRODUCTS: dict[str, Product] = {
    "linear": (lambda x, w, b: F.linear(x, w, b), rand(3, 4), [rand(5, 4), rand(5)], 1),
    "a convolution": (lambda x, w, b: F.conv2d(x, w, b), X, [rand(4, 4, 3, 3), rand(4)], 1),
    "in groups": (lambda x, w, b: F.conv2d(x, w, b, groups=2), X, [rand(4, 2, 3, 3), rand(4)], 1),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=4, padding=1), X, [rand(4, 1, 3, 3)], 1),
    "transposed": (lambda x, w, b: F.conv_transpose2d(x, w, b), X, [rand(4, 3, 2, 2), rand(3)], 1),
    "of channels last": (
        lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w),
        X,
        [rand(4, 4, 3, 3)],
        1,
    ),
    "of one dim": (lambda x, w: F.conv1d(x, w, groups=4), rand(2, 4, 7), [rand(4, 1, 3)], 1),
    "of three dims": (lambda x, w: F.conv3d(x, w), rand(2, 2, 4, 4, 4), [rand(3, 2, 2, 2, 2)], 1),
    # The gradient of each needs the other.
    "a product of parameters": (lambda x, w, v: x @ (w @ v), rand(3, 4), [rand(4, 5), rand(5, 2)], 0),
    "positions": (lambda x, p, w: x + F.linear(p, w), rand(3, 4), [rand(3, 5), rand(4, 5)], 0),
    # Laid out anew for the product, so that it is in memory of its own.
    "queries": (
        lambda x, q, w: F.linear(q.expand(2, 3, 4), w) @ x, rand(2, 5, 3), [rand(3, 4), rand(5, 4)], 1
    ),
    "adapted": (
        lambda x, w, a, b: F.linear(x, w + b @ a), rand(3, 4), [rand(5, 4), rand(2, 4), rand(5, 2)], 0
    ),
    "rows": (lambda x, w: F.embedding(INDICES, w) + x, rand(2, 2, 3), [rand(4, 3)], 0),
}  # fmt: skip


@pytest.mark.oldest
@pytest.mark.parametrize("name", PRODUCTS)
def test_what_needs_no_gathered_values_waits(name: str) -> None:
    function, x, values, waiting = PRODUCTS[name]
    gathered = Gathered(values)
    function_of = lambda x: function(x, *gathered.leaves)  # noqa: E731
    [of_x], gradients, waited = in_halves(function_of, [x.clone().requires_grad_()], gathered, release=True)
    assert waited == waiting
    assert_same([of_x, *gradients], in_one(function, [x, *values]))


def test_what_would_read_all_the_same_says_so_and_gives_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the table of what gradients read were wrong, the process would not die of it."""
    monkeypatch.setitem(split_backward._APART, "MmBackward", (None, None))
    function, x, values, _ = PRODUCTS["a product of parameters"]
    gathered = Gathered(values)
    with pytest.raises(RuntimeFault, match=r"SW0776.*aten\..*reads a parameter that is not gathered"):
        in_halves(lambda x: function(x, *gathered.leaves), [x.requires_grad_()], gathered, release=True)


def test_what_stands_for_what_is_gone_lies_as_it_did_and_is_not_read() -> None:
    x = rand(3, 4).t()
    unread = Unread(x)
    assert (unread.shape, unread.stride(), unread.dtype) == (x.shape, x.stride(), x.dtype)
    assert "not gathered" in repr(unread)
    for read in (lambda: unread + 1, lambda: x @ unread.t(), lambda: unread.clone()):
        with pytest.raises(RuntimeFault, match="SW0776"):
            read()


# ---- what a call does not differentiate --------------------------------------------------------


@pytest.mark.oldest
def test_an_argument_that_is_used_without_gradients_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing leads to where its gradient would arrive: autograd is not asked for it, which may be gone."""
    weight = rand(4, 4).requires_grad_()

    def function(x: Tensor, y: Tensor) -> Any:
        with torch.no_grad():
            statistics = y.mean(0)
        return F.linear(x, weight), statistics

    x, y = rand(3, 4).requires_grad_(), rand(3, 4).requires_grad_()
    _, saved = call_in_halves(function, (x, y), {id(weight)}, None)
    asked: list[Any] = []
    run = split_backward._run

    def noted(roots: Any, grads: Any, wanted: Sequence[tuple[Any, int]]) -> list[Tensor | None]:
        asked.extend(node for node, _ in wanted)
        return run(roots, grads, wanted)

    monkeypatch.setattr(split_backward, "_run", noted)
    [of_x, of_y], left = first(saved)
    assert of_x is not None and of_y is None
    assert saved.entries[0] in asked and saved.entries[1] not in asked
    left.backward()
    assert weight.grad is not None


@pytest.mark.oldest
def test_no_argument_leads_anywhere() -> None:
    with torch.no_grad():
        x = rand(3, 4)
    weight = rand(4, 4).requires_grad_()
    _, saved = call_in_halves(lambda x: weight * 2, (x.requires_grad_(),), {id(weight)}, None)
    gradients, left = first(saved)
    assert gradients == [None]
    left.backward()
    assert weight.grad is not None and isinstance(saved.edges[0], GradientEdge)


# ---- whole models ------------------------------------------------------------------------------


class Convolutions(nn.Module):
    """As a ConvNeXt: depthwise convolutions beside what they are added to."""

    def __init__(self, groups: int, norm: bool) -> None:
        super().__init__()
        layers = [nn.Conv2d(4, 4, 3, padding=1, groups=groups) for _ in range(4)]
        self.layers = nn.ModuleList(
            nn.Sequential(layer, nn.BatchNorm2d(4)) if norm else layer for layer in layers
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return F.cross_entropy(self.head(x.mean((2, 3))), y)


class Normed(nn.Module):
    """Batch norms, whose running statistics are computed without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x.pow(2).mean()


class Looks(nn.Module):
    """Attention by queries of its own, whose products of parameters need each other's values."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.factor = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4, 4))
        self.to_queries, self.to_keys = nn.Linear(4, 4), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        key, value = self.to_keys(x).chunk(2, -1)
        query = self.to_queries(self.queries @ self.factor).expand(len(x), 3, 4)
        return x + F.scaled_dot_product_attention(query, key, value)


class Looking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Looks() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


IMAGES = (rand(4, 4, 6, 6), torch.randint(0, 3, (4,)))
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "convolutions": (lambda: Convolutions(1, False), IMAGES),
    "in groups": (lambda: Convolutions(2, True), IMAGES),
    "depthwise": (lambda: Convolutions(4, False), IMAGES),
    "normed": (Normed, (rand(4, 4),)),
    "looking": (Looking, (rand(4, 3, 4),)),
}
PLANS = [
    pytest.param("normed", "stages:2 x data:2 x zb-h1", marks=pytest.mark.oldest),
    ("normed", "stages:2 x data:2 x recompute x zb-v"),
    ("convolutions", "stages:2 x zero3:2 x zb-v"),
    ("in groups", "stages:2 x zero3:2 x zb-h1"),
    ("depthwise", "stages:2 x zero3:2 x zb-h1 x recompute"),
    ("depthwise", "stages:2 x zero3:2 x zb-h1 x offload:parameters"),
    ("depthwise", "stages:2 x zero3:2 x zb-v x recompute x offload"),
    ("depthwise", "stages:2 x zero3:2 x bidirectional"),
    ("looking", "stages:2 x zero3:2 x zb-h1"),
    ("looking", "stages:2 x zero3:2 x zb-v x recompute"),
    ("looking", "stages:2 x data:2 x zb-h1 x offload:parameters"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, plan", PLANS)
def test_halves_of_what_is_gathered_equal_the_single_device(name: str, plan: str) -> None:
    make, args = MODELS[name]
    torch.manual_seed(SEED)
    module = make().double()
    devices = 4 if ":2 x zero3:2" in plan or "data:2" in plan else 2
    bundle, _ = compile_model(module, args, plan=plan, devices=devices)
    batches = equality.micro_batches(args, 3)
    expected = equality.steps_reference(module, batches, steps=2)
    equality.assert_equal(equality.run_steps(bundle, module, batches, steps=2), expected, plan)
