"""What people complain of in parallel training: what no other test holds, and that the page of all of it
names tests that are there."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw
import zoo
from shardwright._core import Graph, Plan, compile, search_plan, simulate_step
from shardwright.capture import capture
from shardwright.runtime import LocalComm, ParallelModule, load_program, run_local
from shardwright.start.compiling import compile_model
from shardwright.start.further_programs import skeleton_of
from shardwright.weights import values_of
from shardwright.weights.pretrained import save_pretrained

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "complaints.md"

torch.set_num_threads(1)


def on_ranks(
    module: nn.Module,
    kwargs: dict[str, Any],
    plan: str,
    devices: int,
    body: Callable[[ParallelModule], Any],
    **more: Any,
) -> list[Any]:
    """What each rank's body gives, on threads."""
    with zoo.widened():
        bundle, _ = compile_model(module, (), kwargs, plan=plan, devices=devices, **more)
    program = load_program(bundle.files, digest=bundle.digest, world=devices)
    skeleton = skeleton_of(module)

    def rank(rank: int, comm: LocalComm) -> Any:
        values = values_of(module, bundle.captured.constants, None, program)
        options = {"skeleton": skeleton, "save_pretrained": save_pretrained}
        return body(ParallelModule(program, comm, values, bundle.captured, **options))

    return run_local(devices, rank)


# ---- packed documents ----------------------------------------------------------------------

DOCUMENTS = [(5, 11), (9, 7), (3, 13), (8, 8)]
"""How long those of each row are."""


def packed() -> dict[str, Tensor]:
    """Two documents a row: places begin again, nobody sees the other document, and its first word is not
    asked for."""
    ids = zoo.tokens(53, 16)
    labels, places = ids.clone(), torch.zeros_like(ids)
    mask = torch.full((len(ids), 1, 16, 16), -math.inf, dtype=torch.float64)
    for row, (first, second) in enumerate(DOCUMENTS):
        for start, length in ((0, first), (first, second)):
            inside = slice(start, start + length)
            places[row, inside] = torch.arange(length)
            labels[row, start] = zoo.IGNORED
            mask[row, 0, inside, inside] = torch.full((length, length), -math.inf).double().triu(1)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": places, "labels": labels}


def alone(model: nn.Module, batch: dict[str, Tensor]) -> float:
    """The loss of the documents one by one, each word counting as much."""
    total = count = 0.0
    for row, (first, second) in enumerate(DOCUMENTS):
        for start, length in ((0, first), (first, second)):
            ids = batch["input_ids"][row : row + 1, start : start + length]
            total += model(input_ids=ids, labels=ids).loss.item() * (length - 1)
            count += length - 1
    return total / count


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["sequence:2", "zigzag:2", "ulysses:2", "sequence:2 x data:2"])
def test_packed_documents_when_the_sequence_is_divided(plan: str) -> None:
    module, _, _ = zoo.llama()
    batch = packed()
    with zoo.widened():
        expected = alone(module, batch)
        whole = module(**batch).loss.item()
    assert whole == pytest.approx(expected, rel=1e-12)
    devices = math.prod(int(number) for number in re.findall(r"\d+", plan))
    losses = on_ranks(module, batch, plan, devices, lambda model: model.train_step(batch).item())
    assert losses == pytest.approx([expected] * devices, rel=1e-12)


# ---- adapters ------------------------------------------------------------------------------


def adapted() -> nn.Module:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    module, _, _ = zoo.llama()
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]
    )
    with_adapters: nn.Module = peft.get_peft_model(module, config)
    generator = torch.Generator().manual_seed(3)
    for name, value in with_adapters.named_parameters():
        if "lora_B" in name:  # zeros at first, under which half of the gradients are zero
            value.data = 0.1 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
    return with_adapters.double()


def trained(
    model: Any, optimizer: Any, loss_of: Callable[[], float], clip: Callable[..., Any]
) -> list[tuple[float, float]]:
    """Losses and norms of three steps whose gradients are all clipped."""
    steps = []
    for _ in range(3):
        loss = loss_of()
        norm = float(clip(model))
        assert norm > 0.05
        steps.append((loss, norm))
        optimizer.step()
        optimizer.zero_grad()
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["megatron:2", "zero3:2", "zero2:2 x megatron:2", "zero3:2 x megatron:2"])
def test_adapters_clipped_and_sharded_are_those_of_one_device_and_saved_whole(
    plan: str, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    ids = zoo.tokens(53, 8)
    batch = {"input_ids": ids, "labels": zoo.some_ignored(ids)}
    module = adapted()
    plain = copy.deepcopy(module)

    def plain_loss() -> float:
        with zoo.widened():
            loss = plain(**batch).loss
            loss.backward()
        return float(loss.detach())

    learns = [value for value in plain.parameters() if value.requires_grad]
    expected = trained(
        plain,
        torch.optim.AdamW(learns, lr=1e-2),
        plain_loss,
        lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05),
    )
    plain.save_pretrained(str(tmp_path / "plain"))

    def body(model: ParallelModule) -> list[tuple[float, float]]:
        optimizer = sw.optimizer(model, torch.optim.AdamW, lr=1e-2)
        steps = trained(
            model,
            optimizer,
            lambda: float(model.train_step(batch)),
            lambda model: sw.clip_grad_norm_(model, 0.05),
        )
        model.save_pretrained(str(tmp_path / "parallel"))
        return steps

    devices = math.prod(int(number) for number in re.findall(r":(\d+)", plan))
    for steps in on_ranks(module, batch, plan, devices, body):
        torch.testing.assert_close(torch.tensor(steps), torch.tensor(expected), rtol=1e-9, atol=1e-12)
    saved, wanted = (
        load_file(tmp_path / side / "adapter_model.safetensors") for side in ("parallel", "plain")
    )
    assert saved.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(saved[name], value, rtol=1e-7, atol=1e-9, msg=name)


