"""What runs as the Python that it was: custom autograd Functions, and modules that are not traced."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import checking
import equality
import shardwright as sw
from shardwright import Graph, Plan, as_python
from shardwright.capture import Captured, capture
from shardwright.report.progress import Progress
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.runtime.execution.local_code import LocalCode
from shardwright.start.compiling import compile_plan, sources
from shardwright.start.further_programs import skeleton_of

torch.set_num_threads(1)

PLANS = ("data", "zero3", "data x recompute")


# ---- Functions ---------------------------------------------------------------------------------


class Straight(torch.autograd.Function):
    """Rounds, with another gradient than its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, steps: float) -> Tensor:
        return (x * steps).round() / steps

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return 2 * grad, None


class Several(torch.autograd.Function):
    """Several results, one of them nothing and one a number; plain arguments in a list."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, options: Any) -> Any:
        assert options == [True, None, torch.float32, (1, -2.5), "a 'word'"]
        return x @ w, None, x.argmax(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        x, w = ctx.saved_tensors
        return 3 * (grad @ w.T), x.transpose(-1, -2) @ grad, None


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return -ctx.by * grad, None


class OneGradient(torch.autograd.Function):
    """Of two tensors one has no gradient, though it could."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


bound_long_before = Straight.apply


class Rounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + Straight.apply(self.linear(x), 4.0)


class Functions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.layers = nn.ModuleList([Rounded(), Rounded()])
        self.w = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y = bound_long_before(self.first(x), 4.0)
        for layer in self.layers:
            y = layer(y)
        with torch.no_grad():
            self.mean.add_(Straight.apply(y, 8.0).mean(0))
        z, none, best = Several.apply(y, self.w, [True, None, torch.float32, (1, -2.5), "a 'word'"])
        assert none is None
        z = self.second(Reverse.apply(z, 0.5)) + best[:, None]
        return OneGradient.apply(z, self.third(z)).pow(2).mean()


# ---- modules -----------------------------------------------------------------------------------


class Router(nn.Module):
    """Reads a value; takes a number, a buffer that changes and a table that does not; gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("table", torch.ones(8), persistent=False)

    def forward(self, x: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        x = x @ self.w if x.sum() > 0 else x * scale * self.w.diagonal()
        self.seen += 1
        return {"y": x * self.table, "aux": (x**2).mean()}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.router = nn.Linear(8, 8), Router()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.router(self.linear(x), scale=2.0)
        return x + found["y"], found["aux"]


class Masked(nn.Module):
    """A loss over some rows, which is of one size however many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = x[x[:, 0] > 0]
        return self.head(rows).pow(2).sum() / max(len(rows), 1)


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.out, self.loss = nn.Linear(8, 8), Masked()

    def forward(self, x: Tensor) -> Tensor:
        aux: Any = 0
        for block in self.blocks:
            x, one = block(x)
            aux = aux + one
        return self.loss(self.out(x)) + 0.1 * aux


