"""The plan `expert`: experts spread over devices, beside the single device, alone and in products. What is
exchanged is in `test_expert_exchange`."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import shardwright as sw
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture

torch.set_num_threads(1)

OPERATOR = "shardwright.experts.default"
SIZES: dict[str, Any] = {
    "vocab_size": 53,
    "hidden_size": 16,
    "intermediate_size": 20,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32,
    "experts_implementation": "eager",
    "use_cache": False,
}


def qwen() -> zoo.Model:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(**SIZES, num_experts=5, norm_topk_prob=True, head_dim=4)
    return batch_of(Qwen3MoeForCausalLM(config), output_router_logits=True)


def deepseek() -> zoo.Model:
    """Groups of experts, a shared one, and a first layer without."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(0)
    sizes = {**SIZES, "num_key_value_heads": 4}
    heads = {
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 4,
    }
    groups = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
    return batch_of(
        DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, **heads, **groups, first_k_dense_replace=1))
    )


def batch_of(module: nn.Module, **more: Any) -> zoo.Model:
    ids = zoo.tokens(53, 8)
    return zoo.prepared(module), (), {"input_ids": ids, "labels": zoo.some_ignored(ids), **more}


MODELS = {"mixtral": zoo.mixtral, "qwen": qwen, "deepseek": deepseek}


@functools.cache
def known(name: str) -> tuple[zoo.Model, Captured, equality.Result]:
    module, args, kwargs = MODELS[name]()
    with zoo.widened():
        captured = capture(module, args, kwargs)
        return (module, args, kwargs), captured, equality.reference(module, args, kwargs=kwargs)


def bundled(captured: Captured, plan: str, devices: int) -> Bundle:
    compiled = compile(Plan.named(Graph(captured.graph_text), plan, devices))
    return Bundle(dict(compiled.files), compiled.digest, plan, devices, captured, "", "")


@pytest.mark.parametrize(
    ("name", "plan", "devices"),
    [
        ("mixtral", "expert", 2),
        ("mixtral", "expert", 3),  # four experts on three devices
        ("mixtral", "data:2 x expert:2", 4),
        ("mixtral", "zero3:2 x expert:2", 4),
        ("mixtral", "expert:2 x megatron:2", 4),
        ("mixtral", "expert:2 x recompute", 2),
        ("qwen", "expert", 2),
        ("qwen", "expert", 4),
        ("deepseek", "expert", 3),
        ("deepseek", "expert:2 x megatron:2", 4),
    ],
)
def test_losses_gradients_and_parameters_are_those_of_the_single_device(
    name: str, plan: str, devices: int
) -> None:
    (module, args, kwargs), captured, expected = known(name)
    with zoo.widened():
        actual = equality.run(bundled(captured, plan, devices), module, args, kwargs=kwargs)
    equality.assert_equal(actual, expected)


def test_experts_are_spread_inside_of_stages() -> None:
    (module, _, kwargs), captured, _ = known("deepseek")
    batches = equality.micro_batches(kwargs, 2)
    with zoo.widened():
        actual = equality.run_steps(bundled(captured, "stages:2 x expert:2", 4), module, batches)
        expected = equality.steps_reference(module, batches)
    equality.assert_equal(actual, expected)


@pytest.mark.parametrize("name", MODELS)
def test_mixtures_of_transformers_are_one_operator_each(name: str) -> None:
    _, captured, _ = known(name)
    targets = Counter(op.target for op in Graph(captured.graph_text).operators)
    assert targets[OPERATOR] == (1 if name == "deepseek" else 2)
    assert targets["shardwright.expert_linear.default"] == targets["aten.bmm.default"] == 0


