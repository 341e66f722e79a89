"""What ranks differ in, as `program.json` tells it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from shardwright import _core
from shardwright.runtime import load_program
from shardwright.runtime.programs.columns import Regions, groups_of, number_at, numbers_of
from shardwright.runtime.programs.regions import numel, shape_of

GPT = (Path(__file__).parents[1] / "golden/gpt.graph").read_text()


def test_rows() -> None:
    row = {"from": 10, "by": [[2, 4], [3, -1], [2, 0]]}
    assert numbers_of(row) == [10, 10, 9, 9, 8, 8, 14, 14, 13, 13, 12, 12]
    assert [number_at(row, at) for at in range(12)] == numbers_of(row)
    assert (number_at(7, 5), number_at([3, 1, 2], 1)) == (7, 1)
    assert groups_of([[0, 2], {"from": 1, "by": [[2, 2]]}]) == [[0, 2], [1, 3]]
    assert groups_of({"from": 0, "by": [[2, 1]], "of": [[2, 2]]}) == [[0, 2], [1, 3]]


def test_regions() -> None:
    listed = [
        [[0, 4]],
        [[4, 7]],
        [[0, 2, [[2, 2], [2, 0]]], [0, 8]],
        {"of": [0, 1, 1, 0]},
        {"of": [1, 0], "by": [[2, 0], [2, 1]]},
    ]
    regions = Regions(listed)
    read = [[regions.at(number, at) for at in range(4)] for number in (0, 2, 3, 4)]
    short, long = ((4, 7),), ((0, 4),)
    low, high = ((0, 2), (0, 8)), ((2, 4), (0, 8))
    assert read == [[long] * 4, [low, low, high, high], [long, short, short, long], [short, long] * 2]


@pytest.mark.parametrize(
    ("plan", "world"),
    [("megatron", 2), ("data:3 x megatron:2", 6), ("data:2 x megatron:24", 48), ("data:4 x megatron:12", 48)],
)
def test_the_ranks_of_a_row_are_all_ranks(plan: str, world: int) -> None:
    """Also where pieces are of different sizes, and where ranks and groups are written as rows."""
    made = _core.compile(_core.Plan.named(_core.Graph(GPT), plan, world), "loss")
    program = load_program(dict(made.files), world=world)
    assert sorted(rank for role in program.roles for rank in role.ranks) == list(range(world))
    for grouping in program.groups:
        members = [rank for group in grouping for rank in group]
        assert len(set(members)) == len(members) and set(members) <= set(range(world))
    held: dict[int, set[tuple[tuple[int, int], ...]]] = {}
    for table in program.ranks:
        for tensor, region in table.shards:
            held.setdefault(tensor, set()).add(region)
    for tensor, parts in held.items():
        whole = math.prod(shape_of(program.tensors[tensor].factors))
        assert sum(map(numel, parts)) == whole, program.tensors[tensor].names
    assert world < 33 or json.loads(dict(made.files)["program.json"])["roles"][0]["ranks"] != list(
        range(world)
    )
