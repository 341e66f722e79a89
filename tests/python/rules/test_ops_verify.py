"""`shardwright ops verify`: rules on real tensors, with the shapes of a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shardwright.cli import main
from shardwright.runtime import ops

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(12, 6, padding_idx=0), nn.BatchNorm1d(6)

    def forward(self, x, tokens):
        h = F.dropout(self.norm(x), 0.3) + self.table(tokens)
        h = torch.cat([h, h.log_softmax(-1)], 1).cumsum(1).sqrt()
        places = torch.arange(5) + 3
        h = h + F.embedding(tokens, self.table.weight, scale_grad_by_freq=True).repeat(1, 2)
        return h.mean(), h[:, [8, 9]], torch.rand(12)[places]


def net():
    return Net(), (torch.randn(5, 6), torch.randint(0, 12, (5,)))
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "net.py"
    file.write_text(MODEL)
    return f"{file}:net"


def verified(capsys: pytest.CaptureFixture[str], *words: str, fails: bool = False) -> list[dict[str, Any]]:
    assert main(["ops", "verify", *words, "--json"]) == int(fails)
    calls: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["calls"]
    return calls


def splits_of(one: dict[str, Any]) -> list[str]:
    return [" ".join(f"{dim}:{parts}" for dim, parts in tried["splits"]) for tried in one["splits"]]


@pytest.mark.slow
def test_every_operator_of_a_model_is_split_along_each_dim_of_its_rule(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    every = verified(capsys, model)
    [without_rule] = [one for one in every if one["rule"] is None]
    assert without_rule["target"] == "aten.embedding.default", "with scaled gradients"
    assert without_rule["skipped"] == "the call has no rule: every device computes it whole"
    ruled = {one["target"]: one for one in every if one["rule"] is not None}
    assert len(ruled) > 10
    assert all(tried["problem"] is None for one in ruled.values() for tried in one["splits"])
    embedding = "vocab:2 vocab:3 width:2 width:3 a:2 a:3 a:2 vocab:2 value:2 value:3"
    assert " ".join(splits_of(ruled["aten.embedding.default"])) == embedding
    assert [tried["partial"] for tried in ruled["aten.cat.default"]["splits"][-2:]] == [[0, 1], [0, 1]]
    assert "value:2" not in splits_of(ruled["aten.sqrt.default"])
    batch_norm = next(one for target, one in ruled.items() if "batch_norm" in target)
    assert "a:2" in splits_of(batch_norm)
    assert ruled["aten.rand.default"]["skipped"] == "nothing of it is split"


BROKEN: dict[str, Callable[..., Any]] = {
    "embedding": lambda w, i, start, padding, total: torch.embedding(w, i.clamp(max=len(w) - 1)),
    "native_dropout": lambda x, p, operator, slot: (x * 2, x > 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_rule_that_does_not_hold_is_an_error(
    name: str, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ops, {"embedding": "embedding_shard"}.get(name, name), BROKEN[name])
    [one] = [one for one in verified(capsys, name, model, fails=True) if one["splits"]]
    assert any(tried["problem"] for tried in one["splits"])
    assert main(["ops", "verify", name, model]) == 1
    shown = capsys.readouterr()
    assert "differs" in shown.out and f"SW0138]: the rule of {one['target']} does not hold" in shown.err
    assert "it differs by" in shown.err and "net.py:" in shown.err


@pytest.mark.slow
def test_what_is_not_tried_is_said(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shardwright.rules.verifying._MOST", 60)
    assert main(["ops", "verify", "cumsum", model]) == 0
    assert "not tried: it has 120 elements; verify it in a smaller model" in capsys.readouterr().out
    assert main(["ops", "verify", "conv2d", model]) == 0
    assert (
        "Net does not call aten.conv2d.default, aten.conv2d.padding; name a model that does"
        in capsys.readouterr().out
    )
    assert main(["ops", "verify", "linaer"]) == 1
    assert "linear" in capsys.readouterr().err
    assert main(["ops", "verify", model, "another.py:net"]) == 1
    assert "are two models" in capsys.readouterr().err
