"""What is on the host from forward to backward: programs equal the single device, say what goes and
when it comes back, and hold no more."""

from __future__ import annotations

import functools
import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import equality
import models
import zoo
from shardwright import Bundle, Draft, Graph, Plan
from shardwright._core import COPIES_IN_FLIGHT, Compiled, compile, verify
from shardwright.capture import Captured, capture
from shardwright.errors import CheckError, PlanError, RuntimeFault
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.runtime.execution.offload import Host, _Storage
from shardwright.start.compiling import sources

torch.set_num_threads(1)

MODELS: dict[str, Callable[[], zoo.Model]] = {
    "gpt": lambda: (*models.gpt(), {}),
    "resnet": lambda: (*models.resnet(), {}),
    "llama": zoo.llama,
    "t5": zoo.t5,
}
NAMED = [
    ("offload", 1),
    ("data x offload:activations", 3),
    ("megatron x offload:activations", 2),
    ("zero3:2 x offload:activations", 2),
    ("zero3:2 x megatron:2 x offload:activations", 4),
    ("data x recompute x offload:activations", 2),
    ("zero3 x recompute:selective x offload:activations", 2),
    ("megatron x recompute x offload:activations", 2),
    ("coshard:2 x offload:activations", 1),
]
LINES = {
    "but the last": 'offload "h.*" but "h.1"',
    "linears": 'offload "h.*" aten.linear.*',
    "all": 'offload "*"',
    "an operator alone": "offload %gelu",
    "over layers": "offload %linear_1 %linear_2 %gelu %linear_4 %split_0",
    "beside what is computed again": 'recompute "h.0"\noffload "h.1"',
    "of what is computed again": 'recompute "h.*"\noffload "h.*"',
    "parts of what is computed again": 'recompute "h.*.mlp"\noffload "h.*"',
    "given again": 'recompute "h.*" but dear\noffload "h.*"',
    "the loss": 'offload "lm_head"\noffload "" aten.cross_entropy_loss.default',
}


@functools.cache
def model(name: str) -> tuple[zoo.Model, Captured, Graph, equality.Result]:
    made = module, args, kwargs = MODELS[name]()
    with zoo.widened():
        captured = capture(module, args, kwargs)
        expected = equality.reference(module, args, kwargs=kwargs)
    return made, captured, Graph(captured.graph_text), expected


def plan(lines: str, use: str = "data:2 x megatron:2", devices: int = 4, name: str = "gpt") -> Plan:
    text = f'shardwright-plan 1\nname "mine"\ndevices {devices}\nuse "{use}"\n{lines}\n'
    return Plan.parse(model(name)[2], text)


def bundle(compiled: Compiled, plan: Plan, captured: Captured) -> Bundle:
    return Bundle(dict(compiled.files), compiled.digest, plan.name, plan.devices, captured, "", "")


def check(name: str, plan: Plan) -> Compiled:
    (module, args, kwargs), captured, _, expected = model(name)
    compiled = compile(plan)
    actual = equality.run(bundle(compiled, plan, captured), module, args, kwargs=kwargs)
    equality.assert_equal(actual, expected, f"{name}, {plan!r}")
    return compiled


def code(compiled: Compiled) -> str:
    return "\n".join(text for file, text in compiled.files.items() if file.endswith(".py"))


@pytest.mark.parametrize(("name", "devices"), NAMED)
@pytest.mark.parametrize("which", ["gpt", "llama"])
def test_named_plans_send_their_layers(which: str, name: str, devices: int) -> None:
    compiled = check(which, Plan.named(model(which)[2], name, devices))
    assert "offload=True" in code(compiled) and "run.fetch(" in code(compiled)


@pytest.mark.slow
@pytest.mark.parametrize("use", ["data:2", "megatron:2", "zero3:2"])
@pytest.mark.parametrize("lines", ['offload "*block*"', 'offload "*block*"\nrecompute "*SelfAttention"'])
def test_models_without_layers_that_are_alike_say_it_by_name(use: str, lines: str) -> None:
    assert "run.fetch(" in code(check("t5", plan(lines, use, 2, "t5")))


@pytest.mark.slow
@pytest.mark.parametrize("use", ["data:2", "megatron:2"])
def test_buffers_are_updated_once(use: str) -> None:
    """`equality` compares running statistics, and their counters."""
    check("resnet", plan('offload "*"', use, 2, "resnet"))


@pytest.mark.parametrize("lines", LINES.values(), ids=LINES)
def test_whatever_goes_the_result_is_the_same(lines: str) -> None:
    mixed = plan(lines)
    assert mixed.offload
    for text in (mixed.text, mixed.folded):
        assert Plan.parse(model("gpt")[2], text).text == mixed.text
    check("gpt", mixed)


