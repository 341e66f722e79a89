"""Parameters that live on the host: the same training, what is there when, and faults that are found."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import equality
import models
import shardwright as sw
from shardwright import Draft, Graph, Plan
from shardwright._core import compile, verify
from shardwright.capture import capture
from shardwright.errors import CheckError, CompileError, PlanError, RuntimeFault
from shardwright.runtime import ParallelModule, run_local
from test_offload import bundle, check, code, model, on_ranks, plan

torch.set_num_threads(1)

NAMED = [
    ("offload:parameters", 1),
    ("data x offload:parameters", 3),
    ("zero1 x offload:parameters", 2),
    ("zero2 x offload:parameters", 2),
    ("zero3 x offload:parameters", 3),
    ("data:2 x zero3:2 x offload:parameters", 4),
    ("zero3:2 x megatron:2 x offload", 4),
    ("megatron x recompute x offload:parameters", 2),
    ("data x recompute:selective x offload", 2),
    ("coshard:2 x offload:parameters", 1),
    ("zero3 x whole-updates x offload:parameters", 2),
]
LINES = {
    "all": 'offload parameters "*"',
    "but one": 'offload parameters "*" but "wte.weight"',
    "layers": 'offload parameters "h.*"',
    "some, of which the state comes": 'offload state "*"\noffload parameters "*.bias"',
    "after all": 'use "data:4 x offload"\noffload parameters none\noffload parameters "h.1.*"',
    "divided, and whole": 'param "h.*": over 2 by 2\noffload parameters "*.weight"',
    "divided for some, and some here": (
        'use "replicate"\nparam "h.*": over (0 2), reduce each\noffload parameters "*.bias"'
    ),
    "divided for some": 'param "h.*": over (0 2)\noffload parameters "h.*"',
    "gathered once a step, were they here": 'use "data:2 x zero1:2"\noffload parameters "h.0.*"',
}
STEPS = 3


@pytest.mark.parametrize(("name", "devices"), NAMED)
@pytest.mark.parametrize("which", ["gpt", "llama"])
def test_training_is_the_same(which: str, name: str, devices: int) -> None:
    plan = Plan.named(model(which)[2], name, devices)
    compiled = check(which, plan)
    tables = json.loads(compiled.files["program.json"])
    assert len(tables["held_on_host"]) == len(plan.held_on_host)
    assert not set(tables["held_on_host"]) & set(tables.get("state_on_host", []))


def test_of_a_model_without_layers_too() -> None:
    check("t5", Plan.named(model("t5")[2], "zero3 x offload:parameters", 2))
    check("resnet", Plan.named(model("resnet")[2], "data x offload:parameters", 2))


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_any_parameters(lines: str) -> None:
    mixed = plan(lines)
    assert mixed.held_on_host
    for text in (mixed.text, mixed.folded):
        assert Plan.parse(model("gpt")[2], text).text == mixed.text
    check("gpt", mixed)


def test_a_function_says_it_too() -> None:
    graph = model("gpt")[2]
    draft = Draft(graph, "mine", 1)
    for op in graph.operators:
        draft.place(op, [part.index for part in draft.trans(op, "replicate", 1)])
    draft.offload_parameters("ln_f.*")
    assert draft.finish().held_on_host == ["ln_f.bias", "ln_f.weight"]
    check("gpt", draft.finish())


@pytest.mark.parametrize("seed", range(100, 112))
def test_random_plans_hold_any(seed: int) -> None:
    check("gpt", Plan.random(model("gpt")[2], 4, seed))


def test_random_plans_draw_it() -> None:
    drawn = [bool(Plan.random(model("gpt")[2], 4, seed).held_on_host) for seed in range(100, 112)]
    assert any(drawn) and not all(drawn)


def test_what_names_nothing_is_refused() -> None:
    for lines, refusal in [
        ('offload parameters "nothing.*"', "SW0302"),
        ("offload parameters wte.weight", 'SW0301(.|\n)*write `offload parameters "h'),
    ]:
        with pytest.raises(PlanError, match=refusal):
            plan(lines)


# ---- where they are, and when ------------------------------------------------------------------


def unrolled(text: str) -> str:
    """With what loops of one line run in the place of the loops."""

    def lines(loop: re.Match[str]) -> str:
        indent, backwards, count, line = loop.groups()
        numbers = range(int(count))
        return "".join(
            indent + line.replace("[n]", f"[{n}]") for n in (reversed(numbers) if backwards else numbers)
        )

    return re.sub(r"( *)for n in (reversed\()?range\((\d+)\)\)?:\n +(.*\n)", lines, text)


def test_each_comes_while_the_layer_before_its_own_runs() -> None:
    text = unrolled(code(compile(plan('offload parameters "h.*"', "data", 2))))
    forward, backward = text.split("def forward(")[1].split("def backward(")
    assert forward.index("gather(0, [p.h[1]])") < forward.index("(block_attn, p.h[0]")
    assert backward.index("run.gather(0, [p.h[0]])") < backward.index("run.release([p.h[1]])")
    assert "run.part_gradients([p.h[1]])" in backward and "run.reduce_shards(" in backward
    # What a rank does with its own host is no communication.
    compiled = compile(plan('offload parameters "h.*"', "data", 2))
    assert not [kind for _, kind, *_ in compiled.communications if kind == "gather"]


def test_nothing_of_them_stays_on_the_device() -> None:
    [_, args], *_ = [model("gpt")[0][:2]]

    def step(module: ParallelModule) -> list[Any]:
        sizes = []
        seen = module.worker.code.blocks[0].forward
        for _ in range(2):
            module.train_step([args, args])
            sizes.append([one.pointer == 0 for one in module.shards.copies])
        leaves = module.shards.leaves().tensors
        assert seen and all(leaf.grad is None for leaf in leaves)
        return [sizes, all(shard.data.grad is not None for shard in module.shards.held)]

    for gone, has_gradients in on_ranks("gpt", Plan.named(model("gpt")[2], "data x offload", 2), step):
        assert has_gradients and all(map(all, gone)) and len(gone[0]) > 10


def test_what_is_told_of_them() -> None:
    def memory_of(name: str) -> Any:
        return compile(Plan.named(model("gpt")[2], name, 2)).memory("adamw")[0]

    plain, away = memory_of("data x recompute"), memory_of("data x recompute x offload:parameters")
    assert away.most["parameters"] == away.most["optimizer"] == 0 < away.most["gathered"]
    # Of each parameter itself, its gradient and what AdamW has.
    held = plain.most["parameters"]
    assert away.offloaded == held * 2 + plain.most["optimizer"]
    assert away.total < plain.total - 2 * held
    state = memory_of("data x offload:state")
    assert state.most["parameters"] == held and state.offloaded == plain.most["optimizer"]


# ---- training ----------------------------------------------------------------------------------


def steps(module: ParallelModule, optimizer: Optimizer, count: int = STEPS) -> list[Tensor]:
    (_, args, _), *_ = model("gpt")
    for _ in range(count):
        module.train_step([args, args])
        sw.clip_grad_norm_(module, 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return [x.detach().clone() for x in module.parameters()]


@pytest.mark.parametrize("native", [True, False])
def test_bits_are_those_of_a_plan_without_it(native: bool) -> None:
    def body(module: ParallelModule) -> list[Tensor]:
        made = (
            torch.optim.AdamW(module.parameters(), lr=1e-2, foreach=True)
            if native
            else sw.optimizer(module, torch.optim.SGD, lr=1e-2, momentum=0.9)
        )
        return steps(module, made)

    plain, away = (
        on_ranks("gpt", Plan.named(model("gpt")[2], which, 2), body)
        for which in ("zero3", "zero3 x offload:parameters")
    )
    for ours, theirs in zip(plain, away, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_backward_by_hand_and_evaluation_between() -> None:
    (module, args, _), *_ = model("gpt")

    def body(model: ParallelModule) -> tuple[Tensor, dict[str, Tensor]]:
        model(*args)[1].backward()
        with torch.no_grad():
            loss = model(*args)[1]
        return loss, model.full_state_dict()

    module.zero_grad()
    for loss, state in on_ranks("gpt", Plan.named(model("gpt")[2], "zero3 x offload:parameters", 2), body):
        torch.testing.assert_close(loss, module(*args)[1].detach())
        assert all(torch.equal(state[name], x) for name, x in module.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("other", ["zero3 x offload:parameters", "megatron", "data x offload"])
def test_a_checkpoint_is_resumed(tmp_path: Path, other: str) -> None:
    """By another plan too, as if it had not been interrupted."""

    def first(module: ParallelModule) -> dict[str, Tensor]:
        optimizer = sw.optimizer(module, torch.optim.AdamW, lr=1e-2)
        steps(module, optimizer)
        sw.save(module, optimizer, tmp_path / "at")
        steps(module, optimizer)
        return module.full_state_dict()

    def second(module: ParallelModule) -> dict[str, Tensor]:
        optimizer = sw.optimizer(module, torch.optim.AdamW, lr=1e-2)
        sw.load(module, optimizer, tmp_path / "at")
        steps(module, optimizer)
        return module.full_state_dict()

    graph = model("gpt")[2]
    whole, *_ = on_ranks("gpt", Plan.named(graph, "zero3 x offload:parameters", 2), first)
    resumed, *_ = on_ranks("gpt", Plan.named(graph, other, 2), second)
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value)


@pytest.mark.slow
def test_other_shapes_and_modes_share_them() -> None:
    """Parallelized as users do, with a copy of the model, and evaluated with another batch."""
    module, args = models.gpt(dropout=0.0)
    idx, targets = args

    def rank(_: int, comm: Any) -> list[Tensor]:
        made = sw.parallelize(module, args, plan="data x offload:parameters", cache=False, comm=comm)
        loss = made.train_step([args])
        made.eval()
        with torch.no_grad():
            less = made(idx[:2], targets[:2])[1]
            copied = copy.deepcopy(made)
            same = copied(idx[:2], targets[:2])[1]
        assert all(one.on_host for one in copied.shards.copies)
        assert len(made.programs) > 1
        made.to(torch.float64)
        return [loss, less, same]

    for loss, less, same in run_local(2, rank):
        torch.testing.assert_close(loss, module(*args)[1].detach())
        torch.testing.assert_close(less, module.eval()(idx[:2], targets[:2])[1].detach())
        assert torch.equal(less, same)
        module.train()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_in_half_precision_they_are_brought_as_casts(precision: str) -> None:
    """The same as without, to the bit, also where a step is left out."""
    module, args = models.mlp()
    module, args = module.float(), tuple(x.float() for x in args)

    def trained(name: str) -> list[list[Tensor]]:
        def rank(_: int, comm: Any) -> list[Tensor]:
            model = sw.parallelize(module, args, plan=name, precision=precision, cache=False, comm=comm)
            optimizer = sw.optimizer(model, torch.optim.AdamW, lr=1e-3)
            for big in (1.0, 1e30 if precision == "fp16" else 2.0, 1.0):
                model.train_step([tuple(x * big for x in args)])
                optimizer.step()
                optimizer.zero_grad()
            assert {p.dtype for p in model.parameters()} == {torch.float32}
            return [x.detach().clone() for x in model.parameters()]

        return run_local(2, rank)

    for ours, theirs in zip(trained("zero3"), trained("zero3 x offload:parameters"), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_frozen_parameters_live_there_too() -> None:
    module, args = models.gpt()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("ln" in name)
    captured = capture(module, args)
    plan = Plan.named(Graph(captured.graph_text), "data x offload:parameters", 2)
    assert len(plan.held_on_host) == len(list(module.parameters()))
    made = bundle(compile(plan), plan, captured)
    equality.assert_equal(equality.run(made, module, args), equality.reference(module, args))
    [memory, _] = compile(plan).memory("adamw")
    trained = sum(p.nbytes for p in module.parameters() if p.requires_grad)
    count = sum(p.requires_grad for p in module.parameters())
    assert memory.offloaded == sum(p.nbytes for p in module.parameters()) + 3 * trained + 4 * count


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(1).double()), nn.Linear(8, 8).double()

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) * self.scale).square().mean()


def test_a_single_number_stays() -> None:
    module, args = Scalar(), (torch.randn(4, 8).double(),)
    captured = capture(module, args)
    plan = Plan.named(Graph(captured.graph_text), "data x offload:parameters", 2)
    compiled = compile(plan)
    assert len(json.loads(compiled.files["program.json"])["held_on_host"]) == 2 < len(plan.held_on_host)
    made = bundle(compiled, plan, captured)
    equality.assert_equal(equality.run(made, module, args), equality.reference(module, args))


def test_a_host_without_room_is_told() -> None:
    def step(module: ParallelModule) -> None:
        module.worker.host.empty = lambda _: torch.empty(1 << 60, dtype=torch.uint8)  # type: ignore[method-assign]
        module.train_step([model("gpt")[0][1]])

    with pytest.raises(RuntimeFault, match="SW0774"):
        on_ranks("gpt", Plan.named(model("gpt")[2], "data x offload:parameters", 2), step)


# ---- faults ------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["data", "zero3"])
def test_planted_faults_are_found(use: str) -> None:
    compiled = compile(plan('offload parameters "h.*"', use, 2))
    files = dict(compiled.files)
    [name] = [name for name in files if name.endswith(".py")]
    text, graph = unrolled(files[name]), model("gpt")[1].graph_text
    verify(graph, {**files, name: text})

    def line(pattern: str, after: str = "def forward") -> str:
        there = text[text.index(after) :].splitlines(keepends=True)
        return next(line for line in there if re.search(pattern, line))

    gather = line(r"run\.gather\(.*p\.h\[1\]")
    early = line(r"run\.gather\(.*p\.h\[0\]", "def backward")
    release = line(r"run\.release\(\[p\.h\[0\]\]", "def backward")
    back = line(r"run\.(part|scatter)_gradients\(.*p\.h\[1\]", "def backward")
    head, tail = text.split("def backward")
    changed = {
        "not fetched": (text.replace(gather, "", 1), "SW0523"),
        "of another layer": (text.replace(gather, gather.replace("h[1]", "h[0]"), 1), "SW0523"),
        "read after release": (head + "def backward" + tail.replace(early, early + release, 1), "SW0523"),
        "not released": (head + "def backward" + tail.replace(release, "", 1), "SW0523"),
        "not handed back": (text.replace(back, ""), "SW0511"),
        "handed back twice": (text.replace(back, back + back), "SW0508"),
        "of another handed back": (text.replace(back, back.replace("h[1]", "h[1].attn")), "SW0511"),
    }
    for what, (bad, fault) in changed.items():
        assert bad != text, what
        with pytest.raises(CheckError, match=fault):
            verify(graph, {**files, name: bad})


def test_sums_of_what_is_handed_back_are_proved() -> None:
    compiled = compile(plan('offload parameters "h.*"', "data", 2))
    [name] = [name for name in compiled.files if name.endswith(".py")]
    text = compiled.files[name]
    bad = re.sub(r"        run\.reduce_shards\(.*\n", "        pass\n", text)
    assert bad != text
    bad = bad.replace("    if last:\n        pass\n", "")
    with pytest.raises((CheckError, CompileError)) as refused:
        verify(model("gpt")[1].graph_text, {**compiled.files, name: bad})
    assert refused.value.code in ("SW0511", "SW0601", "SW0602")


def test_others_than_parameters_are_refused_and_those_that_are_read_where_they_are() -> None:
    made = compile(plan('offload parameters "ln_f.*"', "data", 2))
    text, tables = model("gpt")[1].graph_text, json.loads(made.files["program.json"])
    one, other = tables["held_on_host"]
    value = next(tensor["id"] for tensor in tables["tensors"] if tensor["kind"] != "param")
    read = next(t["id"] for t in tables["tensors"] if t["kind"] == "param" and t["id"] not in (one, other))
    for change, fault, refusal in [
        ({"held_on_host": [one, one]}, CheckError, "SW0502"),
        ({"held_on_host": [other, one]}, CheckError, "SW0502"),
        ({"held_on_host": [value]}, CheckError, "SW0502"),
        ({"held_on_host": sorted([one, other, read])}, CheckError, "read without having been gathered"),
        ({"state_on_host": [one]}, CheckError, "SW0502"),
        ({"held_on_host": [100000]}, CompileError, "SW0602"),
    ]:
        with pytest.raises(fault, match=refusal):
            verify(text, {**made.files, "program.json": json.dumps({**tables, **change})})
