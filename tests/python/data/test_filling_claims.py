"""What the proof of filled lengths claims holds: of tensors, of random models, with garbage in tails."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import shardwright as sw
from claims import Proved, refuted
from test_filling import (
    LABELS,
    MASKED,
    SIZE,
    Causal,
    Masked,
    Model,
    Pooled,
    Sums,
    Triangle,
    Weighted,
    masked,
    seeded,
    tokens,
)

LONG = 12


def same(proved: Proved, tolerance: float = 1e-9) -> list[str]:
    """Whether loss and gradients of the filled batch are those of the batch, also with garbage in tails."""
    _, expected = proved.tensors(True)
    gradients, wrong = proved.gradients(expected), []
    for garbage in (None, 1):
        _, loss = proved.tensors(False, garbage)
        if not torch.allclose(loss, expected, rtol=tolerance, atol=1e-12):
            wrong.append(f"with {garbage} the loss is {float(loss.detach())}, not {float(expected.detach())}")
        for name, gradient in proved.gradients(loss).items():
            other = gradients[name]
            if gradient is None or other is None:
                continue
            if not torch.allclose(gradient, other, rtol=tolerance, atol=1e-10):
                wrong.append(f"with {garbage} the gradient of {name} is another")
    return wrong


@pytest.mark.parametrize("length", [3, 7, 11])
@pytest.mark.parametrize("kind", [Sums, Causal, Triangle, Masked, Weighted, Pooled])
def test_every_claim_holds_on_real_tensors(kind: Any, length: int) -> None:
    with_mask = kind in (Masked, Weighted, Pooled)
    batch, values = (masked(length), MASKED) if with_mask else (tokens(length), LABELS)
    proved = Proved(seeded(kind)(), batch, LONG, [values])
    assert not refuted(proved)
    assert not same(proved)


def test_a_claim_that_does_not_hold_is_seen() -> None:
    proved = Proved(seeded(Causal)(), tokens(5), LONG, [LABELS])
    at, (name, tails, contents) = next(
        (at, known) for at, known in enumerate(proved.known) if known[0] == "layer_norm"
    )
    proved.known[at] = (name, tails, [contents[0], ("within", 0.0, 0.0)])
    assert "is not within 0.0 0.0" in refuted(proved)[0]
    proved.known[at] = (name, [(*tails[0][:3], tails[0][3] - 1, tails[0][4])], contents)
    with pytest.raises((RuntimeError, AssertionError)):
        assert not refuted(proved)


Step = Callable[[Any, Tensor, Tensor], Tensor]


def _attended(model: Any, x: Tensor, hidden: Tensor | None = None, low: float = 0.0, **more: Any) -> Tensor:
    q, k, v = model.q(x), model.k(x), model.v(x)
    if hidden is None:
        return x + F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], **more)[:, 0]
    return x + (q @ k.transpose(1, 2) / 8**0.5).masked_fill(hidden, low).softmax(-1) @ v


def _places(x: Tensor) -> tuple[Tensor, Tensor]:
    places = torch.arange(x.shape[1])
    return places[:, None], places[None, :]


SAFE: dict[str, Step] = {
    "linear": lambda model, x, mask: model.q(x),
    "gelu": lambda model, x, mask: F.gelu(x),
    "tanh": lambda model, x, mask: x.tanh() * 2 - 1,
    "norm": lambda model, x, mask: F.layer_norm(x, [8]),
    "mask": lambda model, x, mask: x * mask[..., None],
    "where": lambda model, x, mask: torch.where(mask[..., None] == 1, x, x.new_ones(())),
    "places": lambda model, x, mask: x + torch.arange(x.shape[1])[:, None] / 8,
    "cumsum": lambda model, x, mask: x.cumsum(1) / 4,
    "heads": lambda model, x, mask: (
        x.unflatten(-1, (2, 4)).transpose(1, 2).softmax(-1).transpose(1, 2).flatten(2)
    ),
    "rows": lambda model, x, mask: model.k(x.flatten(0, 1)).view(x.shape),
    "shifted": lambda model, x, mask: x + torch.cat([x[:, :1], x[:, :-1]], 1),
    "first": lambda model, x, mask: x - x[:, :1],
    "causal": lambda model, x, mask: _attended(model, x, is_causal=True),
    "masked": lambda model, x, mask: _attended(model, x, attn_mask=mask.bool()[:, None, None]),
    "least": lambda model, x, mask: _attended(model, x, mask[:, None] == 0, torch.finfo(x.dtype).min),
    "infinite": lambda model, x, mask: _attended(model, x, mask[:, None] == 0, -torch.inf),
    "behind": lambda model, x, mask: _attended(model, x, _places(x)[0] < _places(x)[1], -torch.inf),
    "triangle": lambda model, x, mask: torch.tril(torch.ones(x.shape[1], x.shape[1], dtype=x.dtype)) @ x / 8,
    "pooled": lambda model, x, mask: x + ((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))[:, None],
    "unit": lambda model, x, mask: F.normalize(x * mask[..., None], dim=-1),
    "rms": lambda model, x, mask: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
}
RISKY: dict[str, Step] = {
    "mean": lambda model, x, mask: x - x.mean(1, keepdim=True),
    "sum": lambda model, x, mask: x + x.sum(1, keepdim=True) / 8,
    "flip": lambda model, x, mask: x + x.flip(1),
    "roll": lambda model, x, mask: x + x.roll(1, 1),
    "softmax": lambda model, x, mask: x * x.softmax(1),
    "most": lambda model, x, mask: x - x.amax(1, keepdim=True),
    "last": lambda model, x, mask: x - x[:, -1:],
    "counted": lambda model, x, mask: x * (x.shape[1] / 8),
    "open": lambda model, x, mask: _attended(model, x),
    "mild": lambda model, x, mask: _attended(model, x, mask[:, None] == 0, -5.0),
    "late": lambda model, x, mask: _attended(model, x, _places(x)[0] + 1 < _places(x)[1], -torch.inf),
    "root": lambda model, x, mask: x.abs().sqrt(),
    "inverse": lambda model, x, mask: x / (x.sum(-1, keepdim=True)),
    "std": lambda model, x, mask: x / (x.std(-1, keepdim=True) + 1e-3),
    "wide": lambda model, x, mask: torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=x.dtype)) @ x / 8,
    "conv": lambda model, x, mask: F.conv1d(
        x.transpose(1, 2), model.v.weight[..., None].expand(8, 8, 3), padding=1
    ).transpose(1, 2),
    "norm of rows": lambda model, x, mask: F.normalize(x, dim=1),
}
ENDS: dict[str, Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    "ignored": lambda model, x, mask, labels: model.loss(x, labels),
    "shifted": lambda model, x, mask, labels: F.cross_entropy(
        model.head(x)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    ),
    "weighted": lambda model, x, mask, labels: (x.pow(2).mean(-1) * mask).sum() / mask.sum(),
    "rows": lambda model, x, mask, labels: (
        F.cross_entropy(model.head(x).transpose(1, 2), labels, reduction="none") * mask
    ).sum(),
    "mean": lambda model, x, mask, labels: x.pow(2).mean(),
    "squares": lambda model, x, mask, labels: F.mse_loss(x, x.detach().flip(-1)),
    "sum": lambda model, x, mask, labels: x.sum() / 8,
}
SAFE_ENDS = ("ignored", "shifted", "weighted", "rows")


class Drawn(Model):
    def __init__(self, steps: list[str], end: str) -> None:
        super().__init__()
        self.steps, self.end = steps, end

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        for name in self.steps:
            x = {**SAFE, **RISKY}[name](self, x, mask)
        return ENDS[self.end](self, x, mask, labels) + 0 * self.head(x[:, :1]).sum()


@pytest.mark.parametrize("seed", range(40))
def test_what_is_proved_of_random_models_is_right(seed: int) -> None:
    """Whatever they do and are filled with: it is refused, or nothing changes."""
    draw = random.Random(seed)
    steps = draw.sample(list(SAFE), draw.randint(1, 4))
    safe = draw.random() < 0.4
    end = draw.choice(SAFE_ENDS if safe else list(ENDS))
    if not safe:
        steps.insert(draw.randrange(len(steps) + 1), draw.choice(list(RISKY)))
    wrong_fills = [{"tokens": 3}, {"mask": 1}, {"labels": 0}, {"labels": -1}]
    values = MASKED | ({} if safe or draw.random() < 0.5 else draw.choice(wrong_fills))
    try:
        proved = Proved(seeded(lambda: Drawn(steps, end))(), masked(draw.randint(3, 11)), LONG, [values])
    except sw.CaptureError as error:
        assert error.code in ("SW0170", "SW0171"), error
        assert not safe, f"{steps} {end}: {error}"
        return
    assert not refuted(proved), (steps, end, values)
    assert not same(proved, 1e-7), (steps, end, values)


@pytest.mark.parametrize("name", list(RISKY))
def test_a_risky_step_alone_is_refused(name: str) -> None:
    with pytest.raises(sw.CaptureError) as refused:
        Proved(seeded(lambda: Drawn(["places", name], "ignored"))(), masked(7), LONG, [MASKED])
    assert refused.value.code in ("SW0170", "SW0171")


@pytest.mark.parametrize("end", [end for end in ENDS if end not in SAFE_ENDS])
def test_a_loss_that_counts_all_is_refused(end: str) -> None:
    with pytest.raises(sw.CaptureError, match="SW0170"):
        Proved(seeded(lambda: Drawn(["gelu"], end))(), masked(7), LONG, [MASKED])


@pytest.mark.parametrize(
    ("steps", "end", "fills"),
    [
        (["masked"], "ignored", {"mask": 1}),
        (["least"], "ignored", {"mask": 1}),
        (["infinite"], "ignored", {"mask": 1}),
        (["pooled"], "ignored", {"mask": 1}),
        (["gelu"], "weighted", {"mask": 1}),
        (["gelu"], "ignored", {"labels": 0}),
        (["gelu"], "ignored", {"labels": -99}),
        (["gelu"], "ignored", {"tokens": SIZE}),
        (["causal"], "shifted", {"labels": 1}),
    ],
)
def test_another_value_that_fills_up_is_refused(steps: list[str], end: str, fills: dict[str, float]) -> None:
    make = seeded(lambda: Drawn(steps, end))
    assert not same(Proved(make(), masked(7), LONG, [MASKED]))
    with pytest.raises(sw.CaptureError, match="SW0170"):
        Proved(make(), masked(7), LONG, [MASKED | fills])
