"""Faults that others have found in programs for many devices, or planted there to try their own checkers,
planted into emitted programs: the check refuses each, by its code. Where each is from is said with it.

What has no word in an emitted program is in `test_faults_of_others_at_run_time.py`.
"""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mutants
import shardwright as sw
from mutants import WIDTH, Change, Mlp, bundle_of, program, refusal

ALL_AXES = "data:2 x megatron:2 x stages:2 x 1f1b", 8
SEQUENCE = "sequence", 2
ZERO3 = "zero3", 2

# The fourteen mutants of TrainVerify (SOSP'25), of a model like Llama, on two of each axis.
TRAIN_VERIFY: dict[str, tuple[tuple[str, int], list[Change], str]] = {
    "1: a missing all-reduce": (
        ALL_AXES,
        [("    o = run.all_reduce(o_part, 0)", "    #"), ("norm_2, embed_1, o)", "norm_2, embed_1, o_part)")],
        "SW0505",
    ),
    "2: a missing all-reduce of the loss": (
        ALL_AXES,
        [
            ("    total_1, total_2 = run.all_reduce([total_part_2, total_part_1], 2)\n", ""),
            ("cross_entropy_loss, total_1, total_2)", "cross_entropy_loss, total_part_2, total_part_1)"),
        ],
        "SW0505",
    ),
    "3: an all-reduce in the place of an all-gather": (
        SEQUENCE,
        [("run.all_gather(add_1, 0, 2, factors=[[4], [4], [8], [2, 2]])", "run.all_reduce(add_1, 0)")],
        "SW0507",
    ),
    "4: an all-gather in the place of an all-reduce": (
        ALL_AXES,
        [("run.all_reduce(o_part, 0)", "run.all_gather(o_part, 0, 0, factors=[[4], [8], [16]])")],
        "SW0507",
    ),
    "5: a missing reduction in backward": (
        ALL_AXES,
        [
            ("    g_norm_2 = run.all_reduce(g_norm_2_part, 0)", "    #"),
            ("run.grad(add_norm, g_x, g_norm_2)", "run.grad(add_norm, g_x, g_norm_2_part)"),
        ],
        "SW0511",
    ),
    "5, form 2: a missing reduction of a gradient in a fused message": (
        ALL_AXES,
        [("                p.layers[0].norm_2.weight,\n", "")],
        "SW0511",
    ),
    "6: a message from the ranks of other rows": (
        ALL_AXES,
        [
            (
                '"sources": [[0, 9], [2, 9], [4, 10], [6, 10]], "targets"',
                '"sources": [[4, 9], [6, 9], [0, 10], [2, 10]], "targets"',
            )
        ],
        "SW0507",
    ),
    "6, form 2: a rank that runs another stage": (
        ALL_AXES,
        [
            ('"ranks": [0, 2, 4, 6]', '"ranks": [0, 2, 4, 7]'),
            ('"ranks": [1, 3, 5, 7]', '"ranks": [1, 3, 5, 6]'),
        ],
        "SW0506",
    ),
    "7: a constant, another operand": (ALL_AXES, [("mul = silu * up", "mul = silu * silu")], "SW0504"),
    "8: a constant, another dim": (ALL_AXES, [("power.mean((-1,)", "power.mean((-2,)")], "SW0504"),
    "9: a constant, another offset": (
        ALL_AXES,
        [
            (
                '"constants": [{"from": 0, "by": [[2, 0], [2, 16]]}]',
                '"constants": [{"from": 1, "by": [[2, 0], [2, 16]]}]',
            )
        ],
        "SW0504",
    ),
    "10: a value with two readers whose gradients are not summed": (
        ALL_AXES,
        [("    run.grad(embed, g_embed_2)", "    run.grad(embed, g_embed_1)")],
        "SW0511",
    ),
    "10, form 2: one of them twice": (
        ALL_AXES,
        [("g_embed_2 = g_embed + g_embed_1", "g_embed_2 = g_embed + g_embed")],
        "SW0508",
    ),
    "11: a rotary embedding turned the other way": (
        ALL_AXES,
        [("torch.cat([neg, a], -1)", "torch.cat([a, neg], -1)")],
        "SW0504",
    ),
    "12: a scale that is not the model's": (
        ALL_AXES,
        [("is_causal=True", "is_causal=True, scale=0.25")],
        "SW0504",
    ),
    "13: gradients that are not scaled by the number of micro-batches": (
        ALL_AXES,
        [("yield backward_1, b, scale,", "yield backward_1, b, 1.0,")],
        "SW0518",
    ),
    "13, form 2: a mean of parts that is taken for a sum": (
        ALL_AXES,
        [("loss = x / y", "loss = x * y")],
        "SW0504",
    ),
    "14: gradients that are reduced before the last micro-batch": (
        ALL_AXES,
        [("yield backward_1, b, scale, b == batches - 1", "yield backward_1, b, scale, b == 0")],
        "SW0519",
    ),
}