@pytest.mark.parametrize("seed", range(12))
def test_random_plans_send_anything(seed: int) -> None:
    plan = Plan.random(model("gpt")[2], 4, seed)
    sends = "run.fetch(" in code(check("gpt", plan))
    assert plan.offload or not sends
    # In some of these plans all that is named is computed again with what it reads.
    assert sends or not plan.offload or seed == 6


def test_random_plans_draw_it() -> None:
    drawn = [bool(Plan.random(model("gpt")[2], 4, seed).offload) for seed in range(12)]
    assert any(drawn) and not all(drawn)


def test_a_function_says_it_too() -> None:
    graph = model("gpt")[2]
    draft = Draft(graph, "mine", 2)
    for op in graph.operators:
        parts = draft.trans(op, "replicate", 2)
        draft.place(op, [part.index for part in parts])
    draft.offload([op for op in graph.operators if op.path.startswith("h.")])
    draft.offload([op for op in graph.operators if op.path.startswith("h.1")])
    assert [span[0].path.split(".")[1] for span in draft.finish().offload] == ["0", "1"]
    check("gpt", draft.finish())


def test_later_lines_win() -> None:
    spans = plan('use "data x offload"\noffload "h.0.mlp"', "data", 2).offload
    paths = [sorted({op.path for op in span}) for span in spans]
    assert len(paths) == 3 and not set(paths[0]) & set(paths[1])
    assert plan('offload "h.*"\noffload none', "data", 2).offload == []
    assert len(plan('offload none\noffload "h.*"', "data", 2).offload) == 2


def test_what_names_nothing_is_refused() -> None:
    for lines, why in [
        ('offload "h.9"', "SW0302"),
        ("offload %nothing", "SW0302"),
        ('offload "h.*" aten.nothing.*', "SW0302"),
        ("offload model", "SW0301"),
    ]:
        with pytest.raises(PlanError, match=why) as refused:
            plan(lines)
        assert "line 5 of the plan" in str(refused.value)
    with pytest.raises(PlanError, match="SW0310"):
        Plan.named(model("gpt")[2], "data x offload:everything", 2)


@pytest.mark.parametrize("use", ["data", "megatron", "zero3"])
def test_each_comes_back_from_when_the_one_before_it_that_did_so_is_read(use: str) -> None:
    text = code(compile(plan('offload "h.*"', use, 2)))
    backward = re.sub(
        r"    for n in reversed\(range\((\d+)\)\):\n((?:        .*\n)+)",
        lambda loop: "".join(loop[2].replace("at=n", f"at={n}") for n in reversed(range(int(loop[1])))),
        text[text.index("def backward") :],
    )
    events = re.findall(r"run\.(fetch|grad)\((?:call=)?(\w+(?:, .*at=)?\w*)", backward)
    events = [(what, re.sub(", .*at=", " ", call)) for what, call in events]
    fetched = [number for what, number in events if what == "fetch"]
    assert len(fetched) >= 2
    for place, number in enumerate(fetched):
        posted, graded = events.index(("fetch", number)), events.index(("grad", number))
        between = [other for what, other in events[posted:graded] if what == "grad" and other in fetched]
        assert between == fetched[:place][-1:]


def on_ranks(name: str, plan: Plan, body: Callable[[ParallelModule], Any]) -> list[Any]:
    (module, _, _), captured, _, _ = model(name)
    made = bundle(compile(plan), plan, captured)
    program, values = load_program(made.files), sources(module, captured)
    return run_local(plan.devices, lambda _, comm: body(ParallelModule(program, comm, values, captured)))


def held(module: ParallelModule) -> int:
    return sum(there.numel() for there in module.variants.first.worker.host.copies())


def test_what_is_told_is_on_the_host_after_forward_and_gone_after_backward() -> None:
    plan = Plan.named(model("gpt")[2], "data x offload:activations", 2)
    [predicted, _] = compile(plan).memory()

    def step(module: ParallelModule) -> list[int]:
        loss = module(*model("gpt")[0][1])[1]
        between = held(module)
        loss.backward()
        return [between, held(module)]

    for between, after in on_ranks("gpt", plan, step):
        assert between == predicted.offloaded > 0
        assert after == 0


@pytest.mark.slow
def test_what_no_backward_follows_is_let_go() -> None:
    def step(module: ParallelModule) -> list[int]:
        loss = module(*model("gpt")[0][1])[1]
        between = held(module)
        del loss
        gc.collect()
        with torch.no_grad():
            module(*model("gpt")[0][1])
        return [between, held(module)]

    [(between, after)] = on_ranks("gpt", Plan.named(model("gpt")[2], "offload", 1), step)
    assert between > 0 and after == 0


