"""What each part costs, as the rules say it, beside what PyTorch does.

Every operator of `rule_cases` is executed as each of its parts executes it: in one piece and split along
each of its dims, in three types, and with each parameter frozen. Operands have the part's shapes and the
gradients of the graph; their values do not matter. What autograd really keeps, and in whose memory results
lie, is told by storages, to the byte; FLOPs are those of `FlopCounterMode`, for all operators that it knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import live
from rule_cases import CASES, Case
from shardwright import demo
from shardwright._core import Cost, Graph, Plan
from shardwright.capture import capture
from shardwright.cli import main
from shardwright.runtime import ops
from test_rules import choices, name_of, prepared, split_up

CAUSAL = "FlopCounterMode counts the scores that a causal mask hides, which one kernel leaves out"
GROUPS = "FlopCounterMode takes the gradient of the weight of a convolution in groups for one without"
COUNTED_OTHERWISE = {
    "attention-causal": CAUSAL,
    "attention-causal-more-keys": CAUSAL,
    "attention-causal-fewer-keys": CAUSAL,
    "attention-mqa": CAUSAL,
    "conv1d-groups": GROUPS,
    "conv1d-depthwise": GROUPS,
    "conv2d-groups": GROUPS,
    "conv2d-rows-far": GROUPS,
    "conv_transpose2d-groups": GROUPS,
    "expert_linear-column": "how many rows a part of the experts has follows from values: a share is said",
    "expert_linear-row": "the same",
    **dict.fromkeys(
        [
            "inverse",
            "solve",
            "solve-vectors",
            "solve_triangular",
            "cholesky",
            "cholesky_solve",
            "affine_grid",
        ],
        "FlopCounterMode counts products of the gradients, and no factorisations",
    ),
}
"""Where FLOPs are not compared, and why."""
SHARES = ("experts",)
"""How many rows of these a part has follows from values: a share is said. All else is kept as it is said."""


class Rank:
    """Instead of a rank that runs, with its keyed numbers."""

    comm = SimpleNamespace(device=torch.device("cpu"))

    @staticmethod
    def masks(operator: int, slot: int, shape: Any, numbers: Any, device: torch.device) -> Tensor:
        return torch.zeros(tuple(shape), dtype=numbers.dtype)


@pytest.fixture(autouse=True)
def _rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "current_run", lambda: Rank)


# What emitted code knows where it runs.
SCOPE = {"torch": torch, "F": F, "ops": ops, "rank": SimpleNamespace(device=torch.device("cpu"))}


@dataclass
class Seen:
    """What a call did."""

    inputs: list[int]
    outputs: list[int]
    more: int
    lies_in: list[int | None]
    forward: int
    backward: int


def execute(cost: Cost, written_out: bool = False) -> Seen:
    """`written_out`: recurrent layers by their steps, not by one kernel of the CPU's library."""
    operands = made_up(cost)
    scope = {**SCOPE, **{f"x{at}": x for at, x in enumerate(operands)}}
    forward, backward = FlopCounterMode(display=False), FlopCounterMode(display=False)
    keeping = Keeping()
    with keeping, forward, torch.backends.mkldnn.flags(enabled=not written_out):
        returned = eval(cost.call, scope)
    results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    with backward:
        teaching = [r for r in results if r is not None and r.requires_grad]
        if teaching:
            torch.autograd.backward(teaching, [torch.ones_like(r) for r in teaching])
    there = [None if cost.outputs[at] is None else result for at, result in enumerate(results)]
    inputs = {storage(x): at for at, x in reversed(list(enumerate(operands)))}
    outputs = {storage(x): at for at, x in reversed(list(enumerate(there))) if x is not None}
    outputs = {it: at for it, at in outputs.items() if it not in inputs}
    kept = keeping.bytes
    return Seen(
        sorted(inputs[it] for it in kept if it in inputs),
        sorted(outputs[it] for it in kept if it in outputs),
        sum(size for it, size in kept.items() if it not in inputs and it not in outputs),
        [None if x is None else inputs.get(storage(x)) for x in there],
        forward.get_total_flops(),
        backward.get_total_flops(),
    )


