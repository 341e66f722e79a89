"""Whatever is wrong is refused in words: what, where, why, and what to do.

Whole messages are in `golden/refusals.txt`; `UPDATE_GOLDEN=1 pytest tests/python/cli/test_bad_input.py`
writes them anew (in one process), and the review is the diff.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
import shardwright as sw
from models import MODELS
from shardwright import api, cli
from shardwright._core import Graph, Plan, plan_names, verify
from shardwright.capture import capture
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import Bundle, compile_model, sources
from shardwright.start.planning import make_plan

GOLDEN = Path(__file__).parents[1] / "golden" / "refusals.txt"
# What changes with every edit: lines of Python, digests, where JSON breaks off.
VOLATILE = [
    (re.compile(r"(\w+\.(?:py|json)):\d+"), r"\1:N"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "DIGEST"),
    (re.compile(r"(line|column|char) \d+(?= column|\)|$)", re.MULTILINE), r"\1 N"),
    (re.compile(r"column \d+(?= \(char)"), "column N"),
]
HEADER = "shardwright-plan 1\ndevices 4\n"
ALL = HEADER + 'op "*": replicate 4\n'


def known() -> dict[str, str]:
    if not GOLDEN.exists():
        return {}
    sections = GOLDEN.read_text().split("## ")[1:]
    return dict(section.rstrip("\n").split("\n", 1) for section in sections)


# A new plan changes no message but those that list all.
ALL_PLANS = ", ".join(f"`{name}`" for name in plan_names())


def expect(title: str, message: str, **words: object) -> None:
    """Compares with the golden message; paths are what `words` says."""
    for word, path in words.items():
        message = message.replace(str(path), word)
    message = message.replace(ALL_PLANS, "PLANS")
    for pattern, word in VOLATILE:
        message = pattern.sub(word, message)
    if os.environ.get("UPDATE_GOLDEN"):
        sections = {**known(), title: message}
        GOLDEN.write_text("\n".join(f"## {key}\n{sections[key]}\n" for key in sorted(sections)))
    assert message == known().get(title)


def refused(title: str, action: Callable[[], Any], **words: object) -> None:
    with pytest.raises(sw.ShardwrightError) as caught:
        action()
    error = caught.value
    # What is wrong with a call says why; what to do about an edit is clear.
    if error.code != "SW0105" and not title.startswith(("verify:", "load:")):
        assert error.fix, f"it does not say what to do: {error}"
        assert error.why or error.place, f"it says neither where nor why: {error}"
    expect(title, str(error), **words)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(capture(*models.mlp()).graph_text)


# ---- models ------------------------------------------------------------------------------------


class Branch(nn.Module):
    """Goes by what it computes with a parameter; what it reads of inputs alone would be noticed."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale * x
        if x.sum() > 0:
            x = -x
        return x.sum()


class Custom(nn.Module):
    """Applies a Function that other ranks cannot find."""

    def forward(self, x: Tensor) -> Tensor:
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return 2 * x

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return 2 * grad

        return Twice.apply(x).sum()


class Tanh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x).sum()


@pytest.mark.parametrize("kind", [Branch, Custom])
def test_a_model_that_cannot_be_captured(kind: type[nn.Module]) -> None:
    refused(f"model {kind.__name__}", lambda: compile_model(kind(), (torch.randn(4, 4),)))


def test_no_model_at_all() -> None:
    refused("model None", lambda: compile_model(None, (torch.randn(4, 4),)))  # type: ignore[arg-type]
    refused("model without tensors", lambda: compile_model(models.mlp()[0], (1, 2)))
    refused("model without arguments", lambda: compile_model(models.mlp()[0], ()))


# ---- plan files --------------------------------------------------------------------------------

