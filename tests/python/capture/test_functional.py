"""A functional graph that is written out is the one that tracing a second time gives."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import models
import shardwright as sw
from shardwright.capture import capture

PASS = importlib.import_module("shardwright.capture.passes.functional")
X = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
Capturing = Callable[[], Any]


class Small(nn.Module):
    def __init__(self, run: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self._run = run

    def forward(self, x: Tensor) -> Any:
        return self._run(self, x)


def is_the_same(monkeypatch: pytest.MonkeyPatch, module: nn.Module, *args: Any, **kwargs: Any) -> bool:
    """Asserts that both ways give one text; whether the graph was written out."""
    written: list[bool] = []
    write_out = PASS.write_out
    monkeypatch.setattr(PASS, "write_out", lambda program: written.append(write_out(program)) or written[0])
    text = capture(module, args, kwargs, verify=False).graph_text
    monkeypatch.setattr(PASS, "write_out", lambda program: False)
    assert text == capture(module, args, kwargs, verify=False).graph_text
    monkeypatch.setattr(PASS, "write_out", write_out)
    return written == [True]


def _no_grad(m: Small, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.transpose(1, 2).contiguous().float().flatten(1).clone().sum()
    return m.linear(x) * scale


def _constant_index(m: Small, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x[:, :, [0, 1]]
    return m.linear(x) * scale.sum()


def _autocast(m: Small, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = m.linear(x).softmax(-1)
        return F.layer_norm(y @ m.linear.weight, (4,))


def _attention(m: Small, x: Tensor) -> Tensor:
    q = m.linear(x).unsqueeze(1).expand(2, 2, 3, 4)
    y = F.scaled_dot_product_attention(q, q, q, torch.zeros(3, 3))
    # How the result of attention lies in memory decides what becomes of this.
    return F.dropout(y.reshape(2, -1, 3, 4), 0.5, True).transpose(1, 2).contiguous()


def _parts(m: Small, x: Tensor) -> Any:
    a, b = m.linear(x).chunk(2, dim=-1)
    c, *_ = x.split([1, 2], dim=1)
    return a, b.narrow(1, 0, 2), c, x.movedim(0, 2).mT, x.swapaxes(0, 1)


WRITTEN_OUT: dict[str, Callable[[Small, Tensor], Any]] = {
    "views": lambda m, x: m.linear(x).view(6, 4).t().reshape(-1).unflatten(0, (4, 6)).flatten(),
    "two that are one": lambda m, x: m.linear(x.type_as(x)).expand_as(x).view_as(x).reshape_as(x),
    "casts": lambda m, x: m.linear(x.to(torch.float64).float().to("cpu")).to(torch.float64).float(),
    "parts": _parts,
    "copies": lambda m, x: (x, m.linear.weight, x.contiguous(), m.linear(x).clone(), m.linear.weight.clone()),
    "ranges": lambda m, x: m.linear(x) * torch.arange(4) + torch.full((4,), 2.0, device=x.device),
    "detached": lambda m, x: m.linear(x.detach()) + m.linear(x).detach() * m.linear.weight.data.sum(),
    "dropout": lambda m, x: F.dropout(m.linear(x), 0.1, m.training) + F.dropout(x, 0.0),
    "attention": _attention,
    "no_grad": _no_grad,
    "autocast": _autocast,
}
TRACED_AGAIN: dict[str, Callable[[Small, Tensor], Any]] = {
    "in place": lambda m, x: m.linear(x).add_(1.0).mul_(2.0),
    "a part in place": lambda m, x: m.linear(x).index_copy_(0, torch.tensor([0]), x[:1]),
    "composed of composed": lambda m, x: torch.cartesian_prod(x[0, 0], m.linear(x)[0, 0]),
    "drawn and changed": lambda m, x: F.alpha_dropout(m.linear(x), 0.5, False),
    "bits": lambda m, x: m.linear(x).detach().view(torch.int32).float() + m.linear(x),
    "a constant index": _constant_index,
    "constants": lambda m, x: m.linear(x) * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "conjugate": lambda m, x: torch.view_as_complex(m.linear(x)[..., :2].contiguous()).conj().imag,
}


@pytest.mark.oldest
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_written_out(monkeypatch: pytest.MonkeyPatch, name: str, training: bool) -> None:
    assert is_the_same(monkeypatch, Small(WRITTEN_OUT[name]).train(training), X)


@pytest.mark.parametrize("name", TRACED_AGAIN)
def test_traced_again(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert not is_the_same(monkeypatch, Small(TRACED_AGAIN[name]), X)


@pytest.mark.parametrize("name", models.MODELS)
def test_models(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module, args = models.MODELS[name]()
    assert is_the_same(monkeypatch, module, *args) == (name != "resnet")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "swin"])
def test_models_that_nobody_here_wrote(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    zoo = pytest.importorskip("zoo")
    pytest.importorskip("transformers")
    module, args, kwargs = getattr(zoo, name)(dropout=0.1)
    assert is_the_same(monkeypatch, module, *args, **kwargs)


def test_results_whose_container_orders_its_keys_stay_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", minversion="5.0")
    outputs = importlib.import_module("transformers.modeling_outputs")

    def set_later(m: Small, x: Tensor) -> Any:
        result = outputs.BaseModelOutputWithPooling(last_hidden_state=m.linear(x))
        result["hidden_states"] = (None, x * 2)
        result["pooler_output"] = x.sum(1)
        return result

    assert is_the_same(monkeypatch, Small(set_later), X)
    monkeypatch.setattr(PASS, "write_out", lambda program: False)
    assert capture(Small(set_later), (X,)).verified


def test_results_of_a_module_that_runs_as_it_is_may_order_their_keys() -> None:
    pytest.importorskip("transformers", minversion="5.0")
    outputs = importlib.import_module("transformers.modeling_outputs")

    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Any:
            result = outputs.BaseModelOutputWithPooling(
                last_hidden_state=x.sin(), hidden_states=(None, x * 2)
            )
            result["pooler_output"] = x.sum(1)
            return result

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.inner = nn.Linear(4, 4), sw.opaque(Inner())

        def forward(self, x: Tensor) -> Any:
            return self.inner(self.linear(x))

    assert capture(Outer(), (torch.randn(2, 4),)).verified
