"""The graph is compared with the module, random numbers included, and a difference is always an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardwright.capture import capture
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


def test_what_cannot_be_compared_is_said() -> None:
    with torch.device("meta"):
        module = Model(SAME["dropout"])
    captured = capture(module, (X.to("meta"),))
    assert not captured.verified
    assert captured.notes == [
        "graph and module were not compared: the parameter `linear.weight` has no value"
    ]


def test_commands_say_what_was_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\n"
        "def made():\n"
        "    with torch.device('meta'):\n"
        "        return torch.nn.Linear(4, 4), (torch.zeros(2, 4),)\n"
    )
    assert main(["plan", f"{file}:made", "--devices", "2"]) == 0
    shown = capsys.readouterr()
    assert "not compared" not in shown.out
    assert "graph and module were not compared: the parameter `weight` has no value" in shown.err


def test_a_causal_mask_without_padding_is_captured_as_it_runs() -> None:
    """Of this model the text's attention is not causal where no token is padded, but looks so if traced."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Aimv2TextConfig(vocab_size=32, max_position_embeddings=8, eos_token_id=1, **small)
    torch.manual_seed(0)
    model = transformers.Aimv2TextModel._from_config(config, attn_implementation="sdpa")
    tokens = torch.arange(12).reshape(2, 6) + 2
    assert capture(model, (), {"input_ids": tokens}).verified
    with pytest.raises(CaptureError, match="SW0114") as caught:
        capture(model, (), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})
    assert "transformers/masking_utils.py" in str(caught.value.place)
