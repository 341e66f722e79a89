"""An optimizer's state that is on the host between steps: the same training, and where the state is when."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

import models
import shardwright as sw
from shardwright import Draft, Graph, Plan
from shardwright._core import compile, verify
from shardwright.capture import capture
from shardwright.errors import CheckError, CompileError, PlanError, RuntimeFault
from shardwright.runtime import ParallelModule, run_local
from test_offload import bundle, check, model, on_ranks, plan

torch.set_num_threads(1)

NAMED = [
    ("offload:state", 1),
    ("data x offload:state", 3),
    ("zero1 x offload:state", 2),
    ("zero3:2 x megatron:2 x offload:state", 4),
    ("megatron x recompute x offload:state", 2),
]
LINES = {
    "all": 'offload state "*"',
    "but one": 'offload state "*" but "wte.weight"',
    "layers": 'offload state "h.*"',
    "some, beside what is kept": 'offload state "*.bias"\noffload "h.*"',
    "after all": 'use "data:4 x offload:state"\noffload state none\noffload state "h.1.*"',
}
STEPS = 4


@pytest.mark.parametrize(("name", "devices"), NAMED)
@pytest.mark.parametrize("which", ["gpt", "llama"])
def test_training_is_the_same(which: str, name: str, devices: int) -> None:
    compiled = check(which, Plan.named(model(which)[2], name, devices))
    assert json.loads(compiled.files["program.json"])["state_on_host"]


def test_of_a_model_without_layers_too() -> None:
    check("t5", Plan.named(model("t5")[2], "zero3 x offload:state", 2))


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_any_parameters(lines: str) -> None:
    mixed = plan(lines)
    assert mixed.state_on_host
    for text in (mixed.text, mixed.folded):
        assert Plan.parse(model("gpt")[2], text).text == mixed.text
    check("gpt", mixed)


def test_a_function_says_it_too() -> None:
    graph = model("gpt")[2]
    draft = Draft(graph, "mine", 1)
    for op in graph.operators:
        draft.place(op, [part.index for part in draft.trans(op, "replicate", 1)])
    draft.offload_state("ln_f.*")
    assert draft.finish().state_on_host == ["ln_f.bias", "ln_f.weight"]


def test_random_plans_draw_it() -> None:
    drawn = [bool(Plan.random(model("gpt")[2], 4, seed).state_on_host) for seed in range(12)]
    assert any(drawn) and not all(drawn)


def test_what_names_nothing_is_refused() -> None:
    for lines, code in [('offload state "nothing.*"', "SW0302"), ("offload state wte.weight", "SW0301")]:
        with pytest.raises(PlanError, match=code):
            plan(lines)


def trained(step: Callable[[ParallelModule, Optimizer], Any], name: str, devices: int) -> list[Any]:
    """What `step` gives on each rank, and the parameters afterwards."""

    def body(module: ParallelModule) -> Any:
        optimizer = sw.optimizer(module, torch.optim.AdamW, lr=1e-2)
        stepped = [step(module, optimizer) for _ in range(STEPS)]
        return stepped, [x.detach().clone() for x in module.parameters()]

    return on_ranks("gpt", Plan.named(model("gpt")[2], name, devices), body)


def states(optimizer: Optimizer) -> list[Tensor]:
    return [x for state in optimizer.state.values() for x in state.values() if x.dim() > 0]


def test_it_is_here_in_the_step_and_away_between_steps() -> None:
    def step(module: ParallelModule, optimizer: Optimizer) -> list[int]:
        host, counts = module.worker.host, []
        count = lambda *_: counts.append(sum(map(host.has, states(optimizer))))  # noqa: E731
        hook = optimizer.register_step_pre_hook(count)
        count()
        module.train_step([model("gpt")[0][1]])
        sw.clip_grad_norm_(module, 1.0)
        optimizer.step()
        hook.remove()
        count()
        assert len(host.copies()) == counts[2]
        return counts

    for counted, _ in trained(step, "zero1 x offload:state", 2):
        assert counted[0][:2] == [0, 0] and counted[0][2] > 10
        assert all(counts == [counted[0][2], 0, counted[0][2]] for counts in counted[1:])


@pytest.mark.parametrize("native", [True, False])
def test_bits_are_those_of_a_plan_without_it(native: bool) -> None:
    def body(module: ParallelModule) -> list[Tensor]:
        made = (
            torch.optim.AdamW(module.parameters(), lr=1e-2, foreach=True)
            if native
            else sw.optimizer(module, torch.optim.SGD, lr=1e-2, momentum=0.9)
        )
        for _ in range(STEPS):
            module.train_step([model("gpt")[0][1]])
            made.step()
            made.zero_grad()
        assert ("offload" in module.program.plan) == all(map(module.worker.host.has, states(made)))
        return [x.detach().clone() for x in module.parameters()]

    plain, away = (
        on_ranks("gpt", Plan.named(model("gpt")[2], name, 2), body)
        for name in ("zero3", "zero3 x offload:state")
    )
    for ours, theirs in zip(plain, away, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_checkpoint_has_it(tmp_path: Path) -> None:
    """Trained on by another plan, as if it had not been interrupted."""
    (_, args, _), *_ = model("gpt")

    def steps(module: ParallelModule, optimizer: Optimizer, count: int) -> list[Tensor]:
        for _ in range(count):
            module.train_step([args])
            optimizer.step()
            optimizer.zero_grad()
        return [x.detach().clone() for x in module.parameters()]

    def first(module: ParallelModule) -> list[Tensor]:
        optimizer = sw.optimizer(module, torch.optim.AdamW, lr=1e-2)
        steps(module, optimizer, 2)
        sw.save(module, optimizer, tmp_path / "at")
        return steps(module, optimizer, 2)

    def second(module: ParallelModule) -> list[Tensor]:
        optimizer = sw.optimizer(module, torch.optim.AdamW, lr=1e-2)
        sw.load(module, optimizer, tmp_path / "at")
        values = steps(module, optimizer, 2)
        assert all(map(module.worker.host.has, states(optimizer)))
        return values

    away = Plan.named(model("gpt")[2], "zero3 x offload:state", 2)
    whole, resumed = on_ranks("gpt", away, first), on_ranks("gpt", away, second)
    for ours, theirs in zip(whole, resumed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_step_that_is_left_out_leaves_it_there() -> None:
    """With float16: the first gradients overflow, and the scale goes down until they do not."""
    module, args = models.mlp()
    module, args = module.float(), tuple(x.float() for x in args)

    def rank(_: int, comm: Any) -> list[int]:
        model = sw.parallelize(
            module, args, plan="data x offload:state", precision="fp16", cache=False, comm=comm
        )
        optimizer, counts = sw.optimizer(model, torch.optim.AdamW, lr=1e-3), []
        for big in (1.0, 1e30, 1.0):
            model.train_step([tuple(x * big for x in args)])
            optimizer.step()
            optimizer.zero_grad()
            counts.append(sum(map(model.worker.host.has, states(optimizer))))
        return counts

    for counts in run_local(2, rank):
        assert counts[0] > 0 and counts == counts[:1] * 3


def test_a_host_without_room_is_told() -> None:
    def step(module: ParallelModule, optimizer: Optimizer) -> None:
        module.worker.host.empty = lambda _: torch.empty(1 << 60, dtype=torch.uint8)  # type: ignore[method-assign]
        module.train_step([model("gpt")[0][1]])
        optimizer.step()

    with pytest.raises(RuntimeFault, match="SW0774"):
        trained(step, "data x offload:state", 2)


def test_what_is_told_of_it() -> None:
    plain, away = (
        compile(Plan.named(model("gpt")[2], name, 2)).memory()[0]
        for name in ("data x recompute", "data x recompute x offload:state")
    )
    assert away.offloaded == away.most["optimizer"] == plain.most["optimizer"] > 0
    assert away.total < plain.total
    small, args = models.mlp(batch=2)
    [held] = compile(Plan.named(Graph(capture(small, args).graph_text), "offload:state", 1)).memory()
    # Nothing in forward or backward is as large as the state.
    assert held.at == "the optimizer's step" and held.peak["optimizer"] == held.offloaded


def test_state_of_something_else_is_refused() -> None:
    named_plan = plan('offload state "ln_f.*"', "data", 2)
    made = bundle(compile(named_plan), named_plan, model("gpt")[1])
    text, tables = model("gpt")[1].graph_text, json.loads(made.files["program.json"])
    one, other = tables["state_on_host"]
    value = next(tensor["id"] for tensor in tables["tensors"] if tensor["kind"] != "param")
    for wrong, fault, code in [
        ([one, one], CheckError, "SW0502"),
        ([other, one], CheckError, "SW0502"),
        ([value], CheckError, "SW0502"),
        ([100000], CompileError, "SW0602"),
    ]:
        changed = json.dumps({**tables, "state_on_host": wrong})
        with pytest.raises(fault, match=code):
            verify(text, {**made.files, "program.json": changed})