def test_each_device_holds_its_experts_and_all_else() -> None:
    _, captured, _ = known("mixtral")
    graph = Graph(captured.graph_text)
    whole, spread = (compile(Plan.named(graph, plan, 4)).held for plan in ("data", "expert"))
    experts = 2 * 4 * (40 * 16 + 16 * 20) * 8
    assert [a - b for a, b in zip(whole, spread, strict=True)] == [experts * 3 // 4] * 4


TOKENS, WIDTH, CHOSEN, BYTES = 32, 16, 2, 8


def inside(plan: str, devices: int) -> tuple[Counter[tuple[str, str]], Any]:
    """What is communicated in the mixture of each layer, and the bytes of all."""
    _, captured, _ = known("mixtral")
    graph = Graph(captured.graph_text)
    gathered = f'shardwright-plan 1\ndevices {devices}\nuse "expert"\nop "*" {OPERATOR}: split e {devices}'
    named = plan != "gathered"
    compiled = compile(Plan.named(graph, plan, devices) if named else Plan.parse(graph, gathered))
    return Counter(
        (when, kind)
        for when, kind, path, _ in compiled.communications
        if ".mlp" in path and kind != "reduce_gradients"
    ), compiled.bytes[0]


def test_a_mixture_gathers_tokens_and_scatters_sums() -> None:
    """Forward the tokens, the numbers of their experts and what these count come, and the sum goes; backward
    its gradient comes, and those of the tokens and of what their experts count go."""
    kinds, _ = inside("expert", 2)
    assert kinds == {
        ("forward", "all_gather"): 2 * 3,
        ("forward", "reduce_scatter"): 2,
        ("backward", "all_gather"): 2,
        ("backward", "reduce_scatter"): 2 * 2,
    }


@pytest.mark.parametrize(("plan", "devices"), [("expert", 2), ("gathered", 4)])
def test_bytes_that_are_gathered_do_not_grow_with_how_many_experts_a_token_has(
    plan: str, devices: int
) -> None:
    _, sent = inside(plan, devices)
    row, numbers = TOKENS * WIDTH * BYTES, TOKENS * CHOSEN * BYTES
    part = row // devices
    assert sent["forward all_gather"] == 2 * (part + 2 * numbers // devices)
    assert sent["forward reduce_scatter"] == 2 * row
    assert sent["backward all_gather"] == 2 * part
    assert sent["backward reduce_scatter"] == 2 * (row + numbers)


# ---- mixtures of one's own -------------------------------------------------------------------


class Mixture(nn.Module):
    """A router, experts of one's own, and a loss. `towards` is added to what the router says."""

    def __init__(self, experts: int, towards: list[float], **how: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.router = nn.Linear(6, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, 10 if how.get("gated", True) else 5, 6))
        self.down = nn.Parameter(torch.randn(experts, 6, 5))
        self.register_buffer("towards", torch.tensor(towards))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x) + self.towards
        weights, chosen = scores.softmax(-1).topk(2)
        return (x + sw.experts(x, chosen, weights, self.up, self.down, **self.how)).cos().mean()


EVEN = [0.0] * 4
FEW = [99.0, 99.0, 0.0, 0.0]  # all tokens to two experts, none to the others


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize(
    ("towards", "how"),
    [
        (EVEN, {}),
        (FEW, {}),
        (EVEN, {"activation": torch.nn.functional.gelu, "gated": False}),
        (EVEN, {"activation": "relu", "gated": False}),
        (EVEN, {"capacity": 0.8}),
        (FEW, {"capacity": 1.0}),
    ],
)
def test_experts_of_ones_own_compute_what_the_single_device_computes(
    towards: list[float], how: dict[str, Any], devices: int
) -> None:
    module, args = Mixture(4, towards, **how).double(), (torch.randn(6, 3, 6, dtype=torch.float64),)
    captured = capture(module, args)
    actual = equality.run(bundled(captured, "expert", devices), module, args)
    equality.assert_equal(actual, equality.reference(module, args))


def written_out(
    x: Tensor, chosen: Tensor, weights: Tensor, up: Tensor, down: Tensor, room: int | None
) -> Tensor:
    """Loops: first choices before second ones, the tokens in their order."""
    taken: Counter[int] = Counter()
    sums = [x.new_zeros(down.shape[1]) for _ in x]
    for slot in range(chosen.shape[1]):
        for token, row in enumerate(x):
            expert = int(chosen[token, slot])
            taken[expert] += 1
            if room is None or taken[expert] <= room:
                gate, value = (up[expert] @ row).chunk(2)
                given = down[expert] @ (torch.nn.functional.silu(gate) * value)
                sums[token] = sums[token] + weights[token, slot] * given
    return torch.stack(sums)


@pytest.mark.parametrize(("capacity", "room"), [(None, None), (0.6, 2), (1.0, 3), (9, 99)])
def test_an_expert_takes_as_many_tokens_as_it_has_room_for(capacity: float | None, room: int | None) -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(7, 5, dtype=torch.float64), torch.rand(7, 2, dtype=torch.float64)
    up, down = torch.randn(4, 6, 5, dtype=torch.float64), torch.randn(4, 8, 3, dtype=torch.float64)
    chosen = torch.tensor([[0, 1], [0, 2], [0, 1], [1, 0], [0, 1], [2, 0], [0, 2]])
    leaves = [leaf.requires_grad_() for leaf in (x, weights, up, down)]
    actual = sw.experts(x, chosen, weights, up, down, capacity=capacity)
    expected = written_out(x, chosen, weights, up, down, room)
    torch.testing.assert_close(actual, expected)
    for one, other in zip(
        torch.autograd.grad(actual.cos().sum(), leaves),
        torch.autograd.grad(expected.cos().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_half_precision_is_summed_in_more_digits() -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(7, 5), torch.rand(7, 2)
    up, down, chosen = torch.randn(4, 6, 5), torch.randn(4, 8, 3), torch.randint(4, (7, 2))
    exact = sw.experts(x, chosen, weights, up, down)
    half = sw.experts(x.bfloat16(), chosen, weights.bfloat16(), up.bfloat16(), down.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), exact, rtol=0.05, atol=0.1)


@pytest.mark.slow
def test_a_capacity_that_drops_every_token_is_refused() -> None:
    module = Mixture(4, EVEN, capacity=0.1)
    with pytest.raises(sw.CaptureError) as refused:
        capture(module, (torch.randn(2, 3, 6),))
    what, place, why, fix = str(refused.value).split("\n")
    assert what == "error[SW0149]: a capacity of 0.1 drops every token"
    assert place.startswith("  at: ") and "test_expert_plan.py:" in place and "sw.experts(x, chosen" in place
    assert why == (
        "  why: the even share of 4 experts is 3 of 12 rows, and 0.1 times that is less than one row"
    )
    assert fix == "  help: give a capacity of at least 0.3334, or None to drop nothing"
    module.how = {"capacity": 0.3334}
    capture(module, (torch.randn(2, 3, 6),))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"activation": torch.sin}, "cannot have the activation"),
        ({"gated": False}, "`up` gives 10 numbers, of which `down` takes 5"),
    ],
)
def test_experts_that_do_not_fit_are_refused(changed: dict[str, Any], said: str) -> None:
    module = Mixture(4, EVEN)
    module.how = changed
    with pytest.raises(sw.CaptureError, match=said) as refused:
        module(torch.randn(2, 3, 6))
    assert refused.value.code == "SW0149"


def test_a_number_of_no_expert_is_an_index_error() -> None:
    x, weights = torch.randn(2, 5), torch.rand(2, 1)
    up, down = torch.randn(4, 6, 5), torch.randn(4, 8, 3)
    for capacity in (None, 2.0):
        with pytest.raises(IndexError, match="index 4 is out of bounds for dimension 0 with size 4"):
            sw.experts(x, torch.tensor([[0], [4]]), weights, up, down, capacity=capacity)


def test_expert_finds_nothing_in_a_model_without_experts() -> None:
    graph = Graph(capture(nn.Linear(4, 4), (torch.randn(2, 4),)).graph_text)
    with pytest.raises(sw.PlanError, match="`expert` finds nothing to split into 2 parts") as refused:
        Plan.named(graph, "expert", 2)
    assert refused.value.code == "SW0309"
