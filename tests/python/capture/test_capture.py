"""Capture: the text of the reference models, what is kept, and what is refused.

``UPDATE_GOLDEN=1 pytest tests/python/capture/test_capture.py`` writes the golden files anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import models
from shardwright.capture import CallSpec, Captured, ResultSpec, capture, lines
from shardwright.capture.passes import PASSES
from shardwright.capture.trace import trace
from shardwright.errors import CaptureError, ShardwrightError

GOLDEN = Path(__file__).parents[1] / "golden"
X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


class Small(nn.Module):
    """A linear layer and a forward that a test gives."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.run = run
        with torch.random.fork_rng():
            torch.manual_seed(0)
            nn.init.normal_(self.linear.weight)
        self.double()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def small(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Captured:
    return capture(Small(run), args or (X,), kwargs, known_inputs=())


def lines_of(captured: Captured, *kinds: str) -> list[str]:
    """The lines of some kinds, without modules and places."""
    chosen = [line for line in captured.graph_text.splitlines() if line.split(" ")[0] in kinds]
    return [line.split(' in "')[0] + " nograd" * line.endswith(" nograd") for line in chosen]


def refused(run: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(CaptureError) as caught:
        small(run, *args)
    return str(caught.value)


# ---- the reference models --------------------------------------------------------------------


@pytest.mark.parametrize("name", models.MODELS)
def test_golden(name: str) -> None:
    module, args = models.MODELS[name]()
    captured = capture(module, args)
    assert captured.verified and not captured.notes and not captured.constants
    file = GOLDEN / f"{name}.graph"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(captured.graph_text)
    assert captured.graph_text == file.read_text()


@pytest.mark.parametrize("name", models.MODELS)
def test_meta_gives_the_same_text(name: str) -> None:
    with torch.device("meta"):
        module, args = models.MODELS[name]()
    captured = capture(module, args)
    assert captured.verified, "with random values"
    assert captured.graph_text == (GOLDEN / f"{name}.graph").read_text()


def test_dropout_is_kept_and_compared() -> None:
    captured = capture(*models.gpt(dropout=0.1))
    assert captured.verified
    drops = [line for line in captured.graph_text.splitlines() if "native_dropout" in line]
    assert drops[0].startswith(
        'op %x f64[4,16,32], _ = aten.native_dropout.default(%add, 0.1, True) in "drop" at "models.py:'
    )


def test_evaluation_is_another_graph() -> None:
    module, args = models.resnet()
    captured = capture(module.eval(), args)
    assert captured.verified and "update" not in captured.graph_text


def test_each_pass_has_a_name_of_its_own_and_a_reason() -> None:
    names = [each.name for each in PASSES]
    assert len({*names}) == len(names) and all(each.why for each in PASSES)


def test_the_files_that_lines_are_not_of_are_there() -> None:
    assert all(map(os.path.isfile, [*lines._STANDS_IN, *lines._MODELS]))


def test_the_text_knows_no_folder() -> None:
    module, args = models.gpt()
    assert os.getcwd() not in capture(module, args).graph_text


@pytest.mark.slow
def test_the_module_is_left_as_it_was() -> None:
    module, args = models.resnet()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    attributes = [dict(vars(part)) for part in module.modules()]
    state = torch.get_rng_state()
    capture(module, args)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert [dict(vars(part)) for part in module.modules()] == attributes
    assert torch.equal(torch.get_rng_state(), state)


def test_indexing_by_all_positions_is_a_view() -> None:
    def run(model: Any, x: Tensor) -> Tensor:
        rows = (torch.arange(3) + 0)[None, :, None]
        columns = torch.arange(0, 4)[:, None].unsqueeze(1)
        return model.linear(x)[rows, columns] * 2

    graph = lines_of(small(run), "op")
    assert [line.split(" = ")[1].split("(")[0] for line in graph] == [
        "aten.linear.default",
        "aten.permute.default",
        "aten.reshape.default",
        "aten.mul.Tensor",
    ]
    assert graph[2].startswith("op %reshape f64[4,3,1] =")


@pytest.mark.parametrize(
    "indices",
    [
        lambda: (torch.arange(3),),
        lambda: (torch.arange(3)[:, None], torch.arange(4)),
        lambda: (torch.arange(3).view(3, 1, 1), torch.arange(4).view(1, 1, 4)),
    ],
)
def test_indexing_by_all_positions_keeps_its_result(indices: Any) -> None:
    captured = small(lambda model, x: model.linear(x)[indices()] * 2)
    assert captured.verified and "aten.index" not in captured.graph_text


@pytest.mark.parametrize(
    "indices",
    [
        lambda: (torch.arange(2),),
        lambda: (torch.arange(1, 3),),
        lambda: (torch.arange(0, 3, 2),),
        lambda: (torch.arange(3) + 1 - 1,),
        lambda: (torch.arange(3), torch.arange(3)),
        lambda: (slice(None), torch.arange(4)),
        lambda: (torch.arange(3).flip(0),),
    ],
)
def test_other_indexing_is_kept(indices: Any) -> None:
    captured = small(lambda model, x: model.linear(x)[indices()] * 2)
    assert captured.verified and "aten.index" in captured.graph_text


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda x: x * 1.0, False),
        (lambda x: x * 1, False),
        (lambda x: x.view(3, 4, 1), False),
        (lambda x: x + 0, True),  # -0 becomes 0
        (lambda x: x.to(torch.int64) + 0, False),
        (lambda x: x.to(torch.int64) * 1.0, True),
    ],
)
def test_what_changes_nothing_is_left_out(change: Any, kept: bool) -> None:
    captured = small(lambda model, x: change(model.linear(x).view(3, 4, 1)) * 2)
    graph = [line for line in lines_of(captured, "op") if "_to_copy" not in line and "aten.to." not in line]
    assert captured.verified and len(graph) == (4 if kept else 3), graph


