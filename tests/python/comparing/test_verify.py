"""`sw.verify`: a step of a compiled program beside the model, what differs first, and what is rounding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import forked
import shardwright as sw
from models import MODELS
from shardwright._core import Graph
from shardwright.cli import main
from shardwright.comparing.judging import Judge, apart
from shardwright.comparing.order import order_of
from shardwright.comparing.ranks import Part, Rank
from shardwright.comparing.rounding import LAMBDA, Spreads
from shardwright.comparing.step import Values
from shardwright.runtime.execution.run import Run


@sw.register_op("b n -> b n")
def only_if_large(x: Tensor) -> Tensor:
    """Its rule holds for small numbers, such as rules are tried with, and for no others."""
    top = x.abs().amax(-1, keepdim=True)
    return torch.where(top > 20, x / top, x)


class Net(nn.Module):
    def __init__(self, drop: float = 0.0, norm: bool = False, function: Any = torch.relu) -> None:
        super().__init__()
        self.up, self.mid, self.down = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 8)
        self.drop, self.norm = nn.Dropout(drop), nn.BatchNorm1d(8) if norm else nn.Identity()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.function(self.up(self.norm(x)))
        return F.mse_loss(self.down(self.drop(self.mid(x))), y)


def net(**options: Any) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Net(**options), (torch.randn(8, 8), torch.randn(8, 8))


def gpt(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, tuple[Tensor, ...]]:
    module, args = MODELS["gpt"](depth=1)  # type: ignore[operator]
    return module.to(dtype), args


def split_the_function(graph: Graph, draft: sw.Draft) -> None:
    for operator in graph.operators:
        is_it = operator.target == "shardwright.function.default"
        for device, part in enumerate(draft.trans(operator, "n" if is_it else "replicate", 2)):
            draft.assign(part, device)


PLANS: list[tuple[Callable[[], Any], str, int, dict[str, Any]]] = [
    (gpt, "data:2 x megatron:2", 4, {}),
    (gpt, "stages:2 x 1f1b", 2, {}),
    (gpt, "stages:2 x interleaved:2 x 1f1b", 2, {"micro_batches": 4}),
    (gpt, "stages:2 x 2bw", 2, {}),
    (gpt, "data x zero3", 2, {}),
    (lambda: gpt(torch.bfloat16), "data:2 x megatron:2", 4, {}),
    (lambda: net(drop=0.3, norm=True), "data", 2, {}),
    (lambda: net(drop=0.3), "data", 2, {"micro_batches": 2}),
    (net, "data", 2, {"micro_batches": 4}),
    (MODELS["two_losses"], "data", 2, {}),
    (MODELS["resnet"], "data", 3, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "plan", "devices", "options"), PLANS)
def test_a_right_program_is_equal(make: Any, plan: str, devices: int, options: dict[str, Any]) -> None:
    module, args = make()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    comparison = sw.verify(module, args, plan=plan, devices=devices, **options)
    assert comparison.equal and comparison.raise_if_different() is comparison, str(comparison)
    trained = {f"gradient {name}" for name, _ in module.named_parameters()}
    assert trained <= {f"{row.kind} {row.name}" for row in comparison.rows}
    assert {f"buffer {name}" for name, _ in module.named_buffers()} <= {
        f"{row.kind} {row.name}" for row in comparison.rows
    }
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_what_is_compared_is_all_there_is() -> None:
    comparison = sw.verify(*gpt(), plan="megatron", devices=2, outputs="all")
    kinds = {row.kind for row in comparison.rows}
    assert kinds == {"loss", "output", "gradient", "parameter"}
    assert {row.dtype for row in comparison.rows} == {"float64", "float32"}
    assert all(row.line.startswith("models.py:") for row in comparison.rows)
    known = [row for row in comparison.rows if row.dtype == "float32" and row.kind == "gradient"]
    assert all(row.own is not None and row.ours is not None and row.own > 0 for row in known)


@pytest.mark.slow
def test_a_rule_that_does_not_hold_is_named_with_its_line() -> None:
    module, (x, y) = net(function=only_if_large)
    comparison = sw.verify(module, (100 * x, y), plan=split_the_function, devices=2)
    assert not comparison.equal and comparison.first is not None
    assert comparison.first.operator == "test_verify:only_if_large" and comparison.first.rule == "b n -> b n"
    assert comparison.first.part in ("[:, 0:8]", "[:, 8:16]") and comparison.first.dtype == "float64"
    lines = enumerate(Path(__file__).read_text().splitlines(), 1)
    [line] = [at for at, text in lines if text.strip().startswith("x = self.function(")]
    assert comparison.first.line == f"test_verify.py:{line}"
    assert f"at       test_verify.py:{line}" in str(comparison) and "DIFFERENT" in str(comparison)
    with pytest.raises(sw.RuntimeFault, match=r"SW0882(.|\n)*only_if_large"):
        comparison.raise_if_different()
    assert sw.verify(module, (x, y), plan=split_the_function, devices=2).equal


def test_gradients_that_are_not_summed_over_ranks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "reduce_gradients", lambda *_: None)
    comparison = sw.verify(*gpt(), plan="data", devices=2)
    assert {row.kind for row in comparison.different} == {"gradient", "parameter"}
    assert comparison.first is not None and comparison.first.what == "the gradient of `ln_f.weight`"
    assert comparison.first.path == "ln_f" and "no sum over them has come" in comparison.first.hint


def test_a_parameter_that_one_rank_does_not_update_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank alone is plausible: the copies are not the same any more."""
    plain = torch.optim.SGD.step

    def step(self: torch.optim.SGD, *args: Any, **kwargs: Any) -> Any:
        import threading

        if threading.current_thread().name == "rank 1":
            return None
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    comparison = sw.verify(*net(), plan="data", devices=2, dtypes=["float64"])
    assert {row.kind for row in comparison.different} == {"parameter"}
    assert {row.ranks for row in comparison.different} == {(1,)}
    assert comparison.first is not None and "different values" in comparison.first.hint


