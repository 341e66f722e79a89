"""Models that are cut into blocks, which work on several micro-batches at a time."""

from __future__ import annotations

import functools
import random
import re
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor, nn

import equality
import models
import shardwright as sw
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile, verify
from shardwright.capture import Captured, capture
from shardwright.errors import CheckError, PlanError, RuntimeFault, ShardwrightError
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import sources

torch.set_num_threads(1)

NAMED = [
    ("stages:2", 2),
    ("stages:4", 4),
    ("stages:2 x gpipe", 2),
    ("stages:2 x interleaved", 2),
    ("stages:2 x bidirectional", 2),
    ("stages:2 x data:2 x bidirectional", 4),
    ("stages:3 x bidirectional x recompute", 3),
    ("stages:2 x interleaved:3 x zero2:2 x recompute", 4),
    ("stages:2 x zb-h1", 2),
    ("stages:4 x zb-h1", 4),
    ("stages:2 x data:2 x zb-h1", 4),
    ("stages:2 x zero3:2 x zb-h1", 4),
    ("stages:2 x recompute x zb-h1", 2),
    ("stages:2 x recompute:selective x offload x zb-h1", 2),
    ("stages:2 x megatron:2 x zb-h1", 4),
    ("stages:2 x zb-v", 2),
    ("stages:4 x zb-v", 4),
    ("stages:2 x data:2 x zb-v", 4),
    ("stages:2 x megatron:2 x zb-v", 4),
    ("stages:2 x zero3:2 x recompute x zb-v", 4),
    ("stages:2 x data:2", 4),
    ("data:2 x stages:2", 4),
    ("stages:2 x megatron:2 x gpipe", 4),
    ("stages:2 x zero3:2", 4),
    ("stages:2 x zero3:2 x interleaved:2", 4),
    ("zero1:2 x stages:2", 4),
    ("stages:2 x recompute", 2),
    ("stages:3 x recompute:selective", 3),
    ("stages:2 x recompute x offload", 2),
    ("stages:2 x data:2 x offload:parameters", 4),
    ("stages:2 x zero3:2 x offload:parameters", 4),
    ("stages:2 x data:2 x whole-updates", 4),
]


@functools.cache
def known(name: str) -> tuple[models.Model, Captured, Graph]:
    """Captured once, for tests that leave the module as it is."""
    module, args = models.MODELS[name]()
    captured = capture(module, args)
    return (module, args), captured, Graph(captured.graph_text)


def bundle(plan: Plan, captured: Captured) -> Bundle:
    compiled = compile(plan)
    return Bundle(dict(compiled.files), compiled.digest, plan.name, plan.devices, captured, "", "")


def random_cut(graph: Graph, devices: int, seed: int) -> Plan:
    """A random plan whose operators are cut into blocks at random places."""
    draw = random.Random(seed)
    text = Plan.random(graph, devices, seed).text
    ops = re.findall(r"^op (%\S+):", text, re.MULTILINE)
    cuts = sorted(draw.sample(range(1, len(ops)), draw.randint(1, min(4, len(ops) - 1))))
    ends = zip([0, *cuts], [*cuts, len(ops)], strict=True)
    blocks = "".join(f"block {ops[first]}..{ops[end - 1]}\n" for first, end in ends)
    return Plan.parse(
        graph, f"{text}{blocks}schedule {draw.choice(['1f1b', 'gpipe', 'interleaved', 'zb-h1', 'zb-v'])}\n"
    )


# The single device, by the model and the numbers of batches and steps.
EXPECTED: WeakKeyDictionary[nn.Module, dict[tuple[int, int], equality.Result]] = WeakKeyDictionary()


def assert_equal(
    plan: Plan, captured: Captured, model: models.Model, count: int, steps: int = equality.STEPS
) -> None:
    module, args = model
    batches = equality.micro_batches(args, count)
    expected = EXPECTED.setdefault(module, {})
    if (count, steps) not in expected:
        expected[count, steps] = equality.steps_reference(module, batches, steps)
    actual = equality.run_steps(bundle(plan, captured), module, batches, steps)
    equality.assert_equal(actual, expected[count, steps], f"{plan.name}, {count} batches")


