"""Optimizers that look at whole matrices, under plans that divide parameters among the ranks."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import models
import shardwright as sw
from shardwright import Draft, Graph, Plan, RuntimeFault
from shardwright._core import compile
from shardwright.capture import Captured, capture
from shardwright.errors import PlanError
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import sources

torch.set_num_threads(1)

STEPS, MICRO = 3, 3


class Lamb(Optimizer):
    """The trust ratio is of the whole tensor."""

    def __init__(self, params: Any, lr: float = 1e-2, weight_decay: float = 0.1):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                mean = state.setdefault("mean", torch.zeros_like(p)).mul_(0.9).add_(p.grad, alpha=0.1)
                square = (
                    state.setdefault("square", torch.zeros_like(p)).mul_(0.99).add_(p.grad**2, alpha=0.01)
                )
                update = mean / (square.sqrt() + 1e-6) + group["weight_decay"] * p
                p.add_(update, alpha=-group["lr"] * float(p.norm() / update.norm()))
        return loss


class Anchored(Optimizer):
    """Remembers, when it is made, what it is given, and draws it back there by its norm."""

    def __init__(self, params: Any, lr: float = 1e-2):
        super().__init__(params, {"lr": lr})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["start"] = p.detach().clone()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    away = p - self.state[p]["start"]
                    p.sub_(group["lr"] * p.grad / p.grad.norm() + 0.1 * away.norm() * away)


Make = Callable[[Any], Optimizer]


def adafactor(model: Any) -> Optimizer:
    return _made(model, torch.optim.Adafactor, lr=1e-2, weight_decay=0.1)


def lamb(model: Any) -> Optimizer:
    return _made(model, Lamb)


def anchored(model: Any) -> Optimizer:
    return _made(model, Anchored)


def muon(model: Any) -> Optimizer:
    """Over the matrices; the others are left alone."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and n.startswith("h.")]
    if isinstance(model, ParallelModule):
        return sw.optimizer(model, torch.optim.Muon, matrices, lr=1e-2, weight_decay=0.1)
    return torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1)


def _made(model: Any, cls: Any, **options: Any) -> Optimizer:
    if isinstance(model, ParallelModule):
        return sw.optimizer(model, cls, **options)
    made: Optimizer = cls(model.parameters(), **options)
    return made


@functools.cache
def gpt() -> tuple[nn.Module, tuple[Any, ...], Captured, Graph]:
    # Without biases: that of keys has no gradient but rounding, which these optimizers make large.
    module, args = models.gpt(bias=False)
    captured = capture(module, args)
    return module, args, captured, Graph(captured.graph_text)


def planned(plan: str | Plan, devices: int) -> Plan:
    return plan if isinstance(plan, Plan) else Plan.named(gpt()[3], plan, devices)


def on_ranks(plan: str | Plan, devices: int, body: Callable[[ParallelModule], Any]) -> list[Any]:
    module, _, captured, _ = gpt()
    compiled = compile(planned(plan, devices))
    program, values = load_program(dict(compiled.files)), sources(module, captured)
    return run_local(devices, lambda _, comm: body(ParallelModule(program, comm, values, captured)))


def batches(steps: int = STEPS) -> list[list[tuple[Tensor, ...]]]:
    args = gpt()[1]
    return [
        [tuple(x.roll(step * MICRO + at, 0) for x in args) for at in range(MICRO)] for step in range(steps)
    ]


def train(model: Any, optimizer: Optimizer, given: Any) -> None:
    """Micro-batches, with clipping."""
    for micro in given:
        model.zero_grad()
        if isinstance(model, ParallelModule):
            model.train_step(micro)
            sw.clip_grad_norm_(model, 0.5)
        else:
            for one in micro:
                (model(*one)[1] / len(micro)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


@functools.cache
def alone(make: Make) -> dict[str, Tensor]:
    module = copy.deepcopy(gpt()[0])
    train(module, make(module), batches())
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}"
        )


PLANS = [
    ("zero1 x whole-updates", 2),
    ("zero2 x whole-updates", 2),
    ("zero3:2 x whole-updates", 2),
    ("megatron:2 x whole-updates", 2),
    ("zero3:2 x megatron:2 x whole-updates", 4),
    ("data:2 x zero3:2 x whole-updates", 4),
    ("zero3:3 x whole-updates", 3),
    ("coshard:2 x whole-updates", 1),
]


