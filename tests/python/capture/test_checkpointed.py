"""Models that use `torch.utils.checkpoint`: a plan that says nothing else recomputes what they do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import equality
import live
import models
import shardwright as sw
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import Compiled, compile
from shardwright.capture import Captured, capture

torch.set_num_threads(1)

PLANS = [("replicate", 1), ("data", 3), ("megatron", 2), ("data:2 x megatron:2", 4)]


class Under(nn.Module):
    """A module under a checkpoint."""

    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def gpt(reentrant: bool, dropout: float = 0.0, **options: int) -> models.Model:
    """Each block under a checkpoint, and the MLP of the last under another one inside of it."""
    module, args = models.gpt(dropout=dropout, **options)
    module.h[-1].mlp = Under(module.h[-1].mlp, reentrant)
    module.h = nn.ModuleList(Under(block, reentrant) for block in module.h)
    return module, args


def resnet(reentrant: bool) -> models.Model:
    module, args = models.MODELS["resnet"]()
    module.layer1 = Under(module.layer1, reentrant)
    return module, args


def captured(module: nn.Module, args: Any) -> tuple[Captured, Graph]:
    of_module = capture(module, args)
    assert of_module.verified
    return of_module, Graph(of_module.graph_text)


def bundle(compiled: Compiled, plan: Plan, captured: Captured) -> Bundle:
    return Bundle(dict(compiled.files), compiled.digest, plan.name, plan.devices, captured, "", "")


def again(compiled: Compiled) -> bool:
    """Whether a backward of the program calls what forward did not keep."""
    return any("recompute=True" in text for text in compiled.files.values())


# ---- what the graph says ---------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self, run: Callable[..., Tensor]) -> None:
        super().__init__()
        self.linear, self.run = nn.Linear(4, 4), run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.linear, x).sum()


def marks(run: Callable[..., Tensor]) -> list[str]:
    """Each operator with the spans that it is in."""
    of_small, _ = captured(Small(run), (torch.randn(3, 4, requires_grad=True),))
    ops = [line.split(" = aten.")[1] for line in of_small.graph_text.splitlines() if line.startswith("op ")]
    return [f"{op.split('.')[0]}{op.partition(' span ')[2]}" for op in ops]


@pytest.mark.parametrize("reentrant", [True, False])
def test_each_checkpoint_is_a_span(reentrant: bool) -> None:
    def run(linear: nn.Module, x: Tensor) -> Tensor:
        def inner(t: Tensor) -> Tensor:
            return t.cos()

        def outer(t: Tensor) -> Tensor:
            return checkpoint(inner, linear(t).sin(), use_reentrant=reentrant).tanh()

        x = checkpoint(outer, x.exp(), use_reentrant=reentrant)
        return checkpoint(outer, x, use_reentrant=reentrant)

    once = ["linear[0]", "sin[0]", "cos[0, 1]", "tanh[0]"]
    twice = ["linear[2]", "sin[2]", "cos[2, 3]", "tanh[2]"]
    assert marks(run) == ["exp", *once, *twice, "sum"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_without_gradients_nothing_is_computed_again(reentrant: bool) -> None:
    def run(linear: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = checkpoint(torch.sin, x, use_reentrant=reentrant)
        return linear(x) + y

    assert marks(run) == ["sin", "linear", "add", "sum"]


def test_what_a_policy_keeps_is_in_no_span() -> None:
    """It is asked about what operators call: `addmm`, for a linear layer."""

    def policy(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    def run(linear: nn.Module, x: Tensor) -> Tensor:
        def inner(t: Tensor) -> Tensor:
            contexts = functools.partial(create_selective_checkpoint_contexts, policy)
            return checkpoint(lambda t: linear(t).sin(), t, use_reentrant=False, context_fn=contexts).cos()

        return checkpoint(inner, x, use_reentrant=False)

    assert marks(run) == ["linear[0]", "sin[0, 1]", "cos[0]", "sum"]


# ---- what programs do ------------------------------------------------------------------------


@functools.cache
def known(name: str, reentrant: bool) -> tuple[Any, Any, Captured, Graph, equality.Result]:
    module, args = {"gpt": gpt, "resnet": resnet}[name](reentrant)
    return module, args, *captured(module, args), equality.reference(module, args)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_every_plan_recomputes_what_the_model_does(plan: str, devices: int, reentrant: bool) -> None:
    module, args, of_gpt, graph, expected = known("gpt", reentrant)
    named = Plan.named(graph, plan, devices)
    paths = [{op.path.split(".inner")[0] for op in span} for span in named.recompute]
    assert paths == [{"h.0"}, {"h.1"}, {"h.1"}]
    compiled = compile(named)
    assert again(compiled)
    equality.assert_equal(equality.run(bundle(compiled, named, of_gpt), module, args), expected, plan)


@pytest.mark.parametrize("seed", range(6))
def test_random_plans_do_where_they_say_nothing_else(seed: int) -> None:
    module, args, of_gpt, graph, expected = known("gpt", False)
    plan = Plan.random(graph, 2, seed)
    assert again(compile(plan))
    equality.assert_equal(
        equality.run(bundle(compile(plan), plan, of_gpt), module, args), expected, str(seed)
    )


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("plan", ["data:2", "megatron:2"])
def test_buffers_are_updated_as_often_as_by_the_single_device(plan: str, reentrant: bool) -> None:
    module, args, of_resnet, graph, expected = known("resnet", reentrant)
    named = Plan.named(graph, plan, 2)
    compiled = compile(named)
    assert again(compiled)
    equality.assert_equal(equality.run(bundle(compiled, named, of_resnet), module, args), expected, plan)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_masks_are_those_of_forward(plan: str, devices: int, reentrant: bool) -> None:
    module, args = gpt(reentrant, dropout=0.2)
    of_module, graph = captured(module, args)
    named = Plan.named(graph, plan, devices)
    torch.manual_seed(11)
    expected = equality.reference(module, args)
    ours = equality.run(
        bundle(compile(named), named, of_module), module, args, options=equality.single_device(11)
    )
    equality.assert_equal(ours, expected, plan)


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_of_transformers(reentrant: bool) -> None:
    module, args, kwargs = zoo.llama()
    with zoo.widened():
        # A backward is not widened, so the single device computes nothing in it.
        expected = equality.reference(module, args, kwargs=kwargs)
        module.gradient_checkpointing_enable({"use_reentrant": reentrant})
        captured = capture(module, args, kwargs)
    graph = Graph(captured.graph_text)
    for plan in ("data:2", "megatron:2"):
        named = Plan.named(graph, plan, 2)
        compiled = compile(named)
        assert again(compiled)
        ours = equality.run(bundle(compiled, named, captured), module, args, kwargs=kwargs)
        equality.assert_equal(ours, expected, plan)
        assert captured.verified and "\nrecompute model\n" in named.text


@pytest.mark.slow
def test_less_is_kept() -> None:
    module, args = gpt(False, depth=6, batch=64)
    of_module, graph = captured(module, args)

    def peak(plan: str) -> int:
        compiled = compile(Plan.named(graph, plan, 2))
        return live.peak(compiled, module, of_module, lambda it: it(*args)[1].backward())

    sizes = peak("data"), peak("data x recompute:none")
    assert sizes[0] < 0.6 * sizes[1], sizes


# ---- a plan decides --------------------------------------------------------------------------


def spans(lines: str, use: str = "data:2") -> list[set[str]]:
    graph = known("gpt", False)[3]
    plan = Plan.parse(graph, f'shardwright-plan 1\ndevices 2\nuse "{use}"\n{lines}\n')
    for text in (plan.text, plan.folded):
        assert names(Plan.parse(graph, text)) == names(plan)
    return [{op.path.split(".")[1] for op in span} for span in plan.recompute]


def names(plan: Plan) -> list[list[str]]:
    return [[op.name for op in span] for span in plan.recompute]


@pytest.mark.parametrize(
    ("lines", "use", "expected"),
    [
        ("", "data:2", [{"0"}, {"1"}, {"1"}]),
        ("recompute none", "data:2", []),
        ("", "data x recompute:none", []),
        ('recompute "h.1"', "data:2", [{"1"}]),
        ("recompute model", "data:2", [{"0"}, {"1"}, {"1"}]),
        ('recompute model\nrecompute "h.0.inner.attn"', "data:2", [{"0"}, {"0"}, {"1"}, {"1"}]),
        ("", "data x recompute", [{"0"}, {"1"}]),
    ],
)
def test_a_plan_that_says_what_is_recomputed_decides(lines: str, use: str, expected: list[set[str]]) -> None:
    assert spans(lines, use) == expected


@pytest.mark.parametrize("given", [[], ["h.0"]])
def test_so_does_a_function(given: list[str]) -> None:
    graph = known("gpt", False)[3]
    draft = sw.Draft(graph, "mine", 1)
    for op in graph.operators:
        draft.single(op)
        draft.place(op, [0])
    draft.recompute([op for op in graph.operators for path in given if op.path.startswith(path)])
    assert len(draft.finish().recompute) == len(given)


@pytest.mark.slow
def test_a_plan_that_follows_the_model_does_so_for_another_call() -> None:
    """Transformers checkpoint in training only: a plan made for evaluation recomputes when that begins."""
    module, args, kwargs = zoo.llama()
    module.gradient_checkpointing_enable()
    training = Graph(capture(module, args, kwargs).graph_text)
    evaluating = Graph(capture(module.eval(), args, kwargs).graph_text)
    plan = Plan.named(evaluating, "data", 2)
    assert plan.recompute == [] and len(plan.transferred(training).recompute) == 2
    assert Plan.named(training, "data", 2).transferred(evaluating).recompute == []
    none = Plan.named(training, "data x recompute:none", 2)
    assert none.transferred(training).recompute == []
