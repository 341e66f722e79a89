"""How what a step is given gets to the device: all of it at its begin, without a wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shardwright as sw
from shardwright.runtime import LocalComm, run_local
from shardwright.runtime.execution import inputs
from shardwright.runtime.execution.micro_batches import MicroBatches
from shardwright.runtime.execution.run import Run


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.b(self.a(x).tanh()) - y).square().mean()


@pytest.mark.parametrize("plan", ["data", "stages:2", "stages:2 x interleaved:2", "stages:2 x 2bw"])
def test_all_micro_batches_are_under_way_before_the_first_forward(plan: str, monkeypatch: Any) -> None:
    happened: list[list[str]] = [[], []]
    move, forward = inputs.on_device, Run.forward_of

    def body(rank: int, comm: LocalComm) -> None:
        torch.manual_seed(0)
        made = sw.parallelize(
            Net(), (torch.ones(4, 4), torch.ones(4, 4)), plan=plan, comm=comm, progress=False
        )
        happened[rank].clear()
        made.train_step([(torch.ones(4, 4), torch.ones(4, 4))] * 3)

    def moved(x: Tensor, device: torch.device) -> Tensor:
        tensor = move(x, device)
        happened[rank_here()].append("moved")
        return tensor

    def forwarded(run: Run, *given: Any) -> Any:
        happened[rank_here()].append("forward")
        return forward(run, *given)

    monkeypatch.setattr(inputs, "on_device", moved)
    monkeypatch.setattr(Run, "forward_of", forwarded)
    run_local(2, body)
    for each in happened:
        first = each.index("forward")
        assert "moved" not in each[first:]
        assert each[:first].count("moved") in (3, 6)


def rank_here() -> int:
    import threading

    return int(threading.current_thread().name.split()[1])


@pytest.mark.parametrize("pinned", [False, True])
def test_a_copy_to_a_gpu_leaves_from_pinned_memory_and_is_not_waited_for(
    pinned: bool, monkeypatch: Any
) -> None:
    did: list[Any] = []
    monkeypatch.setattr(Tensor, "is_pinned", lambda x: pinned)
    monkeypatch.setattr(Tensor, "pin_memory", lambda x: did.append(("pin", x.is_contiguous())) or x)
    monkeypatch.setattr(
        Tensor, "to", lambda x, device, non_blocking=False: did.append((device, non_blocking))
    )
    inputs.on_device(torch.ones(4, 4)[:, :2], torch.device("cuda", 1))
    assert did == [*([] if pinned else [("pin", True)]), (torch.device("cuda", 1), True)]


def test_what_is_on_its_device_stays_as_it_is_and_what_comes_to_the_host_is_waited_for(
    monkeypatch: Any,
) -> None:
    x = torch.ones(3)
    assert inputs.on_device(x, torch.device("cpu")) is x
    did: list[Any] = []
    monkeypatch.setattr(Tensor, "to", lambda x, device, non_blocking=False: did.append(non_blocking))
    inputs.on_device(torch.ones(3, device="meta"), torch.device("cpu"))
    assert did == [False]


def test_the_group_of_a_communication_is_looked_for_once() -> None:
    class Groups(list[Any]):
        asked = 0

        def __getitem__(self, at: Any) -> Any:
            Groups.asked += 1
            return super().__getitem__(at)

    def body(rank: int, comm: LocalComm) -> None:
        program = sw.parallelize(Net(), (torch.ones(4, 4), torch.ones(4, 4)), plan="data", comm=comm).program
        object.__setattr__(program, "groups", Groups(program.groups))
        object.__setattr__(program, "_groups_of", {})
        assert {program.group_of(0, 1 - rank) for _ in range(5)} == {(0, 1)}

    run_local(2, body)
    assert Groups.asked == 2


def test_what_micro_batches_count_for_is_read_once(monkeypatch: Any) -> None:
    """Each reading would wait for a GPU."""
    read: list[int] = []
    tolist = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda x: read.append(x.numel()) or tolist(x))
    monkeypatch.setattr(Tensor, "__float__", lambda x: pytest.fail("a count is read by itself"))
    counts = iter([1, 3, 4])
    given = MicroBatches(
        2, [0], lambda args, kwargs: args, False, lambda tensors: torch.tensor(next(counts)).double()
    )
    given.numbers = [3]
    call: Any = SimpleNamespace(tensors=[])
    assert given.shares([call] * 3) == [1 / 8, 3 / 8, 4 / 8]
    assert read == [3]