class Keeping(saved_tensors_hooks):
    """What autograd keeps: storages and their bytes."""

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}
        self._alive: list[Tensor] = []
        super().__init__(self._pack, lambda x: x)

    def _pack(self, x: Tensor) -> Tensor:
        self._alive.append(x)
        self.bytes[storage(x)] = x.untyped_storage().nbytes()
        return x


def made_up(cost: Cost) -> list[Tensor]:
    """Operands of the shapes of the part; a tensor that is given twice is one."""
    known: dict[str, Tensor] = {}
    divides = any(sign in cost.call for sign in ("//", "%", "remainder"))
    positive = "linalg_cholesky" in cost.call
    for name, shape, dtype, learns in cost.inputs:
        kind = getattr(torch, dtype.removeprefix("torch."))
        if name not in known and (kind.is_floating_point or kind.is_complex):
            values = torch.rand(shape) + 3 * torch.eye(shape[-1]) if positive else torch.rand(shape)
            if ".contiguous()" in cost.call:  # What lies so already would be given as it is.
                values = values.mT.contiguous().mT if values.dim() > 1 else values
            known[name] = values.to(kind).requires_grad_(learns)
        elif name not in known:
            known[name] = torch.full(shape, int(divides), dtype=kind)
    return [known[name] for name, *_ in cost.inputs]


def storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata


def costs_of(case: Case) -> Iterator[tuple[str, Cost]]:
    """Each different part of the case's operators: split, and in other types and with other gradients."""
    it = prepared(case)
    known: set[str] = set()
    texts = dict(variants(it.captured.graph_text))
    if not case.halves:
        del texts["bf16"]
    graphs = {"": it.graph} | {what: Graph(text) for what, text in texts.items()}
    for what, graph in graphs.items():
        for splits in [()] if what else choices(case):
            for operator in graph.operators:
                is_own = any(f"{dim}@" in (operator.rule or "") for dim, _ in splits)
                if (
                    operator.path != "body" or is_own
                ):  # Of the second, the operators of its rewriting are cases.
                    continue
                for cost in split_up(case, graph, splits).costs(operator):
                    key = f"{cost.call} {cost.inputs} {cost.outputs}"
                    if key not in known:
                        known.add(key)
                        yield f"{operator.target} [{what or name_of(splits)}] {key}", cost


def variants(text: str) -> Iterator[tuple[str, str]]:
    for dtype in ("f32", "bf16"):
        yield dtype, re.sub(r"\bf64\b", dtype, text)
    for name in re.findall(r"^param %(\S+)", text, re.MULTILINE):
        frozen = re.sub(rf"^(param %{name} .*)$", r"\1 frozen", text, flags=re.MULTILINE)
        yield f"{name} frozen", frozen


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_part_keeps_what_autograd_keeps_and_takes_the_flops_that_torch_counts(case: Case) -> None:
    for what, cost in costs_of(case):
        seen = execute(cost, written_out=case.about)
        if case.about:
            assert_about(cost, seen, what)
            continue
        if case.name.startswith(SHARES) and cost.inputs[3][1][0] < 4:
            continue
        assert (*cost.kept, cost.lies_in) == (seen.inputs, seen.outputs, seen.more, seen.lies_in), what
        if case.name in COUNTED_OTHERWISE:
            continue
        if seen.forward:
            assert cost.flops == seen.forward, what
        if seen.backward:
            assert sum(cost.gradients) == seen.backward, what


def assert_about(cost: Cost, seen: Seen, what: str) -> None:
    """Of operators that are composed of others: the bytes that are kept, to a factor of three."""
    shards = [shard_bytes(x) if x is not None else 0 for x in [*cost.inputs, *cost.outputs]]

    def kept(inputs: list[int], outputs: list[int], more: int) -> int:
        return sum(shards[at] for at in inputs) + sum(shards[len(cost.inputs) + at] for at in outputs) + more

    predicted, measured = kept(*cost.kept), kept(seen.inputs, seen.outputs, seen.more)
    slack = 2 * max(shards) + 64
    assert measured / 3 - slack <= predicted <= 3 * measured + slack, (what, predicted, measured)