class Inner(nn.Module):
    """Gradients inside of a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        energy = self.linear(x).tanh().sum()
        [force] = torch.autograd.grad(energy, x, create_graph=True)
        return force


class Forces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Linear(8, 8), nn.ModuleList([Inner(), Inner()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x)
        return x.pow(2).mean()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "functions": Functions,
    "routed": Routed,
    "forces": Forces,
    "selecting": checking.Selecting,
}


@functools.cache
def captured_model(name: str) -> tuple[nn.Module, tuple[Tensor, ...], Captured]:
    torch.manual_seed(3)
    args: tuple[Tensor, ...] = (torch.randn(4, 8, dtype=torch.float64),)
    if name == "selecting":
        args = (*args, torch.tensor([1, 0, 3, 2]))
    model = MODELS[name]().double()
    return model, args, capture(model, args, known_inputs=())


def targets(captured: Captured) -> list[str]:
    return [op.target for op in Graph(captured.graph_text).operators]


@pytest.mark.oldest
@pytest.mark.parametrize("name", MODELS)
def test_capture_is_compared(name: str) -> None:
    _, _, captured = captured_model(name)
    assert captured.verified
    assert {"functions": 7, "routed": 3, "forces": 2, "selecting": 2}[name] == sum(
        target.startswith("shardwright.") for target in targets(captured)
    )


@pytest.mark.oldest
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", MODELS)
def test_programs_train_as_one_device(name: str, plan: str) -> None:
    model, args, captured = captured_model(name)
    expected = equality.reference(model, args)
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), plan, 2))
    options = lambda: {"skeleton": skeleton_of(model)}  # noqa: E731
    equality.assert_equal(equality.run(bundle, model, args, options=options), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:.*cannot be compiled")
def test_only_functions_are_compiled(name: str) -> None:
    model, args, captured = captured_model(name)
    expected = equality.reference(model, args)
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "replicate", 1))
    local = LocalCode(Progress(False), "aot_eager")
    options = lambda: {"skeleton": skeleton_of(model), "local": local}  # noqa: E731
    equality.assert_equal(equality.run(bundle, model, args, options=options), expected)
    as_emitted = "runs as it is" in str(local.as_emitted)
    assert as_emitted == (name in ("routed", "forces"))


@pytest.mark.parametrize("name", ["functions", "routed"])
def test_pipelines_train_as_one_device(name: str) -> None:
    model, args, captured = captured_model(name)
    batches = equality.micro_batches(args, 4)
    expected = equality.steps_reference(model, batches)
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "stages:2 x 1f1b", 2))
    options = lambda: {"skeleton": skeleton_of(model)}  # noqa: E731
    equality.assert_equal(equality.run_steps(bundle, model, batches, options=options), expected)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", MODELS)
def test_random_plans_train_as_one_device(name: str, seed: int) -> None:
    model, args, captured = captured_model(name)
    expected = equality.reference(model, args)
    bundle, _ = compile_plan(captured, Plan.random(Graph(captured.graph_text), 3, seed))
    options = lambda: {"skeleton": skeleton_of(model)}  # noqa: E731
    equality.assert_equal(equality.run(bundle, model, args, options=options), expected)


# ---- random numbers ----------------------------------------------------------------------------


class Drawing(nn.Module):
    """Draws by an operator that has no rule, and from Python's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if random.random() < 2:
            x = x * torch.poisson(torch.ones_like(x.detach()))
        return x


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Drawing(), Drawing()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(layer(x))
        return x.sum(-1)


def outputs(plan: str, **options: Any) -> list[list[Tensor]]:
    """Of each rank, those of two forwards."""
    torch.manual_seed(3)
    model, args = Draws().double(), (torch.randn(4, 8, dtype=torch.float64),)
    captured = capture(model, args)
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), plan, 2), outputs="all")
    program = load_program(bundle.files, digest=bundle.digest, world=2)

    def rank(rank: int, comm: Any) -> list[Tensor]:
        values = sources(model, captured)
        ours = ParallelModule(program, comm, values, captured, skeleton=skeleton_of(model), **options)
        return [ours(*args).detach().clone() for _ in range(2)]

    return run_local(2, rank)


@pytest.mark.slow
def test_random_numbers_are_those_of_the_seed_on_all_ranks() -> None:
    before = random.getstate()
    first, second = outputs("replicate")
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1]), "each step draws others"
    assert torch.equal(outputs("replicate x recompute")[0][1], first[1])
    assert not torch.equal(outputs("replicate", seed=1)[0][0], first[0])
    assert random.getstate() == before


def test_the_single_devices_numbers_are_not_known() -> None:
    with pytest.raises(sw.RuntimeFault, match=r"SW0711.*`layers.0`"):
        outputs("replicate", randomness="single-device", generator=torch.Generator())


# ---- what is told, and what is refused -----------------------------------------------------------


class Note(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.out = inner, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x)).sum()


def small(inner: nn.Module) -> Captured:
    torch.manual_seed(3)
    return capture(Note(inner).double(), (torch.randn(4, 8, dtype=torch.float64),), known_inputs=())


