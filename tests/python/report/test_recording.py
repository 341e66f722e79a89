"""`sw.record`: what was measured stands beside the manifest's rows, all of them, and nothing else does."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import torch

import equality
import models
import shardwright as sw
from shardwright._core import Graph, Plan, compile, simulate_step
from shardwright.capture import capture
from shardwright.runtime import run_local
from shardwright.runtime.communication import timed
from shardwright.runtime.execution.run import Run

torch.set_num_threads(1)

PLANS = [
    ("data:4", 1),
    ("data:2 x megatron:2", 2),
    ("zero3:4", 2),
    ("zero2:4", 3),
    ("zero3:2 x megatron:2 x recompute", 1),
    ("stages:2 x data:2", 4),
    ("stages:2 x gpipe x megatron:2", 2),
    ("stages:4 x zb-h1", 5),
    ("data:4 x offload:parameters", 1),
    (3, 1),
    (4, 2),
    (5, 1),
]


# Ranks are threads with one generator.
SEEDING = threading.Lock()


def _plan(plan: Any) -> Any:
    """A number is the seed of a random plan."""
    return plan if isinstance(plan, str) else lambda graph, _: Plan.random(graph, 4, plan)


def _model(comm: Any, name: str, plan: Any) -> tuple[Any, Any]:
    with SEEDING:
        module, args = getattr(models, name)()
    options = {"cache": False, "progress": False}
    return sw.parallelize(module, args, plan=_plan(plan), comm=comm, **options), args


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "batches"), PLANS)
@pytest.mark.parametrize("name", ["gpt", "mlp"])
def test_every_row_is_measured_on_every_rank(name: str, plan: Any, batches: int) -> None:
    if name == "mlp" and plan == "stages:4 x zb-h1":
        pytest.skip("it has fewer blocks")

    def rank(rank: int, comm: Any) -> Any:
        model, args = _model(comm, name, plan)
        given = equality.micro_batches(args, batches)
        model.train_step(given)
        begin = time.perf_counter()
        with sw.record(cluster="cpu:4") as recorded:
            model.train_step(given)
            issued = Counter(kind for kind, _, _ in model.issued if kind != "send")
            model.train_step(given)
        return recorded.manifest, issued, time.perf_counter() - begin

    of_ranks = run_local(4, rank)
    manifest = of_ranks[0][0]
    assert all(other == manifest for other, _, _ in of_ranks)
    expected = _simulated(name, plan, batches)
    assert manifest["step_seconds"] == expected["step_seconds"]
    assert [one_role["rank"] for one_role in manifest["roles"]] == [0, 1, 2, 3]
    firsts = {one_role["rank"]: one_role for one_role in expected["roles"]}
    for role, (_, issued, wall) in zip(manifest["roles"], of_ranks, strict=True):
        assert len(role["measured_step_seconds"]) == 2 and sum(role["measured_step_seconds"]) < wall
        rows = role["communications"]
        for row in rows:
            _compare(row, role["measured_step_seconds"])
        counted = Counter(row["kind"] for row in rows if row["kind"] not in ("send", "receive"))
        # Of groups of one there is nothing to measure.
        assert counted <= issued
        if role["rank"] in firsts:
            without = [{key: row[key] for key in row if key != "measured"} for row in rows]
            assert without == firsts[role["rank"]]["communications"]
    assert sum(len(one_role["communications"]) for one_role in manifest["roles"]) > 0


def _simulated(name: str, plan: Any, batches: int) -> Any:
    module, args = getattr(models, name)()
    graph = Graph(capture(module, args).graph_text)
    made = Plan.named(graph, plan, 4) if isinstance(plan, str) else Plan.random(graph, 4, plan)
    return json.loads(simulate_step(made, compile(made), "cpu:4", batches=batches).manifest)


def _compare(row: Any, steps: list[float]) -> None:
    measured = row["measured"]
    times = zip(
        steps, *(measured[key] for key in ("start_seconds", "seconds", "waited_seconds")), strict=True
    )
    for step, start, seconds, waited in times:
        assert 0 <= start <= start + seconds <= step, row
        assert 0 <= waited <= seconds + 1e-3, row
    if row["bytes"] and row["kind"] not in ("send", "receive", "exchange", "exchange_gradients"):
        assert any(seconds > 0 for seconds in measured["seconds"]), row


def test_without_a_cluster_nothing_is_expected(tmp_path: Path) -> None:
    def rank(rank: int, comm: Any) -> None:
        model, args = _model(comm, "mlp", "data:2")
        with sw.record() as recorded:
            model.train_step(args)
        recorded.save(tmp_path / f"{rank}.json")

    run_local(2, rank)
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]
    answer = json.loads((tmp_path / "0.json").read_text())
    assert (answer["cluster"], answer["step_seconds"], answer["micro_batches"]) == (None, None, 1)
    row = answer["roles"][1]["communications"][0]
    assert set(row) == {
        *("kind", "group", "bytes", "dtype", "pass", "block", "micro_batch", "instruction", "operator"),
        *("order", "link", "bytes_expected", "measured"),
    }


def test_it_is_over_when_it_is_over() -> None:
    def rank(rank: int, comm: Any) -> None:
        model, args = _model(comm, "mlp", "data:2")
        before = model.worker.comm
        with sw.record():
            model.train_step(args)
        assert model.worker.comm is before and model.worker.mail.comm is before
        model.train_step(args)
        assert type(model.issued) is list

    run_local(2, rank)


def _twice(run: Run, x: Any, group: int, op: str = "sum") -> Any:
    return ALL_REDUCE(run, ALL_REDUCE(run, x, group, op), group, op)


def _another_kind(run: Run, x: Any, group: int, op: str = "sum") -> Any:
    run.issued.append(("all_to_all", group, 0))
    return ALL_REDUCE(run, x, group, op)


def _unnoted(run: Run, x: Any, group: int, op: str = "sum") -> Any:
    reduced = ALL_REDUCE(run, x, group, op)
    run.issued.noted.pop()  # type: ignore[attr-defined]
    return reduced


def _other_bytes(run: Run, x: Any, group: int, op: str = "sum") -> Any:
    reduced = ALL_REDUCE(run, x, group, op)
    run.issued.noted[-1].size += 1  # type: ignore[attr-defined]
    return reduced


ALL_REDUCE = Run.all_reduce


@pytest.mark.parametrize("fault", [_twice, _another_kind, _unnoted, _other_bytes])
def test_what_is_not_in_the_manifest_is_an_error(fault: Any) -> None:
    def rank(rank: int, comm: Any) -> None:
        model, args = _model(comm, "mlp", "megatron:2")
        with sw.record():
            model.train_step(args)

    with mock.patch.object(Run, "all_reduce", fault), pytest.raises(sw.RuntimeFault) as raised:
        run_local(2, rank)
    assert raised.value.code == "SW0860"


def _forward(model: Any, args: Any) -> None:
    model(*args)


def _nothing(model: Any, args: Any) -> None:
    pass


def _again(model: Any, args: Any) -> None:
    with sw.record():
        model.train_step(args)


def _other_steps(model: Any, args: Any) -> None:
    model.train_step([args])
    model.train_step([args, args])


def _other_shapes(model: Any, args: Any) -> None:
    model.train_step([args, tuple(x[:4] for x in args)])


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (_forward, "SW0861"),
        (_nothing, "SW0862"),
        (_again, "SW0861"),
        (_other_steps, "SW0861"),
        (_other_shapes, "SW0861"),
    ],
)
def test_what_is_no_step_is_refused(block: Any, code: str) -> None:
    def rank(rank: int, comm: Any) -> None:
        model, args = _model(comm, "mlp", "data:2")
        with sw.record():
            block(model, args)

    with pytest.raises(sw.RuntimeFault) as raised:
        run_local(2, rank)
    assert raised.value.code == code


def test_steps_that_go_on_are_refused() -> None:
    def rank(rank: int, comm: Any) -> None:
        model, args = _model(comm, "gpt", "stages:2 x 2bw")
        with sw.record():
            model.train_step([args] * 4)

    with pytest.raises(sw.RuntimeFault, match="without a pipeline flush"):
        run_local(2, rank)


def test_all_ranks_record_or_none() -> None:
    def rank(rank: int, comm: Any) -> None:
        model, args = _model(comm, "mlp", "data:2")
        if rank == 1:
            model.train_step(args)
        else:
            with sw.record():
                model.train_step(args)

    with pytest.raises(sw.RuntimeFault, match="train_step, recorded"):
        run_local(2, rank)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    def rank(rank: int, comm: Any) -> None:
        model, args = _model(comm, "mlp", "data:2")
        with sw.record() as recorded:
            model.train_step(args)
        recorded.save(tmp_path / "nowhere" / "steps.json")

    with pytest.raises(sw.RuntimeFault) as raised:
        run_local(2, rank)
    assert raised.value.code == "SW0863"


SLEEP = 0.2


def _late(rank: int, path: str) -> None:
    """Rank 1 comes late to each step, and rank 0 waits for it."""
    module, args = models.mlp()
    model = sw.parallelize(module, args, plan="zero3:2", cache=False, progress=False)
    model.train_step([args, args])
    forward = Run.forward_of

    def slow(run: Run, *given: Any) -> Any:
        time.sleep(SLEEP if rank == 1 else 0.0)
        return forward(run, *given)

    with mock.patch.object(Run, "forward_of", slow), sw.record(cluster="cpu:2") as recorded:
        model.train_step([args, args])
    recorded.save(path)


@pytest.mark.processes
def test_processes_on_gloo(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    sw.launch(_late, 2, (str(path),), timeout=300)
    first, second = json.loads(path.read_text())["roles"]
    waited = [
        sum(row["measured"]["waited_seconds"][0] for row in role["communications"])
        for role in (first, second)
    ]
    assert waited[0] > 1.5 * SLEEP > waited[1] + SLEEP
    assert all(role["measured_step_seconds"][0] > 2 * SLEEP for role in (first, second))


class Stream:
    """A GPU's stream that is two seconds behind the host, and at each event a second later."""

    def __init__(self) -> None:
        self.at = 2.0
        self.awaited: list[float] = []

    def event(self, enable_timing: bool) -> Moment:
        assert enable_timing
        return Moment()


