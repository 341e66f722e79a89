"""What commands print with `--json` has a schema, says its name, and fits it."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shardwright as sw
from shardwright.cli import main, parser
from shardwright.schemas import VERSIONS, named, text_of

GRAPH = str(Path(__file__).parents[1] / "golden" / "gpt.graph")

MODEL = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).double(), torch.rand(8, 4).double()

class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x).square().mean()

def loss():
    torch.manual_seed(0)
    return Loss().double(), torch.rand(8, 4).double()

def largest():
    return lambda x: x.amax(1), (torch.rand(4, 6),)

@torch.library.custom_op("schemas::mirrored", mutates_args=())
def mirrored(x: torch.Tensor) -> torch.Tensor:
    return x.flip(1)

@mirrored.register_fake
def _(x):
    return torch.empty_like(x)

class Mirror(nn.Module):
    def forward(self, x):
        return torch.ops.schemas.mirrored(x).relu()

def mirror():
    return Mirror(), torch.rand(4, 6)
"""


def schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text_of(name))
    return loaded


def parts(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside of a schema."""
    if isinstance(node, list):
        for at, one in enumerate(node):
            yield from parts(one, f"{path}/{at}")
    elif isinstance(node, dict):
        yield path, node
        for key in ("items", "prefixItems", "anyOf", "additionalProperties"):
            yield from parts(node.get(key), f"{path}/{key}")
        for key in ("properties", "$defs"):
            for name, one in node.get(key, {}).items():
                yield from parts(one, f"{path}/{key}/{name}")


@pytest.mark.parametrize("name", VERSIONS)
def test_a_schema_says_what_each_key_is(name: str) -> None:
    whole = schema(name)
    if name != "manifest-trace":
        assert next(iter(whole["properties"])) == "schema"
        assert whole["properties"]["schema"]["const"] == named(name)
    assert whole["$id"] == f"urn:shardwright:{name}:{VERSIONS[name]}"
    for path, part in parts(whole):
        if "properties" in part:
            assert part["additionalProperties"] is False, path
            assert set(part["required"]) <= set(part["properties"]), path
            assert all(one.get("description") or "$ref" in one for one in part["properties"].values()), path


def test_every_command_with_json_has_a_schema() -> None:
    names = set(commands_with_json(parser(), ()))
    assert len(names) > 10
    of_options = {"plan-diff": "plan", "plan-explain": "plan", "manifest-trace": "manifest"}
    assert names == {of_options.get(name, name) for name in VERSIONS}
    assert {file.stem for file in Path(sw.__file__).parent.glob("schemas/*.json")} == set(VERSIONS)


def commands_with_json(command: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[str]:
    for action in command._actions:
        if "--json" in action.option_strings:
            yield "-".join(words)
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from commands_with_json(inner, (*words, name))


def test_the_command_lists_and_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [[name, named(name)] for name in VERSIONS]
    assert main(["schema", "plan"]) == 0
    assert json.loads(capsys.readouterr().out) == schema("plan")
    with pytest.raises(SystemExit):
        main(["schema", "plam"])
    assert "did you mean `plan`" in capsys.readouterr().err


def check(name: str, printed: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    validator = jsonschema.Draft202012Validator
    validator.check_schema(schema(name))
    errors = [
        f"{error.json_path}: {error.message}"[:300] for error in validator(schema(name)).iter_errors(printed)
    ]
    assert not errors, errors[:5]


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(MODEL)
    return str(file)


ON = ("--cluster", "h200:2")
MEGATRON = ("--devices", "2", "--plan", "megatron")
PIPELINE = ("--plan", "stages:2 x data:2 x 1f1b", "--cluster", "dgx-h100:2x2", "--batches", "4")
COMMANDS = [
    ("cache", ("cache",)),
    ("compare", ("compare", GRAPH, *ON, "--all")),
    ("emit", ("emit", GRAPH, *MEGATRON, "-o", "TO")),
    ("manifest", ("manifest", GRAPH, *PIPELINE)),
    ("manifest", ("manifest", GRAPH, *MEGATRON, *ON)),
    ("models", ("models",)),
    ("clusters", ("clusters",)),
    ("ops-coverage", ("ops", "coverage", "MODEL:mirror", "--plan", "data:2")),
    ("ops-coverage", ("ops", "coverage", GRAPH)),
    ("ops-discover", ("ops", "discover", "MODEL:largest")),
    ("ops-discover", ("ops", "discover", "MODEL:mirror")),
    ("ops-verify", ("ops", "verify", "MODEL:net")),
    ("plan", ("plan", GRAPH, "--plan", "data:2 x recompute")),
    ("plan", ("plan", GRAPH, *PIPELINE)),
    ("plan", ("plan", GRAPH, *ON)),
    ("plan-diff", ("plan", GRAPH, "--devices", "2", "--diff", "data", "zero3 x offload")),
    ("plan-explain", ("plan", GRAPH, *ON, "--explain", "h.0.mlp.c_fc")),
    ("report", ("report", GRAPH, *PIPELINE)),
    ("report", ("report", GRAPH, *ON, "--batches", "1")),
    ("schedule", ("schedule", "v", "--devices", "2", "--micro-batches", "3")),
    ("simulate", ("simulate", GRAPH, *PIPELINE)),
    ("simulate", ("simulate", GRAPH, "--plan", "zero3:2 x offload", *ON)),
    ("verify", ("verify", "MODEL:net", *MEGATRON, "--threads")),
]


@pytest.mark.parametrize(
    ("name", "words"), COMMANDS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_a_command_prints_fits(
    name: str, words: tuple[str, ...], model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"TO": str(tmp_path / "program")}
    words = tuple(places.get(word, word.replace("MODEL", model)) for word in words)
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert next(iter(answer.items())) == ("schema", named(name))
    check(name, answer)


def test_a_key_that_the_schema_does_not_know_is_found() -> None:
    known = {"schema": named("run"), "model": "M", "plan": "data:2", "world": 2, "one_device": [1.0]}
    known |= {"ranks": [1.0], "worst": 0.0, "equal": None}
    check("run", known)
    for wrong in ({**known, "more": 1}, {**known, "world": "2"}, {"schema": named("run")}):
        with pytest.raises(AssertionError):
            check("run", wrong)


def test_the_schemas_of_all_commands_are_tried() -> None:
    elsewhere = {"ckpt-info", "doctor", "manifest-trace", "run"}
    assert {name for name, _ in COMMANDS} | elsewhere == set(VERSIONS)


def test_what_is_said_of_a_checkpoint_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module: Any = nn.Linear(3, 2)
    sw.save(module, torch.optim.SGD(module.parameters()), tmp_path / "c", {"step": 3})
    for more in ((), ("--verify",)):
        assert main(["ckpt", "info", str(tmp_path / "c"), *more, "--json"]) == 0
        check("ckpt-info", json.loads(capsys.readouterr().out))


def test_losses_fit(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "program")
    assert main(["emit", f"{model}:loss", "--plan", "data:2", "-o", folder]) == 0
    capsys.readouterr()
    assert main(["run", folder, "--threads", "--steps", "2", "--json"]) == 0
    check("run", json.loads(capsys.readouterr().out))


def test_findings_fit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwright import doctor

    monkeypatch.setattr(doctor, "CHECKS", [doctor.check_python, doctor.check_torch, doctor.check_disk])
    assert main(["doctor", "--json"]) == 0
    check("doctor", json.loads(capsys.readouterr().out))


def test_the_series_of_a_manifest_is_sorted_and_names_its_entries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "series.jsonl"
    assert main(["manifest", GRAPH, *PIPELINE, "--trace", str(file), "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    entries = {
        (role["rank"], one["order"]): one for role in manifest["roles"] for one in role["communications"]
    }
    series = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["time"] for one in series] == sorted(one["time"] for one in series)
    assert sorted((one["rank"], one["order"]) for one in series) == sorted(entries)
    for one in series:
        check("manifest-trace", one)
        entry = entries[one["rank"], one["order"]]
        assert (one["time"], one["duration"]) == (entry["start_seconds"], entry["expected_seconds"])
        assert all(one[key] == entry[key] for key in ("kind", "group", "bytes", "dtype"))


def test_bursts_of_a_manifest_have_each_communication_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = "manifest", GRAPH, *PIPELINE
    assert main([*words, "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    pause = manifest["step_seconds"] / 100
    for role in manifest["roles"]:
        listed = role["communications"]
        orders = [at for link in role["links"] for burst in link["bursts"] for at in burst["communications"]]
        assert sorted(orders) == [one["order"] for one in listed] == list(range(len(listed)))
        for link in role["links"]:
            for burst in link["bursts"]:
                members = [listed[at] for at in burst["communications"]]
                assert {one["link"] for one in members} == {link["link"]}
                assert burst["bytes"] == sum(one["bytes"] for one in members)
                ends = [one["start_seconds"] + one["expected_seconds"] for one in members]
                assert burst["start_seconds"] == members[0]["start_seconds"]
                assert burst["start_seconds"] + burst["seconds"] == pytest.approx(max(ends))
            bursts = link["bursts"]
            for one, two in pairwise(bursts):
                assert two["start_seconds"] > one["start_seconds"] + one["seconds"] + pause
    assert main(words) == 0
    said = capsys.readouterr().out
    assert re.search(
        r"^  between nodes: busy for [\d.]+% of the step, in \d+ bursts of .*\n    one every .* regularly$",
        said,
        re.M,
    )
