"""The models of `examples`, in tiny size: equal to themselves on one device, under plans that divide them."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import forked
import ready_python
import shardwright as sw
from shardwright._core import communications
from shardwright.cli import main, parser
from shardwright.start.compiling import compile_model

EXAMPLES = Path(__file__).parents[3] / "examples"
PLANS = [("data", 2), ("zero3", 2), ("megatron", 2), ("stages:2 x 1f1b", 2)]


def module_of(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def commands(page: Path, verb: str) -> list[list[str]]:
    """Those of a page that begin so, as words."""
    lines = [line.strip() for line in page.read_text().splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith(f"shardwright {verb} ")]


PAGES = sorted(page for page in EXAMPLES.glob("*/README.md"))
VERIFIED = [pytest.param(page, id=page.parent.name) for page in PAGES if commands(page, "verify")]
NEEDS = {"lora": "peft", "vit": "torchvision"}
NEEDS |= dict.fromkeys(("deepseek", "inference", "llama", "llama_128k", "phi3", "swin", "t5"), "transformers")


@pytest.mark.slow
@pytest.mark.parametrize("page", VERIFIED)
def test_what_a_page_compares_is_equal(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in tiny size, as the page has it: ranks are threads of this process."""
    if page.parent.name in NEEDS:
        pytest.importorskip(NEEDS[page.parent.name], reason="the example is a model of it")
    monkeypatch.chdir(page.parent)
    for command in commands(page, "verify"):
        assert "--threads" in command
        assert main(command) == 0


def test_every_example_has_a_page_with_both_commands() -> None:
    """DaGAN is a loop, and RetNet and YOCO are trained; all others are verified, and planned in full size."""
    names = {page.parent.name for page in PAGES}
    folders = {folder.name for folder in EXAMPLES.iterdir() if (folder / "model.py").is_file()}
    assert names == folders
    listed = (EXAMPLES / "README.md").read_text()
    for page in PAGES:
        assert f"]({page.parent.name}/README.md)" in listed
        if page.parent.name == "dagan":
            continue
        [planned] = commands(page, "simulate")
        assert parser().parse_args(planned).cluster
        if page.parent.name not in ("retnet", "yoco"):
            assert commands(page, "verify"), page


@pytest.mark.slow
def test_keys_of_a_ring_go_to_neighbours_only() -> None:
    """From block to block, and not from each to all. None comes round to the first: attention is causal."""
    module = module_of("ring_attention")
    plan = EXAMPLES / "ring_attention" / "ring.plan"
    bundle, _ = compile_model(*module.tiny(), plan=plan, devices=4)
    files = {name: text for name, text in bundle.files.items() if name != "graph.txt"}
    manifest = json.loads(communications(bundle.graph_text, files, ("cpu:4", None)))
    rows = [row for role in manifest["roles"] for row in role["communications"]]
    groups = {tuple(row["group"]) for row in rows if row["kind"] == "exchange" and row["bytes"] > 64}
    assert groups == {(0, 1), (1, 2), (2, 3)}


@pytest.mark.processes
@pytest.mark.slow
def test_logits_are_asked_for_on_every_rank(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the example is a model of it")
    script = EXAMPLES / "inference" / "ask.py"
    plain = forked.script(script, folder=tmp_path)
    ranks = forked.run(script, "megatron", world=2, folder=tmp_path)
    assert plain.code == 0, plain.error
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].error
    assert ranks[0].out == plain.out and "next words" in plain.out


def built(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    module = module_of(name)
    model = {"retnet": "RetNet", "yoco": "Yoco"}[name]
    ids = torch.randint(256, (4, 65))
    return getattr(module, model)(), {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["retnet", "yoco"])
@pytest.mark.parametrize(("plan", "devices"), PLANS, ids=[plan for plan, _ in PLANS])
def test_an_example_is_equal_under_plans_that_divide_it(name: str, plan: str, devices: int) -> None:
    model, batch = built(name)
    comparison = sw.verify(model, (), batch, plan=plan, devices=devices, dtypes=("float64",))
    comparison.raise_if_different()


@pytest.mark.processes
@pytest.mark.slow
def test_two_models_in_one_loop_are_those_of_one_device() -> None:
    """DaGAN's generator and discriminator: each step's losses are equal."""
    script = EXAMPLES / "dagan" / "train.py"
    rest = [str(script), "--steps", "2", "--dtype", "float64"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    plain = numbers([*rest, "--plain"])
    assert len(plain) == 8
    assert numbers([*launch, *rest, "--plan", "zero3"]) == pytest.approx(plain, rel=1e-9)


def numbers(words: list[str]) -> list[float]:
    ended = subprocess.run(
        [ready_python.command(), *words], env=ready_python.environment(), capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stdout.splitlines() if line.startswith("step ")]
    return [float(word.rstrip(":")) for line in lines for word in line.split() if word[0].isdigit()]


def test_retention_is_the_same_in_chunks_of_any_size() -> None:
    model, batch = built("retnet")
    model.double()
    losses = []
    for chunk in (64, 32, 7):
        for block in model.blocks:
            block.retention.chunk = chunk
        losses.append(model(**batch).item())
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-12)