@pytest.mark.parametrize("make", [muon, adafactor, lamb, anchored])
@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_steps_equal_the_single_device(plan: str, devices: int, make: Make) -> None:
    def body(model: ParallelModule) -> dict[str, Tensor]:
        train(model, make(model), batches())
        return model.full_state_dict()

    for actual in on_ranks(plan, devices, body):
        same(actual, alone(make))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_plans(seed: int) -> None:
    """One of three says it of some parameters; here all do of all that it leaves out."""
    text = Plan.random(gpt()[3], 4, seed).text + 'param "*": update whole\n'
    plan = Plan.parse(gpt()[3], text)

    def body(model: ParallelModule) -> dict[str, Tensor]:
        train(model, lamb(model), batches())
        return model.full_state_dict()

    for actual in on_ranks(plan, 4, body):
        same(actual, alone(lamb))


MOVES = [
    (("zero3:4 x whole-updates", 4), ("megatron:2 x whole-updates", 2)),
    (("data:2 x zero1:2 x whole-updates", 4), ("replicate", 1)),
    (("replicate", 1), ("zero3:2 x megatron:2 x whole-updates", 4)),
    (("coshard:2 x whole-updates", 1), ("zero2:3 x whole-updates", 3)),
]


@pytest.mark.parametrize("make", [muon, adafactor, lamb])
@pytest.mark.parametrize(("before", "after"), MOVES)
def test_a_run_is_resumed_under_another_plan(before: Any, after: Any, make: Make, tmp_path: Path) -> None:
    def first(model: ParallelModule) -> None:
        optimizer = make(model)
        train(model, optimizer, batches()[:2])
        sw.save(model, optimizer, tmp_path)

    def second(model: ParallelModule) -> dict[str, Tensor]:
        optimizer = make(model)
        sw.load(model, optimizer, tmp_path)
        train(model, optimizer, batches()[2:])
        return model.full_state_dict()

    on_ranks(*before, first)
    for actual in on_ranks(*after, second):
        same(actual, alone(make))


def test_the_single_device_goes_on_with_its_checkpoint(tmp_path: Path) -> None:
    def first(model: ParallelModule) -> None:
        optimizer = lamb(model)
        train(model, optimizer, batches()[:2])
        sw.save(model, optimizer, tmp_path)

    on_ranks("zero3:2 x whole-updates", 2, first)
    module = copy.deepcopy(gpt()[0])
    optimizer = lamb(module)
    sw.load(module, optimizer, tmp_path)
    train(module, optimizer, batches()[2:])
    same(module.state_dict(), alone(lamb))


def test_each_whole_state_is_on_one_rank_and_they_share_evenly() -> None:
    def body(model: ParallelModule) -> tuple[int, int, list[int]]:
        optimizer = lamb(model)
        train(model, optimizer, batches()[:1])
        states = [s["mean"] for s in optimizer.state.values()]
        here = [p for group in optimizer.param_groups for p in group["params"]]
        assert all(p.numel() and any(p is shard.data for shard in model.shards.held) for p in here)
        return sum(s.numel() for s in states), len(states), [p.numel() for p in here]

    every = sum(p.numel() for p in gpt()[0].parameters())
    largest = max(p.numel() for p in gpt()[0].parameters())
    actual = on_ranks("zero3:4 x whole-updates", 4, body)
    assert sum(size for size, _, _ in actual) == every
    assert max(size for size, _, _ in actual) <= every / 4 + largest
    assert sum(count for _, count, _ in actual) == len(list(gpt()[0].parameters()))


def test_what_has_no_gradient_is_left_alone() -> None:
    """A step without one neither decays a parameter nor makes its state, as on one device."""

    def loop(model: Any) -> dict[str, Tensor]:
        optimizer = lamb(model)
        for name, p in model.named_parameters():
            p.requires_grad_("mlp" not in name)
        train(model, optimizer, batches())
        return model.full_state_dict() if isinstance(model, ParallelModule) else dict(model.state_dict())

    expected = loop(copy.deepcopy(gpt()[0]))
    assert torch.equal(expected["h.0.mlp.c_fc.weight"], gpt()[0].state_dict()["h.0.mlp.c_fc.weight"])
    for actual in on_ranks("zero3:2 x whole-updates", 2, loop):
        same(actual, expected)


