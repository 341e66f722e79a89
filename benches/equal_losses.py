"""Runs of trainers with a plan, saved in the middle and resumed on another number of ranks, beside the plain
tool in one process: the losses of their steps.

All processes are forked off one that has imported everything.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import small_llama
import torch
from tables import Table

from shardwright.runtime.communication import launch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "python"))

import forking

# By name the module, and the package that it needs.
INTEGRATIONS = {
    "Transformers' Trainer": ("integrations", "accelerate"),
    "TRL's SFTTrainer": ("sft_trainer", "trl"),
    "Lightning": ("lightning_trainer", "lightning"),
    "`shardwright train`": ("train_command", "yaml"),
}
IMPORTED = [
    "transformers.models.llama.modeling_llama",
    "shardwright.integrations.transformers.trainer",
    "trl.trainer.sft_trainer",
    "shardwright.integrations.lightning",
    "shardwright.train.loop",
]
QUIET = {
    "SHARDWRIGHT_PROGRESS": "off",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
    "PYTHONWARNINGS": "ignore",
}
STEPS, QUICK = 50, 6
TOLERANCE = 1e-5


def bench(quick: bool) -> Table:
    steps = QUICK if quick else STEPS
    table = Table(
        "equal-losses",
        "Losses of trainers with a plan",
        f"{steps} steps of a Llama of four layers, {small_llama.BATCH} rows in a batch, clipping, weight"
        f" decay, warm-up, cosine, float32. Each run is saved after step {steps // 2}, and goes on in the"
        " other number of processes. Beside it is the plain tool in one process.",
        ["integration", "plan", "processes", "largest difference of a loss", f"within {TOLERANCE:.0e}"],
    )
    there = {name: module for name, (module, package) in INTEGRATIONS.items() if find_spec(package)}
    _fork_ranks()
    with tempfile.TemporaryDirectory() as folder:
        for name, module in there.items():
            _add(table, name, importlib.import_module(module), Path(folder, module), steps)
    missing = {name: INTEGRATIONS[name][1] for name in INTEGRATIONS if name not in there}
    table.notes += [f"{name} is left out: {package} is not installed." for name, package in missing.items()]
    _require_equal(table)
    return table


def _fork_ranks() -> None:
    """Ranks of `launch` have imported before what takes long to import."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    torch.set_num_threads(1)
    forking.IMPORTED += IMPORTED
    if sys.platform == "linux":
        launch.FRESH = forking.Forking()


def _add(table: Table, name: str, module: Any, folder: Path, steps: int) -> None:
    folder.mkdir()
    expected = module.plain(str(folder / "plain"), steps)
    assert len(expected) == steps
    for at, plan in enumerate(getattr(module, "PLANS", small_llama.PLANS)):
        plans = {2: plan, 4: small_llama.FOUR.get(plan, plan)}
        for first, second in ((2, 4), (4, 2)):
            place = str(folder / f"{at}-{first}")
            losses = module.by_plan(first, plans[first], place, steps, False)
            assert len(losses) == steps // 2, "the first half is half of the steps"
            losses += module.by_plan(second, plans[second], place, steps, True)
            worst = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
            named = (
                f"`{plan}`" if plans[4] == plan else ", then ".join(f"`{plans[n]}`" for n in (first, second))
            )
            equal = "yes" if worst <= TOLERANCE else "no"
            table.add(name, named, f"{first}, then {second}", f"{worst:.1e}", equal)
            table.values[f"{module.__name__}, {plan}, {first}"] = losses
            print(*table.rows[-1], sep=" | ", flush=True)


def _require_equal(table: Table) -> None:
    others = [" | ".join(row) for row in table.rows if row[-1] != "yes"]
    if others:
        raise AssertionError("losses are not those of the plain tool:\n" + "\n".join(others))
