"""Named plans keep their purpose: what they save, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import live
import models
import zoo
from shardwright import Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture
from shardwright.cli import main
from shardwright.report.computed_work import lines_of_work, work_of

torch.set_num_threads(1)


def llama(vocabulary: int = 8, head: int = 4, time: int = 128) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=head,
        use_cache=False,
    )
    ids = torch.randint(3, vocabulary, (2, time))
    return LlamaForCausalLM(config), (), {"input_ids": ids, "labels": ids}


def peak(model: Any, plan: str) -> int:
    """The most bytes that live at once in a training step on one device, besides parameters and inputs."""
    module, args, kwargs = model
    captured = capture(module, args, kwargs)
    compiled = compile(Plan.named(Graph(captured.graph_text), plan, 1))
    return live.peak(compiled, module, captured, lambda it: it(*args, **kwargs).loss.backward())


@pytest.mark.slow
def test_coshard_keeps_the_attention_of_one_part() -> None:
    """Queries, keys and values are nearly all that this model keeps."""
    whole, half, quarter = (peak(llama(head=256), plan) for plan in ("replicate", "coshard:2", "coshard:4"))
    assert half < 0.6 * whole
    assert quarter < 0.4 * whole


# ---- where partial sums are completed --------------------------------------------------------


TOKENS, WIDTH, CHOSEN, BYTES = 32, 16, 2, 8

# What rank 0 all-reduces for the experts of a layer: the tensor, and how many elements it has.
EXPERTS = {
    "forward": [("final_hidden_states", TOKENS * WIDTH)],
    # The gradient of the weights of the chosen experts, and that of what all experts read.
    "backward": [("router_top_value_1", TOKENS * CHOSEN), ("hidden_states_3", TOKENS * WIDTH)],
}


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), [("megatron", 2), ("coshard:4", 2), ("data:2 x megatron:2", 4)])
def test_the_rows_of_a_token_are_summed_before_ranks_sum(plan: str, devices: int) -> None:
    module, args, kwargs = zoo.mixtral(layers=1)
    with zoo.widened():
        graph = Graph(capture(module, args, kwargs).graph_text)
    compiled = compile(Plan.named(graph, plan, devices))
    for phase, expected in EXPERTS.items():
        if plan != "coshard:4":
            expected = expected[:1]  # all of a phase in one message, which has the name of its first part
        mlp = [listed for listed in compiled.communications if listed[0] == phase and ".mlp" in listed[2]]
        assert [(kind, name) for _, kind, _, name in mlp] == [("all_reduce", name) for name, _ in expected]


@pytest.mark.slow
def test_bytes_of_the_experts_do_not_grow_with_how_many_are_chosen() -> None:
    module, args, kwargs = zoo.mixtral(layers=1)
    with zoo.widened():
        graph = Graph(capture(module, args, kwargs).graph_text)
    sent = compile(Plan.named(graph, "megatron", 2)).bytes[0]
    row = TOKENS * WIDTH * BYTES
    # The embedding, the attention, the experts; three values of each token for the loss.
    assert sent["forward all_reduce"] == 3 * row + 3 * TOKENS * BYTES
    # What the head, the attention and the experts read; the weights of the chosen experts.
    assert sent["backward all_reduce"] == 3 * row + TOKENS * CHOSEN * BYTES


# ---- what is left whole ----------------------------------------------------------------------


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 20)
        self.conv = nn.Conv2d(4, 6, 3, groups=2)

    def forward(self, x: Tensor, image: Tensor) -> Tensor:
        rows = self.linear(x)
        scores = torch.matmul(rows, rows.transpose(1, 2))
        attended = nn.functional.scaled_dot_product_attention(rows[:, None], rows[:, None], rows[:, None])
        return scores.sum() + attended.sum() + self.conv(image).sum()


def test_operations_are_those_that_torch_counts() -> None:
    module, args = Products().requires_grad_(False), (torch.randn(3, 5, 12), torch.randn(2, 4, 9, 9))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        module(*args)
    plan = Plan.named(Graph(capture(module, args).graph_text), "replicate", 1)
    # Three sums and two additions, one operation for each element, are not among those.
    elements = 3 * 5 * 5 + 3 * 5 * 20 + 2 * 6 * 7 * 7 + 2
    assert work_of(plan)["model"] == counter.get_total_flops() + elements


def swin() -> Any:
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(0)
    config = SwinConfig(
        image_size=32,
        patch_size=4,
        embed_dim=24,
        depths=[2, 2],
        num_heads=[3, 6],
        window_size=4,
        num_labels=8,
    )
    batch = {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(8, (4,))}
    return SwinForImageClassification(config), (), batch


@pytest.mark.slow
def test_what_is_left_whole_is_said_with_its_reason() -> None:
    module, args, kwargs = swin()
    graph = Graph(capture(module, args, kwargs).graph_text)
    work = work_of(Plan.named(graph, "megatron", 4))
    heads = [one for one in work["repeated"] if "3 elements, fewer than 4 parts" in one["reason"]]
    assert [one["modules"] for one in heads] == ["swin.encoder.layers.*.blocks.*.attention"]
    said = lines_of_work(work)
    assert "an even share is 25%" in said[0]
    assert any("blocks.*.attention" in line and "FLOP more" in line for line in said[1:])
    # Two ranks have three heads: uneven parts are parts.
    assert not any("fewer" in one["reason"] for one in work_of(Plan.named(graph, "megatron", 2))["repeated"])


def test_what_a_plan_foresees_is_what_the_program_computes() -> None:
    """The proof counts in the lowered program, also the pieces of what is rewritten; else both agree."""
    module, args = models.gpt()
    graph = Graph(capture(module, args).graph_text)
    for name, devices in [("replicate", 2), ("recompute", 1)]:
        plan = Plan.named(graph, name, devices)
        _, foreseen, again, _ = plan.work
        assert compile(plan).computed == [(int(a), int(b)) for a, b in zip(foreseen, again, strict=True)]
    for name, devices in [("data", 3), ("data:2 x megatron:2", 4), ("megatron x recompute", 2)]:
        plan = Plan.named(graph, name, devices)
        _, foreseen, again, _ = plan.work
        for computed, a, b in zip(compile(plan).computed, foreseen, again, strict=True):
            assert computed[0] == pytest.approx(a, rel=0.01), name
            assert computed[1] == pytest.approx(b, rel=0.01), name


@pytest.mark.slow
def test_shardwright_plan_says_it_behind_a_plan_that_is_a_plan_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, args, kwargs = swin()
    text = capture(module, args, kwargs).graph_text
    (tmp_path / "graph.txt").write_text(text)
    assert main(["plan", str(tmp_path / "graph.txt"), "--devices", "4", "--plan", "megatron", "--all"]) == 0
    printed = capsys.readouterr().out
    assert "# replicated: swin.encoder" in printed
    assert Plan.parse(Graph(text), printed).text in printed


def test_nothing_is_said_where_nothing_is_repeated() -> None:
    module, args, kwargs = llama()
    graph = Graph(capture(module, args, kwargs).graph_text)
    assert lines_of_work(work_of(Plan.named(graph, "data", 2))) == []
    (line, reason) = lines_of_work(work_of(Plan.named(graph, "replicate", 2)))
    assert "100%, an even share is 50%" in line and "every device computes everything" in reason
