"""Masks made of positions become `is_causal`, or nothing; others stay. Capture compares with the module."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardwright.capture import capture
from shardwright.capture.passes import masks as masks_of

LENGTH = 6


class Attention(nn.Module):
    def __init__(self, mask: Callable[[Tensor], Tensor]):
        super().__init__()
        self.mask = mask
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=self.mask(x)).sum()


def positions(x: Tensor) -> tuple[Tensor, Tensor]:
    at = torch.arange(x.shape[-2], device=x.device)[None, :].expand(x.shape[0], -1)
    return at[:, None, :, None], at[:, None, None, :]


def causal(x: Tensor) -> Tensor:
    rows, columns = positions(x)
    return columns <= rows


def packed(x: Tensor) -> Tensor:
    """As for several texts in one row, of which there is one."""
    at = torch.arange(x.shape[-2])[None, :].expand(x.shape[0], -1)
    text = (at[:, 1:] - at[:, :-1] != 1).cumsum(-1)
    text = F.pad(text, (1, 0))
    return (text[:, None, :, None] == text[:, None, None, :]) & causal(x)


CASES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "causal": (causal, "is_causal=True"),
    "packed": (packed, "is_causal=True"),
    "tril": (lambda x: torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(), "is_causal=True"),
    "everything": (lambda x: causal(x) | ~causal(x), "no mask"),
    "a window": (lambda x: causal(x) & (positions(x)[1] > positions(x)[0] - 3), "a mask"),
    "not oneself": (lambda x: (positions(x)[1] < positions(x)[0]) | (positions(x)[1] == 0), "a mask"),
    "of each row another": (
        lambda x: causal(x) & (torch.arange(x.shape[0])[:, None, None, None] < positions(x)[0] + 2),
        "a mask",
    ),
    "of the input": (lambda x: causal(x) & (x.abs().sum(-1)[:, :, None, :] >= 0), "a mask"),
}


@pytest.mark.parametrize("name", CASES)
def test_masks(name: str) -> None:
    mask, expected = CASES[name]
    captured = capture(Attention(mask).double(), (torch.randn(3, 1, LENGTH, 4, dtype=torch.float64),))
    assert captured.verified
    line = next(line for line in captured.graph_text.splitlines() if "scaled_dot_product" in line)
    operands = line.split("(", 1)[1].count("%")
    kind = "a mask" if operands == 4 else "is_causal=True" if "is_causal=True" in line else "no mask"
    assert kind == expected, line


def test_a_long_causal_mask_is_computed_once_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks_of, "_LARGEST", LENGTH * LENGTH)
    example = (torch.randn(3, 1, LENGTH, 4, dtype=torch.float64),)
    assert "is_causal=True" in capture(Attention(packed).double(), example).graph_text
    monkeypatch.setattr(masks_of, "_LARGEST", LENGTH * LENGTH - 1)
    assert "is_causal=True" not in capture(Attention(packed).double(), example).graph_text
