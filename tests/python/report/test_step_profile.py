"""`model.profile_step`: what was measured stands beside what is predicted, by module, and the words say where
they differ."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import equality
import models
import shardwright as sw
from shardwright import demo
from shardwright._core import Graph, cluster_origin, search_plan
from shardwright.capture import capture
from shardwright.errors import ClusterError, RuntimeFault
from shardwright.runtime import launch, run_local

torch.set_num_threads(1)

# Ranks are threads with one generator.
SEEDING = threading.Lock()
OPTIONS = {"cache": False, "progress": False}


def _model(comm: Any, plan: str, name: str = "gpt") -> tuple[Any, Any]:
    with SEEDING:
        module, args = getattr(models, name)()
    return sw.parallelize(module, args, plan=plan, comm=comm, **OPTIONS), args


@pytest.mark.parametrize(
    ("plan", "batches"),
    [("megatron:2", 1), ("data:2", 2), ("stages:2 x zb-h1", 3), ("zero3:2 x recompute", 1)],
)
def test_modules_and_messages_are_told_apart(plan: str, batches: int) -> None:
    def rank(rank: int, comm: Any) -> Any:
        model, args = _model(comm, plan)
        return model.profile_step(equality.micro_batches(args, batches), steps=2)

    profile, other = run_local(2, rank)
    assert profile.data == other.data and str(profile) == str(other)
    data = profile.data
    assert (data["steps"], data["micro_batches"], data["cluster"]) == (2, batches, "cpu:2")
    modules = {entry["name"]: entry for entry in profile.entries if entry["kind"] == "computation"}
    passes = {entry["pass"] for entry in modules.values()}
    assert ("recomputation" in passes) == ("recompute" in plan)
    computed_entries = [entry for entry in profile.entries if entry["kind"] == "computation"]
    # Layers are one entry, and what of them is measured is there in forward and in backward.
    for name in ("h.*.mlp.c_fc", "h.*.attn.c_proj"):
        for direction in ("forward", "backward"):
            [entry] = [it for it in computed_entries if (it["name"], it["pass"]) == (name, direction)]
            assert entry["predicted"] > 0 and entry["measured"] > 0, entry
    assert any(entry["kind"] != "computation" for entry in profile.entries)
    apart = [abs(entry["measured"] - entry["predicted"]) for entry in profile.entries]
    assert apart == sorted(apart, reverse=True)
    # What a step consists of is the step, as far as nothing is counted twice.
    parts = sum(part["measured"] for part in data["parts"])
    assert parts == pytest.approx(data["measured"], rel=0.5)
    computed = sum(entry["measured"] * entry["ranks"] for entry in computed_entries) / 2
    assert computed == pytest.approx(data["parts"][0]["measured"], rel=1e-6)


@pytest.mark.slow
def test_what_one_module_takes_is_told_of_that_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `data` all of the forward is one call: its lines say which module took how long."""
    gelu = torch.nn.functional.gelu

    def slow(*given: Any, **named: Any) -> Any:
        time.sleep(0.2)
        return gelu(*given, **named)

    def rank(rank: int, comm: Any) -> Any:
        model, args = _model(comm, "data:2")
        monkeypatch.setattr(torch.nn.functional, "gelu", slow)
        return model.profile_step(args, steps=1)

    profile = run_local(2, rank)[0]
    [entry] = [it for it in profile.entries if (it["name"], it["pass"]) == ("h.*.mlp", "forward")]
    # Two layers, each of which sleeps; what the marks themselves take is not counted.
    assert entry["measured"] > 0.35
    others = [it for it in profile.entries if it["kind"] == "computation" and it is not entry]
    assert all(it["measured"] < 0.2 for it in others)


def test_a_step_leaves_the_model_as_it_was() -> None:
    def rank(rank: int, comm: Any) -> Any:
        model, args = _model(comm, "zero1:2")
        model.train_step(args)
        before = {name: it.grad.clone() for name, it in model.named_parameters() if it.grad is not None}
        step = model.step
        model.profile_step(args, steps=1)
        after = {name: it.grad for name, it in model.named_parameters() if it.grad is not None}
        assert model.step == step and before.keys() == after.keys() and before
        return all(torch.equal(before[name], after[name]) for name in before)

    assert all(run_local(2, rank))


def test_a_recording_has_a_profile_too(tmp_path: Path) -> None:
    def rank(rank: int, comm: Any) -> Any:
        model, args = _model(comm, "megatron:2")
        with sw.record(cluster="cpu:2") as recorded:
            model.train_step(args)
        return recorded.profile(), recorded.profile("h200:2") if rank == 0 else None

    (here, there), _ = run_local(2, rank)
    assert (here.data["cluster"], there.data["cluster"]) == ("cpu:2", "h200:2")
    assert here.entries and here.words
    path = tmp_path / "none" / "here.toml"
    with pytest.raises(RuntimeFault, match="SW0863"):
        here.save_cluster(path)


def test_a_model_that_was_not_parallelized_here_says_so() -> None:
    def rank(rank: int, comm: Any) -> Any:
        model, args = _model(comm, "data:2", "mlp")
        model._profile_step = None
        return model.profile_step(args)

    with pytest.raises(RuntimeFault, match="SW0861"):
        run_local(2, rank)


# Seconds that each all-reduce takes more.
SLOW = 0.05


def _slow(rank: int, plan: str) -> Any:
    """A rank whose link is slow: what it communicates takes longer."""
    model = sw.parallelize(demo.build(), demo.batches()[0], plan=plan, **OPTIONS)
    all_reduce = model.comm.all_reduce

    def late(*args: Any) -> Any:
        time.sleep(SLOW)
        return all_reduce(*args)

    cast(Any, model.comm).all_reduce = late
    return model.profile_step(demo.batches()[0], steps=3)


@pytest.mark.processes
def test_the_words_name_a_slow_link(tmp_path: Path) -> None:
    profile = launch(_slow, 2, ("megatron",), device="cpu")
    said = "\n".join(profile.words)
    assert re.search(r"All-reduces( of \S+)? in (forward|backward) take [\d.]+ times what", said), said
    assert "The link inside of a node is slower than cpu:2 says" in said
    largest = profile.entries[0]
    assert largest["kind"] == "all_reduce" and largest["measured"] > SLOW
    text = str(profile)
    assert " ".join(profile.words) in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    # What is written has the slow link: all-reduces are predicted as they were measured.
    file = tmp_path / "here.toml"
    profile.save_cluster(file)
    times = profile.data["slower"]["inside"]
    assert times > 1.25 and cluster_origin(str(file), file.read_text()) is not None
    graph = Graph(capture(demo.build(), demo.batches()[0]).graph_text)
    before, after = (
        next(entry for entry in search_plan(graph, 2, *it, every=True).rows if entry["plan"] == "megatron:2")
        for it in (("cpu:2",), (str(file), file.read_text()))
    )
    assert after["exposed"] > 1.25 * before["exposed"]
    with pytest.raises(ClusterError, match="SW0917"):
        text = re.sub(r'^device = ".*"', 'device = "another"', file.read_text(), flags=re.M)
        file.write_text(text)
        launch(_on_a_cluster, 2, (str(file),), device="cpu")


def _on_a_cluster(rank: int, cluster: str) -> Any:
    model = sw.parallelize(demo.build(), demo.batches()[0], plan="megatron", **OPTIONS)
    return model.profile_step(demo.batches()[0], cluster, steps=1)