class Moment:
    at = -1.0

    def record(self, stream: Stream) -> None:
        stream.at += 1.0
        self.at, self.stream = stream.at, stream

    def synchronize(self) -> None:
        self.stream.awaited.append(self.at)

    def elapsed_time(self, end: Moment) -> float:
        return (end.at - self.at) * 1e3


class Sent:
    def wait(self) -> None:
        pass


class Comm:
    rank = 0

    def send(self, *_: Any) -> Sent:
        return Sent()

    receive = send


def test_on_a_gpu_times_are_those_of_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "Event", stream.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    notes = timed.Notes(timed.clock_of(torch.device("cuda", 1)))
    comm = timed.Timed(cast(Any, Comm()), notes)
    work = comm.send(torch.zeros(4), 1, 0, 5)
    work.wait()
    comm.receive(torch.zeros(4), 1, 0, 5).wait()
    notes.close()
    # Nothing is awaited while the step runs.
    assert stream.awaited == []
    sent, received = notes.measured()
    # The step began at 3; the message was made at 4, sent from 5 to 6, and awaited from 7 to 8.
    assert (sent.start, sent.seconds, sent.waited) == (1.0, 4.0, 2.0)
    assert (received.start, received.seconds, received.waited) == (6.0, 2.0, 1.0)
    assert notes.seconds() == 9.0
    assert stream.awaited != []