@pytest.mark.slow
def test_modules_that_run_as_they_are_are_told() -> None:
    model, args, captured = captured_model("routed")
    [routers, loss, advice] = captured.notes
    assert re.fullmatch(
        r"`blocks.0.router` \(Router\) and 1 more run as they are, whole on each device that computes it, "
        r"[1-9]\d.\d% of a forward's operations: the model reads the value of a tensor in Python"
        r" \(test_opaque.py:\d+: .*\)",
        routers,
    )
    assert loss.startswith("`loss` (Masked) runs as it is, whole on each device that computes it, ")
    assert advice == "what it reads may be known if it follows from inputs: leave out `known_inputs=()`"
    assert capture(model, args).notes == captured.notes[:2]


def test_the_user_says_which() -> None:
    captured = small(sw.opaque(nn.Linear(8, 8)))
    assert targets(captured)[0] == "shardwright.module.default"
    assert captured.verified
    assert "`shardwright.opaque` asks for it" in captured.notes[0]


def test_the_batch_goes_on_after_a_module_that_runs_as_it_is() -> None:
    graph = Graph(small(sw.opaque(nn.Linear(8, 8))).graph_text)
    split = {
        op.target for op, splits, _ in Plan.named(graph, "data", 2).decisions if splits != [("replicate", 2)]
    }
    assert split == {"aten.linear.default", "aten.sum.default"}


class Sized(nn.Module):
    """What it gives has a size that depends on data."""

    def forward(self, x: Tensor) -> Tensor:
        return x[x[:, 0] > 0]


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sized, self.linear = Sized(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.sized(x)).mean(0)


def test_functions_that_read_values_are_operators() -> None:
    _, _, captured = captured_model("selecting")
    assert '"checking:selected", [%' in captured.graph_text
    note, _ = captured.notes
    assert note.startswith("`checking:selected` (a function) runs as it is")
    assert checking.selected.__kwdefaults__ == {"least": 0, "scales": (1.0,)}
    assert checking.selected.__code__.co_name == "selected"
    assert not [name for name in vars(checking) if "shardwright" in name]


def test_a_function_that_is_no_operator_runs_with_what_is_around_it() -> None:
    captured = small(checking.Noisy())
    assert targets(captured)[0] == "shardwright.module.default"
    assert ["runs as it is" in note for note in captured.notes] == [True, False]


def test_where_sizes_leave_a_module_it_is_the_one_around_it() -> None:
    captured = small(Around())
    assert [line for line in captured.graph_text.splitlines() if 'default("inner", ["linear.weight"' in line]
    assert "inner.sized" not in captured.graph_text


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad


class Applies(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x)


def test_a_function_that_draws_makes_its_module_run_as_it_is() -> None:
    captured = small(Applies(Noisy))
    assert targets(captured)[0] == "shardwright.module.default"
    assert "it draws random numbers" not in captured.notes[0]
    assert "`Noisy.apply`, which cannot be an operator" in captured.notes[0]


def test_a_function_that_nobody_finds_makes_its_module_run_as_it_is() -> None:
    class Here(Reverse):
        pass

    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Here.apply(x, 2.0)

    assert targets(small(Plain()))[0] == "shardwright.module.default"


class Taken(nn.Module):
    """Gives other sizes for numbers that no example has."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:2] if x.max() > 1e6 else x


class Cast(nn.Module):
    """What is inside runs under autocast, which the graph would have to make explicit."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.linear = Router(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.linear(x) @ self.router(x)["y"].mT.to(torch.bfloat16)
        return F.pad(x.float(), (0, 4))


def test_the_module_that_casts_runs_as_it_is() -> None:
    torch.manual_seed(3)
    captured = capture(Note(Cast()), (torch.randn(4, 8),), known_inputs=())
    assert captured.verified
    assert '"inner", ["router.w"' in captured.graph_text
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(sw.CaptureError, match="SW0139"):
        capture(Note(Taken()), (torch.randn(4, 8),), known_inputs=())


