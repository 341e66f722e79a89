"""A call's backward in two halves: the same gradients by the same operators, and what is kept meanwhile."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import models
import zoo
from shardwright import Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.runtime.execution.calls import Saved, call_giving, call_in_halves, call_saving, match
from shardwright.runtime.execution.split_backward import Left, first_half
from shardwright.runtime.shards.copies import Fleeting
from shardwright.start.compiling import sources

torch.set_num_threads(1)

# What takes time in a backward.
DEAR = (
    "mm", "addmm", "bmm", "baddbmm", "sum", "embedding_dense_backward", "native_layer_norm_backward",
    "native_batch_norm_backward", "_scaled_dot_product_flash_attention_for_cpu_backward", "gelu_backward",
    "_fused_rms_norm_backward", "index_put", "native_group_norm_backward",
)  # fmt: skip


class Operators(TorchDispatchMode):
    """Which dear operators were executed, and how often. Of one for several gradients each counts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "convolution_backward":
            self.found.update(f"{name} {at}" for at, wanted in enumerate(args[-1]) if wanted)
        elif name in DEAR:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


W, V, B, N = rand(8, 8), rand(8, 8), rand(8), rand(8)
K, ROWS, SQUARE = rand(3, 3, 2, 2), rand(7, 8), rand(2, 8, 8)
STACK = rand(24, 8)
LEAVES = [W, V, B, N, K, ROWS, SQUARE, STACK]
INDICES = torch.tensor([[1, 2, 6], [0, 1, 1]])