def test_a_result_is_not_what_it_is_a_copy_of() -> None:
    graph = lines_of(small(lambda model, x: model.linear(x) * 1.0), "op")
    assert len(graph) == 2


# ---- parameters, buffers, constants ----------------------------------------------------------


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.used.weight
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("count_again", self.count)
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("unused_table", torch.zeros(3))
        self.plain = torch.full((4,), 2.0)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        y = self.tied(self.used(x)) * self.frozen + self.table
        return y * self.plain + torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=x.dtype, device=x.device)


def test_state() -> None:
    captured = capture(State(), (X,))
    assert lines_of(captured, "param", "buffer", "const", "update") == [
        'param %p_frozen f64[4] "frozen" frozen',
        'param %p_unused f64[2] "unused"',
        'param %p_used_weight f64[4,4] "used.weight" "tied.weight"',
        'param %p_used_bias f64[4] "used.bias"',
        'buffer %b_count i64[] "count"',
        'buffer %b_table f64[4] "table" transient',
        'buffer %b_unused_table f64[3] "unused_table"',
        'const %c_0 f32[4] "plain"',
        'const %c_1 f64[4] "lifted_tensor_0"',
        'update "count" %add',
    ]
    assert captured.buffer_aliases == {"count_again": "count"}
    assert captured.constants["plain"].tolist() == [2, 2, 2, 2]
    assert captured.constants["lifted_tensor_0"].tolist() == [1, 2, 3, 4]


def test_a_constant_on_meta_has_no_value() -> None:
    with torch.device("meta"):
        module = State()
    with pytest.raises(CaptureError) as caught:
        capture(module, (X.to("meta"),))
    assert "error[SW0112]: the tensor `plain` has no value\n  at: test_capture.py:" in str(caught.value)


# ---- arguments and results -------------------------------------------------------------------


def test_the_same_tensor_twice_is_two_inputs() -> None:
    captured = small(lambda self, a, b: a * 2 + b, X, X)
    assert lines_of(captured, "op") == [
        "op %mul f64[3,4] = aten.mul.Tensor(%args_0, 2)",
        "op %add f64[3,4] = aten.add.Tensor(%mul, %args_1)",
    ]


class Nested(nn.Module):
    def forward(self, batch: Any, *rest: Tensor, scale: float = 2.0, **more: Any) -> Any:
        sums = [batch["x"] * scale + rest[0], more["z"]]
        return {"sums": sums, "size": batch["y"][1], "none": None}