class Changing(nn.Module):
    """Changes what it is given, or its own parameter."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.w, self.own = nn.Parameter(torch.randn(8)), own

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x
        if self.own:
            self.w.data.clamp_(max=0.0)
        else:
            x.add_(1)
        return x * self.w


class Before(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(8, 8), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x))


def test_what_changes_an_argument_runs_with_what_is_around_it() -> None:
    assert '"inner", ["first.weight"' in small(Before(Changing(own=False))).graph_text


def test_what_changes_its_parameter_is_refused() -> None:
    with pytest.raises(sw.CaptureError) as caught:
        small(Before(Changing(own=True)))
    assert caught.value.code == "SW0139"
    why = "its forward changes its parameter `w`, and a module that runs as it is may only change buffers"
    assert caught.value.why == why


def test_where_sizes_leave_the_model_it_is_refused() -> None:
    with pytest.raises(sw.CaptureError, match="SW0102"):
        capture(Sized(), (torch.randn(4, 8),), known_inputs=())


def test_checks_are_passed_and_told() -> None:
    captured = capture(checking.Checking(), (torch.randn(4, 8), torch.arange(4)))
    assert captured.verified
    assert targets(captured) == ["aten.cross_entropy_loss.default"]
    assert len(captured.notes) == 5
    assert all("is left out: it only validates values" in note for note in captured.notes)


@pytest.mark.parametrize("kind", [checking.Deciding, checking.Ending])
def test_what_decides_is_no_check(kind: type[nn.Module]) -> None:
    with pytest.raises(sw.CaptureError, match="SW0102"):
        capture(kind(), (torch.randn(4, 8),), known_inputs=())


class Thing:
    """Neither a tensor nor a plain value."""


class Odd(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"y": x * 2, "what": Thing()}


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = sw.opaque(Odd())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)["y"]  # type: ignore[no-any-return]


def test_what_returns_something_else_than_tensors_is_refused() -> None:
    with pytest.raises(sw.CaptureError) as caught:
        capture(Takes(), (torch.randn(4, 8),))
    assert caught.value.code == "SW0139"
    assert str(caught.value).splitlines() == [
        "error[SW0139]: `inner` cannot run as it is",
        "  why: its result is not a structure of tensors and plain values: a `Thing`, which `inner` returns",
        "  help: let the module around it run as it is: `shardwright.opaque(module)`",
    ]


@torch.library.custom_op("shardwright_tests::without_fake", mutates_args=())
def without_fake(x: Tensor) -> Tensor:
    return x * 2


class Custom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return without_fake(x).sum()


def test_an_operator_without_a_fake_is_refused_by_its_line() -> None:
    with pytest.raises(sw.CaptureError) as caught:
        capture(Custom(), (torch.randn(4, 8),))
    assert caught.value.code == "SW0101"
    assert "return without_fake(x).sum()" in (caught.value.place or "")
    assert '`torch.library.register_fake("shardwright_tests::without_fake")`' in (caught.value.fix or "")


def test_a_program_without_its_model_says_so() -> None:
    model, args, captured = captured_model("routed")
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "replicate", 1))
    with pytest.raises(sw.RuntimeFault, match="SW0864"):
        equality.run(bundle, model, args)


# ---- calls as text -------------------------------------------------------------------------------


def test_calls_are_read_as_they_were_written() -> None:
    x, y = torch.randn(2), torch.randn(3)
    args = (
        x,
        [1, -2.5, float("inf"), "a 'b' \"c\" -> f32[3]", None, True],
        (y,),
        {"key": x, "k": (1, 2)},
        torch.bfloat16,
    )
    text, tensors = as_python.written(args, {"scale": 0.5, "device": torch.device("cpu")})
    arguments, named = as_python.read(text + " -> float32[2]", tensors)
    assert repr(arguments) == repr(list(args))
    assert named == {"scale": 0.5, "device": torch.device("cpu")}
    with pytest.raises(as_python.NotPlain, match="a `object`"):
        as_python.written((object(),), {})