# ---- one model in training and in inference ------------------------------------------------


class Probabilities(nn.Module):
    """Of the words that were sampled, as a policy is asked."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        logits = self.model(input_ids=input_ids).logits[:, :-1]
        return F.log_softmax(logits, -1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)


@pytest.mark.slow
def test_log_probabilities_do_not_depend_on_how_inference_is_divided() -> None:
    module = Probabilities(zoo.llama()[0]).eval()
    ids = zoo.tokens(53, 8)
    with zoo.widened(), torch.no_grad():
        expected = module(ids)

    def body(model: ParallelModule) -> Tensor:
        model.eval()
        with torch.no_grad():
            return model(input_ids=ids)

    for plan in ("data:2", "megatron:2", "zero3:2", "sequence:2"):
        for actual in on_ranks(module, {"input_ids": ids}, plan, 2, body):
            torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, msg=plan)


# ---- stages and devices that are not alike -------------------------------------------------


class Uneven(nn.Module):
    """Twelve layers, of which the last four are three times as wide."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64,) * 8 + (192,) * 4
        self.up = nn.ModuleList(nn.Linear(64, width) for width in widths)
        self.down = nn.ModuleList(nn.Linear(width, 64) for width in widths)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.relu(up(x)))
        return (x - wanted).square().mean()


def shares_of(plan: Plan) -> list[float]:
    """Of a step's operations, for each rank."""
    _, ranks, *_ = plan.work
    return [operations / sum(ranks) for operations in ranks]


def graph_of(module: nn.Module, rows: int = 256) -> Graph:
    return Graph(capture(module, (torch.randn(rows, 64), torch.randn(rows, 64))).graph_text)


def test_stages_are_balanced_by_their_work() -> None:
    """Halves of six layers each would have 30% and 70% of it."""
    first, second = shares_of(Plan.named(graph_of(Uneven()), "stages:2", 2))
    assert first == pytest.approx(0.5, abs=0.12)
    assert first + second == pytest.approx(1.0)


UNEQUAL = """name = "two kinds"
[network]
bandwidth = "100 Gbit/s"
latency = "14 us"
[[nodes]]
devices = "h100:1"
[[nodes]]
devices = "v100:1"
"""


@pytest.mark.slow
def test_unequal_gpus_are_given_unequal_work() -> None:
    """An H100 and a V100. Evenly divided, a step takes as long as two V100 would."""
    graph = graph_of(Uneven(), rows=1 << 14)

    def evenly(text: str) -> float:
        plan = Plan.named(graph, "data", 2)
        return simulate_step(plan, compile(plan), "cluster.toml", text, batches=8).seconds

    assert evenly(UNEQUAL) == pytest.approx(evenly(UNEQUAL.replace("h100", "v100")), rel=0.01)
    search = search_plan(graph, 2, "cluster.toml", UNEQUAL, batches=8)
    fast, slow = shares_of(search.plan(0))
    assert fast > 0.7 > 0.3 > slow
    assert search.rows[0]["seconds"] < 0.6 * evenly(UNEQUAL)


# ---- the page ------------------------------------------------------------------------------


def test_the_page_names_tests_that_are_there() -> None:
    """Each complaint has a test, and each test that is named is one."""
    text, table = PAGE.read_text().split("## The tests\n")
    complaints = re.findall(r"^## (.+)$", text, re.M)
    rows = re.findall(r"^\| \[(.+?)\]\(#.+?\) \| (.+) \|$", table, re.M)
    assert len(complaints) == 15 and [title for title, _ in rows] == complaints
    for title, tests in rows:
        named = re.findall(r"\[`(test_\w+)`\]\(\.\./(tests/python/[\w/]+\.py)\)", tests)
        assert named, f"{title}: no test is named"
        for test, file in named:
            assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.M), f"{title}: {file}::{test}"
