"""Parameters that ranks divide among them: what each holds, what is gathered and for how long, any mix, and
what loops do with it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import models
import shardwright as sw
from shardwright import Bundle, Draft, Graph, Plan
from shardwright._core import Compiled, compile, verify
from shardwright.capture import Captured, capture
from shardwright.cli import main
from shardwright.errors import CheckError, PlanError
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import compile_model, sources

torch.set_num_threads(1)

LINES = {
    "all, by hand": 'param "*": over 4',
    "columns": 'param "h.*.mlp.*.weight": dim 1 over 4, gather step, reduce last',
    "two pairs": 'param "*": over 2, gather pass, reduce last',
    "every second": 'param "*": over 2 by 2, gather step, reduce each',
    "by name": 'param "h.*.attn.*": over (3 1) (0 2)\nparam "wte.weight": over (2 0 1 3), gather step',
    "a layer whole": 'use "zero3"\nparam "h.0.*": whole',
    "of everything some": 'use "zero3"\nparam "h.0.*": over 4, gather step\nparam "h.1.mlp.*": over 2',
}


@functools.cache
def model(name: str) -> tuple[Any, Any, Captured, Graph, equality.Result]:
    module, args = models.MODELS[name]()
    captured = capture(module, args)
    return module, args, captured, Graph(captured.graph_text), equality.reference(module, args)


def plan(name: str, lines: str, use: str = "data", devices: int = 4) -> Plan:
    text = f'shardwright-plan 1\nname "mine"\ndevices {devices}\nuse "{use}"\n{lines}\n'
    return Plan.parse(model(name)[3], text)


def bundle(compiled: Compiled, plan: Plan, captured: Captured) -> Bundle:
    return Bundle(dict(compiled.files), compiled.digest, plan.name, plan.devices, captured, "", "")


def check(name: str, plan: Plan) -> Compiled:
    module, args, captured, _, expected = model(name)
    compiled = compile(plan)
    actual = equality.run(bundle(compiled, plan, captured), module, args)
    equality.assert_equal(actual, expected, f"{name}, {plan!r}")
    return compiled


def on_ranks(name: str, plan: str, devices: int, body: Callable[[ParallelModule], Any]) -> list[Any]:
    module, _, captured, graph, _ = model(name)
    made = bundle(compile(Plan.named(graph, plan, devices)), Plan.named(graph, plan, devices), captured)
    program, values = load_program(made.files), sources(module, captured)
    return run_local(devices, lambda _, comm: body(ParallelModule(program, comm, values, captured)))


@pytest.mark.parametrize("lines", LINES)
def test_any_mix_in_one_model(lines: str) -> None:
    mixed = plan("gpt", LINES[lines])
    for text in (mixed.text, mixed.folded):
        assert Plan.parse(model("gpt")[3], text).text == mixed.text
    check("gpt", mixed)


@pytest.mark.parametrize(
    "use", ["megatron:2 x zero3:2", "zero2:2 x megatron:2 x recompute", "zero1:2 x zero3:2"]
)
def test_products(use: str) -> None:
    check("gpt", Plan.named(model("gpt")[3], use, 4))


def test_a_plan_function_says_it_in_the_same_words() -> None:
    draft = Draft(model("gpt")[3], "mine", 4)
    batch = Plan.named(model("gpt")[3], "data", 4)
    for operator, splits, devices in batch.decisions:
        for algo, parts in splits:
            draft.trans(operator, algo, parts)
        draft.place(operator, devices) if splits else draft.single(operator)
    draft.param("*", "over 4, gather step")
    draft.param("h.0.*", "whole")
    assert draft.finish().text == plan("gpt", 'param "*": over 4, gather step\nparam "h.0.*": whole').text


def held(name: str, plan: str, devices: int) -> list[int]:
    return compile(Plan.named(model(name)[3], plan, devices)).held


def test_each_rank_holds_its_part_only() -> None:
    """But for what has fewer elements than there are ranks."""
    whole = held("gpt", "data", 4)[0]
    for named in ("zero1", "zero2", "zero3"):
        assert all(part < 0.27 * whole for part in held("gpt", named, 4))
    assert all(part < 0.52 * whole for part in held("gpt", "data:2 x zero3:2", 4))


BATCHES = 3


def batches(args: Any) -> list[Any]:
    torch.manual_seed(3)
    ids = [torch.randint(0, 50, args[0].shape) for _ in range(2 * BATCHES)]
    return [tuple(pair) for pair in zip(ids[:BATCHES], ids[BATCHES:], strict=True)]


def loss_of(outputs: Any) -> Tensor:
    loss: Tensor = equality.scalars(outputs)[0]
    return loss


def alone(given: list[Any]) -> dict[str, Tensor]:
    """Two steps of the single device, each of all micro-batches."""
    module = models.MODELS["gpt"]()[0]
    module.load_state_dict(model("gpt")[0].state_dict())
    adamw = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(2):
        adamw.zero_grad()
        for one in given:
            (loss_of(module(*one)) / len(given)).backward()
        adamw.step()
    return {name: p.detach().clone() for name, p in module.named_parameters()}


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(
    ("named", "devices"),
    [("zero1", 2), ("zero2", 3), ("zero3", 2), ("data:2 x zero2:2", 4), ("data:2 x zero3:2", 4)],
)
def test_micro_batches_add_up(named: str, devices: int, by_hand: bool) -> None:
    given = batches(model("gpt")[1])

    def body(parallel: ParallelModule) -> dict[str, Tensor]:
        adamw = sw.optimizer(parallel, torch.optim.AdamW, lr=1e-2)
        for _ in range(2):
            adamw.zero_grad()
            if by_hand:
                for one in given:
                    (loss_of(parallel(*one)) / len(given)).backward()
            else:
                parallel.train_step(given)
            adamw.step()
        return parallel.full_state_dict()

    expected = alone(given)
    for actual in on_ranks("gpt", named, devices, body):
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("named", ["zero1", "zero3"])
def test_what_is_gathered_is_what_parameters_are_now(named: str) -> None:
    """A loss without gradients, after steps, and after values were written by hand."""
    args = model("gpt")[1]

    def body(parallel: ParallelModule) -> list[tuple[Tensor, dict[str, Tensor]]]:
        adamw = sw.optimizer(parallel, torch.optim.AdamW, lr=1e-2)
        steps = []
        for step in range(3):
            adamw.zero_grad()
            loss_of(parallel(*args)).backward()
            adamw.step()
            if step == 1:
                for parameter in parallel.parameters():
                    parameter.data.mul_(1.1)
            with torch.no_grad():
                steps.append((loss_of(parallel(*args)), parallel.full_state_dict()))
        return steps

    module = models.MODELS["gpt"]()[0]
    for actual in on_ranks("gpt", named, 2, body):
        for loss, values in actual:
            module.load_state_dict(values)
            with torch.no_grad():
                torch.testing.assert_close(loss, loss_of(module(*args)), rtol=1e-9, atol=0)


def test_copies_have_memory_only_while_they_are_needed() -> None:
    """Between steps a rank has its parts; in a call of `zero3` not all layers at once."""
    args = model("gpt")[1]
    seen: list[int] = []

    def body(parallel: ParallelModule) -> tuple[int, int]:
        copies = parallel.worker.shards.copies
        whole = sum(copy._bytes for copy in copies)

        def there() -> int:
            return sum(copy._storage.nbytes() for copy in copies)

        gather = type(copies[0]).place

        def place(copy: Any) -> Any:
            made = gather(copy)
            seen.append(100 * there() // whole)
            return made

        for copy in copies:
            copy.place = functools.partial(place, copy)
        parallel.train_step([args])
        return there(), whole

    for left, whole in on_ranks("gpt", "zero3", 2, body):
        assert left == 0 and whole > 0
    assert 0 < max(seen) < 90


def test_what_is_not_there_can_be_printed() -> None:
    """A traceback that shows arguments must not read memory that was given up."""
    args = model("gpt")[1]

    def body(parallel: ParallelModule) -> str:
        parallel.train_step([args])
        return repr([leaf for copy in parallel.worker.shards.copies for leaf in copy.leaves])

    assert all("gathered" in text for text in on_ranks("gpt", "zero3", 2, body))


def test_a_place_means_the_leaves_that_are_called_after_it() -> None:
    """A tied parameter hangs below several modules, and is gathered with its first."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Embedding(12, 8)
            self.inner = nn.ModuleDict({"first": nn.Linear(8, 8), "head": nn.Linear(8, 12, bias=False)})
            self.inner["head"].weight = self.shared.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.inner["head"](self.inner["first"](self.shared(ids)).relu()).logsumexp(-1).mean()

    torch.manual_seed(0)
    module, args = Tied().double(), (torch.randint(0, 12, (4, 3)),)
    captured = capture(module, args)
    graph = Graph(captured.graph_text)
    lines = ["shardwright-plan 1", 'name "mine"', "devices 2", 'use "data"', 'param "*": over 2']
    text = "\n".join([*lines, 'param "shared.weight": over (1 0)', ""])
    both = Plan.parse(graph, text)
    made = bundle(compile(both), both, captured)
    assert any("[p.inner" in text for text in made.files.values())
    equality.assert_equal(equality.run(made, module, args), equality.reference(module, args), "tied")