@pytest.mark.parametrize("name", ["mlp", "gpt", "resnet"])
@pytest.mark.parametrize(("plan", "devices"), NAMED, ids=lambda it: str(it))
def test_named_plans_equal_the_single_device(name: str, plan: str, devices: int) -> None:
    if "recompute" in plan and name == "resnet":
        pytest.skip("it has no layers that repeat")
    model, captured, graph = known(name)
    # Under `zb-v` the first ones run in loops of their own.
    for count in (1, 2, 5, 8) if "zb-v" in plan else (1, 2, 5):
        assert_equal(Plan.named(graph, plan, devices), captured, model, count)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "gpt", "resnet"])
def test_random_cuts_of_random_plans_equal_the_single_device(name: str) -> None:
    model, captured, graph = known(name)
    for seed in range(12):
        # The second step has parameters and an optimizer's state that were updated, as all that follow.
        assert_equal(random_cut(graph, 2 + seed % 3, seed), captured, model, 3, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "llama", "vit", "bert", "swin"])
def test_models_of_transformers_equal_the_single_device(name: str) -> None:
    module, args, kwargs = zoo.MODELS[name]()
    with zoo.widened():
        captured = capture(module, args, kwargs)
        batches = equality.micro_batches(kwargs, 3)
        expected = equality.steps_reference(module, batches)
    graph = Graph(captured.graph_text)
    for plan, devices in [
        ("stages:2", 2),
        ("stages:2 x data:2", 4),
        ("stages:4 x gpipe", 4),
        ("stages:2 x zb-h1", 2),
    ]:
        actual = equality.run_steps(bundle(Plan.named(graph, plan, devices), captured), module, batches)
        equality.assert_equal(actual, expected, plan)


# ---- what a block is ---------------------------------------------------------------------------


class Net(nn.Module):
    """Skips over a layer, reads a buffer in all, and updates one."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        # Of a bias before a norm the gradient is none but for rounding.
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(dropout)
        self.register_buffer("shift", torch.arange(8.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a = self.a(x + self.shift).tanh()
        b = self.norm(self.drop(self.b(a)))
        c = self.c(b + self.shift) + a + self.a(b)
        return (c - y).square().mean()


def net(dropout: float = 0.0) -> models.Model:
    torch.manual_seed(3)
    return Net(dropout).double(), (torch.randn(6, 8).double(), torch.randn(6, 8).double())


def made(module: nn.Module, args: Any, blocks: str, devices: int = 3) -> tuple[Captured, Plan]:
    captured = capture(module, args)
    graph = Graph(captured.graph_text)
    return captured, Plan.parse(
        graph, f'shardwright-plan 1\ndevices {devices}\nop "*": single on 0\n{blocks}'
    )


THREE = """
op "b": single on 1
op "norm": single on 1
op "c": single on 2
block "a"
block "b" "norm"
block "c" "a@1"
"""


@pytest.mark.slow
def test_skips_buffers_and_modules_that_are_called_twice_cross_blocks() -> None:
    module, args = net()
    captured, plan = made(module, args, THREE)
    assert_equal(plan, captured, (module, args), 4)
    text = plan.text
    assert Plan.parse(Graph(captured.graph_text), text).text == text


class Twice(nn.Module):
    """The first block and the last update the same buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.b(self.norm(self.a(x)).tanh()).tanh()
        return (self.norm(self.c(h)) - y).square().mean()


TWICE = """
op "b": single on 1
op "c": single on 2
op "norm@1": single on 3
block "a" "norm"
block "b"
block "c"
block "norm@1"
"""


def twice(*lines: str) -> tuple[models.Model, Captured, Plan]:
    torch.manual_seed(4)
    model = Twice().double(), (torch.randn(6, 8).double(), torch.randn(6, 8).double())
    return model, *made(*model, TWICE + "\n".join(lines), 4)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"])
def test_a_buffer_that_two_blocks_update_goes_through_both_for_each_micro_batch(schedule: str) -> None:
    model, captured, plan = twice(f"schedule {schedule}")
    assert_equal(plan, captured, model, 4)


@pytest.mark.slow
def test_a_timetable_that_reads_a_buffer_before_its_update_is_refused() -> None:
    _, captured, plan = twice()
    made = compile(plan)
    files = dict(made.files)
    assert "yield forward_0, b + 1\n" in files["rank_0.py"]
    files["rank_0.py"] = (
        files["rank_0.py"]
        .replace("for b in range(-1, batches):", "for b in range(-2, batches):")
        .replace("yield forward_0, b + 1\n", "yield forward_0, b + 2\n")
    )
    with pytest.raises(CheckError, match="SW0517") as refused:
        verify(captured.graph_text, files)
    assert "a buffer does not have the value" in str(refused.value)
    with pytest.raises(ShardwrightError, match="SW0422") as refused:
        compile(twice("timetable 0: F0+2 F1+1 F3+1 B3+1 B0 B1+1")[2])
    assert "of device 0 runs `F0+1` before `F3`" in str(refused.value)