def test_micro_batches_come_and_go() -> None:
    (_, args, _), *_ = model("gpt")

    def step(module: ParallelModule) -> int:
        module.train_step([args, args, args])
        return held(module)

    assert on_ranks("gpt", Plan.named(model("gpt")[2], "zero3 x offload", 2), step) == [0, 0]


def test_parameters_and_inputs_stay() -> None:
    """They are there anyway: nothing of theirs is copied, gathered or not."""
    (_, args, _), *_ = model("gpt")

    def step(module: ParallelModule) -> bool:
        host, sent = module.variants.first.worker.host, []
        send = host.send
        host.send = lambda storages: (sent.extend(s.here.data_ptr() for s in storages), send(storages))[1]  # type: ignore[method-assign]
        given = {x.data_ptr() for x in args if isinstance(x, Tensor)}
        module(*args)
        leaves = {leaf.untyped_storage().data_ptr() for leaf in module.shards.leaves().tensors}
        return bool(sent) and not set(sent) & (given | leaves)

    assert all(on_ranks("gpt", plan('offload "*"', "data", 2), step))


def test_planted_faults_are_found() -> None:
    compiled = compile(plan('offload "h.0"', "data", 2))
    files = dict(compiled.files)
    [name] = [name for name in files if name.endswith(".py")]
    text = files[name]
    fetch = next(line for line in text.splitlines(keepends=True) if "run.fetch(" in line)
    sent = next(line for line in text.splitlines(keepends=True) if "offload=True" in line)
    function = re.search(r"call=(\w+)", fetch)[1]  # type: ignore[index]
    grad = next(line for line in text.splitlines(keepends=True) if f"run.grad({function}," in line)
    called = re.findall(r"run\.call\((\w+),", text)
    other = next(name for name in called if called.count(name) == 1 and name != function)
    changed = {
        "dropped": text.replace(fetch, ""),
        "late": text.replace(fetch, "").replace(grad, grad + fetch),
        "of another call": text.replace(fetch, fetch.replace(function, other)),
        "twice": text.replace(fetch, fetch + fetch),
        "not sent": text.replace(sent, sent.replace(", offload=True", "")),
    }
    graph = model("gpt")[1].graph_text
    verify(graph, files)
    for what, bad in changed.items():
        assert bad != text, what
        with pytest.raises(CheckError, match="SW0526"):
            verify(graph, {**files, name: bad})


def test_a_host_without_room_is_told() -> None:
    """The allocator refuses what one rank asks it for."""

    def step(module: ParallelModule) -> None:
        host, comm = module.variants.first.worker.host, module.comm
        if comm.rank == 1:
            host.empty = lambda size: torch.empty(1 << 60, dtype=torch.uint8)  # type: ignore[method-assign]
        module.train_step([model("gpt")[0][1]])

    with pytest.raises(RuntimeFault) as refused:
        on_ranks("gpt", Plan.named(model("gpt")[2], "data x offload", 2), step)
    error = refused.value
    assert error.code == "SW0774" and "that the plan offloads" in error.what
    assert "allocate" in str(error.why) and "offload" in str(error.fix)


@pytest.mark.parametrize("name", ["offload", "data x offload", "megatron x recompute x offload"])
def test_masks_are_those_of_forward(name: str) -> None:
    module, args = models.gpt(dropout=0.2)
    captured = capture(module, args)
    plan = Plan.named(Graph(captured.graph_text), name, 1 if name == "offload" else 2)
    torch.manual_seed(11)
    expected = equality.reference(module, args)
    given = bundle(compile(plan), plan, captured)
    equality.assert_equal(
        equality.run(given, module, args, options=equality.single_device(11)), expected, name
    )


def test_no_more_is_in_flight_to_the_host_than_is_counted() -> None:
    host, there = Host(torch.device("cpu")), []
    for at in range(COPIES_IN_FLIGHT + 2):
        storage = _Storage(torch.full((8,), float(at)))
        there.append((storage, weakref.ref(storage.here)))
        host.send([storage])

    def alive() -> list[bool]:
        return [here() is not None for _, here in there]

    assert alive() == [False, False, *[True] * COPIES_IN_FLIGHT]
    # Nothing goes, so nothing waits for it.
    host.send([])
    assert alive() == [False, False, *[True] * COPIES_IN_FLIGHT]
    host.fetch([there[0][0]])
    assert alive() == [False, False, False, *[True] * (COPIES_IN_FLIGHT - 1)]
    back = there[0][0].here
    assert back is not None and torch.equal(back.view(torch.float32), torch.zeros(8))
