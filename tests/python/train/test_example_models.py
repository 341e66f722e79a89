"""The models of `examples`, in tiny size: equal to themselves on one device, under plans that divide them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import ready_python
import shardwright as sw

EXAMPLES = Path(__file__).parents[3] / "examples"
PLANS = [("data", 2), ("zero3", 2), ("megatron", 2), ("stages:2 x 1f1b", 2)]


def module_of(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def built(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    module = module_of(name)
    model = {"retnet": "RetNet", "yoco": "Yoco"}[name]
    ids = torch.randint(256, (4, 65))
    return getattr(module, model)(), {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


@pytest.mark.parametrize("name", ["retnet", "yoco"])
@pytest.mark.parametrize(("plan", "devices"), PLANS, ids=[plan for plan, _ in PLANS])
def test_an_example_is_equal_under_plans_that_divide_it(name: str, plan: str, devices: int) -> None:
    model, batch = built(name)
    found = sw.verify(model, (), batch, plan=plan, devices=devices, dtypes=("float64",))
    found.raise_if_different()


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
    found = subprocess.run(
        [ready_python.command(), *words], env=ready_python.environment(), capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    lines = [line for line in found.stdout.splitlines() if line.startswith("step ")]
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