def test_each_rank_holds_only_what_its_blocks_read() -> None:
    _, captured, graph = known("mlp")
    plan = Plan.named(graph, "stages:2", 2)
    program = load_program(bundle(plan, captured).files)
    held = [{program.tensors[number].names[0] for number, _ in table.shards} for table in program.ranks]
    assert held[0] and held[1] and not held[0] & held[1]


@pytest.mark.parametrize(
    "more", ["", "schedule zb-h1\n", 'schedule zb-h1\nrecompute "b"\nrecompute "drop"\n']
)
def test_masks_are_those_of_the_single_device(more: str) -> None:
    module, args = net(dropout=0.3)
    captured, plan = made(module, args, THREE + more)
    batches = equality.micro_batches(args, 3)
    torch.manual_seed(7)
    expected = equality.steps_reference(module, batches, 1)
    actual = equality.run_steps(bundle(plan, captured), module, batches, 1, options=equality.single_device(7))
    equality.assert_equal(actual, expected, "dropout")


# ---- what it looks like ------------------------------------------------------------------------


def files(plan: str, devices: int, model: str = "gpt") -> dict[str, str]:
    return dict(compile(Plan.named(known(model)[2], plan, devices)).files)


AHEAD = '"""What runs one after the other; what is for no micro-batch of 0 .. batches - 1 is left out."""'

EARLY = AHEAD.replace("is left out", "or has run, is left out").replace("- 1 or", "- 1, or")


def step_of(text: str) -> list[str]:
    return [line.strip() for line in text[text.index("def step") :].splitlines()[1:] if line]


def test_a_stage_runs_as_many_forwards_ahead_as_stages_follow() -> None:
    program = files("stages:3", 3)
    assert step_of(program["rank_0.py"])[:4] == [
        AHEAD,
        "for b in range(-2, batches):",
        "yield forward_0, b + 2",
        "yield backward_0, b, scale, b == batches - 1",
    ]
    assert step_of(program["rank_2.py"])[:3] == [
        "for b in range(batches):",
        "yield forward_2, b",
        "yield backward_2, b, scale, b == batches - 1",
    ]


def test_interleaved_stages_run_several_micro_batches_of_a_block_together() -> None:
    program = files("stages:2 x interleaved:2", 2)
    assert step_of(program["rank_1.py"])[:10] == [
        AHEAD,
        "for b in range(-2, batches, 2):",
        "yield forward_3, b",
        "yield backward_3, b, scale, b == batches - 1",
        "yield forward_3, b + 1",
        "yield backward_3, b + 1, scale, b + 1 == batches - 1",
        "yield forward_1, b + 2",
        "yield backward_1, b, scale, b == batches - 1",
        "yield forward_1, b + 3",
        "yield backward_1, b + 1, scale, b + 1 == batches - 1",
    ]


def test_the_first_micro_batches_of_a_v_run_in_loops_of_their_own() -> None:
    program = files("stages:3 x zb-v", 3)
    assert step_of(program["rank_1.py"]) == [
        EARLY,
        "for b in range(4):",
        "yield forward_1, b",
        "yield forward_4, b - 2",
        "for b in range(1):",
        "yield inputs_4, b, scale",
        "yield weights_4, b, b == batches - 1",
        "yield forward_4, b + 2",
        "for b in range(-2, batches + 1):",
        "yield forward_1, b + 2",
        "yield weights_4, b - 1, b - 1 == batches - 1",
        "yield inputs_4, b, scale",
        "yield inputs_1, b - 1, scale",
        "yield forward_4, b + 1",
        "yield weights_1, b - 1, b - 1 == batches - 1",
    ]


def beginning(text: str, loops: str) -> str:
    """The same program, whose step begins with more loops."""
    at = text.index("    for b in", text.index("def step"))
    return text[:at] + loops + text[at:]


TWO = """
op "c": single on 1
op "a@1": single on 1
block "a" "b" "norm"
block "c" "a@1"
"""