def off_by(size: float) -> Callable[..., Any]:
    plain = Run.all_reduce

    def all_reduce(self: Run, x: Any, *args: Any, **kwargs: Any) -> Any:
        reduced = plain(self, x, *args, **kwargs)
        return (
            [y * (1 + size) for y in reduced] if isinstance(reduced, list | tuple) else reduced * (1 + size)
        )

    return all_reduce


@pytest.mark.slow
@pytest.mark.parametrize(("size", "equal"), [(1e-7, True), (1e-5, False), (1e-4, False)])
def test_what_is_rounding_in_float32(size: float, equal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit roundoff is 6e-8."""
    truth = sw.verify(*gpt(), plan="megatron", devices=2)
    monkeypatch.setattr(Run, "all_reduce", off_by(size))
    comparison = sw.verify(*gpt(), plan="megatron", devices=2)
    of_float32 = [row for row in comparison.different if row.dtype == "float32"]
    assert truth.equal and (not of_float32) is equal
    assert comparison.different and comparison.first is not None, "in float64 nothing of it is rounding"
    assert comparison.first.operator == "aten.embedding.default" and comparison.first.path == "wte"


GRAPH = """shardwright-graph 1
model "M"
module "" "M"
input %x f32[4,64] 0
param %w f32[8,64] "w"
op %y f32[4,8] = aten.linear.default(%x, %w) in "" at "m.py:1"
op %z f32[4,8] = aten.relu.default(%y) in "" at "m.py:2"
op %s f32[] = aten.sum.default(%z) in "" at "m.py:3"
output %s
"""


def test_the_limit_follows_from_what_is_rounded() -> None:
    text = GRAPH
    graph, order = Graph(text), order_of(text)
    unit = 2.0**-24
    spreads = Spreads(graph, order, parts=0)
    assert spreads.of_value("y").limit(None) >= LAMBDA * unit * 65**0.5
    assert spreads.of_value("z").most > spreads.of_value("y").most
    assert spreads.of_gradient("w").most > spreads.of_loss().most
    assert spreads.of_loss().low == pytest.approx(3 * unit**2)
    assert spreads.of_loss().limit(0.0) == pytest.approx(LAMBDA * unit * 3**0.5)
    assert not spreads.is_fine
    halves = order_of(text.replace("f32", "bf16"))
    coarse = Spreads(Graph(text.replace("f32", "bf16")), halves, 0).of_value("y")
    assert coarse.most < 1.01 * 2.0**-16, "16-bit numbers are added up in float32"


def test_a_gradient_that_the_model_does_not_have_is_a_difference() -> None:
    """Even where it has none at all."""
    module, args = net()
    order = order_of(sw.compile_model(module, args, plan="data", devices=2)[0].graph_text)
    whole, part = Values(), torch.ones(16)
    whole.put("loss", "loss", torch.ones(()))
    rank = Rank(whole, [Part("gradient", "up.bias", [[16]], ((0, 16),), part)])
    judge = Judge("float64", whole, order, Spreads(Graph(GRAPH), order_of(GRAPH), 0), {})
    assert [(row.name, row.state) for row in judge.rows([rank])] == [
        ("loss", "equal"),
        ("up.bias", "differs"),
    ]
    part.zero_()
    assert [row.name for row in judge.rows([rank])] == ["loss"], "zeros change nothing"


def test_not_a_number_is_no_equality() -> None:
    nan, one = torch.tensor([float("nan"), 1.0]), torch.tensor([2.0, 1.0])
    assert apart(nan, one) == apart(one, nan) == float("inf") and apart(nan, nan) == 0


def test_a_model_without_values_is_refused_unless_its_initialisation_is_known() -> None:
    module, args = net()
    with torch.device("meta"):
        empty = Net()
    with pytest.raises(sw.RuntimeFault, match=r"SW0880(.|\n)*up.weight(.|\n)*sw.deferred"):
        sw.verify(empty, args, plan="data", devices=2)
    with pytest.raises(sw.RuntimeFault, match="SW0880"):
        sw.verify(module, tuple(x.to("meta") for x in args), plan="data", devices=2)
    comparison = sw.verify(sw.deferred(Net), args, plan="data", devices=2, dtypes=["model"])
    assert comparison.equal and len(comparison.rows) == 13


def test_what_cannot_be_compared_is_not_called_equal() -> None:
    """A model whose code takes float32 alone."""

    class Narrow(Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return super().forward(x.float(), y)

    torch.manual_seed(0)
    module, args = Narrow(), net()[1]
    comparison = sw.verify(module, args, plan="data", devices=2)
    assert not comparison.different and not comparison.equal and "NOT COMPARED: in float64" in str(comparison)
    with pytest.raises(sw.RuntimeFault, match="SW0883"):
        comparison.raise_if_different()
    assert sw.verify(module, args, plan="data", devices=2, dtypes=["model"]).equal
    with pytest.raises(sw.RuntimeFault, match="SW0721"):
        sw.verify(module, args, plan="data", devices=2, dtypes=["float8"])


@pytest.mark.slow
def test_draws_that_cannot_be_alike_are_refused() -> None:
    module, args = MODELS["gpt"](dropout=0.5)  # type: ignore[operator]
    with pytest.raises(sw.RuntimeFault, match=r"SW0884(.|\n)*model.eval"):
        sw.verify(module, args, plan="stages:2 x tokens:4", devices=2)
    assert sw.verify(module.eval(), args, plan="stages:2 x tokens:4", devices=2).equal


def test_a_model_in_float32_whatever_it_is_told_is_held_to_that() -> None:
    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(x.float(), (16,)).to(x.dtype)

    comparison = sw.verify(*net(function=Norm()), plan="data", devices=2)
    assert comparison.equal and any("fewer digits at test_verify.py:" in note for note in comparison.notes)
    assert min(row.limit for row in comparison.rows if row.kind == "gradient") > 1e-7


FILE = """
import torch
from test_verify import Net, only_if_large

def good():
    torch.manual_seed(0)
    return Net(), (torch.randn(8, 8), torch.randn(8, 8))

def bad():
    torch.manual_seed(0)
    return Net(function=only_if_large), (100 * torch.randn(8, 8), torch.randn(8, 8))
"""


@pytest.mark.slow
def test_the_command_ends_with_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nets.py").write_text(FILE)
    words = ["verify", f"{tmp_path / 'nets.py'}:good", "--plan", "data:2", "--threads"]
    assert main(words) == 0
    assert "EQUAL: " in capsys.readouterr().out
    plan = tmp_path / "split.plan"
    args = (100 * torch.randn(8, 8), torch.randn(8, 8))
    graph = Graph(
        sw.compile_model(Net(function=only_if_large), args, plan="replicate", devices=1)[0].graph_text
    )
    plan.write_text(sw.make_plan(graph, split_the_function, 2).text)
    words = ["verify", f"{tmp_path / 'nets.py'}:bad", "--plan", str(plan), "--threads"]
    assert main(words) == 1
    assert "operator test_verify:only_if_large, rule `b n -> b n`" in capsys.readouterr().out
    assert main([*words, "--json", "--dtypes", "float64"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["equal"] is False and answer["first"]["operator"] == "test_verify:only_if_large"
    assert {row["state"] for row in answer["rows"]} == {"differs"}


def test_the_command_refuses_what_it_cannot_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = tmp_path / "graph.txt"
    graph.write_text(sw.compile_model(*net(), plan="data", devices=2)[0].graph_text)
    assert main(["verify", str(graph), "--plan", "data:2"]) == 1
    assert "is a graph, and cannot be run" in capsys.readouterr().err
    pytest.importorskip("transformers")
    assert main(["verify", "llama-3-405b", "--plan", "data:2"]) == 1
    assert "SW0881" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_of_transformers_is_initialised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    config = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["verify", f"hf:LlamaForCausalLM:{tmp_path / 'config.json'}", "--batch", "4", "--sequence", "8"]
    assert main([*words, "--plan", "megatron:2", "--threads", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["equal"] and any("fewer digits" in note for note in answer["notes"])


@pytest.mark.processes
def test_without_a_model_it_is_the_demo_on_processes(tmp_path: Path) -> None:
    ended = forked.command("verify", folder=tmp_path)
    assert ended.code == 0, ended.error
    assert ended.out.startswith("Gpt, plan `data:2 x megatron:2`, 4 processes") and "EQUAL: 57" in ended.out