class Scaled(torch.autograd.Function):
    """Computes both gradients at once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad @ w.T, x.flatten(0, -2).T @ grad.flatten(0, -2)


def normed(x: Tensor) -> Tensor:
    mean, var = torch.zeros(3, dtype=x.dtype), torch.ones(3, dtype=x.dtype)
    return F.batch_norm(x, mean, var, N[:3], B[:3], training=True)


def attended(x: Tensor) -> Tensor:
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in F.linear(x, STACK).chunk(3, -1))
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(attended.transpose(1, 2).flatten(-2), W, B)


def experts(x: Tensor) -> Tensor:
    return torch.stack([x @ w for w in SQUARE.unbind(0)])


Case = tuple[Callable[..., Any], tuple[Any, ...]]
X = rand(2, 3, 8)
CASES: dict[str, Case] = {
    "linear": (lambda x: F.linear(x, W, B), (X,)),
    "linears": (lambda x: F.linear(F.gelu(F.linear(x, W, B)), V), (X,)),
    "matmul": (lambda x: x @ W.t(), (X,)),
    "batched": (lambda x: x @ SQUARE, (X,)),
    "einsum": (lambda x: torch.einsum("bti,io->bto", x, W), (X,)),
    "convolution": (lambda x: F.conv2d(F.conv2d(x, K, B[:3]), K), (rand(2, 3, 5, 5),)),
    "embedding": (lambda x: F.linear(F.embedding(INDICES, ROWS) + x, W), (X,)),
    "nothing given": (lambda i: F.linear(F.layer_norm(F.embedding(i, ROWS), (8,), N), W), (INDICES,)),
    "embedding alone": (lambda i: F.embedding(i, ROWS), (INDICES,)),
    "layer norm": (lambda x: F.linear(F.layer_norm(x, (8,), N, B), W), (X,)),
    "rms norm": (lambda x: F.linear(F.rms_norm(x, (8,), N), W), (X,)),
    "group norm": (lambda x: F.group_norm(x, 2, N, B), (rand(2, 8, 4),)),
    "batch norm": (normed, (rand(4, 3, 5),)),
    "attention": (attended, (X,)),
    "tied": (lambda x: F.linear(F.gelu(F.linear(x, W, B)), W), (X,)),
    "tied through a view": (lambda x: (lambda w: F.gelu(x @ w) @ w)(W.t()), (X,)),
    "read and given": (lambda x: (F.linear(x, W), W * 2), (X,)),
    "leaf as a result": (lambda x: (F.linear(x, W), W.view(64)), (X,)),
    "parts of one": (experts, (X,)),
    "product of leaves": (lambda x: F.linear(x, W * V), (X,)),
    "of its own": (lambda x: F.gelu(Scaled.apply(x, W)) + B, (X,)),  # type: ignore[no-untyped-call]
    "two arguments": (lambda x, y: F.linear(x + y, W) * y, (X, rand(2, 3, 8))),
    "an argument that is given on": (lambda x: (x, F.linear(x, W)), (X,)),
    "an argument that is not read": (lambda x, y: F.linear(x, W), (X, rand(2))),
}


def seeds(saved: Saved) -> list[Tensor]:
    """As many as there are results that need a gradient."""
    generator = torch.Generator().manual_seed(3)
    shapes = [edge.node._input_metadata[edge.output_nr].shape for edge in saved.edges if edge]  # type: ignore[attr-defined]
    return [torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in shapes]


def halves_of(saved: Saved, given: list[Tensor]) -> tuple[list[Tensor | None], Left]:
    assert saved.boxes is not None
    return first_half(saved.entries, *match(saved, given), saved.boxes)


def none_yet() -> None:
    for leaf in LEAVES:
        leaf.grad = None


def in_one(case: Case) -> tuple[list[Tensor], dict[int, Tensor], Counter[str]]:
    none_yet()
    _, saved = call_saving(*case, {id(leaf) for leaf in LEAVES}, None)
    with Operators() as operators:
        torch.autograd.backward(*match(saved, seeds(saved)))
    return [slot.take() for slot in saved.slots], of_leaves(), operators.found


def of_leaves() -> dict[int, Tensor]:
    return {at: leaf.grad for at, leaf in enumerate(LEAVES) if leaf.grad is not None}


@pytest.mark.parametrize("forget", [False, True], ids=["kept", "forgotten"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_and_operators_are_the_same(name: str, forget: bool) -> None:
    case = CASES[name]
    inputs, expected, dear = in_one(case)
    none_yet()
    leaves = {id(leaf) for leaf in LEAVES}
    if forget:
        _, saved = call_giving(*case, leaves, None, halves=frozenset())
        assert saved.forgotten
        saved.forgotten.give([x.detach().clone() for x in case[1]])
    else:
        _, saved = call_in_halves(*case, leaves, None)
    with Operators() as operators:
        actual, left = halves_of(saved, seeds(saved))
        assert not of_leaves(), "gradients of leaves arise in the second half"
        left.backward()
    for slot, grad, wanted in zip(saved.slots, actual, inputs, strict=True):
        slot.grad = grad
        assert torch.allclose(slot.take(), wanted, rtol=1e-12, atol=1e-14)
    assert of_leaves().keys() == expected.keys()
    for at, grad in of_leaves().items():
        assert torch.allclose(grad, expected[at], rtol=1e-12, atol=1e-14)
    assert operators.found == dear


WAITING = {"linear": 1, "linears": 2, "convolution": 1, "attention": 2, "tied": 1, "of its own": 0}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits(name: str) -> None:
    """What is dear, and of a leaf that is read in several ways nothing."""
    _, saved = call_in_halves(*CASES[name], {id(leaf) for leaf in LEAVES}, None)
    _, left = halves_of(saved, seeds(saved))
    assert len(left.nodes) == WAITING[name]


def test_what_is_compiled_gives_all_gradients_at_once() -> None:
    compiled = torch.compile(CASES["linears"][0], backend="aot_eager", fullgraph=True)
    inputs, expected, _ = in_one(CASES["linears"])
    none_yet()
    _, saved = call_in_halves(compiled, (X,), {id(leaf) for leaf in LEAVES}, None)
    [gradient], left = halves_of(saved, seeds(saved))
    assert not left.nodes and not of_leaves()
    left.backward()
    assert gradient is not None and torch.allclose(gradient, inputs[0], rtol=1e-12)
    for at, grad in of_leaves().items():
        assert torch.allclose(grad, expected[at], rtol=1e-12)


def test_gradients_of_several_halves_add_up() -> None:
    _, expected, _ = in_one(CASES["linears"])
    none_yet()
    both = []
    for _ in range(2):
        _, saved = call_in_halves(*CASES["linears"], {id(leaf) for leaf in LEAVES}, None)
        both.append(halves_of(saved, seeds(saved))[1])
    for left in both:
        left.backward()
    for at, grad in of_leaves().items():
        assert torch.allclose(grad, 2 * expected[at], rtol=1e-12)


def test_what_is_gathered_is_needed_in_the_first_half_only() -> None:
    """The memory of a leaf that is gathered is gone when its gradient arises."""
    whole = W.detach().clone()
    leaf = Tensor._make_subclass(Fleeting, whole.detach(), True)  # type: ignore[attr-defined]
    function = lambda x: F.linear(F.layer_norm(F.linear(x, leaf), (8,), N), V)  # noqa: E731
    none_yet()
    _, saved = call_in_halves(function, (X,), {id(leaf), id(N), id(V)}, None)
    _, left = halves_of(saved, seeds(saved))
    whole.untyped_storage().resize_(0)
    left.backward()
    wanted = lambda x: F.linear(F.layer_norm(F.linear(x, W), (8,), N), V)  # noqa: E731
    _, expected, _ = in_one((wanted, (X,)))
    assert leaf.grad is not None and torch.allclose(leaf.grad, expected[0], rtol=1e-12)


# ---- what is there meanwhile -------------------------------------------------------------------


def test_what_only_the_first_half_needs_is_free_after_it() -> None:
    made: dict[str, weakref.ref[Any]] = {}

    def function(x: Tensor) -> Tensor:
        up = F.linear(x, W)
        gelu = F.gelu(up)
        norm = F.layer_norm(gelu, (8,), N)
        for name, value in (("up", up), ("gelu", gelu), ("norm", norm)):
            made[name] = weakref.ref(value.untyped_storage())
        return F.linear(norm, V)

    none_yet()
    result, saved = call_in_halves(function, (X.detach().requires_grad_(),), {id(W), id(N), id(V)}, None)
    there = lambda: {name for name, storage in made.items() if storage() is not None}  # noqa: E731
    assert there() == {"up", "gelu", "norm"}
    given = seeds(saved)
    _, left = halves_of(saved, given)
    saved.edges, saved.entries = [], []
    del result
    assert there() == {"norm"}
    grads = [weakref.ref(grad) for _, grad, _ in left.nodes]
    del given
    left.backward()
    assert there() == set()
    assert all(grad() is None for grad in grads)


@pytest.mark.parametrize("name", ["gpt", "resnet", "llama"])
def test_a_model_runs_the_same_operators(name: str) -> None:
    module, args, kwargs = (*models.MODELS[name](), {}) if name in models.MODELS else zoo.MODELS[name]()
    with zoo.widened():
        captured = capture(module, args, kwargs)
    graph, batches = Graph(captured.graph_text), [kwargs or args] * 3

    def executed(plan: str) -> list[Counter[str]]:
        compiled = compile(Plan.named(graph, plan, 2))
        program = load_program(dict(compiled.files), digest=compiled.digest, world=2)

        def rank(_: int, comm: Any) -> Counter[str]:
            model = ParallelModule(program, comm, sources(module, captured), captured)
            with Operators() as operators:
                model.train_step(batches)
            assert not model.variants.first.worker.coming
            return operators.found

        return run_local(2, rank)

    assert executed("stages:2 x zb-h1") == executed("stages:2")
