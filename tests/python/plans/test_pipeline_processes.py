"""Pipelines on real processes, with Gloo between them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import equality
import piped
import shardwright as sw
from models import MODELS
from shardwright import Graph, Plan
from shardwright.capture import capture

pytestmark = pytest.mark.processes

WORLD = 4
PLANS = (
    "stages:4",
    "stages:2 x data:2",
    "stages:2 x megatron:2 x gpipe",
    "stages:2 x zero3:2 x recompute",
    "stages:4 x zb-h1",
    "stages:2 x zero3:2 x zb-h1",
    "stages:4 x zb-v",
    "stages:2 x data:2 x zb-v",
    "stages:4 x tokens:4",
    "stages:2 x tokens:3 x data:2",
)
# A rank that dies ends the others within so many seconds.
LIMIT = 30.0


def test_equal_to_the_single_device(tmp_path: Path) -> None:
    captured = capture(*MODELS["gpt"]())
    graph = Graph(captured.graph_text)
    bundles = [piped.bundle_of(captured, Plan.named(graph, plan, WORLD)) for plan in PLANS]
    piped.is_equal_to_the_single_device(bundles, tmp_path)


def _evaluate(rank: int, folder: str) -> None:
    module, args = MODELS["gpt"]()
    model = sw.parallelize(module, args, plan="stages:2 x data:2", outputs="all")
    optimizer = sw.optimizer(model, torch.optim.AdamW, lr=1e-2)
    batches: Any = equality.micro_batches(args, 3)
    for _ in range(2):
        optimizer.zero_grad()
        model.train_step(batches)
        sw.clip_grad_norm_(model, 1.0)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        logits, loss = model(*args)
    torch.save((logits, loss, model.full_state_dict()), Path(folder, f"{rank}.pt"))


def test_a_loop_trains_and_evaluates(tmp_path: Path) -> None:
    sw.launch(_evaluate, WORLD, (str(tmp_path),), timeout=300)
    module, args = MODELS["gpt"]()
    for rank in range(WORLD):
        logits, loss, state = torch.load(tmp_path / f"{rank}.pt")
        module.load_state_dict(state)
        with torch.no_grad():
            expected, expected_loss = module.eval()(*args)
        assert torch.allclose(logits, expected, rtol=1e-9, atol=1e-12)
        assert torch.allclose(loss, expected_loss, rtol=1e-9)


def _resume(rank: int, plan: str, folder: str, steps: int) -> None:
    module, args = MODELS["gpt"]()
    model = sw.parallelize(module, args, plan=plan)
    optimizer = sw.optimizer(model, torch.optim.AdamW, lr=1e-2)
    if Path(folder, "checkpoint").exists():
        sw.load(model, optimizer, Path(folder, "checkpoint"))
    batches: Any = equality.micro_batches(args, 3)
    for _ in range(steps):
        optimizer.zero_grad()
        model.train_step(batches)
        optimizer.step()
    sw.save(model, optimizer, Path(folder, "checkpoint"))
    state = model.full_state_dict(rank0_only=True)
    if rank == 0:
        torch.save(state, Path(folder, "state.pt"))


def test_a_run_goes_on_under_other_stages(tmp_path: Path) -> None:
    for plan in ("stages:4", "zero3:2 x megatron:2", "stages:2 x data:2"):
        sw.launch(_resume, WORLD, (plan, str(tmp_path), 2), timeout=200)
    module, args = MODELS["gpt"]()
    batches = equality.micro_batches(args, 3)
    adamw = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for _ in range(6):
        adamw.zero_grad()
        for batch in batches:
            (equality.scalars(equality.called(module, batch))[0] / 3).backward()
        adamw.step()
    state = torch.load(tmp_path / "state.pt")
    for name, value in module.state_dict().items():
        assert torch.allclose(state[name], value, rtol=1e-8, atol=1e-10), name


def _die(rank: int, folder: str) -> None:
    module, args = MODELS["gpt"]()
    model = sw.parallelize(module, args, plan="stages:4")
    batches: Any = equality.micro_batches(args, 6)
    model.train_step(batches)
    if rank == 2:
        worker, sent = model.variants.first.worker, []

        def send(*given: Any) -> Any:
            sent.append(given)
            # In the middle of the steady part.
            if len(sent) == 7:
                Path(folder, "died").write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            return before(*given)

        before = worker.comm.send
        worker.comm.send = send  # type: ignore[method-assign]
    for _ in range(3):
        model.train_step(batches)


def test_a_rank_that_dies_in_the_steady_part(tmp_path: Path) -> None:
    with pytest.raises(sw.RuntimeFault) as caught:
        sw.launch(_die, WORLD, (str(tmp_path),), timeout=200)
    assert time.time() - float((tmp_path / "died").read_text()) < LIMIT
    assert caught.value.what == "rank 2 failed"
    assert caught.value.why is not None and "killed by signal 9" in caught.value.why