def test_a_beginning_that_updates_buffers_in_another_order_is_refused() -> None:
    module, args = net()
    captured, plan = made(module, args, TWO, 2)
    text = dict(compile(plan).files)
    two = "    for b in range(2):\n        yield forward_0, b\n"
    one = "    for b in range(1):\n        yield forward_0, b{}\n"
    verify(captured.graph_text, {**text, "rank_0.py": beginning(text["rank_0.py"], two)})
    swapped = beginning(text["rank_0.py"], one.format(" + 1") + one.format(""))
    with pytest.raises(CheckError, match="SW0517") as refused:
        verify(captured.graph_text, {**text, "rank_0.py": swapped})
    assert "in an order in which buffers would get other values" in str(refused.value)


def test_gpipe_runs_all_forwards_first() -> None:
    program = files("stages:2 x gpipe", 2)
    assert step_of(program["rank_0.py"])[:4] == [
        "for b in range(batches):",
        "yield forward_0, b",
        "for b in range(batches):",
        "yield backward_0, b, scale, b == batches - 1",
    ]


def test_a_timetable_is_drawn() -> None:
    _, _, graph = known("gpt")
    assert compile(Plan.named(graph, "stages:3", 3)).timetable(3) == (
        "rank 0  F0 F1 F2 .  .  .  .  B0--- .  B1--- .  B2---\n"
        "rank 1  .  F0 F1 .  .  B0--- F2 B1--- .  B2---\n"
        "rank 2  .  .  F0 B0--- F1 B1--- F2 B2---\n"
    )
    assert compile(Plan.named(graph, "stages:2 x zb-h1", 2)).timetable(2) == (
        "rank 0  F0 F1 .  I0 W0 I1 W1\nrank 1  .  F0 I0 F1 I1 W0 W1\n"
    )
    assert compile(Plan.named(graph, "stages:2 x zb-v", 2)).timetable(3) == (
        "rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 0I0 3W1 0W0 .   .   3F2 3I2 0I1 3W2 0W1 0I2 0W2\n"
        "rank 1  .   1F0 2F0 1F1 2F1 2I0 1I0 1W0 1F2 2W0 2I1 1I1 2F2 1W1 2W1 2I2 1I2 1W2 2W2\n"
    )
    assert len(compile(Plan.named(graph, "stages:4 x interlaced", 4)).timetable(5).splitlines()) > 1
    assert compile(Plan.named(graph, "data", 2)).timetable(3) == ""


# ---- orders and timetables by hand -------------------------------------------------------------


def by_hand(*lines: str, devices: int = 2) -> tuple[models.Model, Captured, Plan]:
    model, captured, graph = known("gpt")
    text = "\n".join(["shardwright-plan 1", f"devices {devices}", f'use "stages:{devices}"', *lines])
    return model, captured, Plan.parse(graph, text)


@pytest.mark.parametrize(
    ("lines", "step"),
    [
        (["order B0 < F0+1"], ["for b in range(batches):", "yield forward_0, b"]),
        (["timetable 0: F0+3 B0"], [AHEAD, "for b in range(-3, batches):", "yield forward_0, b + 3"]),
        (["timetable 0: F0 | B0", "timetable 1: F1 B1"], ["for b in range(batches):", "yield forward_0, b"]),
        (["timetable 0 by 2: F0+2 F0+3 B0 B0+1"], [AHEAD, "for b in range(-2, batches, 2):"]),
    ],
)
def test_an_order_by_hand_is_completed_and_equal(lines: list[str], step: list[str]) -> None:
    model, captured, plan = by_hand(*lines)
    assert step_of(dict(compile(plan).files)["rank_0.py"])[: len(step)] == step
    assert Plan.parse(Graph(captured.graph_text), plan.text).text == plan.text
    for count in (1, 4):
        assert_equal(plan, captured, model, count)