def test_a_closure_and_a_scheduler() -> None:
    def loop(model: Any) -> dict[str, Tensor]:
        optimizer = lamb(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for micro in batches():

            def closure(one: Any = micro[0]) -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = model(*one)[1]
                loss.backward()
                return loss

            assert optimizer.step(closure).detach() > 0
            schedule.step()
        return model.full_state_dict() if isinstance(model, ParallelModule) else dict(model.state_dict())

    expected = loop(copy.deepcopy(gpt()[0]))
    for actual in on_ranks("zero3:2 x whole-updates", 2, loop):
        same(actual, expected)


def test_a_scaled_loss_and_an_overflow() -> None:
    def loop(model: Any) -> dict[str, Tensor]:
        optimizer = lamb(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for at, micro in enumerate(batches()):
            optimizer.zero_grad()
            scaler.scale(model(*micro[0])[1]).backward()
            if at == 1 and (not isinstance(model, ParallelModule) or model.comm.rank == 1):
                next(iter(model.parameters())).grad.view(-1)[0] = float("inf")
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return model.full_state_dict() if isinstance(model, ParallelModule) else dict(model.state_dict())

    expected = loop(copy.deepcopy(gpt()[0]))
    for actual in on_ranks("zero3:2 x whole-updates", 2, loop):
        same(actual, expected)


def test_groups_and_one_that_is_added_later() -> None:
    def loop(model: Any) -> dict[str, Tensor]:
        named = list(model.named_parameters())
        first = [{"params": [p for n, p in named if n.startswith("h.0")], "lr": 0.02}]
        later = [p for n, p in named if n.startswith("h.1")]
        parallel = isinstance(model, ParallelModule)
        optimizer = sw.optimizer(model, Lamb, first) if parallel else Lamb(first)
        train(model, optimizer, batches()[:1])
        optimizer.add_param_group({"params": later})
        train(model, optimizer, batches()[1:])
        return model.full_state_dict() if parallel else dict(model.state_dict())

    expected = loop(copy.deepcopy(gpt()[0]))
    for actual in on_ranks("zero3:2 x megatron:2 x whole-updates", 4, loop):
        same(actual, expected)


def test_elementwise_optimizers_step_parts_as_before() -> None:
    def body(model: ParallelModule) -> list[Any]:
        optimizer = sw.optimizer(model, torch.optim.AdamW)
        train(model, optimizer, batches()[:1])
        return [p.shape == state["exp_avg"].shape for p, state in optimizer.state.items()]

    assert all(all(actual) for actual in on_ranks("zero3:2 x whole-updates", 2, body))


def test_some_parameters_by_name() -> None:
    lines = 'use "zero3:2"\nparam "h.0.*": update whole\nparam "h.1.mlp.*": over 2, update whole'
    plan = Plan.parse(gpt()[3], f'shardwright-plan 1\ndevices 2\n{lines}\nparam "h.0.ln_1.*": update part\n')
    assert 'param "h.*.mlp.c_fc.weight": over 2, gather pass, reduce each, update whole' in plan.text
    assert 'param "h.*.ln_1.weight": over 2, gather pass, reduce each\n' in plan.text
    assert 'param "h.0.ln_2.weight": over 2, gather pass, reduce each, update whole\n' in plan.text
    assert Plan.parse(gpt()[3], plan.text).text == plan.text
    names = ["h.0.attn.*", "h.0.mlp.*", "h.1.mlp.*"]

    def body(model: ParallelModule) -> list[str]:
        sw.optimizer(model, Lamb, names)
        return [
            refusal(lambda name=name: sw.optimizer(model, Lamb, [name])) for name in ("h.0.ln_1.*", "wte.*")
        ]

    for ln, wte in on_ranks(plan, 2, body):
        assert "SW0715" in ln and "SW0715" in wte


def refusal(action: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeFault) as caught:
        action()
    return str(caught.value)


def test_a_refusal_says_what_to_add_to_the_plan() -> None:
    def body(model: ParallelModule) -> str:
        return refusal(lambda: sw.optimizer(model, Lamb))

    said = on_ranks("zero3:2", 2, body)[0]
    assert '" x whole-updates" behind its name or the line `param "wte.weight": update whole`' in said


def test_only_the_optimizers_that_shardwright_makes_are_given_wholes() -> None:
    def body(model: ParallelModule) -> str:
        optimizer = Lamb(model.parameters())
        model.train_step(batches()[0])
        return refusal(optimizer.step)

    said = on_ranks("zero3:2 x whole-updates", 2, body)[0]
    assert "SW0715" in said and "sw.optimizer(model, torch.optim.Lamb, ...)" in said


def test_a_plan_function_says_it() -> None:
    draft = Draft(gpt()[3], "mine", 2)
    for operator in gpt()[3].operators:
        draft.trans(operator, "replicate", 2)
        draft.place(operator, [0, 1])
    draft.param("h.*", "over 2, update whole")
    assert 'param "h.*.ln_1.weight": over 2, gather pass, reduce each, update whole' in draft.finish().text


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('param "h.*": update all', "SW0301"),
        ('param "h.*": update', "SW0301"),
        ('param "h.*": over 2, updated whole', "SW0301"),
        ('param "h.*": update whole, gather step', "SW0301"),
        ('param "nothing.*": update whole', "SW0302"),
    ],
)
def test_lines_that_say_nothing(line: str, code: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.parse(gpt()[3], f'shardwright-plan 1\ndevices 2\nuse "data"\n{line}\n')
    assert code in str(caught.value)