PLAN_FILES = {
    "wrong word": ALL + 'opp "*": single\n',
    "very long word": ALL + "x" * 1000 + "\n",
    "unknown path": ALL + 'op "layers.7.up": split n 4\n',
    "unknown tensor": ALL + "op %nope: split n 4\n",
    "unquoted path": ALL + "op layers.0.up: split n 4\n",
    "no colon": ALL + 'op "layers.0.up" split n 4\n',
    "unknown way to divide": ALL + 'op "layers.0.up": halve n\n',
    "dim that may not be split": ALL + 'op "*" *cumsum*: split b 2\n',
    "dim that does not exist": ALL + 'op "layers.0.up": split q 4\n',
    "value that may not be split": ALL + 'op "layers.0" *gelu*: split value 4\n',
    "more parts than the dim is long": ALL + 'op "layers.0.up": split n 65\n',
    "no parts": ALL + 'op "layers.0.up": split n 0\n',
    "parts that are no number": ALL + 'op "layers.0.up": split n 99999999999\n',
    "parts that fill the memory": ALL + 'op "layers.0.up": replicate 4000000000\n',
    "parts that overflow": ALL + 'op "layers.0.up": replicate 65536, replicate 65536\n',
    "device that does not exist": ALL + 'op "layers.0.up": split n 4 on 0 1 2 4\n',
    "device that is no number": ALL + 'op "layers.0.up": split n 4 on 0 1 2 x\n',
    "devices without end": ALL + 'op "layers.0.up": split n 4 on 0..4294967295\n',
    "fewer devices than parts": ALL + 'op "layers.0.up": split n 4 on 0 1 2\n',
    "missing operator": HEADER + 'op "layers.*": replicate 4\n',
    "missing header": 'op "*": replicate 4\n',
    "empty": "",
    "other version": "shardwright-plan 2\n" + ALL,
    "no number of devices": 'shardwright-plan 1\nop "*": replicate 4\n',
    "devices that are no number": "shardwright-plan 1\ndevices four\n",
    "devices that fill the memory": 'shardwright-plan 1\ndevices 4000000000\nuse "replicate"\n',
    "unknown named plan": HEADER + 'use "nonsense"\n',
    "order without a sign": ALL + "order %linear %linear_1\n",
    "order of unknown operators": ALL + "order %linear < %nope\n",
    "cyclic order": ALL + "order %linear_1 < %linear\n",
    "order with itself": ALL + "order %linear < %linear\n",
}


class Cumsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(self.linear(x), 1).square().sum()


