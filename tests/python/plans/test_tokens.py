"""Sequences in slices that flow through the stages of a pipeline: equal to the whole sequence, or refused."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equality
import models
import zoo
from shardwright import Bundle, CaptureError, Graph, Plan
from shardwright._core import Draft, compile, verify
from shardwright.capture import Captured, capture
from shardwright.capture.casts import Casting
from shardwright.capture.verify.against_module import Call, verify_capture
from shardwright.errors import CheckError, PlanError, RuntimeFault, ShardwrightError
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import sources

torch.set_num_threads(1)

PLANS = [
    ("stages:2 x tokens:2", 2),
    ("stages:2 x tokens:4", 2),
    # Of uneven slices some have one token more.
    ("stages:2 x tokens:3", 2),
    ("stages:2 x tokens:16", 2),
    ("stages:4 x tokens:8", 4),
    ("stages:1 x tokens:4", 1),
]
# Inside of stages, and in other orders.
PRODUCTS = [
    ("stages:2 x tokens:4 x data:2", 4),
    ("data:2 x stages:2 x tokens:16", 4),
    ("stages:2 x tokens:4 x megatron:2", 4),
    ("stages:2 x tokens:4 x zero3:2", 4),
    ("stages:2 x tokens:3 x recompute x offload", 2),
    ("stages:2 x tokens:4 x recompute:selective", 2),
    ("stages:2 x tokens:2 x coshard", 2),
    ("stages:4 x tokens:4 x gpipe", 4),
    ("stages:2 x tokens:4 x zb-h1", 2),
    ("stages:2 x tokens:2 x zb-v", 2),
    ("stages:2 x tokens:2 x interleaved", 2),
    ("stages:2 x tokens:2 x bidirectional", 2),
    ("stages:2 x tokens:2 x interlaced", 2),
]


def bundle(plan: Plan, captured: Captured) -> Bundle:
    compiled = compile(plan)
    return Bundle(dict(compiled.files), compiled.digest, plan.name, plan.devices, captured, "", "")


def assert_equal(plan: Plan, captured: Captured, model: models.Model, count: int) -> None:
    module, args = model
    batches = equality.micro_batches(args, count)
    actual = equality.run_steps(bundle(plan, captured), module, batches)
    equality.assert_equal(actual, equality.steps_reference(module, batches), f"{plan.name}, {count} batches")


@functools.cache
def gpt(depth: int = 2) -> tuple[models.Model, Captured, Graph]:
    module, args = models.gpt(depth=depth)
    captured = capture(module, args)
    return (module, args), captured, Graph(captured.graph_text)


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), PLANS, ids=str)
def test_slices_equal_the_whole_sequence(plan: str, devices: int) -> None:
    # Labels of the last two tokens are ignored: all those of the last slice, where there are many.
    model, captured, graph = gpt(depth=4)
    for count in (1, 2, 3):
        assert_equal(Plan.named(graph, plan, devices), captured, model, count)


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), PRODUCTS, ids=str)
def test_slices_go_with_other_plans(plan: str, devices: int) -> None:
    model, captured, graph = gpt()
    assert_equal(Plan.named(graph, plan, devices), captured, model, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_models_of_transformers_equal_the_single_device(name: str) -> None:
    module, args, kwargs = zoo.MODELS[name]()
    with zoo.widened():
        captured = capture(module, args, kwargs)
        graph = Graph(captured.graph_text)
        for plan, devices, count in [
            ("stages:2 x tokens:2", 2, 1),
            ("stages:2 x tokens:4", 2, 3),
            ("stages:4 x tokens:8", 4, 2),
            ("stages:2 x tokens:3 x data:2", 4, 2),
            ("stages:2 x tokens:3 x megatron:2", 4, 1),
        ]:
            batches = equality.micro_batches(kwargs, count)
            expected = equality.steps_reference(module, batches)
            made = bundle(Plan.named(graph, plan, devices), captured)
            equality.assert_equal(equality.run_steps(made, module, batches), expected, plan)


def test_outputs_are_those_of_the_whole_sequence() -> None:
    (module, args), captured, graph = gpt()
    compiled = compile(Plan.named(graph, "stages:2 x tokens:3", 2), outputs="all")
    program = load_program(dict(compiled.files))
    values = sources(module, captured)

    def rank(rank: int, comm: Any) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            logits, loss = ParallelModule(program, comm, values, captured)(*args)
        return logits, loss

    expected = module(*args)
    for logits, loss in run_local(2, rank):
        torch.testing.assert_close(logits, expected[0], rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(loss, expected[1], rtol=1e-11, atol=1e-11)


# ---- what is refused ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("bert", "bert.encoder.layer.0.attention.self"),
        ("vit", "vit.layers.0.attention"),
        ("t5", "encoder.block.0.layer.0.SelfAttention"),
    ],
)
def test_a_model_that_looks_ahead_is_refused_by_name_and_line(name: str, who: str) -> None:
    module, args, kwargs = zoo.MODELS[name]()
    graph = Graph(capture(module, args, kwargs).graph_text)
    with pytest.raises(PlanError) as error:
        Plan.named(graph, "stages:2 x tokens:2", 2)
    said = str(error.value)
    assert "error[SW0331]" in said and f"of {who} looks ahead" in said
    assert re.search(r"at: .*sdpa_attention\.py:\d+\n", said), said


@pytest.mark.slow
def test_attention_in_steps_is_refused_by_name_and_line() -> None:
    module, args, kwargs = zoo.llama(attention="eager")
    graph = Graph(capture(module, args, kwargs).graph_text)
    with pytest.raises(
        PlanError, match=r"aten\.matmul\.default of model\.layers\.0\.self_attn looks ahead\n  at: "
    ):
        Plan.named(graph, "stages:2 x tokens:2", 2)


def test_slices_need_stages_and_tokens() -> None:
    _, _, graph = gpt()
    for name, devices, said in [
        ("tokens:2", 1, "`tokens` is for a pipeline"),
        ("data:2 x tokens:2", 2, "`tokens` is for a pipeline"),
        ("stages:2 x tokens:17", 2, "16 tokens cannot be cut into 17 slices"),
        ("stages:2 x tokens:0", 2, "`0` is not a size of `tokens`"),
        ("stages:2 x tokens:all", 2, "`all` is not a size"),
    ]:
        with pytest.raises(PlanError, match=re.escape(said)):
            Plan.named(graph, name, devices)


@pytest.mark.slow
def test_the_single_device_s_masks_are_not_those_of_slices() -> None:
    module, args = models.gpt(dropout=0.2)
    captured = capture(module, args)
    made = bundle(Plan.named(Graph(captured.graph_text), "stages:2 x tokens:2", 2), captured)
    actual = equality.run_steps(made, module, equality.micro_batches(args, 2), 1)
    assert all(torch.isfinite(gradient).all() for gradient in actual.gradients.values())
    with pytest.raises(RuntimeFault, match="not known for slices of the sequence"):
        equality.run_steps(made, module, [args], 1, options=equality.single_device(7))


# ---- as plans ----------------------------------------------------------------------------------


def test_slices_are_a_line_of_plan_files_and_a_word_of_drafts() -> None:
    _, _, graph = gpt()
    named = Plan.named(graph, "stages:2 x tokens:4", 2)
    assert "\ntokens 4\n" in named.text and "\ntokens 4\n" in named.folded
    head = "shardwright-plan 1\ndevices 2\n"
    for text in (named.text, f'{head}use "stages:2"\ntokens 4\n', f'{head}use "stages:2 x tokens:4"\n'):
        assert compile(Plan.parse(graph, text)).counts == compile(named).counts
    with pytest.raises(PlanError, match="`many` is not a number of slices"):
        Plan.parse(graph, f'{head}use "stages:2"\ntokens many\n')
    draft = Draft(graph, "mine", 1)
    for operator in graph.operators:
        draft.place(operator, [0] * len(draft.single(operator)))
    draft.tokens(2)
    plan = draft.finish()
    assert "\ntokens 2\n" in plan.text
    assert "1F0" in compile(plan).timetable(1)
    # As many as stages, if none are said.
    assert "\ntokens 2\n" in Plan.named(graph, "stages:2 x tokens", 2).text


@pytest.mark.slow
def test_calls_of_other_lengths_have_slices_while_there_are_tokens() -> None:
    (module, _), _, graph = gpt()
    plan = Plan.named(graph, "stages:2 x tokens:4", 2)
    for time, slices in ((12, True), (5, True), (3, False)):
        _, args = models.gpt(time=time)
        captured = capture(module, args)
        other = plan.transferred(Graph(captured.graph_text))
        assert ("\ntokens 4\n" in other.text) == slices
        assert bool(other.notes) != slices
        assert_equal(other, captured, (module, args), 2)


def test_a_proof_names_the_slices() -> None:
    _, _, graph = gpt()
    plan = Plan.named(graph, "stages:2 x tokens:3", 2)
    expected = [
        "the model in slices of idx.1 that end at 6, 11, 16",
        "%loss (aten.cross_entropy_loss.default) along b",
    ]
    assert plan.rewritings == expected
    assert all(f"  the rewriting of {line}\n" in compile(plan).proof for line in expected)


@pytest.mark.slow
def test_parameters_of_several_slices_are_summed_where_they_are() -> None:
    """Nothing but activations and their gradients: what positions are each stage computes."""
    module, args, kwargs = zoo.llama()
    graph = Graph(capture(module, args, kwargs).graph_text)
    assert compile(Plan.named(graph, "stages:2 x tokens:4", 2)).counts == [
        {"forward send": 4},
        {"backward send": 4},
    ]


# ---- what it looks like ------------------------------------------------------------------------


def test_a_stage_works_on_a_slice_while_the_next_one_works_on_the_one_before() -> None:
    _, _, graph = gpt()
    compiled = compile(Plan.named(graph, "stages:2 x tokens:2", 2))
    assert compiled.timetable(2) == (
        "rank 0  0F0 1F0 0F1 1F1 .   1B0---- 0B0---- .   .   1B1---- 0B1----\n"
        "rank 1  .   2F0 3F0 3B0---- 2B0---- 2F1 3F1 3B1---- 2B1----\n"
    )


def test_slices_share_the_functions_of_layers() -> None:
    _, _, graph = gpt(depth=4)
    text = compile(Plan.named(graph, "stages:2 x tokens:2", 2)).files["rank_0.py"]
    assert text.count("\ndef attention") == 2 and text.count("\ndef gpt_mlp") == 1
    assert "idx_1 = idx[:, 8:16]" in text and "torch.tril(seen, 8)" in text


# ---- faults ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"torch\.cat\(\[(\w+), (\w+)\], 2\)", r"torch.cat([\2, \1], 2)"),
        (r"torch\.cat\(\[(\w+), (\w+)\], 2\)", r"torch.cat([\2, \2], 2)"),
        (r"torch\.tril\(seen, 4\)", "torch.tril(seen, 3)"),
        (r"torch\.tril\(seen, 4\)", "torch.tril(seen, 5)"),
        (r"torch\.tril\(seen, 4\)", "torch.triu(seen, 4)"),
        (r"idx\[:, 4:8\]", "idx[:, 8:12]"),
        (r"forward_0, (.*\n +yield) forward_1, (.*)", r"forward_1, \1 forward_0, \2"),
        (r"backward_3, (.*\n +yield) backward_2, (.*)", r"backward_2, \1 backward_3, \2"),
        (r'"ends": \[4, 8, 12, 16\]', '"ends": [4, 9, 12, 16]'),
        (r'"ends": \[4, 8, 12, 16\]', '"ends": [8, 4, 12, 16]'),
        (r'  "slices": .*\n', ""),
    ],
)  # fmt: skip
def test_slices_out_of_order_and_missing_keys_are_found(pattern: str, new: str) -> None:
    _, captured, graph = gpt()
    files = dict(compile(Plan.named(graph, "stages:2 x tokens:4", 2)).files)
    verify(captured.graph_text, files)
    wrong = {name: re.sub(pattern, new, text, count=1) for name, text in files.items()}
    assert wrong != files
    with pytest.raises((CheckError, ShardwrightError), match=r"error\[SW0[56]"):
        verify(captured.graph_text, wrong)


# ---- the rewriting, on tensors -----------------------------------------------------------------


class Attending(nn.Module):
    """Attention of what is projected, with all its gradients."""

    def __init__(self, attend: Callable[..., Tensor], heads: int, groups: int, width: int) -> None:
        super().__init__()
        self.attend, self.heads, self.groups = attend, heads, groups
        self.q = nn.Linear(8, heads * 4)
        self.k = nn.Linear(8, groups * 4)
        self.v = nn.Linear(8, groups * width)

    def forward(self, x: Tensor) -> Tensor:
        def split(y: Tensor, heads: int) -> Tensor:
            return y.unflatten(-1, (heads, -1)).transpose(1, 2)

        q, k, v = split(self.q(x), self.heads), split(self.k(x), self.groups), split(self.v(x), self.groups)
        return self.attend(q, k, v).transpose(1, 2).flatten(2)


def attention(**options: Any) -> Callable[..., Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, **options)


CASES = {
    "plain": (attention(), 2, 2, 4),
    "scale": (attention(scale=0.3), 2, 2, 4),
    "one head": (attention(), 1, 1, 4),
    "wide values": (attention(), 2, 2, 6),
    "groups": (attention(enable_gqa=True), 4, 2, 4),
    "no heads": (lambda q, k, v: attention()(q[:, 0], k[:, 0], v[:, 0]).unsqueeze(1), 2, 2, 4),
}


def in_slices(case: str, count: int) -> tuple[Call, str]:
    torch.manual_seed(3)
    module, x = Attending(*CASES[case]).double(), torch.randn(2, 7, 8).double()
    graph = Graph(capture(module, (x,)).graph_text)
    text = Plan.named(graph, f"stages:1 x tokens:{count}", 1).rewritten.text
    return Call(module, inspect.signature(module.forward).bind(x), Casting(module)), text


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("case", CASES)
def test_attention_in_slices_computes_the_same(case: str, count: int) -> None:
    call, text = in_slices(case, count)
    assert text.count("= aten.scaled_dot_product_attention.default(") == count
    verify_capture(call, text, {})


def test_attention_that_computes_something_else_is_found() -> None:
    """So that the comparison above is worth something."""
    call, text = in_slices("plain", 3)
    for pattern, new in (
        (r"(aten\.tril\.default\(%\w+, )3\)", r"\g<1>2)"),
        (r"(aten\.cat\.default\(\[)(%\w+), (%\w+)\], 2", r"\1\3, \2], 2"),
        (r"(aten\.slice\.Tensor\(%x, 1, )3, 5", r"\g<1>2, 4"),
    ):
        wrong = re.sub(pattern, new, text, count=1)
        assert wrong != text, pattern
        with pytest.raises(CaptureError):
            verify_capture(call, wrong, {})
