"""The graph is compared with the module, random numbers included, and a difference is always an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw
from shardwright.capture import capture, still_computes
from shardwright.capture.verify import comparison, cost, random_values
from shardwright.cli import main
from shardwright.errors import CaptureError

X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)


class Model(nn.Module):
    def __init__(self, run: Callable[..., Any]):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.run = nn.Linear(4, 4), run

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def exporting() -> bool:
    return torch.compiler.is_exporting()


def attention(x: Tensor, dropout: float = 0.0) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=dropout)


SAME: dict[str, Callable[..., Any]] = {
    "dropout": lambda m, x: F.dropout(m.linear(x), 0.5).sum(),
    "dropout in place": lambda m, x: F.dropout(m.linear(x), 0.5, inplace=True).sum(),
    "dropout of nothing": lambda m, x: F.dropout(m.linear(x), 0.0).sum() + F.dropout(x, 1.0).sum(),
    "two of one line": lambda m, x: (F.dropout(m.linear(x), 0.5) * F.dropout(x, 0.5)).sum(),
    "dropout of channels": lambda m, x: F.dropout1d(m.linear(x), 0.5).sum(),
    "dropout of attention": lambda m, x: attention(m.linear(x), 0.5).sum(),
    "dropout where it was moved": lambda m, x: F.dropout(m.linear(x).transpose(0, 1).contiguous(), 0.5).sum(),
    "dropout where it lies otherwise": lambda m, x: F.dropout(
        m.linear(x).permute(2, 0, 1), 0.5, inplace=True
    ),
    "numbers where it lies otherwise": lambda m, x: torch.randn_like(m.linear(x).transpose(0, 1)).sum() * x,
    "a tensor of random numbers": lambda m, x: (m.linear(x) * torch.rand(4) + torch.randn_like(x)).sum(),
    "what nothing reads": lambda m, x: (
        torch.rand(4),
        (m.linear(x) * torch.rand(4)).sum(),
    )[1],
}


@pytest.mark.parametrize("name", SAME)
def test_graph_and_module_draw_the_same(name: str) -> None:
    captured = capture(Model(SAME[name]), (X,))
    assert captured.verified and not captured.notes


OTHER: dict[str, Callable[..., Any]] = {
    "beside attention": lambda m, x: attention(m.linear(x) * (2 if exporting() else 1)),
    "another probability": lambda m, x: F.dropout(m.linear(x), 0.5 if exporting() else 0.4),
    "another distribution": lambda m, x: m.linear(x) * (torch.randn(4) if exporting() else torch.rand(4)),
    "no dropout": lambda m, x: F.dropout(m.linear(x), 0.5, training=exporting()),
    "beside dropout": lambda m, x: F.dropout(m.linear(x), 0.5) * (2 if exporting() else 1),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_difference_beside_random_operators_is_an_error(name: str) -> None:
    with pytest.raises(CaptureError, match="SW0114") as caught:
        capture(Model(OTHER[name]), (X,))
    assert "test_capture_compared.py" in str(caught.value.place)


def test_a_line_that_only_runs_while_the_model_is_traced_is_named() -> None:
    def run(m: Model, x: Tensor) -> Tensor:
        y = m.linear(x)
        if exporting():
            y = y * x  # only while it is traced
        return attention(y)

    with pytest.raises(CaptureError) as caught:
        capture(Model(run), (X,))
    lines = Path(__file__).read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.endswith("# only while it is traced"))
    assert caught.value.place == f"test_capture_compared.py:{line}"
    assert "runs only while the model is traced" in str(caught.value.why)


# ---- without values --------------------------------------------------------------------------


def on_meta(run: Callable[..., Any]) -> tuple[nn.Module, Tensor]:
    return Model(run).to("meta"), X.to("meta")


class Tokens(nn.Module):
    """What it is given is read as places and as labels, and its buffer as a divisor."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(2, 4), nn.BatchNorm1d(4)
        self.register_buffer("every", torch.tensor(2))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        found = self.norm(self.table(tokens % self.every))
        return F.cross_entropy(found @ self.table.weight.t(), labels)


@pytest.mark.slow
def test_without_values_graph_and_module_are_compared_with_random_ones() -> None:
    for name in SAME:
        module, x = on_meta(SAME[name])
        before = dict(module.named_parameters())
        assert capture(module, (x,)).verified
        assert all(module.get_parameter(name) is before[name] for name in before)
    tokens = torch.zeros(6, dtype=torch.long, device="meta")
    assert capture(Tokens().to("meta"), (tokens, tokens)).verified
    assert capture(sw.deferred(Tokens), (tokens, tokens)).verified


@pytest.mark.parametrize("name", OTHER)
def test_a_difference_is_found_without_values_too(name: str) -> None:
    module, x = on_meta(OTHER[name])
    with pytest.raises(CaptureError, match="SW0114"):
        capture(module, (x,))


