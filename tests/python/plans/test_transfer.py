"""The same plan for another graph of the same model, and on several units: legal, complete, and equal
to the single device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import models
from shardwright import Bundle, Graph, Plan, PlanError
from shardwright._core import compile
from shardwright.capture import Captured, capture

torch.set_num_threads(1)

# A shorter batch and sequence, a batch below any number of devices, and a longer one.
SHAPES = [(3, 12), (1, 16), (7, 16)]
Case = tuple[nn.Module, tuple[Any, ...], Captured, Graph]


def case(module: nn.Module, args: tuple[Any, ...]) -> Case:
    captured = capture(module, args)
    return module, args, captured, Graph(captured.graph_text)


def gpt(batch: int, time: int) -> Case:
    module, _ = models.gpt()
    return case(module, models.gpt(batch=batch, time=time)[1])


def assert_equal(plan: Plan, it: Case, what: str) -> None:
    module, args, captured, _ = it
    compiled = compile(plan)
    bundle = Bundle(dict(compiled.files), compiled.digest, plan.name, plan.devices, captured, "", "")
    equality.assert_equal(
        equality.run(bundle, module, args, steps=2), equality.reference(module, args, 2), what
    )


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "time"), SHAPES)
def test_random_plans_carry_over_to_other_shapes(batch: int, time: int) -> None:
    there, here = gpt(4, 16), gpt(batch, time)
    for seed in range(8):
        plan = Plan.random(there[3], 2 + seed % 3, 500 + seed)
        carried = plan.transferred(here[3])
        assert (carried.devices, carried.name) == (plan.devices, plan.name)
        assert_equal(carried, here, f"seed {seed}, batch {batch}, {time} tokens: {carried.notes}")


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["data", "megatron", "data:2 x megatron:2", "data:2 x coshard:2"])
@pytest.mark.parametrize(("batch", "time"), SHAPES)
def test_named_plans_carry_over_to_other_shapes(plan: str, batch: int, time: int) -> None:
    devices = 2 if "coshard" in plan else 4
    here = gpt(batch, time)
    assert_equal(Plan.named(gpt(4, 16)[3], plan, devices).transferred(here[3]), here, plan)


def test_the_same_graph_needs_no_change() -> None:
    graph = gpt(4, 16)[3]
    for seed in range(20):
        plan = Plan.random(graph, 2 + seed % 3, seed)
        carried = plan.transferred(graph)
        assert (carried.text, carried.notes) == (plan.text, [])


def held(plan: Plan, it: Case) -> dict[str, Any]:
    """What each rank holds of each tensor that the state dict has."""
    from shardwright.runtime import load_program

    compiled = compile(plan, "all")
    program = load_program(dict(compiled.files), digest=compiled.digest, world=plan.devices)
    parts: dict[str, Any] = {}
    for rank, table in enumerate(program.ranks):
        for number, region in table.shards:
            tensor = program.tensors[number]
            if tensor.kind == "param":
                parts.setdefault(f"{rank} {tensor.names[0]}", []).append((tensor.factors, region))
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["data", "megatron", "data:2 x megatron:2"])
def test_weights_stay_where_they_are(plan: str) -> None:
    """A short batch uses all devices of `data`, so that every replica gets the gradient."""
    there, here = gpt(4, 16), gpt(3, 12)
    made = Plan.named(there[3], plan, 4)
    assert held(made.transferred(here[3]), here) == held(made, there)


@pytest.mark.slow
def test_a_short_batch_is_split_as_far_as_it_goes() -> None:
    there, here = gpt(4, 16), gpt(3, 16)
    carried = Plan.named(there[3], "data", 4).transferred(here[3])
    splits = {op.name: split for op, split, _ in carried.decisions}
    assert splits["linear"] == [("b", 2), ("replicate", 2)]
    assert any("`b` is split 2 ways and not 4" in note for note in carried.notes)


class WithoutLabels(nn.Module):
    """A model whose call has labels or not."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.norm = nn.BatchNorm1d(32)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(32, 8)

    def forward(self, x: Tensor, label: Tensor | None = None) -> Tensor:
        y = self.head(self.drop(torch.relu(self.norm(self.up(x)))))
        return torch.softmax(y, 1) if label is None else torch.nn.functional.cross_entropy(y, label)


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), [("data", 4), ("megatron", 2), ("random", 3)])
def test_evaluation_without_labels(plan: str, devices: int) -> None:
    torch.manual_seed(0)
    module = WithoutLabels().double()
    x = torch.randn(8, 16, dtype=torch.float64)
    trained = case(module, (x, torch.randint(8, (8,))))[3]
    made = Plan.random(trained, devices, 3) if plan == "random" else Plan.named(trained, plan, devices)
    module.eval()
    expected = module(x)
    captured = capture(module, (x,))
    carried = made.transferred(Graph(captured.graph_text))
    compiled = compile(carried, "all")
    from shardwright.runtime import ParallelModule, load_program, run_local
    from shardwright.start.compiling import sources

    program = load_program(dict(compiled.files), digest=compiled.digest, world=devices)

    def run(rank: int, comm: Any) -> Tensor | None:
        with torch.no_grad():
            return ParallelModule(program, comm, sources(module, captured), captured, training=False)(x)

    actual = [y for y in run_local(devices, run) if isinstance(y, Tensor)]
    assert actual
    assert all(torch.allclose(y, expected, rtol=1e-12, atol=1e-14) for y in actual)
    # The softmax was not there before.
    assert any("the plan does not mention it" in note for note in carried.notes)


@pytest.mark.slow
def test_a_new_operator_is_split_as_its_neighbours() -> None:
    module, (x, label) = WithoutLabels().double(), (torch.randn(8, 16).double(), torch.randint(8, (8,)))
    made = Plan.named(case(module, (x, label))[3], "data", 4)
    carried = made.transferred(case(module.eval(), (x,))[3])
    splits = {op.target: split for op, split, _ in carried.decisions}
    assert [parts for _, parts in splits["aten.softmax.int"]] == [4]
    assert all("replicate" not in dict(split) for split in splits.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "devices", "units"), [("megatron", 2, 2), ("data", 2, 2), ("random", 3, 2), ("random", 2, 4)]
)
def test_a_unit_is_repeated(plan: str, devices: int, units: int) -> None:
    here = gpt(4, 16)
    unit = (
        Plan.random(here[3], devices, 40 + units) if plan == "random" else Plan.named(here[3], plan, devices)
    )
    repeated = Plan.repeated(here[3], unit, units)
    assert repeated.devices == devices * units
    assert repeated.name == f"{units} units of {unit.name}"
    assert_equal(repeated, here, repeated.name)


def test_units_divide_the_batch_as_data_does() -> None:
    graph = gpt(4, 16)[3]
    repeated = Plan.repeated(graph, Plan.named(graph, "megatron", 2), 2)
    named = Plan.named(graph, "data:2 x megatron:2", 4)
    assert [d[1:] for d in repeated.decisions] == [d[1:] for d in named.decisions]


def test_a_batch_that_is_too_small_for_the_units_is_refused() -> None:
    graph = gpt(3, 16)[3]
    with pytest.raises(PlanError) as refused:
        Plan.repeated(graph, Plan.named(graph, "megatron", 2), 4)
    assert str(refused.value) == (
        "error[SW0328]: the batch cannot be divided among 4 units\n"
        "  why: no operator of Gpt has a batch of at least 4\n"
        "  help: give a larger batch (that of all units together), or plan for a larger unit"
    )
