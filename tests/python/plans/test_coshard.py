"""Parts in turn, on a Swin: found from the graph, without communication, equal, and smaller."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import equality
import live
import shardwright as sw
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import Compiled, compile
from shardwright.capture import Captured, capture
from shardwright.runtime import ParallelModule, TorchComm, load_program
from shardwright.start.compiling import sources

torch.set_num_threads(1)

ALONE = [("coshard", 1), ("coshard:3", 1), ("coshard x recompute", 1)]
SHARED = [
    ("data:2 x coshard", 2),
    ("megatron:2 x coshard", 2),
    ("stages:2 x coshard", 2),
    ("stages:2 x data:2 x coshard", 4),
    ("coshard", 2),
]


def large(batch: int = 4) -> zoo.Model:
    """A Swin of which activations are nearly all, those of the first stage the most."""
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(0)
    config = SwinConfig(
        image_size=64,
        patch_size=2,
        embed_dim=12,
        depths=[2, 2, 2],
        num_heads=[3, 6, 12],
        window_size=4,
        drop_path_rate=0.0,
        num_labels=7,
    )
    batch_of = {"pixel_values": zoo.image(3, 64, batch), "labels": torch.randint(7, (batch,))}
    return zoo.prepared(SwinForImageClassification(config)), (), batch_of


@functools.cache
def known(name: str) -> tuple[zoo.Model, Captured, Graph]:
    model = {"swin": zoo.swin, "large": large}[name]()
    with zoo.widened():
        captured = capture(*model)
    return model, captured, Graph(captured.graph_text)


def made(name: str, plan: str, devices: int) -> Compiled:
    return compile(Plan.named(known(name)[2], plan, devices))


def bundle(name: str, plan: str, devices: int) -> Bundle:
    compiled = made(name, plan, devices)
    files = dict(compiled.files)
    return Bundle(files, compiled.digest, plan, devices, known(name)[1], compiled.proof, "")


@functools.cache
def expected() -> equality.Result:
    (module, _, batch), _, _ = known("swin")
    with zoo.widened():
        return equality.steps_reference(module, equality.micro_batches(batch, 2))


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "devices"), ALONE + SHARED)
def test_it_is_equal_to_the_single_device(plan: str, devices: int) -> None:
    (module, _, batch), _, _ = known("swin")
    batches = equality.micro_batches(batch, 2)
    equality.assert_equal(
        equality.run_steps(bundle("swin", plan, devices), module, batches), expected(), plan
    )


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "plain"), [("coshard", "replicate"), ("data:2 x coshard", "data:2")])
def test_it_communicates_nothing_of_its_own(plan: str, plain: str) -> None:
    devices = 2 if "2" in plain else 1
    ours, theirs = made("large", plan, devices), made("large", plain, devices)
    assert ours.counts == theirs.counts and ours.bytes == theirs.bytes
    assert (ours.counts[0] == {}) == (devices == 1)


def parts(plan: Plan, target: str) -> dict[str, int]:
    """Into how many parts operators are divided, by the module they stand in."""
    counts = {}
    for line in plan.text.splitlines():
        said = re.match(rf"op %\S+: (?:split \S+ (\d+)|single) on [\d ]+# {re.escape(target)} (\S+)$", line)
        if said:
            counts[said[2]] = int(said[1] or 1)
    return counts


def test_large_feature_maps_have_more_parts_than_small_ones() -> None:
    counts = parts(Plan.named(known("large")[2], "coshard", 1), "aten.gelu.default")
    in_stage = [{count for path, count in counts.items() if f"layers.{stage}." in path} for stage in range(3)]
    [first], [second], [third] = in_stage
    assert first > second > third > 1


def test_small_ones_are_not_computed_again() -> None:
    again, twice = made("large", "coshard", 1).computed[0]
    _, all_twice = made("large", "coshard:8", 1).computed[0]
    assert again > twice > 0 and twice < all_twice


def test_a_dim_with_fewer_elements_than_parts_has_as_many_as_elements() -> None:
    counts = parts(Plan.named(known("large")[2], "coshard:8", 1), "aten.scaled_dot_product_attention.default")
    assert {path.split(".")[3]: count for path, count in counts.items()} == {"0": 3, "1": 6, "2": 8}


def peak(plan: str) -> int:
    """Beside parameters, gradients and inputs."""
    (module, args, batch), captured, _ = known("large")
    return live.peak(made("large", plan, 1), module, captured, lambda it: it(*args, **batch).loss.backward())


@pytest.mark.slow
def test_less_lives_than_with_recomputation_alone() -> None:
    plain, again, ours = (peak(plan) for plan in ("replicate", "recompute", "coshard x recompute"))
    assert again < 0.5 * plain
    assert ours < 0.6 * again


def test_what_parts_give_is_added_up_one_by_one() -> None:
    text = dict(made("large", "coshard:4", 1).files)["rank_0.py"]
    sums = re.findall(r"^ +\w+ = (?:\(.*\n +)?(\w+(?: \+ \w+)+)", text, re.MULTILINE)
    assert len(sums) > 20 and all(added.count("+") == 1 for added in sums), sums


def _train(rank: int, made: Bundle, folder: str) -> None:
    module, _, batch = zoo.swin()
    program = load_program(made.files, digest=made.digest, world=made.devices)
    model = ParallelModule(program, TorchComm(watch=False), sources(module, made.captured), made.captured)
    torch.save(equality.train_steps(model, equality.micro_batches(batch, 2)), Path(folder, f"{rank}.pt"))


@pytest.mark.processes
def test_four_processes_are_equal_to_the_single_device(tmp_path: Path) -> None:
    ours: Any = bundle("swin", "stages:2 x data:2 x coshard", 4)
    sw.launch(_train, 4, (ours, str(tmp_path)), timeout=300)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(4)]
    result = equality.assemble([([], held) for _, held in ranks])
    result.losses = ranks[0][0]
    equality.assert_equal(result, expected(), "four processes")
