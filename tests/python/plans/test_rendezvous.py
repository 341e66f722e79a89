"""Pipelines over links that buffer nothing: a message moves when its receiver has come for it."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import models
import shardwright as sw
from shardwright import Graph, Plan
from shardwright._core import verify
from shardwright.capture import capture
from shardwright.errors import CheckError, RuntimeFault
from shardwright.runtime import LocalComm, TorchComm, load_program, run_local
from shardwright.runtime.communication import groups, local
from shardwright.runtime.execution.worker import lines
from test_pipeline import bundle, known, random_cut

torch.set_num_threads(1)

SCHEDULES = [
    ("stages:4", 4),
    ("stages:4 x gpipe", 4),
    ("stages:2 x interleaved:2", 2),
    ("stages:4 x zb-h1", 4),
    ("stages:2 x zb-v", 2),
    ("stages:4 x zb-v", 4),
    ("stages:2 x data:2 x zb-v", 4),
    ("stages:4 x bidirectional", 4),
    ("stages:2 x interlaced", 2),
    ("stages:2 x data:2 x interlaced", 4),
    ("stages:2 x zero3:2", 4),
    ("stages:2 x megatron:2 x gpipe", 4),
]

rendezvous = functools.partial(run_local, rendezvous=True)


def assert_equal(plan: Plan, captured: Any, model: models.Model, count: int) -> None:
    module, args = model
    batches = equality.micro_batches(args, count)
    actual = equality.run_steps(bundle(plan, captured), module, batches, 2, local=rendezvous)
    equality.assert_equal(
        actual, equality.steps_reference(module, batches, 2), f"{plan.name}, {count} batches"
    )


@pytest.mark.parametrize(("plan", "devices"), SCHEDULES, ids=lambda it: str(it))
def test_every_schedule_comes_to_its_end(plan: str, devices: int) -> None:
    model, captured, graph = known("gpt")
    named = Plan.named(graph, plan, devices)
    for count in (1, 6):
        assert_equal(named, captured, model, count)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_random_cuts_come_to_their_ends(name: str) -> None:
    model, captured, graph = known(name)
    for seed in range(100, 110):
        assert_equal(random_cut(graph, 2 + seed % 3, seed), captured, model, 4)


# ---- what would wait for ever ------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.b(self.a(x).tanh()) - y).square().mean()


# Rows that rank 0 has in the first block rank 1 has in the second one, and the other way round.
CROSSED = """
shardwright-plan 1
devices 2
use "data"
op "b": split b 2 on 1 0
block "a"
block "b"
"""


def crossed() -> tuple[models.Model, Any, Plan]:
    torch.manual_seed(5)
    module, args = Net().double(), (torch.randn(6, 8).double(), torch.randn(6, 8).double())
    captured = capture(module, args)
    return (module, args), captured, Plan.parse(Graph(captured.graph_text), CROSSED)


def test_ranks_that_send_each_other_the_same_have_a_line_for_each_way(monkeypatch: Any) -> None:
    model, captured, plan = crossed()
    assert_equal(plan, captured, model, 3)
    monkeypatch.setattr(local, "line", lambda sender, receiver, channel: channel)
    with pytest.raises(RuntimeFault, match="SW0717"):
        assert_equal(plan, captured, model, 3)
    # Where messages are on their way meanwhile, nobody sees that.
    actual = equality.run_steps(bundle(plan, captured), model[0], [model[1]])
    equality.assert_equal(actual, equality.steps_reference(model[0], [model[1]]))


@pytest.mark.parametrize(
    ("plan", "stuck"),
    [("stages:2", True), ("stages:2 x zb-h1", True), ("stages:2 x gpipe", False)],
)
def test_who_waits_for_each_message_that_it_sends_gets_no_further_than_gpipe(
    plan: str, stuck: bool, monkeypatch: Any
) -> None:
    """Under 1F1B two ranks send to each other at once: the runtime must not wait where it sends."""

    def send(comm: LocalComm, *given: Any) -> Any:
        work = begin(comm, *given)
        work.wait()
        return work

    begin = LocalComm.send
    monkeypatch.setattr(LocalComm, "send", send)
    module, args = model = models.MODELS["mlp"]()
    captured = capture(module, args)
    named = Plan.named(Graph(captured.graph_text), plan, 2)
    with pytest.raises(RuntimeFault, match="wait for each other for ever") if stuck else nullcontext():
        assert_equal(named, captured, model, 4)


# ---- the links themselves ----------------------------------------------------------------------


def test_a_message_is_where_its_sender_has_it_until_its_receiver_comes() -> None:
    def body(rank: int, comm: LocalComm) -> list[Any]:
        x = torch.full((3,), 1.0 + rank)
        if rank == 0:
            work = comm.send(x, 1, 0, 7)
            before = work.is_completed()
            x.fill_(5.0)
            comm.barrier()
            work.wait()
            return [before, work.is_completed()]
        comm.barrier()
        comm.receive(x, 0, 0, 7).wait()
        return x.tolist()

    assert rendezvous(2, body) == [[False, True], [5.0, 5.0, 5.0]]
    assert run_local(2, body) == [[True, True], [1.0, 1.0, 1.0]]


def test_messages_of_a_line_come_one_behind_the_other() -> None:
    def body(rank: int, comm: LocalComm, order: tuple[int, int]) -> list[float]:
        xs = [torch.full((1,), 10.0 * rank + at) for at in range(2)]
        if rank == 0:
            works = [comm.send(xs[at], 1, 3, at) for at in (0, 1)]
        else:
            works = [comm.receive(xs[at], 0, 3, at) for at in order]
        for work in works:
            work.wait()
        return [x.item() for x in xs]

    assert rendezvous(2, lambda rank, comm: body(rank, comm, (0, 1))) == [[0.0, 1.0]] * 2
    with pytest.raises(RuntimeFault, match="receives something else than rank 0 sends"):
        rendezvous(2, lambda rank, comm: body(rank, comm, (1, 0)))


def test_a_message_that_nobody_comes_for_is_found() -> None:
    def body(rank: int, comm: LocalComm) -> None:
        if rank == 0:
            comm.send(torch.zeros(1), 1, 0, 0).wait()

    with pytest.raises(RuntimeFault, match="rank 0 waits in message of table 0"):
        rendezvous(2, body)
    run_local(2, body)


def test_exchanges_move_both_ways_at_once() -> None:
    def body(rank: int, comm: LocalComm) -> list[float]:
        received = torch.zeros(2)
        for turn in range(3):
            comm.exchange({1 - rank: torch.full((2,), 1.0 + rank + turn)}, {1 - rank: received})
        return received.tolist()

    assert rendezvous(2, body) == [[4.0, 4.0], [3.0, 3.0]]


# ---- what else tells messages apart ------------------------------------------------------------


def _tags(rank: int) -> list[int]:
    end = TorchComm(watch=False)
    for tables in (6, 2):
        end.prepare([], {(table, True): [(0, 1)] for table in range(tables)})
    return [end._tag(table, batch) for table in range(6) for batch in range(5)]


def test_lines_are_for_each_way_and_stay_for_programs_that_use_more_or_less(monkeypatch: Any) -> None:
    _, captured, plan = crossed()
    there = lines(load_program(bundle(plan, captured).files))
    assert set(there.values()) == {((0, 1),), ((1, 0),)}
    assert {(table, not up) for table, up in there} == set(there)
    made: list[list[int]] = []
    monkeypatch.setattr(groups.dist, "new_group", lambda ranks: made.append(ranks) or len(made))
    groups.let_go()
    one, other = (object.__new__(TorchComm) for _ in range(2))
    for end in (one, other):
        end._lines, end._letters, end._owner, end._kind = {}, None, None, groups.Kind(None, None)
        for pair in ((0, 1), (1, 2), (0, 2)):
            end._make_lines({(4, True): [pair]})
        assert (end._line(1, 2, 4), end._line(2, 1, 4)) == (2, None)
    # The second model goes by the lines of the first.
    assert made == [[0, 1], [0, 1, 2]]
    # Not one whose messages may be under way between steps.
    other._lines, other._owner = {}, "of model 0"
    other._make_lines({(4, True): [(0, 1)]})
    assert len(made) == 3
    groups.let_go()


@pytest.mark.processes
def test_messages_of_a_program_stay_apart_after_one_with_fewer_tables() -> None:
    """Such as that of an evaluation between two steps."""
    assert len(set(sw.launch(_tags, 1, timeout=100))) == 30


def test_a_timetable_that_sends_in_another_order_than_it_receives_is_refused() -> None:
    module, args = models.MODELS["mlp"]()
    captured = capture(module, args)
    text = 'shardwright-plan 1\ndevices 2\nuse "stages:2"\n'
    text += "timetable 0 by 2: F0 F0+1 B0 B0+1\ntimetable 1 by 2: F1 F1+1 B1 B1+1\n"
    files = dict(bundle(Plan.parse(Graph(captured.graph_text), text), captured).files)
    assert verify(captured.graph_text, files)
    one, other = "yield forward_1, b\n", "yield forward_1, b + 1\n"
    assert one in files["rank_1.py"] and other in files["rank_1.py"]
    swapped = files["rank_1.py"].replace(one, "@").replace(other, one).replace("@", other)
    with pytest.raises(CheckError, match="SW0517") as refused:
        verify(captured.graph_text, files | {"rank_1.py": swapped})
    assert "in the order of the messages" in str(refused.value)


# ---- lines that connect where they are first used ----------------------------------------------


@pytest.mark.parametrize(
    ("plan", "devices"), [("stages:4 x bidirectional", 4), ("stages:2 x interlaced", 2)], ids=str
)
def test_lines_are_used_once_before_they_are_needed(plan: str, devices: int, monkeypatch: Any) -> None:
    """NCCL connects two ranks where the first message begins, and both of them wait for each other there."""
    module, args = models.MODELS["gpt"]()
    captured = capture(module, args)
    files = bundle(Plan.named(Graph(captured.graph_text), plan, devices), captured)
    batches = equality.micro_batches(args, 4)
    lazy = functools.partial(run_local, rendezvous=True, lazy=True)
    actual = equality.run_steps(files, module, batches, 2, local=lazy)
    equality.assert_equal(actual, equality.steps_reference(module, batches, 2), plan)
    monkeypatch.setattr(local, "first_uses", lambda lines, rank: ())
    if plan.endswith("bidirectional"):
        with pytest.raises(RuntimeFault, match="waits in the first use of line"):
            equality.run_steps(files, module, batches, 2, local=lazy)


def test_first_uses_are_in_one_order_on_all_ranks() -> None:
    ways = {(3, True): ((0, 2), (0, 1)), (1, False): ((2, 0), (1, 0)), (1, True): ((0, 1),)}
    everything = [(at, pair) for at in sorted(ways) for pair in sorted(ways[at])]
    for rank in range(3):
        assert list(groups.first_uses(ways, rank)) == [it for it in everything if rank in it[1]]
