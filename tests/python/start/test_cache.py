"""What was compiled before is found again, by everything that matters and by nothing else."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
import shardwright as sw
from shardwright import cache
from shardwright.cache import Cache, Unknown, key_of
from shardwright.capture import Captured
from shardwright.start import starter

torch.set_num_threads(1)

# Only the cache keeps what it has seen before.
CAPTURES_ANEW = True

MODEL = """
import torch
from torch import nn
from their_helper import scaled

FACTOR = 2.0
NOT_READ = 1.0

class Model(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width).double()
        self.table = torch.arange(float(width), dtype=torch.float64)
        self.options = {"scale": 3.0, "names": ["a", "b"], "kinds": {"x", "y", "z"}}

    def forward(self, x):
        return scaled(self.linear(x) * FACTOR + self.table).sum()
"""
HELPER = "def scaled(x):\n    return x * 0.5\n"
EXAMPLE = (torch.ones(4, 4, dtype=torch.float64),)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


Load = Callable[..., Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports `their_model` afresh, written with other text."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))

    def forget() -> None:
        for name in ("their_model", "their_helper"):
            sys.modules.pop(name, None)

    def load(model: str = MODEL, helper: str = HELPER) -> Any:
        forget()
        (tmp_path / "their_model.py").write_text(model)
        (tmp_path / "their_helper.py").write_text(helper)
        importlib.invalidate_caches()
        torch.manual_seed(0)
        return importlib.import_module("their_model").Model()

    yield load
    forget()


def key(model: nn.Module, args: Any = EXAMPLE, plan: Any = "data", **options: Any) -> str:
    return key_of(model, args, {}, plan, {"outputs": "loss", **options})


def test_the_same_thing_has_the_same_key(load: Load) -> None:
    first = load()
    assert key(first) == key(first) == key(load())
    with torch.no_grad():
        first.linear.weight.add_(1)
    assert key(first) == key(load())


def test_a_line_of_the_model_or_of_what_it_imports_changes_the_key(load: Load) -> None:
    before = key(load())
    assert key(load(MODEL.replace("FACTOR + ", "FACTOR - "))) != before
    assert key(load(MODEL.replace("FACTOR = 2.0", "FACTOR = 3.0"))) != before
    assert key(load(helper=HELPER.replace("0.5", "0.25"))) != before
    assert key(load(helper=HELPER + "\n# only a comment\n")) != before
    assert key(load()) == before


def test_values_that_code_refers_to_change_the_key(load: Load) -> None:
    model = load()
    before = key(model)
    module = sys.modules["their_model"]
    module.FACTOR = 5.0  # type: ignore[attr-defined]
    assert key(model) != before
    module.FACTOR = 2.0  # type: ignore[attr-defined]
    assert key(model) == before
    module.NOT_READ = 7.0  # type: ignore[attr-defined]
    assert key(model) == before
    sys.modules["their_helper"].scaled.__code__ = (lambda x: x * 0.75).__code__  # type: ignore[attr-defined]
    assert key(model) != before


def set_factor(model: Any, value: float) -> None:
    sys.modules["their_model"].FACTOR = value  # type: ignore[attr-defined]


def set_helper(model: Any, value: float) -> None:
    sys.modules["their_helper"].scaled.by = value  # type: ignore[attr-defined]


def set_metaclass(model: Any, value: float) -> None:
    type(type(model)).factor = value


def set_environment(model: Any, value: float) -> None:
    os.environ["THEIR_FACTOR"] = str(value)


CACHED = "import functools\n@functools.lru_cache\ndef factor():\n    return FACTOR\n"
ATTRIBUTE = HELPER + "scaled.by = 2.0\n"
METACLASS = "class Kind(type):\n    factor = 2.0\n"
# How a model may get at a number: what stands above it, what it writes, and how the number changes.
WAYS: dict[str, tuple[str, str, Callable[[Any, float], None]]] = {
    "a function that caches": (CACHED, "factor()", set_factor),
    "an attribute of a function": ("", "scaled.by", set_helper),
    "a variable with a name of its own": (
        'import os\nNAME = "THEIR_FACTOR"\n',
        "float(os.environ[NAME])",
        set_environment,
    ),
    "a module by a name that is made": (
        "import their_helper\n",
        'getattr(their_helper.scaled, "b" + "y")',
        set_helper,
    ),
    "globals": ("", 'globals()["FAC" + "TOR"]', set_factor),
    "a metaclass": (METACLASS, "type(self).factor", set_metaclass),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_number_that_is_read_on_other_ways_changes_the_key(
    way: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    above, read, change = WAYS[way]
    monkeypatch.setenv("THEIR_FACTOR", "2.0")
    text = MODEL.replace("* FACTOR", f"* {read}").replace("\nclass Model", f"\n{above}\nclass Model")
    if above == METACLASS:
        text = text.replace("(nn.Module)", "(nn.Module, metaclass=Kind)")
    model = load(text, ATTRIBUTE)
    before = key(model)
    change(model, 3.0)
    assert key(model) != before
    change(model, 2.0)
    assert key(model) == before


def test_code_that_is_made_while_it_runs_is_not_cached(load: Load) -> None:
    with pytest.raises(Unknown, match="code that runs `eval`"):
        key(load(MODEL.replace("* FACTOR", '* eval("FAC" + "TOR")')))


def changed(change: Callable[[Any], object]) -> Callable[[Load], str]:
    def make(load: Load) -> str:
        model = load()
        change(model)
        return key(model)

    return make


def _tie(model: Any) -> None:
    model.other = model.linear


CHANGES: dict[str, Callable[[Load], str]] = {
    "a number": changed(lambda m: m.options.update(scale=4.0)),
    "a list": changed(lambda m: m.options["names"].append("c")),
    "a set": changed(lambda m: m.options["kinds"].add("w")),
    "a constant's value": changed(lambda m: m.table.add_(1)),
    "a parameter that is frozen": changed(lambda m: m.linear.weight.requires_grad_(False)),
    "a parameter's type": changed(lambda m: m.linear.float()),
    "a parameter more": changed(lambda m: m.register_parameter("w", nn.Parameter(torch.ones(1)))),
    "a buffer more": changed(lambda m: m.register_buffer("b", torch.ones(1))),
    "a buffer that is not saved": changed(lambda m: m.register_buffer("b", torch.ones(1), persistent=False)),
    "a tied module": changed(_tie),
    "evaluation": changed(lambda m: m.eval()),
    "evaluation of a part": changed(lambda m: m.linear.eval()),
    "a method of this instance": changed(lambda m: setattr(m, "forward", lambda x: m.linear(x).sum())),
    "a hook": changed(lambda m: m.register_forward_hook(lambda *_: None)),
    "another batch": lambda load: key(load(), (torch.ones(8, 4, dtype=torch.float64),)),
    "another type of input": lambda load: key(load(), (torch.ones(4, 4),)),
    "an input that needs a gradient": lambda load: key(load(), (EXAMPLE[0].clone().requires_grad_(),)),
    "another plan": lambda load: key(load(), plan="megatron"),
    "another number of devices": lambda load: key(load(), devices=4),
    "other outputs": lambda load: key_of(load(), EXAMPLE, {}, "data", {"outputs": "all"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_key_changes_with(change: str, load: Load) -> None:
    keys = [key(load()), CHANGES[change](load)]
    assert keys[0] != keys[1]


def test_a_tie_is_not_two_equal_parameters() -> None:
    def pair(tied: bool) -> nn.Module:
        model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
        if tied:
            model["b"].weight = model["a"].weight  # type: ignore[index]
        return nn.Sequential(model["a"], model["b"])

    args = (torch.ones(2, 4),)
    assert key(pair(False), args) == key(pair(False), args) != key(pair(True), args)


def plan_with(parts: int) -> Any:
    return lambda graph, draft: [draft.trans(op, "replicate", parts) for op in graph.operators]


def test_a_function_as_plan_is_its_code_and_its_cells(load: Load) -> None:
    model = load()
    assert key(model, plan=plan_with(2)) == key(model, plan=plan_with(2)) != key(model, plan=plan_with(3))
    assert key(model, plan=lambda graph, draft: None) != key(model, plan=lambda graph, draft: 1)


def test_a_plan_file_is_its_text(load: Load, tmp_path: Path) -> None:
    file = tmp_path / "mine.plan"
    file.write_text('shardwright-plan 1\ndevices 1\nop "*": single\n')
    before = key(load(), plan=file)
    file.write_text('shardwright-plan 1\ndevices 1\nop "*": replicate 1\n')
    assert key(load(), plan=file) != before


def test_an_operator_that_the_model_reads_of_another_module_is_described(load: Load) -> None:
    """Its keys refuse to be compared with names. That it has run changes nothing."""
    read = MODEL.replace("from their_helper import scaled", "import their_helper")
    read = read.replace("scaled(", "their_helper.scaled(0.5 * ").replace(").sum()", ", self.table).sum()")
    helper = "import torch\nscaled = torch.ops.aten.mul.Tensor\n"
    model = load(read, helper)
    before = key(model)
    model(*EXAMPLE)
    assert key(model) == before == key(load(read, helper))
    assert key(load(read, helper.replace("mul", "div"))) != before


def test_what_cannot_be_described_is_not_cached(load: Load) -> None:
    model = load()
    model.lock = threading.Lock()
    with pytest.raises(Unknown, match=r"^model\.lock is a _thread\.lock$"):
        key(model)
    lock = threading.Lock()
    with pytest.raises(Unknown, match=r"plan\.lock"):
        key(load(), plan=lambda graph, draft: lock)


KEY_IN_A_PROCESS = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import models
from shardwright.cache import key_of
found = [key_of(*models.gpt(), {}, "data", {}), key_of(*models.resnet(), {}, lambda g, d: {1, "a"}, {})]
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
                     num_key_value_heads=1, vocab_size=8)
ids = torch.zeros(2, 4, dtype=torch.long)
print(*found, key_of(LlamaForCausalLM(config), (), {"input_ids": ids, "labels": ids}, "data", {}))
"""