@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        (["order B0 < F0"], "SW0422", "no order of tasks respects `B0 < F0`"),
        (["order B1 < F1", "order B0 < F0+4"], "SW0422", "`B1 < F1` and `B0 < F0+4`"),
        (["order B0 < F7"], "SW0329", "the plan orders `F7`, and has 2 blocks"),
        (["schedule gpipe", "order B0 < F0+2"], "SW0329", "`gpipe` leaves no room for `B0 < F0+2`"),
        (
            ["timetable 0: F0 B0", "timetable 1: F1+1 B1"],
            "SW0422",
            "`B0` of micro-batch 0, in `F1` of micro-batch 1",
        ),
        (["timetable 0: F0"], "SW0422", "the timetable of device 0 leaves out `B0`"),
        (["timetable 0: F0 F1 B0"], "SW0422", "the timetable of device 0 has `F1`"),
        (["timetable 0: F0 F0 B0"], "SW0422", "does not run `F0` once for each micro-batch"),
        (["timetable 0 by 2: F0 F0+1 B0+1 B0"], "SW0422", "does not run `B0` once for each micro-batch"),
        (["timetable 0: B0 F0"], "SW0422", "the timetable of device 0 runs `B0` before `F0`"),
        (["timetable 0 F0 B0"], "SW0329", "`:` is missing"),
        (["timetable 0:"], "SW0329", "a timetable without tasks"),
        (["timetable 0 by 0: F0"], "SW0329", "cannot advance by this number"),
        (["timetable 0: F0 Bx"], "SW0329", "`Bx` is not a task of a pipeline"),
        (["timetable 9: F0 B0"], "SW0306", "there is no device 9"),
    ],
)
def test_an_order_that_cannot_be_is_refused(lines: list[str], code: str, said: str) -> None:
    with pytest.raises(ShardwrightError) as refused:
        compile(by_hand(*lines)[2])
    assert refused.value.code == code
    assert said in str(refused.value)


def test_functions_order_tasks() -> None:
    model, captured, graph = known("mlp")
    draft = sw.Draft(graph, "by hand", 2)
    half = len(graph.operators) // 2
    for at, operator in enumerate(graph.operators):
        [part] = draft.trans(operator, "replicate", 1)
        draft.assign(part, int(at >= half))
    draft.block(graph.operators[:half])
    draft.block(graph.operators[half:])
    draft.order("B0", "F0+2")
    draft.timetable(1, "F1 B1")
    plan = draft.finish()
    assert "order B0 < F0+2\ntimetable 1: F1 B1\n" in plan.text
    assert_equal(plan, captured, model, 3)
    with pytest.raises(PlanError, match="an operator and a task"):
        draft.order(graph.operators[0], "F0")


# ---- what is around a step ---------------------------------------------------------------------


def on_all(plan: Plan, captured: Captured, module: nn.Module, work: Any) -> list[Any]:
    made = bundle(plan, captured)
    program, values = load_program(made.files), sources(module, captured)

    def rank(_: int, comm: Any) -> Any:
        return work(ParallelModule(program, comm, values, captured))

    return run_local(plan.devices, rank)


def test_all_ranks_know_the_loss_of_a_call() -> None:
    module, args = net()
    captured, plan = made(module, args, THREE)
    expected = module(*args).detach()
    for loss in on_all(plan, captured, module, lambda model: model(*args)):
        assert torch.allclose(loss, expected, rtol=1e-12)


def test_a_backward_by_hand_is_refused() -> None:
    module, args = net()
    captured, plan = made(module, args, THREE)
    with pytest.raises(RuntimeFault, match="SW0812"):
        on_all(plan, captured, module, lambda model: model(*args).backward())


def test_norms_are_those_of_the_single_device() -> None:
    module, args = models.MODELS["gpt"]()
    captured = capture(module, args)
    plan = Plan.named(Graph(captured.graph_text), "stages:2 x data:2", 4)
    batches = equality.micro_batches(args, 3)

    def norm(model: ParallelModule) -> Tensor:
        model.train_step(batches)
        return sw.clip_grad_norm_(model, 0.5)

    for batch in batches:
        (module(*batch)[1] / 3).backward()
    expected = nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    for actual in on_all(plan, captured, module, norm):
        assert torch.allclose(actual, expected, rtol=1e-9)


def test_a_hook_on_one_stage_sees_the_gradient_of_each_batch() -> None:
    module, args = net()
    captured, plan = made(module, args, THREE)
    batches = equality.micro_batches(args, 3)

    def seen(model: ParallelModule) -> list[Tensor]:
        hooked: list[Tensor] = []
        held = [s.data for s in model.shards.held if s.tensor.names[0] == "b.weight"]
        for weight in held:
            weight.register_hook(lambda gradient: hooked.append(gradient.clone()))
        model.train_step(batches)
        return hooked

    gradients = [hooked for hooked in on_all(plan, captured, module, seen) if hooked]
    assert len(gradients) == 1 and len(gradients[0]) == 3
    for gradient, batch in zip(gradients[0], batches, strict=True):
        module.zero_grad()
        (module(*batch) / 3).backward()
        expected = module.b.weight.grad
        assert expected is not None and torch.allclose(gradient, expected, rtol=1e-9)


