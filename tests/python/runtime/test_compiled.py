"""Local code compiled by `torch.compile`: what it computes stays, layers share it, and what cannot be
compiled runs as it was emitted."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import equality
import models
import shardwright as sw
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture
from shardwright.report.progress import Progress
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.runtime.execution.local_code import LocalCode

torch.set_num_threads(1)

MODELS: dict[str, Callable[[], zoo.Model]] = {
    "gpt": lambda: (*models.gpt(), {}),
    "dropout": lambda: (*models.gpt(dropout=0.2), {}),
    "llama": zoo.llama,
    "t5": zoo.t5,
}
PLANS = [
    "data:2",
    "megatron:2",
    "zero3:2",
    "data:2 x recompute",
    "megatron:2 x recompute:selective",
    "zero3:2 x recompute",
]
PAIRS = [(name, plan) for name in ("gpt", "llama") for plan in PLANS]
PAIRS += [("t5", "megatron:2"), ("dropout", "megatron:2 x recompute:selective"), ("dropout", "zero3:2")]
# Compiling in earnest takes a while.
EARNEST = [("dropout", "megatron:2"), ("llama", "zero3:2 x recompute")]


@functools.cache
def known(name: str) -> tuple[zoo.Model, Captured, equality.Result]:
    module, args, kwargs = model = MODELS[name]()
    with zoo.widened():
        captured = capture(module, args, kwargs)
        torch.manual_seed(11)
        expected = equality.reference(module, args, kwargs=kwargs)
    return model, captured, expected


def bundle_of(name: str, plan: str, devices: int = 2) -> Bundle:
    captured = known(name)[1]
    compiled = compile(Plan.named(Graph(captured.graph_text), plan, devices))
    return Bundle(dict(compiled.files), compiled.digest, plan, devices, captured, "", "")


def ran(name: str, plan: str, backend: str) -> tuple[equality.Result, list[LocalCode]]:
    """The result of a compiled run, and what the ranks compiled."""
    (module, args, kwargs), _, _ = known(name)
    made: list[LocalCode] = []

    def options() -> dict[str, Any]:
        made.append(LocalCode(Progress(False), backend))
        return {**equality.single_device(11)(), "local": made[-1]}

    actual = equality.run(bundle_of(name, plan), module, args, kwargs=kwargs, options=options)
    return actual, made


def check(name: str, plan: str, backend: str) -> None:
    actual, made = ran(name, plan, backend)
    assert all(local.as_emitted == {} and local._begun for local in made)
    equality.assert_equal(actual, known(name)[2], f"{name}, {plan}")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plan"), PAIRS)
def test_the_result_is_the_same(name: str, plan: str) -> None:
    check(name, plan, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["stages:2", "stages:2 x recompute x zb-h1"])
def test_in_a_pipeline_too(plan: str) -> None:
    """Of a backward in two halves, too, of which the first one does what is compiled."""
    module, args = models.gpt()
    batches, made = equality.micro_batches(args, 3), bundle_of("gpt", plan)
    actual = equality.run_steps(
        made, module, batches, options=lambda: {"local": LocalCode(Progress(False), "aot_eager")}
    )
    equality.assert_equal(actual, equality.steps_reference(module, batches), plan)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plan"), EARNEST)
def test_the_result_is_the_same_in_earnest(name: str, plan: str) -> None:
    check(name, plan, "inductor")


@pytest.mark.slow
def test_layers_share_what_is_compiled() -> None:
    """Also where their random operators have other numbers."""
    module, args = models.gpt(depth=8, dropout=0.1)
    captured = capture(module, args)
    compiled = compile(Plan.named(Graph(captured.graph_text), "megatron", 2))
    program = load_program(dict(compiled.files), digest=compiled.digest, world=2)
    values = equality.sources(module, captured)
    torch._dynamo.reset()
    counters.clear()

    def rank(_: int, comm: Any) -> LocalCode:
        local = LocalCode(Progress(False), "aot_eager")
        model = ParallelModule(program, comm, values, captured, local=local)
        for _ in range(2):
            model(*args)[1].backward()
        return local

    locals_ = run_local(2, rank)
    functions, calls = len(locals_[0]._begun), len(program.role(0).grads)
    # Of each rank one, and one more where the first layer needs other gradients than the others do.
    assert counters["stats"]["unique_graphs"] <= 2 * functions + 2 and functions < calls / 2
    assert all(local.as_emitted == {} for local in locals_)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x))).mean()


def parallel(module: nn.Module, *args: Tensor, **options: Any) -> ParallelModule:
    def rank(_: int, comm: Any) -> ParallelModule:
        return sw.parallelize(module, args, plan="replicate", comm=comm, cache=False, **options)

    return run_local(1, rank)[0]


def test_what_cannot_be_compiled_runs_as_it_was_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Small(), torch.randn(4, 8)
    expected = module(x)

    def refuse(*_: Any, **__: Any) -> Any:
        raise ValueError("this machine has no compiler\nnor anything else")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", refuse)
    model = parallel(module, x, compile=True)
    refusal = "`small` .* cannot be compiled, .* this machine has no compiler"
    with pytest.warns(UserWarning, match=refusal) as warned:
        torch.testing.assert_close(model(x), expected)
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x).backward()


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> list[LocalCode]:
    """`parallelize(compile=True)`, without a compiler of C++; and what was compiled."""
    made: list[LocalCode] = []

    class Quick(LocalCode):
        def __init__(self, progress: Progress, backend: str = "aot_eager"):
            super().__init__(progress, "aot_eager")
            made.append(self)

        def another(self) -> LocalCode:
            return Quick(self._progress)

    monkeypatch.setattr("shardwright.api.LocalCode", Quick)
    return made


@pytest.mark.slow
def test_other_modes_shapes_and_micro_batches(quickly: list[LocalCode]) -> None:
    """With keyed random numbers, which are others in each step."""
    module, (idx, targets) = models.gpt(dropout=0.2, depth=1)

    def losses(compile: bool) -> list[Tensor]:
        model = parallel(module, idx, targets, compile=compile, outputs="all")
        adamw = sw.optimizer(model, torch.optim.AdamW, lr=1e-2)
        values = []
        for _ in range(2):
            loss = model(idx, targets)[1]
            loss.backward()
            adamw.step()
            values.append(loss.detach())
        model.eval()
        with torch.no_grad():
            values += [model(idx, targets)[0], model(idx[:3], targets[:3])[1]]
        model.train()
        values += [model(idx, targets)[1].detach()]
        return values

    torch.testing.assert_close(losses(True), losses(False), rtol=1e-9, atol=1e-12)
    assert len(quickly) == 3 and all(local._begun and not local.as_emitted for local in quickly)


@pytest.mark.parametrize("precision", ["bf16", None])
def test_gradients_of_inputs_and_a_precision(precision: str | None, quickly: list[LocalCode]) -> None:
    module = Small()

    def gradients(compile: bool) -> list[Tensor]:
        x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
        model = parallel(module, x, compile=compile, precision=precision)
        for _ in range(2):
            model.train_step([(x,), (x,)])
        return [x.grad, *(p.grad for p in model.parameters())]  # type: ignore[list-item]

    coarse = {"rtol": 2e-2, "atol": 1e-4} if precision else {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close(gradients(True), gradients(False), **coarse)
    assert quickly[0]._begun and not quickly[0].as_emitted


def test_torch_compile_of_a_compiled_model(quickly: list[LocalCode]) -> None:
    module, x = Small(), torch.randn(4, 8)
    model = torch.compile(parallel(module, x, compile=True))
    torch.testing.assert_close(model(x), module(x))
    model(x).backward()


@pytest.mark.slow
def test_an_error_of_the_model_is_its_own() -> None:
    """And the function stays compiled."""
    _, args = models.gpt()
    module = known("gpt")[0][0]
    idx, targets = args
    local = LocalCode(Progress(False), "aot_eager")
    program = load_program(bundle_of("gpt", "megatron:2").files)
    values = equality.sources(module, known("gpt")[1])

    def rank(_: int, comm: Any) -> None:
        model = ParallelModule(program, comm, values, known("gpt")[1], local=local)
        with pytest.raises(IndexError, match="Target 101 is out of bounds"):
            model(idx, torch.full_like(targets, 101))

    run_local(2, rank)
    assert local.as_emitted == {}


def test_it_is_told_what_is_compiled() -> None:
    said = io.StringIO()
    local = LocalCode(Progress(True, said), "aot_eager")
    double = lambda x: x * 2  # noqa: E731
    for _ in range(2):
        assert local.compiled(double)(torch.ones(2)).tolist() == [2, 2]
    [line] = said.getvalue().splitlines()
    assert line.startswith("shardwright: `<lambda>` compiled by torch.compile in ")