def test_a_model_with_weights_from_files_is_compared_when_it_is_parallelized() -> None:
    module = sw.deferred(lambda: Model(lambda m, x: m.linear(x).sum() * (2 if exporting() else 1)))
    with pytest.raises(CaptureError, match="SW0114"):
        sw.parallelize(module, (X,), cache=False, weights={"linear.weight": X[0, :1].expand(4, 4)})


def test_a_program_for_another_call_is_compared_too() -> None:
    """It is compiled of a model without values: each rank has parts."""
    run = lambda m, x: m.linear(x).sum() * (2 if exporting() and len(x) == 1 else 1)  # noqa: E731
    model = sw.parallelize(Model(run), (X,), cache=False)
    model(X)
    with pytest.raises(CaptureError, match="SW0114"):
        model(X[:1])


LARGE = {
    "_MOST_BYTES": (0, "random values are not made for 0.0 GiB, more than 0.0 GiB"),
    "_MOST_OPERATIONS": ({"cpu": 20}, "a forward with random values takes too long"),
}


@pytest.mark.parametrize("limit", LARGE)
def test_what_is_too_large_to_compare_is_said_loudly(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most, why = LARGE[limit]
    monkeypatch.setattr(random_values, limit, most)
    module, x = on_meta(SAME["dropout"])
    captured = capture(module, (x,))
    said = f"graph and module were not compared: the parameter `linear.weight` has no value, and {why}"
    assert not captured.verified and captured.notes == [said]
    with pytest.raises(CaptureError, match="SW0113"):
        capture(module, (x,), verify=True)
    with pytest.warns(UserWarning, match="graph and module were not compared"):
        sw.parallelize(sw.deferred(lambda: Model(SAME["dropout"])), (X,), cache=False)


def test_a_batch_that_has_no_room_is_not_run_on_random_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model on `meta` costs nothing to hold, and may compute more than there is memory."""
    ran: list[int] = []
    with torch.device("meta"):
        model = Model(lambda m, x: m.linear(x.tanh()).sum())

    def notes(_: nn.Module, args: tuple[Tensor]) -> None:
        ran.extend(len(x) for x in args if type(x) is Tensor and not x.is_meta)

    model.register_forward_pre_hook(notes)
    monkeypatch.setattr(cost, "room", lambda kind: 2**20)
    rows = torch.zeros(2**14, 3, 4, device="meta")
    captured = capture(model, (rows,))
    assert ran and max(ran) < 2**14, ran
    assert isinstance(captured.compared, comparison.Compared) and "rows" in captured.compared.what


def test_random_values_with_which_a_model_fails_compare_nothing() -> None:
    def run(m: Model, x: Tensor) -> Tensor:
        if not exporting() and bool((x < 2).any()):
            raise ValueError("too small")
        return m.linear(x)

    module, x = on_meta(run)
    [said] = capture(module, (x,)).notes
    assert said.endswith("with random values the model fails (ValueError: too small)")


def test_commands_say_what_was_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_values, "_MOST_BYTES", 0)
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n"
        "def made():\n"
        "    with torch.device('meta'):\n"
        "        return torch.nn.Linear(4, 4), (torch.zeros(2, 4),)\n"
    )
    assert main(["plan", f"{file}:made", "--plan", "data:2"]) == 0
    shown = capsys.readouterr()
    assert "not compared" not in shown.out
    assert "graph and module were not compared: the parameter `weight` has no value" in shown.err


@pytest.mark.slow
def test_a_causal_mask_without_padding_is_captured_as_it_runs() -> None:
    """Of this model the text's attention is not causal where no token is padded, but looks so if traced."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Aimv2TextConfig(vocab_size=32, max_position_embeddings=8, eos_token_id=1, **small)
    torch.manual_seed(0)
    model = transformers.Aimv2TextModel._from_config(config, attn_implementation="sdpa")
    tokens = torch.arange(12).reshape(2, 6) + 2
    assert capture(model, (), {"input_ids": tokens}).verified
    masked = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    with pytest.raises(CaptureError, match="SW0114") as caught:
        capture(model, (), masked, known_inputs=())
    assert "transformers/masking_utils.py" in str(caught.value.place)
    captured = capture(model, (), masked)
    assert captured.verified and captured.known_names == ("attention_mask",)


def test_a_later_start_is_compared_too_also_where_a_parameter_is_a_result() -> None:
    model = Model(lambda m, x: (m.linear(x) * m.factor, m.linear.weight))
    model.factor = 2.0
    captured = capture(model, (X,))
    assert still_computes(model, (X,), None, captured, captured.graph_text)
    model.factor = 3.0
    assert not still_computes(model, (X,), None, captured, captured.graph_text)


def test_a_gradient_that_pytorch_makes_lazily_of_zeros_is_compared() -> None:
    """Below a dispatch mode such zeros end the process: the sign of a variance has them."""

    def signs(m: Model, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(m.linear(x), 2, correction=0)
        return torch.sgn(variance).sin().sum() + mean.sum()

    capture(Model(signs), (X,))
