"""What a plan says is computed again: programs equal the single device, keep less, and say what they do."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equality
import live
import models
import shardwright as sw
from shardwright import Bundle, Graph, Plan
from shardwright._core import Compiled, compile
from shardwright.capture import Captured, capture
from shardwright.cli import main
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import sources

torch.set_num_threads(1)

NAMED = [
    ("recompute", 1),
    ("data x recompute", 3),
    ("megatron x recompute", 2),
    ("recompute x data:2 x megatron:2", 4),
    ("coshard:2 x recompute", 1),
]
LINES = {
    "every second layer": 'recompute "h.1"',
    "all but attention": 'recompute "h.*" but "h.*.attn"',
    "norms and activations": 'recompute "h.*" aten.gelu.*\nrecompute "h.*" aten.layer_norm.*',
    "inside of each other": 'recompute "*"\nrecompute "h.*"\nrecompute "h.*.mlp"',
    "over layers": "recompute %linear_1 %linear_2 %gelu %linear_4 %split_0",
    "the loss": 'recompute "lm_head"\nrecompute "" aten.cross_entropy_loss.default',
}


@functools.cache
def model(name: str, dropout: float = 0.0) -> tuple[Any, Any, Captured, Graph]:
    module, args = models.gpt(dropout=dropout) if dropout else models.MODELS[name]()
    captured = capture(module, args)
    return module, args, captured, Graph(captured.graph_text)


def plan(name: str, lines: str, use: str = "data:2 x megatron:2", devices: int = 4) -> Plan:
    text = f'shardwright-plan 1\nname "mine"\ndevices {devices}\nuse "{use}"\n{lines}\n'
    return Plan.parse(model(name)[3], text)


def bundle(compiled: Compiled, plan: Plan, captured: Captured) -> Bundle:
    return Bundle(dict(compiled.files), compiled.digest, plan.name, plan.devices, captured, "", "")


def check(name: str, plan: Plan, **options: Any) -> Compiled:
    module, args, captured, _ = model(name)
    compiled = compile(plan)
    actual = equality.run(bundle(compiled, plan, captured), module, args, **options)
    equality.assert_equal(actual, equality.reference(module, args), f"{name}, {plan!r}")
    return compiled


@pytest.mark.parametrize(("name", "devices"), NAMED)
def test_named_plans_recompute_their_layers(name: str, devices: int) -> None:
    compiled = check("gpt", Plan.named(model("gpt")[3], name, devices))
    assert all("recompute=True" in text for file, text in compiled.files.items() if file.endswith(".py"))


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_whatever_is_recomputed_the_result_is_the_same(lines: str) -> None:
    compiled = check("gpt", plan("gpt", lines))
    assert any("run.take(" in text for text in compiled.files.values())


@pytest.mark.slow
@pytest.mark.parametrize("lines", ['recompute "layer*"', 'recompute "*"', 'recompute "*.bn*"\nrecompute "*"'])
@pytest.mark.parametrize("use", ["data:2", "megatron:2"])
def test_buffers_are_updated_once(lines: str, use: str) -> None:
    """`equality` compares running statistics, and their counters."""
    check("resnet", plan("resnet", lines, use, 2))


@pytest.mark.parametrize(("name", "devices"), NAMED)
def test_masks_are_the_same_when_they_are_drawn_again(name: str, devices: int) -> None:
    module, args, captured, graph = model("gpt", dropout=0.2)
    plan = Plan.named(graph, name, devices)
    compiled = compile(plan)
    torch.manual_seed(11)
    expected = equality.reference(module, args)

    given = bundle(compiled, plan, captured)
    equality.assert_equal(
        equality.run(given, module, args, options=equality.single_device(11)), expected, name
    )
    # With keys, the gradients are those of the masks of forward: as without recomputation.
    plain = Plan.named(graph, name.replace("recompute x ", "").replace(" x recompute", ""), devices)
    if plain.name != name and "coshard" not in name:
        kept = equality.run(
            bundle(compile(plain), plain, captured), module, args, options=lambda: {"seed": 5}
        )
        again = equality.run(given, module, args, options=lambda: {"seed": 5})
        equality.assert_equal(again, kept, name)


def test_communications_are_made_again_where_their_results_are_needed() -> None:
    """Under `megatron` the all-reduce behind the attention, and not the one that ends the layer."""
    plain, again = (
        compile(Plan.named(model("gpt")[3], name, 2)) for name in ("megatron", "megatron x recompute")
    )
    layers = {key: count for key, count in again.counts[0].items() if plain.counts[0][key] != count}
    assert layers == {"backward all_reduce": plain.counts[0]["backward all_reduce"] + 2}


@pytest.mark.slow
def test_nothing_is_computed_more_often_than_it_is_in_spans() -> None:
    """Of spans inside of each other the last is computed again at once, others once more for each around."""
    plan, again = spans_of_deep('recompute "h"\nrecompute "h.*"'), spans_of_deep('recompute "h.*"')
    (_, nested), (_, once) = plan.computed[0], again.computed[0]
    assert 1.6 * once < nested < 2 * once


@pytest.mark.slow
def test_spans_inside_of_each_other_keep_less() -> None:
    """What is computed again for later layers does not live until backward comes to the first ones."""
    sizes = {lines: peak(lines) for lines in ("", 'recompute "h"', 'recompute "h.*"', NESTED)}
    plain, all_at_once, layers, nested = sizes.values()
    assert layers < 0.5 * plain, sizes
    # Both ranks are threads of one process, so that the peaks of the two may meet or not.
    assert nested < 0.5 * all_at_once and nested < 1.1 * layers, sizes


NESTED = 'recompute "h"\nrecompute "h.*"'


@functools.cache
def deep() -> tuple[Any, Any, Captured, Graph]:
    module, args = models.gpt(depth=8, vocabulary=16)
    captured = capture(module, args)
    return module, args, captured, Graph(captured.graph_text)


def spans_of_deep(lines: str) -> Compiled:
    """Under `megatron`: a layer is several calls with communications between them."""
    text = f'shardwright-plan 1\nname "mine"\ndevices 2\nuse "megatron:2"\n{lines}\n'
    return compile(Plan.parse(deep()[3], text))


def peak(lines: str) -> int:
    module, args, captured, _ = deep()
    return live.peak(spans_of_deep(lines), module, captured, lambda it: it(*args)[1].backward())


def saved(bundle: Bundle, module: Any, args: Any) -> int:
    """The bytes that autograd keeps of a forward, each memory once; the program keeps little besides."""
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x
        return x

    program = load_program(bundle.files, digest=bundle.digest, world=1)

    def body(rank: int, comm: Any) -> int:
        trained = ParallelModule(program, comm, sources(module, bundle.captured), bundle.captured)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            trained(*args)
        return sum(x.untyped_storage().nbytes() for x in kept.values())

    return run_local(1, body)[0]


def test_less_is_kept() -> None:
    module, args, captured, graph = model("gpt")
    sizes = []
    for name in ("replicate", "recompute"):
        plan = Plan.named(graph, name, 1)
        sizes.append(saved(bundle(compile(plan), plan, captured), module, args))
    plain, recomputed = sizes
    assert recomputed < plain / 2, sizes


@pytest.mark.slow
def test_a_function_says_it_too() -> None:
    module, args, _, graph = model("gpt")

    def layers(graph: Graph, draft: Any) -> None:
        for op in graph.operators:
            draft.single(op)
            draft.place(op, [0])
        for layer in range(2):
            draft.recompute([op for op in graph.operators if op.path.startswith(f"h.{layer}")])

    draft = sw.Draft(graph, "mine", 1)
    layers(graph, draft)
    assert 'recompute "h.*"' in draft.finish().folded
    trained = sw.parallelize(module, args, plan=layers)
    assert any("recompute=True" in text for text in trained.program.files.values())
    trained.eval()
    with torch.no_grad():
        assert torch.equal(trained(*args)[-1], module.eval()(*args)[1])
    module.train()


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_a_plan_that_is_printed_is_the_plan(lines: str) -> None:
    graph, made_plan = model("gpt")[3], plan("gpt", lines)
    for text in (made_plan.text, made_plan.folded):
        assert Plan.parse(graph, text).text == made_plan.text
    assert (
        made_plan.text.count("\nrecompute ") == made_plan.folded.count("\nrecompute ")
        or "h.*" in made_plan.folded
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('recompute "layers.*"', "no module is named"),
        ('recompute "h.*" aten.relu.default', "no operator is named"),
        ("recompute %nothing", "no operator is named %nothing"),
        ("recompute h.0", "does not name operators"),
        ('recompute "h.0"\nrecompute %linear_1 %linear_7', "neither is inside the other"),
    ],
)
def test_what_names_nothing_or_overlaps_is_refused(lines: str, expected: str) -> None:
    with pytest.raises(sw.ShardwrightError, match=expected) as caught:
        plan("gpt", lines)
    assert "fix" in str(caught.value) or "help" in str(caught.value)


def test_a_size_is_refused() -> None:
    with pytest.raises(sw.ShardwrightError, match="has no size"):
        Plan.named(model("gpt")[3], "recompute:2", 2)
    with pytest.raises(sw.ShardwrightError, match="do not fit 2 devices"):
        Plan.named(model("gpt")[3], "recompute", 2)


def test_the_command_says_what_is_computed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(models.__file__)
    main(["plan", f"{source}:gpt", "--devices", "2", "--plan", "data x recompute", "--text"])
    assert 'recompute "h.*"\n' in capsys.readouterr().out
    main(["plan", f"{source}:gpt", "--devices", "2", "--diff", "data", "data x recompute", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["operators"] == answer["a"]["recompute"] == []
    operators = model("gpt")[3].operators
    layers = [[op.name for op in operators if op.path.startswith(f"h.{layer}")] for layer in range(2)]
    assert answer["b"]["recompute"] == layers