@pytest.mark.parametrize("name", TRAIN_VERIFY)
def test_mutants_of_trainverify(name: str) -> None:
    plan, changes, code = TRAIN_VERIFY[name]
    assert refusal(program(*plan), *changes).code == code


# The bugs of GraphGuard (Entangle, arXiv 2508.09505): those of `examples/data/bug_*`, and others like them.
GRAPH_GUARD: dict[str, tuple[tuple[str, int], list[Change], str]] = {
    "bug_grad_accumulation: losses that are not divided by the number of steps": (
        ("data:2 x megatron:2", 4),
        [("yield backward, b, scale,", "yield backward, b, 1.0,")],
        "SW0518",
    ),
    "bug_missing_layernorm_allreduce: the gradient of a norm whose tokens are split": (
        SEQUENCE,
        [("                p.layers[1].norm_2.weight,\n", "")],
        "SW0511",
    ),
    "bug_missing_allreduce_under_wrong_config: a row-parallel product whose sum a setting leaves out": (
        ("data:2 x megatron:2", 4),
        [
            ("    down = run.all_reduce(down_part, 0)", "    #"),
            ("p.layers[n + 1].norm_1, x, down,", "p.layers[n + 1].norm_1, x, down_part,"),
            ("p.norm, x, down)", "p.norm, x, down_part)"),
        ],
        "SW0505",
    ),
    "a rotary embedding of the wrong tokens": (
        SEQUENCE,
        # Which rows of `cos` and `sin` a rank holds.
        [("[[0, 4, [[2, 4]]], [0, 2], [0, 2]]", "[[0, 4], [0, 2], [0, 2]]")],
        "SW0504",
    ),
    "attention to keys from another position on": (
        SEQUENCE,
        [('"constants": [{"from": 0, "by": [[2, 4]]}]', '"constants": [{"from": 0, "by": [[2, 3]]}]')],
        "SW0504",
    ),
}


@pytest.mark.parametrize("name", GRAPH_GUARD)
def test_bugs_of_graphguard(name: str) -> None:
    plan, changes, code = GRAPH_GUARD[name]
    assert refusal(program(*plan), *changes).code == code


class Switch(nn.Module):
    """Two experts that see all tokens, and a loss of how evenly they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.a, self.b = nn.Linear(WIDTH, 2, bias=False), Mlp(), Mlp()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        p = self.router(x).softmax(-1)
        z = p[..., :1] * self.a(x) + p[..., 1:] * self.b(x)
        return F.mse_loss(z, y) + 0.01 * (p.mean((0, 1)) ** 2).sum()


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.down(F.gelu(self.up(x))), y)


class Packed(nn.Module):
    """Where sequences end, which the first layer and the last need."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        inside = (torch.arange(x.shape[1], device=x.device) < ends[:, None]).to(x.dtype)[..., None]
        x = torch.relu(self.a(x)) * inside
        return (self.b(x) * inside).square().mean()