def test_micro_batches_of_several_shapes_are_pipelines_in_turn() -> None:
    module, args = models.MODELS["gpt"]()
    idx, targets = args
    batches = [args, (idx[:2], targets[:2]), (idx.roll(1, -1), targets)]

    def gradient(_: int, comm: Any) -> list[tuple[str, Tensor]]:
        model = sw.parallelize(module, args, plan="stages:2", comm=comm, cache=False, progress=False)
        model.train_step(batches)
        parameters = [s for s in model.shards.held if s.data.grad is not None]
        return [(s.tensor.names[0], s.data.grad) for s in parameters if s.data.grad is not None]

    actual = run_local(2, gradient)
    for batch in batches:
        (module(*batch)[1] / 3).backward()
    expected = {name: p.grad for name, p in module.named_parameters()}
    for name, grad in (pair for row in actual for pair in row):
        wanted = expected[name]
        assert wanted is not None and torch.allclose(grad, wanted, rtol=1e-8, atol=1e-12), name


def test_a_batch_is_cut_for_the_stages() -> None:
    module, (idx, targets) = models.MODELS["gpt"]()
    whole = (torch.cat([idx, idx.roll(3, -1)]), torch.cat([targets, targets]))

    def gradient(_: int, comm: Any) -> list[tuple[str, Tensor | None]]:
        model = sw.parallelize(
            module, whole, plan="stages:2", micro_batches=4, comm=comm, cache=False, progress=False
        )
        model.train_step(whole)
        return [(s.tensor.names[0], s.data.grad) for s in model.shards.held]

    actual = run_local(2, gradient)
    module(*whole)[1].backward()
    expected = {name: p.grad for name, p in module.named_parameters()}
    seen = {name: grad for row in actual for name, grad in row if grad is not None}
    assert seen.keys() == expected.keys()
    for name, grad in seen.items():
        wanted = expected[name]
        assert wanted is not None and torch.allclose(grad, wanted, rtol=1e-8, atol=1e-12), name


# ---- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "code", "words"),
    [
        ('block "a" "c"\nblock "b" "norm"', "SW0325", "the two form a cycle"),
        ('block "a"\nblock "a"\nblock "b"', "SW0324", "block 0 of 3 has no operators"),
        ('block "a"\nblock "zz"', "SW0302", "no operator is named"),
        ("block\n", "SW0301", "a block without operators"),
        ('block "a"\nblock "b"\nschedule 1f1f', "SW0323", "did you mean `1f1b`"),
    ],
)
def test_cuts_that_cannot_be_are_refused(blocks: str, code: str, words: str) -> None:
    module, args = net()
    with pytest.raises(PlanError) as caught:
        made(module, args, blocks)
    assert code in str(caught.value) and words in str(caught.value)


def test_blocks_in_the_wrong_order_are_refused() -> None:
    _, _, graph = known("gpt")
    text = Plan.named(graph, "stages:2", 2).text
    first, second = re.findall(r"^block .*\n", text, re.MULTILINE)
    with pytest.raises(PlanError, match="in the other order"):
        Plan.parse(graph, text.replace(first + second, second + first))


def test_more_stages_than_operators_are_refused() -> None:
    module, args = net()
    graph = Graph(capture(module, args).graph_text)
    with pytest.raises(PlanError, match="SW0324"):
        Plan.named(graph, "stages:500", 500)
    with pytest.raises(PlanError, match="one axis of stages"):
        Plan.named(graph, "stages:2 x stages:2", 4)


def test_gradients_of_inputs_are_refused() -> None:
    module, (x, y) = net()
    _, plan = made(module, (x.requires_grad_(), y), THREE)
    with pytest.raises(ShardwrightError, match="SW0421"):
        compile(plan)


def test_several_losses_are_refused_on_all_ranks() -> None:
    module, args = models.MODELS["two_losses"]()
    captured = capture(module, args)
    plan = Plan.named(Graph(captured.graph_text), "stages:2", 2)
    with pytest.raises(RuntimeFault, match="SW0708"):
        on_all(plan, captured, module, lambda model: model.train_step([args]))


def test_a_plan_function_cuts_and_orders() -> None:
    model, captured, graph = known("mlp")
    draft = sw.Draft(graph, "mine", 2)
    operators = graph.operators
    half = len(operators) // 2
    for at, operator in enumerate(operators):
        draft.single(operator)
        [part] = draft.trans(operator, "replicate", 1)
        draft.assign(part, int(at >= half))
    draft.block(operators[:half])
    draft.block(operators[half:])
    draft.schedule("gpipe")
    assert_equal(draft.finish(), captured, model, 3)
