"""The order in which the tasks of a step run, from the timetables of its programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardwright import Graph, Plan
from shardwright._core import compile, verify
from shardwright.capture import capture
from shardwright.errors import CheckError
from shardwright.runtime.execution.timetable import Backward, End, Forward, tasks
from shardwright.runtime.programs.program import Block, Code


def code(steps: str) -> Code:
    def forward() -> None: ...
    def backward() -> None: ...

    def in_turn(batches: int, scale: float) -> Iterator[tuple[Any, ...]]:
        for b in range(batches):
            yield forward, b
            yield backward, b, scale, b == batches - 1

    def ahead(batches: int, scale: float) -> Iterator[tuple[Any, ...]]:
        for b in range(batches):
            yield forward, b
        for b in range(batches):
            yield backward, b, scale, b == batches - 1

    def beginning(batches: int, scale: float) -> Iterator[tuple[Any, ...]]:
        for b in range(3):
            yield forward, b
        yield from in_turn(batches, scale)

    step = {"in turn": in_turn, "ahead": ahead, "beginning": beginning}[steps]
    return Code(None, None, [Block(0, forward, backward, slice(0, 0))], step)


def words(codes: list[Code], alone: bool = False) -> str:
    """`F0`: the forward of the first micro-batch. `B1!`: backward of the second, the last of its program."""
    written = []
    for task in tasks(codes, 0.5, alone=alone):
        if isinstance(task, Forward):
            written.append(f"F{task.batch}")
        elif not isinstance(task, End):
            assert isinstance(task, Backward) and task.scale == 0.5
            written.append(f"B{task.batch}" + "!" * task.last)
    return " ".join(written)


def test_one_program_follows_its_timetable() -> None:
    one = code("in turn")
    assert words([one]) == "F0 B0!"
    assert words([one] * 3) == "F0 B0 F1 B1 F2 B2!"
    assert words([code("ahead")] * 0) == ""
    one = code("ahead")
    assert words([one] * 3) == "F0 F1 F2 B0 B1 B2!"


def test_what_has_run_is_left_out() -> None:
    one = code("beginning")
    assert words([one] * 2) == "F0 F1 B0 B1!"
    assert words([one] * 5) == "F0 F1 F2 B0 B1 B2 F3 B3 F4 B4!"


def test_programs_of_several_shapes_take_turns_in_the_order_of_the_batches() -> None:
    one, other = code("in turn"), code("in turn")
    assert words([one, other, one]) == "F0 B0 F1 B1! F2 B2!"
    assert words([other, one, one, other]) == "F0 B0 F1 B1 F2 B2! F3 B3!"


def test_micro_batches_that_run_alone_are_steps_of_their_own() -> None:
    one = code("in turn")
    assert words([one] * 3, alone=True) == "F0 B0! F1 B1! F2 B2!"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu()).square().mean()


@pytest.mark.parametrize("plan", ["data", "megatron"])
@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("b, scale, b", "b, 1.0, b", "SW0518"),
        ("b, scale, b", "b, scale * scale, b", "SW0518"),
        ("b == batches - 1", "True", "SW0519"),
        ("b == batches - 1", "False", "SW0519"),
        ("b == batches - 1", "b == 0", "SW0519"),
        ("        yield forward, b\n", "", "SW0517"),
        ("        yield backward, b, scale, b == batches - 1\n", "", "SW0517"),
        ("        yield forward, b\n", "        yield forward, b\n" * 2, "SW0517"),
    ],
)
def test_an_edited_timetable_is_refused(plan: str, old: str, new: str, code: str) -> None:
    graph = Graph(capture(Net(), (torch.randn(4, 4),)).graph_text)
    files = dict(compile(Plan.named(graph, plan, 2)).files)
    assert verify(graph.text, files)
    edited = {name: text.replace(old, new) if name.endswith(".py") else text for name, text in files.items()}
    assert edited != files
    with pytest.raises(CheckError) as caught:
        verify(graph.text, edited)
    assert caught.value.code == code