def test_views_of_what_is_gathered_outlive_it() -> None:
    """A result that is a view of a weight, which another call reads after the weight is released."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

        def forward(self, x: Tensor) -> Tensor:
            first = self.layers[0].weight.t()
            y = self.layers[1](x)
            return ((y @ first).relu() + self.layers[0](x)).square().mean()

    torch.manual_seed(0)
    module, args = Views().double(), (torch.randn(4, 8, dtype=torch.float64),)
    made, _ = compile_model(module, args, plan="zero3", devices=2)
    actual = equality.run(made, module, args)
    equality.assert_equal(actual, equality.reference(module, args), "views")


def test_emitted_code_says_what_is_gathered_layer_by_layer() -> None:
    files = dict(compile(Plan.named(model("gpt")[3], "zero3", 2)).files)
    [code] = [text for name, text in files.items() if name.endswith(".py")]
    forward = code[code.index("def forward") : code.index("def backward")]
    assert len(re.findall(r"run\.gather\(0, \[p\.h\[\w+\]\]\)", forward)) == 2
    order = [
        forward.index(text) for text in ("gather(0, [p.h[1]])", "p.h[0], ", "release([p.h[0]])", "p.h[1], ")
    ]
    assert order == sorted(order), "a layer is gathered while the one before it computes"
    once = dict(compile(Plan.named(model("gpt")[3], "zero1", 2)).files)
    [code] = [text for name, text in once.items() if name.endswith(".py")]
    assert "def begin(run, p, rank):" in code and "    yield begin\n" in code
    assert "run.gather" not in code[code.index("def forward") :]
    assert json.loads(once["program.json"])["roles"][0]["copies"]


EDITS = [
    ("zero3", r"    run\.release\(\[p\.h\[1\]\]\)\n", "", "SW0523"),
    ("zero3", r"    run\.gather\(0, \[p\.h\[1\]\]\)\n", "", "SW0523"),
    ("zero3", r"    run\.scatter_gradients\(0, \[p\.h\[1\]\]\)\n", "", "SW0511"),
    ("zero3", r"(    run\.scatter_gradients\(0, \[p\.h\[1\]\]\)\n)", r"\1\1", "SW0508"),
    ("zero1", r"    yield begin\n", "", "SW0517"),
    ("zero1", r"b == batches - 1", "b == 0", "SW0519"),
    ("zero1", r"    run\.gather\(0, \[p\.h\[1\]\]\)\n", "", "SW0523"),
]


@pytest.mark.parametrize(("named", "old", "new", "code"), EDITS)
def test_edited_code_is_refused(named: str, old: str, new: str, code: str) -> None:
    graph = model("gpt")[3]
    files = dict(compile(Plan.named(graph, named, 2)).files)
    assert verify(graph.text, files)
    edited = {
        name: re.sub(old, new, text, count=1) if name.endswith(".py") else text
        for name, text in files.items()
    }
    assert edited != files
    with pytest.raises(CheckError) as caught:
        verify(graph.text, edited)
    assert caught.value.code == code


WRONG = {
    'param "nothing": over 2': "SW0302",
    'param "*": over 3': "SW0301",
    'param "*": over two': "SW0301",
    'param "*" over 2': "SW0301",
    'param "*": over 2, gather now': "SW0301",
    'param "*": over (0 1) (1 2)': "SW0319",
    'param "*": over (0 4)': "SW0306",
    'use "megatron:4"\nparam "h.0.attn.c_attn.weight": over 2': "SW0321",
    'param "h.0.ln_1.weight": dim 1 over 2': "SW0322",
}


@pytest.mark.parametrize("lines", WRONG)
def test_what_cannot_be_is_refused(lines: str) -> None:
    with pytest.raises(PlanError) as caught:
        compile(plan("gpt", lines))
    assert caught.value.code == WRONG[lines]
    assert caught.value.why and caught.value.fix


def test_a_parameter_of_fewer_elements_than_parts_stays_whole() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.inner = nn.Parameter(torch.ones(2)), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return (self.inner(x) * self.scale).square().mean()

    module, args = Small().double(), (torch.randn(8, 6, dtype=torch.float64),)
    made, _ = compile_model(module, args, plan="zero3", devices=4)
    tables = json.loads(made.files["program.json"])
    names = {tensor["id"]: tensor["names"][0] for tensor in tables["tensors"]}
    divided = {names[tables["roles"][0]["shards"][copy[0]][0]] for copy in tables["roles"][0]["copies"]}
    assert divided == {"inner.weight"}
    equality.assert_equal(equality.run(made, module, args), equality.reference(module, args), "small")


def test_the_command_says_what_a_rank_holds(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(model("gpt")[3].text)
    for named in ("zero1", "zero3"):
        assert main(["plan", str(path), "--devices", "4", "--plan", named, "--all"]) == 0
        said = capsys.readouterr().out
        assert 'param "h.*.mlp.c_fc.weight": over 4' in said
