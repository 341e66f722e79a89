"""Batches padded to a few lengths: the same losses and gradients, with few programs."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw
from shardwright.runtime import run_local

LABELS = {"tokens": 0, "labels": -100}


class Tiny(nn.Module):
    """Causal, as far as a cumulative mean is: what stands behind changes nothing before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(17, 8), nn.Linear(8, 17)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        seen = self.embed(tokens).cumsum(1)
        return F.cross_entropy(self.head(seen).flatten(0, 1), labels.flatten(), ignore_index=-100)


def batch(length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(0, 17, (4, length), generator=generator)
    return {"tokens": tokens, "labels": tokens.roll(-1, 1)}


@pytest.mark.parametrize(("length", "expected"), [(3, 8), (8, 8), (9, 16), (16, 16)])
def test_a_batch_gets_the_next_length(length: int, expected: int) -> None:
    filled = sw.pad_to(batch(length), [16, 8], LABELS)
    assert filled["tokens"].shape == filled["labels"].shape == (4, expected)
    assert torch.equal(filled["tokens"][:, :length], batch(length)["tokens"])
    assert (filled["tokens"][:, length:] == 0).all() and (filled["labels"][:, length:] == -100).all()


def test_the_kind_of_batch_stays() -> None:
    x, y = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.long)
    assert [t.shape[1] for t in sw.pad_to((x, y), 4, {1: -100})] == [3, 4]
    assert isinstance(sw.pad_to([x, y], 4, {0: 0.0}), list)
    assert torch.equal(sw.pad_to(x, 4, {0: 0.5}), torch.tensor([[1, 1, 1, 0.5]] * 2))
    pair = namedtuple("pair", "x y")
    assert sw.pad_to(pair(x, y), 4, {0: 0}).x.shape == (2, 4)
    image = torch.ones(2, 3, 5, 6)
    assert sw.pad_to((image,), 8, {0: 0}, dim=2)[0].shape == (2, 3, 8, 6)
    assert sw.pad_to((image,), 8, {0: 0}, dim=-1)[0].shape == (2, 3, 5, 8)


@pytest.mark.parametrize(
    ("given", "lengths", "values", "code", "words"),
    [
        (batch(9), [8], LABELS, "SW0157", "the longest of the lengths is 8"),
        (batch(9), [], LABELS, "SW0157", "there are no lengths"),
        ({"x": torch.ones(3)}, [8], {"x": 0}, "SW0157", "it has no such dim"),
        (batch(9), [16], {"tokens": 0, "label": -100}, "SW0156", "did you mean `labels`?"),
        ((torch.ones(2, 2),), [8], {1: 0}, "SW0156", "its tensors are 0"),
    ],
)
def test_what_cannot_be_filled_up(given: Any, lengths: Any, values: Any, code: str, words: str) -> None:
    with pytest.raises(sw.CaptureError, match=words) as refused:
        sw.pad_to(given, lengths, values)
    assert refused.value.code == code


def test_few_programs_give_the_losses_and_gradients_of_every_length() -> None:
    torch.manual_seed(0)
    plain = Tiny().double()
    start = {name: value.clone() for name, value in plain.state_dict().items()}
    lengths = [5, 7, 8, 11, 6, 16]
    expected = []
    for length in lengths:
        plain.zero_grad()
        loss = plain(**batch(length))
        loss.backward()
        expected.append((loss.detach(), plain.head.weight.grad.clone()))

    def rank(rank: int, comm: Any) -> tuple[list[tuple[Tensor, Tensor]], list[str]]:
        module = Tiny().double()
        module.load_state_dict(start)
        example = sw.pad_to(batch(5), [8, 16], LABELS)
        model = sw.parallelize(module, (), example, plan="data", comm=comm, progress=False)
        steps = []
        for length in lengths:
            model.zero_grad()
            loss = model.train_step(sw.pad_to(batch(length), [8, 16], LABELS))
            steps.append((loss.detach(), dict(model.named_parameters())["head.weight"].grad.clone()))
        return steps, model.programs

    for steps, programs in run_local(2, rank):
        for (loss, grad), (other_loss, other_grad) in zip(steps, expected, strict=True):
            torch.testing.assert_close(loss, other_loss, rtol=1e-12, atol=0)
            torch.testing.assert_close(grad, other_grad, rtol=1e-9, atol=1e-12)
        assert programs == [
            "training: tokens int64[4, 8], labels int64[4, 8]",
            "training: tokens int64[4, 16], labels int64[4, 16]",
        ]