def halves(graph: sw.Graph, draft: sw.Draft) -> None:
    """A pipeline of two: the second from `b` on."""
    at = next(at for at, operator in enumerate(graph.operators) if operator.path == "b")
    for device, operators in enumerate((graph.operators[:at], graph.operators[at:])):
        draft.block(list(operators))
        for operator in operators:
            draft.single(operator)
            draft.place(operator, [device])
    draft.schedule("1f1b")


@functools.cache
def made_bundle(kind: type[nn.Module], plan: object, devices: int) -> sw.Bundle:
    torch.manual_seed(0)
    x = torch.randn(4, 8, WIDTH, dtype=torch.float64)
    second = torch.tensor([3, 8, 5, 6]) if kind is Packed else torch.randn_like(x)
    return bundle_of(kind().double(), (x, second), plan, devices)


def test_graphguard_bug_missing_switchmlp_allreduce() -> None:
    bundle = made_bundle(Switch, "data:2 x megatron:2", 4)
    error = refusal(
        bundle,
        ("    z_2 = run.all_reduce(z_part, 0)", "    #"),
        ("switch_mean, z_2, y, p_1)", "switch_mean, z_part, y, p_1)"),
    )
    assert error.code == "SW0505" and "mse_loss" in str(error)


def test_graphguard_an_auxiliary_loss_that_each_rank_computes_of_its_own_tokens() -> None:
    error = refusal(
        made_bundle(Switch, "data:2 x megatron:2", 4),
        (
            "    mean, mse_loss = run.all_reduce([mean_part, mse_loss_part], 1)",
            "    mse_loss = run.all_reduce(mse_loss_part, 1)",
        ),
        ("switch_add, mean, mse_loss)", "switch_add, mean_part, mse_loss)"),
    )
    assert error.code == "SW0505" and "pow" in str(error)


def test_graphguard_an_auxiliary_loss_with_another_divisor() -> None:
    """That of a rank's own tokens, where those of all ranks are summed."""
    bundle = made_bundle(Switch, "data:2 x megatron:2", 4)
    error = refusal(
        bundle, ("ops.mean(p_1, (0, 1), False, 32, None)", "ops.mean(p_1, (0, 1), False, 16, None)")
    )
    assert error.code == "SW0504"