@pytest.mark.parametrize("title", PLAN_FILES)
def test_a_plan_file(title: str, graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "mine.plan"
    path.write_text(PLAN_FILES[title])
    if "cumsum" in PLAN_FILES[title]:
        graph = Graph(capture(Cumsum(), (torch.randn(4, 4),)).graph_text)
    compile = sw._core.compile  # type: ignore[attr-defined]
    refused(f"plan file: {title}", lambda: compile(make_plan(graph, path, 4)), DIR=tmp_path)


def test_a_plan_file_that_cannot_be_read(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "binary.plan").write_bytes(b"\xff\xfe\0")
    for title, name in [("missing", "none.plan"), ("binary", "binary.plan"), ("a folder", "")]:
        path = str(tmp_path / name)
        refused(f"plan file: {title}", lambda path=path: make_plan(graph, path, 4), DIR=tmp_path)


# ---- first mistakes ----------------------------------------------------------------------------


def _optimizer(*args: Any) -> Callable[[], Any]:
    return lambda: sw.optimizer(*args, lr=0.1)


def test_first_mistakes() -> None:
    module, args = models.mlp()
    model = sw.parallelize(module, args, plan="replicate")
    made = torch.optim.AdamW(module.parameters())
    loader = torch.utils.data.DataLoader([args])
    mistakes = {
        "an optimizer that is made already": _optimizer(model, made),
        "an optimizer's parameters for its class": _optimizer(model, list(model.parameters())[:0]),
        "an optimizer of a plain model": _optimizer(module, torch.optim.AdamW),
        "a loader as example": lambda: sw.parallelize(module, loader),
        "an iterator of a loader as example": lambda: sw.parallelize(module, iter(loader)),
        "a data set as example": lambda: sw.parallelize(module, torch.utils.data.TensorDataset(*args)),
        "a loader as a batch": lambda: model.train_step(loader),
        "no processes": lambda: sw.launch(models.mlp, devices=0),
        "no function for processes": lambda: sw.launch(model.train_step(args), devices=2),  # type: ignore[arg-type]
    }
    for title, mistake in mistakes.items():
        refused(f"first mistakes: {title}", mistake)


# ---- plans in Python ---------------------------------------------------------------------------

NAMES = [
    ("nonsense", 4), ("", 4), ("data:2 x megatron:3", 4), ("data:3", 4), ("data:0", 4), ("data:two", 4),
    ("data:65536 x data:65536", 4), ("coshard:3", 4), ("data", 16), ("data", 0), ("data", -1),
    ("replicate", 1 << 31),
]  # fmt: skip


@pytest.mark.parametrize(("name", "devices"), NAMES)
def test_a_named_plan(name: str, devices: int, graph: Graph) -> None:
    refused(f"named plan: {name!r} on {devices}", lambda: make_plan(graph, name, devices))


def test_megatron_finds_nothing() -> None:
    x = torch.randn(4, 4)
    refused("named plan: no megatron", lambda: compile_model(Tanh(), (x,), plan="megatron", devices=4))


def forgets(graph: Graph, draft: sw.Draft) -> None:
    for operator in graph.operators[1:]:
        draft.single(operator)
        draft.place(operator, [0])


def forgets_a_part(graph: Graph, draft: sw.Draft) -> None:
    for operator in graph.operators:
        for part in draft.trans(operator, "replicate", 4)[1:]:
            draft.assign(part, part.index)


def bad_device(graph: Graph, draft: sw.Draft) -> None:
    for operator in graph.operators:
        for part in draft.trans(operator, "replicate", 4):
            draft.assign(part, part.index + 1)


def negative_device(graph: Graph, draft: sw.Draft) -> None:
    draft.place(graph.operators[0], [-1])


def old_parts(graph: Graph, draft: sw.Draft) -> None:
    old = draft.trans(graph.operators[0], "replicate", 4)
    draft.single(graph.operators[0])
    draft.assign(old[3], 0)


def bad_dim(graph: Graph, draft: sw.Draft) -> None:
    draft.trans(graph.operators[0], "q", 4)


def cyclic(graph: Graph, draft: sw.Draft) -> None:
    for operator in graph.operators:
        draft.place(operator, [0]) if draft.single(operator) else None
    draft.order(graph.operators[-1], graph.operators[0])


def raises(graph: Graph, draft: sw.Draft) -> None:
    raise ValueError("no idea")


def returns_a_number(graph: Graph, draft: sw.Draft) -> int:
    return 3


def wants_nothing() -> None:
    pass


FUNCTIONS = [
    forgets, forgets_a_part, bad_device, negative_device, old_parts, bad_dim, cyclic, raises,
    returns_a_number, wants_nothing,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_plan_function(function: Callable[..., Any], graph: Graph) -> None:
    compile = sw._core.compile  # type: ignore[attr-defined]
    refused(f"plan function: {function.__name__}", lambda: compile(make_plan(graph, function, 4)))


def test_a_plan_for_something_else(graph: Graph, tmp_path: Path) -> None:
    plan = Plan.named(graph, "data", 2)
    refused("plan: other number of devices", lambda: make_plan(graph, plan, 4))
    refused("plan: no plan", lambda: make_plan(graph, 3, 4))  # type: ignore[arg-type]
    other = models.two_losses()
    refused("plan: other model", lambda: compile_model(*other, plan=plan, devices=2))


def test_a_plan_of_the_same_model_captured_again_fits() -> None:
    graph = Graph(capture(*models.gpt()).graph_text)
    plan = Plan.random(graph, 2, 1)
    assert compile_model(*models.gpt(), plan=plan, devices=2)[0].plan == plan.name


# ---- emitted programs --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return compile_model(*models.mlp(), plan="megatron", devices=2)[0]


def tables(change: Callable[[dict[str, Any]], Any]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    return edit


def set_entry(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the entry at a path, whose last element is the value."""
    *way, last, value = path

    def change(data: Any) -> None:
        for step in way:
            data = data[step]
        data[last] = value

    return change


def half(text: str) -> str:
    return text[: len(text) // 2]


def swap(a: str, b: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert a in text, text
        return text.replace(a, b, 1)

    return edit


def without(start: str) -> Callable[[str], str]:
    """Without the statement that begins so."""

    def edit(text: str) -> str:
        edited = re.sub(
            rf"\n    {re.escape(start)}\((?:[^\n]*\)|\n(?:        [^\n]*\n)*    \))(?=\n)", "", text
        )
        assert edited != text, text
        return edited

    return edit


EDITS: dict[str, tuple[str, Callable[[str], str] | None]] = {
    "another version": ("program.json", tables(set_entry("shardwright", "0.0.9"))),
    "another format": ("program.json", tables(set_entry("format", 9))),
    "another digest": ("program.json", tables(set_entry("digest", "0" * 32))),
    "another world": ("program.json", tables(set_entry("world", 3))),
    "truncated program.json": ("program.json", half),
    "empty program.json": ("program.json", lambda _: ""),
    "program.json of numbers": ("program.json", lambda _: "[1, 2]"),
    "a rank without a table": ("program.json", tables(lambda data: data["roles"][0].update(ranks=[0]))),
    "a region beyond its tensor": ("program.json", tables(set_entry("regions", 0, 0, 1, 1000))),
    "a region that is smaller": ("program.json", tables(set_entry("regions", 0, 0, 1, 1))),
    "an input of other ranks": ("program.json", tables(set_entry("roles", 0, "inputs", 0, 1, 0))),
    "other factors of a tensor": ("program.json", tables(set_entry("tensors", 2, "factors", [[32], [64]]))),
    "no program.json": ("program.json", None),
    "no role": ("ROLE", None),
    "truncated role": ("ROLE", half),
    "empty role": ("ROLE", lambda _: ""),
    "role with an import": ("ROLE", swap("\n\ndef ", "\nimport os\n\ndef ")),
    "role with a call at import": ("ROLE", lambda text: text + '\nprint("here")\n'),
    "role with a loop": ("ROLE", swap("    return", "    for i in x: pass\n    return")),
    "role with another operator": ("ROLE", swap("F.gelu(", "torch.tanh(")),
    "role with another argument": ("ROLE", swap("x + ", "x + x + ")),
    "role with another parameter": ("ROLE", swap("p.layers[0]", "p.layers[1]")),
    "role without a backward": ("ROLE", without("run.grad")),
    "role with an unknown method": ("ROLE", swap("run.all_reduce(", "run.all_reverse(")),
    "role with another reduction": ("ROLE", swap("run.all_reduce(", "run.all_gather(")),
}


def swap_entries(key: str, first: int, second: int) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        a, b = data["tensors"][first], data["tensors"][second]
        a[key], b[key] = b[key], a[key]

    return change


# The table of tensors, which the runtime reads: the first two are inputs, then come parameters.
UNSEEN: dict[str, tuple[str, Callable[[str], str]]] = {
    "names of two parameters": ("program.json", tables(swap_entries("names", 2, 6))),
    "positions of two inputs": ("program.json", tables(swap_entries("position", 0, 1))),
    "a parameter that is frozen": ("program.json", tables(set_entry("tensors", 2, "frozen", True))),
    "another dtype": ("program.json", tables(set_entry("tensors", 2, "dtype", "f32"))),
    "no table of tensors": ("program.json", tables(set_entry("tensors", []))),
    "gradients of no argument": ("program.json", tables(set_entry("roles", 0, "grads", "0", "results", []))),
    "no calls with gradients": ("program.json", tables(set_entry("roles", 0, "grads", {}))),
    "an output of another tensor": (
        "program.json",
        tables(set_entry("roles", 0, "outputs", 0, "tensor", 2)),
    ),
    "random operators of no use": ("program.json", tables(set_entry("random", [{"op": 0}]))),
}


def role_of(bundle: Bundle) -> str:
    """The file of rank 0."""
    return load_program(bundle.files).role(0).file


def folder_with(bundle: Bundle, target: Path, title: str) -> Path:
    name, edit = (EDITS | UNSEEN)[title]
    name = role_of(bundle) if name == "ROLE" else name
    api.save_program(bundle, target)
    text = (target / name).read_text()
    if edit is None:
        (target / name).unlink()
    else:
        (target / name).write_text(edit(text))
        assert (target / name).read_text() != text
    return target


@pytest.mark.parametrize("title", EDITS)
def test_a_program_that_was_changed(title: str, bundle: Bundle, tmp_path: Path) -> None:
    folder = folder_with(bundle, tmp_path / "program", title)
    files = {file.name: file.read_text() for file in folder.iterdir() if file.name != "graph.txt"}
    refused(f"verify: {title}", lambda: verify(bundle.graph_text, files), DIR=tmp_path)
    load = lambda: load_program(folder, world=2, digest=bundle.digest)  # noqa: E731
    refused(f"load: {title}", load, DIR=tmp_path)


@pytest.mark.parametrize("title", UNSEEN)
def test_a_table_that_was_changed(title: str, bundle: Bundle, tmp_path: Path) -> None:
    folder = folder_with(bundle, tmp_path / "program", title)
    files = {file.name: file.read_text() for file in folder.iterdir() if file.name != "graph.txt"}
    with pytest.raises(sw.ShardwrightError):
        verify(bundle.graph_text, files)


@pytest.mark.parametrize("plan", ["replicate", "data", "megatron", "coshard:4"])
@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_a_program_that_was_saved_is_proved_again(name: str, plan: str, tmp_path: Path) -> None:
    bundle, _ = compile_model(*MODELS[name](), plan=plan, devices=2)
    folder = api.save_program(bundle, tmp_path / "program")
    assert load_program(folder, world=2, digest=bundle.digest).digest == bundle.digest


def test_a_program_of_another_model(bundle: Bundle, tmp_path: Path) -> None:
    other, _ = compile_model(*models.two_losses(), plan="data", devices=2)
    refused("load: another model", lambda: load_program(bundle.files, world=2, digest=other.digest))
    refused("verify: another model", lambda: verify(other.graph_text, bundle.files))
    refused("load: nowhere", lambda: load_program(tmp_path / "none"), DIR=tmp_path)


def test_any_cut_of_the_tables_is_refused(bundle: Bundle) -> None:
    text = bundle.files["program.json"].rstrip()
    for end in range(0, len(text), 97):
        for action in (load_program, lambda files: verify(bundle.graph_text, files)):
            with pytest.raises(sw.ShardwrightError):
                action({**bundle.files, "program.json": text[:end]})


def test_any_entry_of_another_kind_is_refused(bundle: Bundle) -> None:
    """Never with an exception of Python's own."""
    data = json.loads(bundle.files["program.json"])
    for key in data:
        for value in (None, "x", -1, [], [[]], {"x": 1}):
            files = {**bundle.files, "program.json": json.dumps({**data, key: value})}
            if data[key] == value or key in ("model", "plan", "tensors", "random"):
                continue
            with pytest.raises(sw.ShardwrightError):
                verify(bundle.graph_text, files)
            with pytest.raises(sw.ShardwrightError):
                load_program({**files, "graph.txt": bundle.graph_text}, world=2, digest=bundle.digest)


def test_the_code_of_a_program_runs_only_if_it_is_code(bundle: Bundle) -> None:
    for title, text in [("no Python", "def forward(:"), ("no forward", "x = 1\n")]:
        files = {**bundle.files, role_of(bundle): text}
        refused(f"code: {title}", lambda files=files: load_program(files).code(0))


# ---- calls -------------------------------------------------------------------------------------


def alone(plan: str = "replicate", name: str = "mlp") -> tuple[ParallelModule, tuple[Tensor, ...]]:
    module, args = MODELS[name]()
    return sw.parallelize(module, args, plan=plan), args


def test_arguments_of_parallelize() -> None:
    module, args = models.mlp()
    for key, value in [("outputs", "logits"), ("inputs", None), ("randomness", "none"), ("devices", 2)]:
        options: dict[str, Any] = {key: value}
        refused(
            f"parallelize: {key}={value}", lambda options=options: sw.parallelize(module, args, **options)
        )
    refused("compile_model: outputs", lambda: compile_model(module, args, outputs="logits"))


def test_calls_that_are_not_as_captured() -> None:
    model, (x, target) = alone()
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "other dtype": ((x.float(), target), {}),
        "one argument too few": ((x,), {}),
        "one argument too many": ((x, target, x), {}),
        "unknown keyword": ((x, target), {"mask": x}),
        "list instead of a tensor": (([x], target), {}),
        "number instead of a tensor": ((x, 3), {}),
    }
    for title, (args, kwargs) in calls.items():
        refused(f"call: {title}", lambda args=args, kwargs=kwargs: model(*args, **kwargs))
        if not kwargs:
            refused(f"call: {title}", lambda args=args: model.train_step(args))
    assert torch.isfinite(model(x, target=target))  # the same by keyword


def test_training_that_cannot_be() -> None:
    model, args = alone()
    refused("train: no batches", lambda: model.train_step([]))
    loss = model(*args)
    loss.backward()
    refused("train: backward twice", lambda: loss.backward())
    with torch.no_grad():
        assert not model(*args).requires_grad
    two, inputs = alone(name="two_losses")
    refused("train: two losses", lambda: two.train_step(inputs))


def test_a_state_dict_that_does_not_fit() -> None:
    model, _ = alone()
    before = {name: value.clone() for name, value in model.full_state_dict().items()}
    wrong = {name: value + 1 for name, value in before.items()}
    for name in ("layers.0.up.bias", "head.weight"):
        wrong.pop(name)
    wrong["layers.1.down.weight"] = torch.zeros(3, 3)
    wrong["head.bias"] = torch.zeros(2)
    wrong |= {"left.over": torch.zeros(1), "another": torch.zeros(1)}
    refused("state dict", lambda: model.load_full_state_dict(wrong))
    assert all(torch.equal(value, before[name]) for name, value in model.full_state_dict().items())


def test_a_world_that_is_not_that_of_the_plan(bundle: Bundle) -> None:
    values = sources(models.mlp()[0], bundle.captured)

    def body(rank: int, comm: Any) -> None:
        ParallelModule(load_program(bundle.files), comm, values, bundle.captured)

    refused("world: three ranks for two", lambda: run_local(3, body))
    refused("world: asked for three", lambda: load_program(bundle.files, world=3))


# ---- the console command -----------------------------------------------------------------------

MODEL_FILE = """
import torch
from torch import nn
from shardwright import demo

def model():
    return demo.build(), demo.batches()[0]

def fails():
    raise ValueError("no weights")

def number():
    return 3

def branch():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x.sum() if (self.scale * x).sum() > 0 else -x.sum()
    return Branch(), torch.ones(2)

three = 3
"""

COMMANDS = {
    "no file": ["emit", "DIR/nofile.py:f", "--plan=data", "--devices", "2", "-o", "DIR/out"],
    "unknown function": ["emit", "DIR/model.py:f", "--plan=data", "--devices", "2", "-o", "DIR/out"],
    "no function": ["emit", "DIR/model.py:three", "--plan=data", "--devices", "2", "-o", "DIR/out"],
    "function that fails": ["emit", "DIR/model.py:fails", "--plan=data:2", "-o", "DIR/out"],
    "function that gives no model": ["plan", "DIR/model.py:number", "--plan=data", "--devices", "2"],
    "model that cannot be captured": ["plan", "DIR/model.py:branch", "--plan=data", "--devices", "2"],
    "file that is no Python": ["plan", "DIR/broken.py:f", "--plan=data", "--devices", "2"],
    "file that fails": ["plan", "DIR/failing.py:f", "--plan=data", "--devices", "2"],
    "no graph": ["plan", "DIR/none.txt", "--plan=data", "--devices", "2"],
    "graph that is none": ["plan", "DIR/wrong.plan", "--plan=data", "--devices", "2"],
    "file without its function": ["plan", "DIR/model.py", "--plan=data", "--devices", "2"],
    "file that has no function": ["plan", "DIR/failing.py", "--plan=data", "--devices", "2"],
    "misspelt function": ["plan", "DIR/model.py:modle", "--plan=data", "--devices", "2"],
    "misspelt file": ["plan", "DIR/modle.py:model", "--plan=data", "--devices", "2"],
    "misspelt graph": ["plan", "DIR/grahp.txt", "--plan=data", "--devices", "2"],
    "binary graph": ["plan", "DIR/binary", "--plan=data", "--devices", "2"],
    "unreadable plan": ["plan", "DIR/graph.txt", "--devices", "2", "--plan", "DIR/none.plan"],
    "binary plan": ["plan", "DIR/graph.txt", "--devices", "2", "--plan", "DIR/binary.plan"],
    "wrong plan": ["plan", "DIR/graph.txt", "--devices", "2", "--plan", "DIR/wrong.plan"],
    "unknown plan": ["plan", "DIR/graph.txt", "--devices", "2", "--plan", "nonsense"],
    "no devices": ["plan", "DIR/graph.txt", "--plan=data", "--devices", "0"],
    "fewer devices than none": ["plan", "DIR/graph.txt", "--plan=data", "--devices", "-1"],
    "compare on no devices": ["compare", "DIR/graph.txt", "--cluster=cpu:2", "--devices", "0"],
    "folder that holds other things": ["emit", "DIR/graph.txt", "--plan=data:2", "-o", "DIR"],
    "folder that is a file": ["emit", "DIR/graph.txt", "--plan=data:2", "-o", "DIR/graph.txt"],
    "folder below a file": ["emit", "DIR/graph.txt", "--plan=data:2", "-o", "DIR/graph.txt/out"],
    "check of nothing": ["check", "DIR/none"],
    "check of an edited program": ["check", "DIR/program"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, graph: Graph, bundle: Bundle) -> Path:
    folder = tmp_path_factory.mktemp("place")
    (folder / "model.py").write_text(MODEL_FILE)
    (folder / "broken.py").write_text("def f(:\n")
    (folder / "failing.py").write_text("import no_such_module\n")
    (folder / "graph.txt").write_text(graph.text)
    (folder / "wrong.plan").write_text('shardwright-plan 1\ndevices 2\nop "nope": single\n')
    for name in ("binary", "binary.plan"):
        (folder / name).write_bytes(b"\xff\xfe\0")
    folder_with(bundle, folder / "program", "role with another argument")
    return folder


@pytest.mark.parametrize("title", COMMANDS)
def test_a_command(title: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(place.iterdir())
    assert cli.main([word.replace("DIR", str(place)) for word in COMMANDS[title]]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    expect(f"command: {title}", err.rstrip("\n"), DIR=place)
    assert [path for path in sorted(place.iterdir()) if path.name != "__pycache__"] == before


ON_TWO = {
    "plan": ("plan", "DIR/graph.txt", "--cluster=cpu:2"),
    "a named plan": ("plan", "DIR/graph.txt", "--plan=data:2"),
    "compare": ("compare", "DIR/graph.txt", "--cluster=cpu:2"),
    "simulate": ("simulate", "DIR/graph.txt", "--cluster=cpu:2"),
    "manifest": ("manifest", "DIR/graph.txt", "--cluster=cpu:2", "--plan=data"),
    "emit": ("emit", "DIR/graph.txt", "--cluster=cpu:2", "-o", "DIR/out"),
    "coverage": ("ops", "coverage", "DIR/graph.txt"),
}
# Whoever has no cluster has no step. A graph has no batch that can be cut.
CODES = {"--devices": "SW0315", "--batches": "SW0912", "--micro-batches": "SW0116"}
IMPOSSIBLE = [
    (title, option, number)
    for title, words in ON_TWO.items()
    for option in CODES
    for number in ("0", "-3", "99999999999")
    if option != "--batches" or "--cluster=cpu:2" in words
]


@pytest.mark.parametrize(("title", "option", "number"), IMPOSSIBLE)
def test_a_number_that_cannot_be(
    title: str, option: str, number: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("DIR", str(place)) for word in ON_TWO[title]]
    assert cli.main([*words, option, number]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error[{CODES[option]}]")
    assert "\n  why: " in err and "\n  help: " in err
    assert not (place / "out").exists()


def shell(*arguments: str | Path) -> subprocess.Popen[str]:
    code = "import sys; from shardwright.cli import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": str(Path(sw.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # What starts the tests may ignore interrupts, as a shell does for what runs behind it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def test_a_command_in_its_own_process(place: Path) -> None:
    process = shell("plan", place / "graph.txt", "--devices", "2", "--plan", "nonsense")
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (1, "")
    expect("command: unknown plan", err.rstrip("\n"))


@pytest.mark.slow
def test_a_command_that_is_interrupted(tmp_path: Path) -> None:
    started = tmp_path / "started"
    (tmp_path / "slow.py").write_text(
        f"import pathlib, time\n\ndef f():\n    pathlib.Path({str(started)!r}).touch()\n    time.sleep(100)\n"
    )
    process = shell("emit", f"{tmp_path}/slow.py:f", "--plan=data", "--devices", "2", "-o", tmp_path / "out")
    end = time.monotonic() + 100
    while not started.exists() and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=120) == ("", "interrupted\n")
    assert process.returncode == 130
    assert not (tmp_path / "out").exists()