@pytest.mark.parametrize(
    "name, expected",
    [
        # 2 x 3 heads, 5 queries of 1, 2, .. 5 keys, 4 wide.
        ("attention-causal", [2 * (4 + 4) * 6 * 15, 5 * 2 * 4 * 6 * 15]),
        ("conv1d-groups", [2160, 2 * 2160]),
        ("conv2d-rows-far", [10368, 2 * 10368]),
        ("conv_transpose2d-groups", [3456, 2 * 3456]),
        ("expert_linear-row", [2 * 7 * 5 * 6, 4 * 7 * 5 * 6]),
    ],
)
def test_what_torch_counts_otherwise_is_what_is_computed(name: str, expected: list[int]) -> None:
    (case,) = (case for case in CASES if case.name == name)
    cost = next(cost for _, cost in costs_of(case))
    assert [cost.flops, sum(cost.gradients)] == expected


def test_shardwright_ops_show_prints_what_an_operator_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "show", "gelu"]) == 0
    printed = capsys.readouterr().out
    assert "  forward  65.5 KFLOP, 512.0 KiB read, 512.0 KiB written" in printed


def test_costs_of_a_plan_are_those_of_its_parts() -> None:
    graph = Graph(capture(demo.build(), demo.batches()[0]).graph_text)
    plan = Plan.named(graph, "megatron", 2)
    (linear, *_) = (o for o in graph.operators if o.target == "aten.linear.default")
    whole, parts = linear.cost, plan.costs(linear)
    assert [part.flops for part in parts] == [whole.flops // 2] * 2
    assert [part.kept for part in parts] == [whole.kept] * 2


# What layers are mostly made of. Of others `meanwhile` is what is known, and at least nothing.
COMMON = (
    "add", "mul", "mul-scalar", "cat", "stack", "softmax", "log_softmax", "layer_norm", "linear", "matmul",
    "embedding", "cross_entropy", "mse_loss", "sum", "mean", "transpose", "view", "pick", "dropout",
)  # fmt: skip


@pytest.mark.parametrize("case", [c for c in CASES if c.name in COMMON], ids=lambda case: case.name)
def test_what_lives_meanwhile_and_whose_memory_gradients_share(case: Case) -> None:
    for what, cost in costs_of(case):
        forward, backward, passes = lived(cost)
        largest = max(shard_bytes(x) for x in [*cost.inputs, *cost.outputs] if x is not None)
        if "frozen" not in what:
            predicted, seen = cost.meanwhile, (forward, backward)
            assert all(abs(a - b) <= largest / 2 + 64 for a, b in zip(predicted, seen, strict=True)), (
                what,
                seen,
            )
        learning = [
            one_pass for one_pass, (*_, learns) in zip(cost.passes, cost.inputs, strict=True) if learns
        ]
        # Gradients of a tensor that is given twice are added; the runtime's mean divides a number first.
        apart = len({name for name, *_ in cost.inputs}) == len(cost.inputs) and "ops.mean" not in cost.call
        assert learning == passes or not apart, what


def lived(cost: Cost) -> tuple[int, int, list[bool]]:
    """The most bytes forward and backward besides what results; and for each operand that learns whether its
    gradient lies in the memory of that of the first result."""
    operands = made_up(cost)
    scope = {**SCOPE, **{f"x{at}": x for at, x in enumerate(operands)}}
    forward, backward = live.Live(), live.Live()
    with forward:
        returned = eval(cost.call, scope)
    besides = forward.peak - forward.bytes
    results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    teaching = [r for r in results if r is not None and r.requires_grad]
    learning = [x for x in operands if x.requires_grad]
    if not teaching or not learning:
        return besides, 0, []
    given = [torch.ones_like(r) for r in teaching]
    with backward:
        gradients = torch.autograd.grad(teaching, learning, given, allow_unused=True)
    passes = [g is not None and storage(g) == storage(given[0]) for g in gradients]
    pairs = zip(gradients, passes, strict=True)
    made = live.stored(g for g, passed in pairs if g is not None and not passed)
    return besides, backward.peak - made, passes


def shard_bytes(shard: tuple[str, list[int], str, bool]) -> int:
    _, shape, dtype, _ = shard
    return torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device="meta").nbytes