def test_graphguard_fill_and_cut_that_do_not_fit_each_other() -> None:
    """Seven columns on two ranks: the second has three, which another part of the model takes for others."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, 7), nn.Linear(7, WIDTH)).double()
    bundle = bundle_of(module, (torch.randn(4, WIDTH, dtype=torch.float64),), "megatron", 2)
    assert refusal(bundle, ("[[0, 16], [4, 7]]", "[[0, 16], [3, 6]]")).code == "SW0504"


# llm-infra-verifier (NJUDeepEngine), `benchmarks/real_bug_benchmark.py`.


def test_pytorch_144359_a_row_parallel_product_without_its_sum() -> None:
    error = refusal(
        made_bundle(Biased, "megatron", 2),
        ("    down = run.all_reduce(down_part, 0)", "    #"),
        ("p, down, y)\n    return mse", "p, down_part, y)\n    return mse"),
    )
    assert error.code == "SW0505"


def test_pytorch_144359_an_activation_of_what_is_yet_to_be_summed() -> None:
    """The activation moved behind the product, before its sum."""
    error = refusal(
        made_bundle(Biased, "megatron", 2),
        (
            "    gelu = F.gelu(up)\n    down = F.linear(gelu, p.down.weight)",
            "    gelu = F.linear(up, p.down.weight)\n    down = F.gelu(gelu)",
        ),
    )
    assert error.code == "SW0504"


def test_pytorch_144359_a_column_parallel_product_whose_gathering_is_left_out() -> None:
    error = refusal(
        program(*SEQUENCE),
        ("    add_2 = run.all_gather(add_1, 0, 2, factors=[[4], [4], [8], [2, 2]])\n", ""),
        ("rank, add, add_2, transpose_1, embed", "rank, add, add_1, transpose_1, embed"),
    )
    assert error.code == "SW0504"


def test_megatron_4092_a_stage_that_was_not_given_where_sequences_end() -> None:
    """Both stages need the mask: the second is sent it, or makes it of an input that it is given."""
    bundle = made_bundle(Packed, halves, 2)
    lacking = refusal(bundle, ("    run.send(1, inside)  # to rank 1\n", ""))
    assert lacking.code == "SW0506"
    assert refusal(bundle, ("    mul = b * inside", "    mul = b * b")).code == "SW0504"


def test_megatron_1525_a_message_that_is_received_from_another_stage() -> None:
    error = refusal(
        program(*ALL_AXES),
        (
            '"sources": [[0, 9], [2, 9], [4, 10], [6, 10]], "targets"',
            '"sources": [[1, 9], [2, 9], [4, 10], [6, 10]], "targets"',
        ),
    )
    assert error.code == "SW0506"


# NVIDIA/Megatron-LM#7452, of compositions that are silently wrong, and what it stands beside.


def test_megatron_7452_losses_that_are_divided_by_a_ranks_own_count_of_tokens() -> None:
    """Its third finding. Ranks have other numbers of labels: a mean of means is another number."""
    error = refusal(
        program("data", 2),
        (
            "    loss, total = run.all_reduce([loss_part, total_part], 0)",
            "    loss = run.all_reduce(loss_part, 0)",
        ),
        ("cross_entropy_loss, loss, total)", "cross_entropy_loss, loss, total_part)"),
    )
    assert error.code == "SW0505"


@pytest.mark.parametrize("group", [1, 2, 3])
def test_megatron_7452_a_collective_of_another_group(group: int) -> None:
    """Its fifth and seventh: what is scattered or gathered over the default group, not the module's own."""
    error = refusal(program(*ALL_AXES), ("run.all_reduce(o_part, 0)", f"run.all_reduce(o_part, {group})"))
    assert error.code == ("SW0507" if group == 3 else "SW0506")


def test_megatron_7452_a_partial_gradient_of_a_weight_that_all_ranks_hold() -> None:
    """A norm's weight, where tokens are split and nobody sums over them: the second kind of its findings."""
    error = refusal(program(*SEQUENCE), ("                p.norm.weight,\n", ""))
    assert error.code == "SW0511" and "norm.weight" in str(error)


def test_torchtitan_4245_a_bias_that_each_rank_adds_before_the_sum() -> None:
    error = refusal(
        made_bundle(Biased, "megatron", 2),
        ("F.linear(gelu, p.down.weight)", "F.linear(gelu, p.down.weight, p.down.bias)"),
    )
    assert error.code == "SW0504"


def test_megatron_6660_gradients_that_are_added_twice_for_a_micro_batch() -> None:
    line = "        yield backward_1, b, scale, b == batches - 1\n"
    assert refusal(program(*ALL_AXES), (line, line + line)).code == "SW0517"


def test_zero_3_gradients_that_one_copy_does_not_scatter() -> None:
    """As in Megatron-FSDP's: a parameter that lives in parts, whose gradient stays where it arose."""
    error = refusal(program(*ZERO3), ("    run.scatter_gradients(0, [p.norm])\n", ""))
    assert error.code == "SW0511"


def test_every_program_here_is_right_before_a_fault_is_planted() -> None:
    """`bundle_of` asserts it; the changes are none of them empty."""
    every = [
        change
        for cases in (TRAIN_VERIFY, GRAPH_GUARD)
        for _, changes, _ in cases.values()
        for change in changes
    ]
    assert all(old != new for old, new in every) and len(TRAIN_VERIFY) >= 14
    assert mutants.program(*ALL_AXES).proof