def test_nested_structures() -> None:
    args, kwargs = ({"x": X, "y": (X, 3)}, X + 1), {"z": X + 2}
    captured = capture(Nested(), args, kwargs)
    assert captured.in_spec.input_names() == ["batch['x']", "batch['y'][0]", "rest[0]", "more['z']"]
    assert lines_of(captured, "output") == [
        "output %sums",
        "output %z",
        "output none",
        "output none",
    ]
    flat = captured.flatten(args, {**kwargs, "scale": 2.0})
    assert [f is t for f, t in zip(flat, [X, X, args[1], kwargs["z"]], strict=True)] == [True] * 4
    result = captured.unflatten([X, X, None, None])
    assert result["sums"][0] is X and result["size"] == 3 and result["none"] is None
    read = CallSpec.from_text(captured.in_spec.text(), Nested().forward)
    assert read.leaves == captured.in_spec.leaves and read.tree == captured.in_spec.tree
    assert ResultSpec.from_text(captured.out_spec.text()) == captured.out_spec


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (({"x": X, "y": (X, 4)}, X), {"z": X}, "`batch['y'][1]` has another value"),
        (({"x": X, "y": (X, 3)}, X), {"z": X, "scale": 3.0}, "`scale` was not there"),
        (({"x": X}, X), {"z": X}, "`batch['y'][0]` is missing"),
        (({"x": X, "y": (X, X)}, X), {"z": X}, "`batch['y'][1]` has another value"),
        ((), {}, "missing a required argument: 'batch'"),
    ],
)
def test_another_call_is_refused(args: Any, kwargs: Any, message: str) -> None:
    captured = capture(Nested(), ({"x": X, "y": (X, 3)}, X), {"z": X})
    with pytest.raises(CaptureError) as caught:
        captured.flatten(args, kwargs)
    assert caught.value.code == "SW0105" and message in str(caught.value)


# ---- gradients -------------------------------------------------------------------------------


