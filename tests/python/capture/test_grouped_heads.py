"""Keys and values that a model repeats for each head of a group are not, where attention can do without."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equality
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture
from shardwright.capture.passes import grouped_heads

torch.set_num_threads(1)

BATCH, HEADS, GROUPS, LENGTH, WIDTH = 2, 8, 4, 6, 4
Repeat = Callable[[Tensor], Tensor]


def repeat(x: Tensor, times: int = HEADS // GROUPS) -> Tensor:
    """As Transformers does."""
    batch, heads, length, width = x.shape
    x = x[:, :, None, :, :].expand(batch, heads, times, length, width)
    return x.reshape(batch, heads * times, length, width)


class Attention(nn.Module):
    def __init__(self, repeat: Repeat, groups: int = GROUPS, width: int = WIDTH, **given: Any) -> None:
        super().__init__()
        self.repeat, self.groups, self.width, self.given = repeat, groups, width, given
        inner = HEADS * width
        self.q, self.o = nn.Linear(inner, inner, bias=False), nn.Linear(inner, inner, bias=False)
        self.k, self.v = (nn.Linear(inner, groups * width, bias=False) for _ in range(2))

    def heads(self, x: Tensor) -> Tensor:
        return x.view(BATCH, LENGTH, -1, self.width).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, self.repeat(k), self.repeat(v), **self.given)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attend(*(self.heads(part(x)) for part in (self.q, self.k, self.v)))
        return self.o(y.transpose(1, 2).reshape(x.shape)).square().mean()


def captured(model: nn.Module, dtype: torch.dtype = torch.float64, width: int = WIDTH) -> Captured:
    torch.manual_seed(0)
    x = torch.randn(BATCH, LENGTH, HEADS * width, dtype=dtype)
    found = capture(model.to(dtype), (x,))
    assert found.verified
    return found


def is_grouped(found: Captured) -> bool:
    attention = next(line for line in found.graph_text.splitlines() if "scaled_dot_product" in line)
    grouped = "enable_gqa=True" in attention
    assert grouped != ("aten.expand" in found.graph_text), found.graph_text
    return grouped


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (lambda: Attention(repeat), torch.float64),
        (lambda: Attention(repeat, is_causal=True, scale=0.3), torch.float64),
        (lambda: Attention(repeat, is_causal=True), torch.bfloat16),
        (lambda: Attention(lambda x: repeat(x, HEADS), groups=1), torch.float64),
        (lambda: Attention(lambda x: x.unsqueeze(2).expand(-1, -1, 2, -1, -1).flatten(1, 2)), torch.float64),
    ],
)
def test_heads_of_a_group_share_keys_and_values(model: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert is_grouped(captured(model(), dtype))


class Twice(Attention):
    """Keys that somebody else reads as well."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = self.repeat(k), self.repeat(v)
        return F.scaled_dot_product_attention(q, k, v) + k


class OnlyKeys(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, self.repeat(k), torch.cat([v, v], 1))


class Queries(Attention):
    """Queries are repeated, too."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = self.repeat(k)
        return F.scaled_dot_product_attention(k, k, self.repeat(v)) + q


def in_turn(x: Tensor) -> Tensor:
    """Head 0 and head 4 share keys, and not head 0 and head 1."""
    return x[:, None].expand(BATCH, 2, GROUPS, LENGTH, WIDTH).reshape(BATCH, HEADS, LENGTH, WIDTH)


MASK = torch.ones(LENGTH, LENGTH, dtype=torch.float64).tril()


@pytest.mark.parametrize(
    ("model", "dtype", "width"),
    [
        (lambda: Attention(repeat, is_causal=True), torch.float32, WIDTH),
        (lambda: Attention(repeat, is_causal=True), torch.float16, WIDTH),
        (lambda: Attention(repeat, width=256), torch.float64, 256),
        (lambda: Attention(repeat, attn_mask=MASK), torch.float64, WIDTH),
        (lambda: Attention(in_turn), torch.float64, WIDTH),
        (lambda: Twice(repeat), torch.float64, WIDTH),
        (lambda: OnlyKeys(repeat), torch.float64, WIDTH),
        (lambda: Queries(repeat), torch.float64, WIDTH),
    ],
)
def test_what_is_as_it_was(model: Callable[[], nn.Module], dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(0)
    assert not is_grouped(captured(model(), dtype, width))


PLANS = [("megatron", 2), ("megatron", 4), ("megatron", 8), ("data", 2), ("zero3", 2), ("sequence", 4)]


@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_plans_divide_it_as_they_did(plan: str, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    repeated, grouped = [], []
    for parts, types in ((repeated, ()), (grouped, (torch.float64,))):
        monkeypatch.setattr(grouped_heads, "_DTYPES", types)
        torch.manual_seed(0)
        made = captured(Attention(repeat, is_causal=True))
        assert is_grouped(made) == bool(types)
        graph = Graph(made.graph_text)
        decisions = Plan.named(graph, plan, devices).decisions
        splits = [splits for op, splits, _ in decisions if "scaled_dot_product" in op.target]
        # A repeated head's two factors are the groups and the heads in each.
        names = {"h.0": "h", "h.1": "g"}
        parts.extend([(names.get(dim, dim), count) for dim, count in split] for split in splits)
    assert len(grouped) == 1 and grouped == repeated


def attentions(text: str) -> list[str]:
    """The attentions of a program, each in one line."""
    code = " ".join(line.split("  # ")[0].strip() for line in text.splitlines())
    calls = re.findall(r"\S*scaled_dot_product_attention\([^)]*\)", code)
    return [call.replace("( ", "(").replace(" )", ")").replace(",)", ")") for call in calls]


@pytest.mark.parametrize(("plan", "devices"), [("megatron", 2), ("megatron", 8), ("data:2 x megatron:4", 8)])
def test_ranks_compute_what_one_device_does(plan: str, devices: int) -> None:
    torch.manual_seed(0)
    model, x = Attention(repeat, is_causal=True).double(), torch.randn(BATCH, LENGTH, HEADS * WIDTH).double()
    found = capture(model, (x,))
    compiled = compile(Plan.named(Graph(found.graph_text), plan, devices))
    text = "".join(text for name, text in compiled.files.items() if name.endswith(".py"))
    [attention] = attentions(text)
    assert attention.endswith("is_causal=True, enable_gqa=True)") and ".expand(" not in text, text
    bundle = Bundle(dict(compiled.files), compiled.digest, plan, devices, found, "", "")
    equality.assert_equal(equality.run(bundle, model, (x,)), equality.reference(model, (x,)), plan)


def test_a_program_of_llama_reads_as_a_person_would_write_it() -> None:
    module, args, kwargs = zoo.llama()
    with zoo.widened():
        found = capture(module, args, kwargs)
    compiled = compile(Plan.named(Graph(found.graph_text), "megatron", 2))
    text = "".join(text for name, text in compiled.files.items() if name.endswith(".py"))
    assert attentions(text) == [
        "F.scaled_dot_product_attention(q_embed_1, k_embed_1, value_states, is_causal=True, "
        "scale=0.3535533905932738, enable_gqa=True)"
    ]
    assert "torch.ops" not in text and ".expand(" not in text, text