@pytest.mark.slow
@pytest.mark.processes
def test_keys_are_the_same_in_every_process() -> None:
    """Fresh ones: in this one other tests have registered operators, of which a key depends."""
    pytest.importorskip("transformers")

    def keys(seed: str) -> str:
        command = [sys.executable, "-c", KEY_IN_A_PROCESS, str(Path(__file__).parents[1])]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    assert keys("1") == keys("2")


def run(model: nn.Module, **options: Any) -> Tensor:
    return sw.parallelize(model, EXAMPLE, plan="replicate", **options)(*EXAMPLE)


def refuse_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is captured")

    monkeypatch.setattr(starter, "captured_model", refuse)


def test_a_second_start_compiles_nothing(folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The constant of the model comes out of the cache, too."""
    first = run(load())
    refuse_to_compile(monkeypatch)
    assert torch.equal(run(load()), first)
    assert torch.equal(first, load()(*EXAMPLE))
    with pytest.raises(AssertionError, match="nothing is captured"):
        run(load(MODEL.replace("3.0", "4.0")))


def test_what_no_key_can_see_is_compared_at_the_start(
    folder: Path, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    file = tmp_path / "factor"
    text = MODEL.replace("* FACTOR", f"* float(open({str(file)!r}).read())")
    for factor in ("2.0", "3.0", "3.0"):
        file.write_text(factor)
        model = load(text)
        assert torch.equal(run(model, progress=True), model(*EXAMPLE))
    assert "the model reads something that no key can see" in capsys.readouterr().err
    file.write_text("2.0")
    refuse_to_compile(monkeypatch)
    run(load(text))


@pytest.mark.slow
def test_a_further_program_is_cached_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, args = models.gpt()
    short = tuple(x[:3, :12].contiguous() for x in args)
    expected = module(*short)[1]

    def start() -> Tensor:
        return sw.parallelize(module, args, plan="replicate")(*short)[1]

    assert torch.allclose(start(), expected, rtol=1e-12)
    refuse_to_compile(monkeypatch)
    assert torch.allclose(start(), expected, rtol=1e-12)
    assert len(Cache(folder).entries()) == 2


@pytest.mark.slow
def test_a_model_of_transformers_starts_from_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result is a class of its own, its arguments have names."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=53, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    module = transformers.LlamaForCausalLM(config).double()
    ids = torch.randint(53, (4, 8))
    batch = {"input_ids": ids, "labels": ids}
    expected = module(**batch)

    def start() -> Any:
        return sw.parallelize(module, (), batch, plan="replicate", outputs="all")(**batch)

    for _ in range(2):
        actual = start()
        assert type(actual) is type(expected)
        assert torch.allclose(actual.loss, expected.loss, rtol=1e-12)
        assert torch.allclose(actual.logits, expected.logits, rtol=1e-10)
        refuse_to_compile(monkeypatch)


def test_what_is_read_is_what_was_written(load: Load) -> None:
    """All fields, also those that somebody adds."""
    model = load()
    made = starter.Starter("data", 2, 1, {})
    kept: list[cache.Entry] = []
    made._keep = lambda phases, key, entry: kept.append(entry)  # type: ignore[method-assign]
    made.first(model, EXAMPLE, None)
    (written,) = kept
    read = cache.Entry.read(written.write(), model.forward)
    assert set(written.captured.constants) == {"table"}
    for field in fields(cache.Entry):
        ours, theirs = getattr(read, field.name), getattr(written, field.name)
        for part in fields(Captured) if field.name == "captured" else []:
            if part.name not in ("constants", "graph_text"):
                assert getattr(ours, part.name) == getattr(theirs, part.name), part.name
        assert field.name == "captured" or ours == theirs, field.name
    assert torch.equal(read.captured.constants["table"], written.captured.constants["table"])


FILES = ["program/rank_0.py", "program/program.json", "plan.txt", "info.json", "constants.safetensors"]
DAMAGES = [("edited", file) for file in [*FILES, "graph.txt", "manifest.json"]]
DAMAGES += [
    (how, file) for how in ("cut short", "gone") for file in ("constants.safetensors", "manifest.json")
]


@pytest.mark.parametrize(("how", "file"), DAMAGES)
def test_a_damaged_entry_is_made_anew(how: str, file: str, folder: Path, load: Load) -> None:
    expected = run(load())
    (entry,) = Cache(folder).entries()
    path = Cache(folder).path(entry.key) / file
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if how == "cut short" else data[:-1] + b"?")
    before = path.read_bytes() if path.exists() else None
    assert torch.equal(run(load()), expected)
    assert path.read_bytes() == data != before


def test_the_manifest_of_another_entry_is_no_good(folder: Path, load: Load) -> None:
    run(load())
    run(load(MODEL.replace("2.0", "4.0")))
    first, second = (Cache(folder).path(entry.key) for entry in Cache(folder).entries())
    for path in second.rglob("*"):
        if path.is_file():
            path.write_bytes((first / path.relative_to(second)).read_bytes())
    assert Cache(folder).get(second.name, load().forward) is None
    assert Cache(folder).get(first.name, load().forward) is not None


def test_it_can_be_off(folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    run(load(), cache=False)
    monkeypatch.setenv("SHARDWRIGHT_CACHE", "off")
    run(load())
    assert cache.cache_folder() is None
    assert not folder.exists()


def test_the_oldest_go(folder: Path, load: Load) -> None:
    for width in (4, 5, 6):
        model = load(MODEL.replace("width=4", f"width={width}"))
        args = (torch.ones(4, width, dtype=torch.float64),)
        sw.parallelize(model, args, plan="replicate")
    entries = Cache(folder).entries()
    assert len(entries) == 3
    for at, entry in enumerate(entries):
        os.utime(Cache(folder).path(entry.key) / "manifest.json", (1000 - at, 1000 - at))
    small = Cache(folder, most_bytes=sum(entry.bytes for entry in entries) - 1)
    loaded = small.get(entries[-1].key, load().forward)  # the oldest is used: now it is the latest
    assert loaded is not None
    small.put(entries[0].key, loaded)
    assert {entry.key for entry in small.entries()} == {entries[0].key, entries[-1].key}


def test_what_a_dead_process_left_is_swept(folder: Path, load: Load) -> None:
    run(load())
    (left,) = [Cache(folder).folder / ".new-left"]
    left.mkdir()
    os.utime(left, (1000, 1000))
    run(load(MODEL.replace("2.0", "4.0")))
    assert not left.exists()


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "file"))
    model = load()
    assert torch.equal(run(model, progress=True), model(*EXAMPLE))
    assert "not kept for the next start: " in capsys.readouterr().err


def test_the_command_lists_and_clears(folder: Path, load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    from shardwright.cli import main

    run(load())
    assert main(["cache", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["folder"] == str(folder)
    assert [(e["model"], e["plan"], e["devices"]) for e in listed["entries"]] == [("Model", "replicate", 1)]
    assert main(["cache", "list"]) == 0
    assert "Model, plan `replicate`, 1 device" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"programs and graphs removed from {folder}: 1\n"
    assert Cache(folder).entries() == []