def test_no_grad_regions_are_kept() -> None:
    def run(self: Small, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.linear(x)
            with torch.enable_grad():
                z = self.linear(y)
            with torch.autocast(x.device.type, enabled=False):
                y = y * 2 + z
        return self.linear(x) * y + z

    assert lines_of(small(run), "op") == [
        "op %y f64[3,4] = aten.linear.default(%args_0, %p_linear_weight, %p_linear_bias) nograd",
        "op %z f64[3,4] = aten.linear.default(%y, %p_linear_weight, %p_linear_bias)",
        "op %mul f64[3,4] = aten.mul.Tensor(%y, 2) nograd",
        "op %y_1 f64[3,4] = aten.add.Tensor(%mul, %z) nograd",
        "op %linear f64[3,4] = aten.linear.default(%args_0, %p_linear_weight, %p_linear_bias)",
        "op %mul_1 f64[3,4] = aten.mul.Tensor(%linear, %y_1)",
        "op %add f64[3,4] = aten.add.Tensor(%mul_1, %z)",
    ]


def test_detach_in_place_is_kept() -> None:
    def run(self: Small, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.detach_()
        return self.linear(y)

    assert "op %detach f64[3,4] = aten.detach.default(%y)" in lines_of(small(run), "op")


def test_a_tensor_that_is_made_of_one_is_detached() -> None:
    def run(self: Small, x: Tensor) -> Tensor:
        return self.linear(x) * torch.tensor(x.long()[:, :1], dtype=torch.int32)

    captured = small(run)
    assert captured.verified and "to_copy" in captured.graph_text


def test_what_is_written_into_a_table_keeps_its_gradient() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randn(6, 4))

        @torch.no_grad()
        def forward(self, at: Tensor) -> Tensor:
            return self.table.index_select(0, at).detach()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions, self.segments = Positions(), nn.Embedding(2, 4)

        def forward(self, at: Tensor) -> Tensor:
            found = self.positions(at).to(self.segments.weight.device)
            found += self.segments(at % 2)
            return found.square().sum()

    assert capture(Net(), (torch.tensor([1, 4, 2]),)).verified


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_is_a_plain_forward(reentrant: bool) -> None:
    def run(self: Small, x: Tensor) -> Tensor:
        return checkpoint(lambda t: self.linear(t).relu(), x, use_reentrant=reentrant)

    x = X.clone().requires_grad_()
    captured = small(run, x)
    assert captured.verified
    assert [line.split("(")[0] for line in lines_of(captured, "op")] == [
        "op %linear f64[3,4] = aten.linear.default",
        "op %relu f64[3,4] = aten.relu.default",
    ]


def test_in_place_operators_become_functional() -> None:
    def run(self: Small, x: Tensor) -> Tensor:
        y = self.linear(x)
        y[:, 0] += 1
        return F.relu(y, inplace=True)

    captured = small(run)
    assert captured.verified and "_." not in "".join(lines_of(captured, "op"))


class Doubling(torch.autograd.Function):
    """In place: the graph would not know that its argument has changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


# ---- refusals --------------------------------------------------------------------------------


def _line_of(marker: str) -> str:
    text = Path(__file__).read_text().splitlines()
    number = next(i for i, line in enumerate(text, 1) if line.endswith(f"# {marker}"))
    return f"test_capture.py:{number}: {text[number - 1].strip()}"


def test_a_function_that_changes_what_it_is_given_is_refused() -> None:
    def run(self: Small, x: Tensor) -> Tensor:
        return Doubling.apply(self.linear(x))  # the Function

    assert refused(run) == (
        "error[SW0103]: the model calls `Doubling.apply`, which cannot be an operator\n"
        f"  at: {_line_of('the Function')}\n"
        "  why: it changes a tensor that it is given, and the graph knows no such change\n"
        "  help: define it at the top of a module, and let it take and give tensors and plain values; or"
        " put the call into a module of its own, which then runs as it is"
    )


def test_a_branch_on_data_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    def run(self: Small, x: Tensor) -> Tensor:
        if x.sum() > 0:  # the branch
            return x
        return self.linear(x)

    assert refused(run) == (
        "error[SW0102]: the model reads the value of a tensor in Python\n"
        f"  at: {_line_of('the branch')}\n"
        "  why: a branch, size or number taken from data would be baked into the program\n"
        "  help: keep the value in a tensor (torch.where, masks), or pass it as a Python argument"
    )
    assert capfd.readouterr() == ("", "")


def _item(self: Small, x: Tensor) -> Tensor:
    return x * x.max().item()  # item


def _size(self: Small, x: Tensor) -> Tensor:
    return x[x > 0].sum()  # size


def _gradient(self: Small, x: Tensor) -> Tensor:
    return torch.autograd.grad(self.linear(x).sum(), self.linear.weight)[0]  # gradient


def _autocast(self: Small, x: Tensor) -> Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):  # autocast
        return self.linear(x)


def _hidden(self: Small, x: Tensor) -> Tensor:
    y = self.linear(x)
    y.detach().clamp_(min=0)  # hidden
    return y


def _renormed(self: Small, x: Tensor) -> Tensor:
    return F.embedding(x.long().abs(), self.linear.weight * 2, max_norm=1.0)  # renormed


def _input(self: Small, x: Tensor) -> Tensor:
    x.add_(1)  # input
    return self.linear(x)


def _wrong(self: Small, x: Tensor) -> Tensor:
    return x.reshape(3, 5)  # wrong


def _foreign(self: Small, x: Tensor) -> Tensor:
    return self.linear(x) * float(sum(x.detach().numpy()[0]))  # foreign


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (_item, "SW0102"),
        (_size, "SW0102"),
        (_gradient, "SW0104"),
        (_autocast, "SW0106"),
        (_hidden, "SW0107"),
        (_renormed, "SW0107"),
        (_input, "SW0109"),
        (_wrong, "SW0115"),
        (_foreign, "SW0101"),
    ],
)
def test_refused_at_the_models_line(run: Callable[..., Any], code: str) -> None:
    message = refused(run)
    assert message.startswith(f"error[{code}]: ")
    assert f"\n  at: {_line_of(run.__name__.strip('_'))}\n" in message


# ---- verification ----------------------------------------------------------------------------


def _plant(monkeypatch: pytest.MonkeyPatch, old: Any, new: Any) -> None:
    """Makes tracing give a graph with another operator."""

    def planted(tracing: Any) -> Any:
        traced = trace(tracing)
        for node in traced.program.graph.nodes:
            node.target = new if node.target is old else node.target
        return traced

    monkeypatch.setattr("shardwright.capture.trace", planted)


def test_a_planted_value_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    _plant(monkeypatch, torch.ops.aten.relu.default, torch.ops.aten.gelu.default)
    message = refused(lambda self, x: (self.linear(x), self.linear(x).relu()))
    assert "does not compute what the module computes: output 1 differs by" in message


def test_a_lost_region_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Small, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.linear(x)
        return y * self.linear(x)

    monkeypatch.setattr("shardwright.capture.graph_text.is_no_grad", lambda node: False)
    assert "the gradient of parameter `linear.weight` differs by" in refused(run)


def test_errors_are_one_tree_and_pickle() -> None:
    import pickle

    error = CaptureError("SW0101", "what", place="model.py:1", fix="fix")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "error[SW0101]: what\n  at: model.py:1\n  help: fix"
    assert isinstance(again, ShardwrightError)


class HooksItself(nn.Module):
    """Registers a hook in its first forward, as Transformers does to record hidden values."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.ready = False
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if not self.ready:
            self.inner.register_forward_hook(lambda module, args, output: self.seen.append(output))
            self.ready = True
        self.seen = []
        return (self.inner(x).sum(), *self.seen)


def test_hooks_that_a_forward_registers_are_gone_after_capture() -> None:
    module = HooksItself()
    captured = capture(module, (torch.randn(2, 4),))
    assert captured.verified
    assert not module.inner._forward_hooks
    assert len(module(torch.randn(2, 4))) == 2


class _Sampled(nn.Module):
    def __init__(self, draw: Callable[[Tensor], Tensor]):
        super().__init__()
        self.linear, self.draw = nn.Linear(4, 4), draw

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * self.draw(x)).sum()


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.multinomial(x.softmax(-1), 4),
        lambda x: torch.poisson(x.exp()),
        lambda x: nn.functional.rrelu(x, training=True),
        lambda x: torch.randperm(4),
    ],
)
def test_random_numbers_without_a_key_are_refused(draw: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(CaptureError, match="SW0132") as caught:
        capture(_Sampled(draw), (torch.randn(2, 4),))
    assert "test_capture.py" in str(caught.value.place)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.randint(0, 3, x.shape),
        lambda x: torch.randint(2, 7, x.shape, dtype=torch.float32),
        lambda x: torch.randint_like(x, 5),
        lambda x: torch.randn(x.shape, generator=None),
        lambda x: torch.rand(x.shape, generator=None),
        lambda x: torch.randint(3, x.shape, generator=None),
        lambda x: torch.randint(2, 7, x.shape, generator=None),
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: torch.empty_like(x).uniform_(-1, 2),
        lambda x: torch.empty_like(x.t()).uniform_().t(),
        lambda x: torch.empty_like(x).exponential_(0.5),
        lambda x: torch.empty_like(x).normal_(1, 3),
        lambda x: torch.normal(0.5, 2.0, x.shape),
        lambda x: torch.distributions.Normal(x, x.exp()).rsample(),
        lambda x: torch.distributions.Normal(x, x.exp()).sample(),
        lambda x: F.gumbel_softmax(x),
        lambda x: F.alpha_dropout(x, 0.3, True),
        lambda x: F.dropout1d(x, 0.3, True),
    ],
)
def test_random_numbers_of_many_distributions_are_drawn_by_key(draw: Callable[[Tensor], Tensor]) -> None:
    """Capture compares graph and module, with the same numbers on both sides."""
    text = capture(_Sampled(draw), (torch.randn(2, 4),), verify=True).graph_text
    assert re.search(
        r"aten\.(randint|randint_like|rand|rand_like|randn|randn_like|exponential|bernoulli)\.", text
    )


def test_probabilities_of_coins_have_a_gradient_of_zeros() -> None:
    module = _Sampled(lambda x: torch.bernoulli(module.linear(x).sigmoid()))
    text = capture(module, (torch.randn(2, 4),), verify=True).graph_text
    assert "aten.lt.Tensor" in text


@pytest.mark.slow
def test_a_recurrent_layer_without_dropout_draws_nothing() -> None:
    lstm = nn.LSTM(4, 4, num_layers=2)
    capture(lstm, (torch.randn(3, 2, 4),))
    lstm.dropout = 0.5
    with pytest.raises(CaptureError, match="SW0132"):
        capture(lstm, (torch.randn(3, 2, 4),))
    capture(lstm.eval(), (torch.randn(3, 2, 4),))
