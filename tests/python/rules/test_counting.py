"""Random numbers that follow from a key and a place: the same on any device, in any division, and random."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from shardwright.runtime.execution import counting
from shardwright.runtime.execution.counting import Places, drawn, keys_of
from shardwright.runtime.programs.regions import Region, cut, local_factors, shape_of, whole

CPU = torch.device("cpu")
KINDS = [
    ("keep", 0.9, torch.bool),
    ("bernoulli", 0.3, torch.float32),
    ("uniform", 0.0, torch.float32),
    ("uniform", 0.0, torch.float64),
    ("uniform", 0.0, torch.bfloat16),
    ("normal", 0.0, torch.float32),
    ("normal", 0.0, torch.float64),
    ("normal", 0.0, torch.float16),
    ("normal", 0.0, torch.complex64),
    ("exponential", 2.0, torch.float32),
    ("integers", 7.0, torch.int64),
]


def draw(kind: Any, *sizes: int, region: Region | None = None, key: int = 1, device: Any = CPU) -> Tensor:
    region = region or tuple((0, size) for size in sizes)
    shape = [high - low for low, high in region]
    return drawn(*kind, shape, keys_of(key), Places.from_region(sizes, region), device)


# ---- what it is --------------------------------------------------------------------------------


def test_the_numbers_are_these() -> None:
    """Another one of them would be another run after an update."""
    assert [draw(kind, 3, 2).flatten().tolist() for kind in KINDS[:2]] == GOLDEN[:2]
    for kind, expected in zip(KINDS[2:], GOLDEN[2:], strict=True):
        numbers = draw(kind, 3, 2).flatten().tolist()
        if kind[0] in ("uniform", "integers"):
            assert numbers == expected
        else:
            assert numbers == pytest.approx(expected, rel=1e-3 if kind[2] == torch.float16 else 1e-6)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_parts_draw_what_the_whole_draws(kind: Any) -> None:
    factors = [[2, 3], [4], [], [5, 2]]
    everything = drawn(
        *kind, shape_of(factors), keys_of(3), Places.from_region([2, 3, 4, 5, 2], whole(factors)), CPU
    )
    chance = random.Random(0)
    for _ in range(40):
        region = tuple(tuple(sorted(chance.choices(range(size + 1), k=2))) for size in (2, 3, 4, 5, 2))
        shape = shape_of(local_factors(region, factors))
        part = drawn(*kind, shape, keys_of(3), Places.from_region([2, 3, 4, 5, 2], region), CPU)
        assert torch.equal(part, cut(everything, factors, region))


@pytest.mark.parametrize("most", [1, 3, 7, 1000])
def test_it_does_not_matter_how_many_are_made_at_a_time(most: int, monkeypatch: Any) -> None:
    given = [((0, 6), (0, 11)), ((1, 5), (2, 9)), ((2, 3), (0, 11))]
    expected = [draw(kind, 6, 11, region=region) for kind in KINDS for region in given]
    monkeypatch.setattr(counting, "ON_CPU", most)
    drawn_parts = [draw(kind, 6, 11, region=region) for kind in KINDS for region in given]
    assert all(map(torch.equal, drawn_parts, expected))


def test_a_scalar_and_nothing() -> None:
    assert draw(KINDS[2]).shape == ()
    assert draw(KINDS[2], 0, 5).shape == (0, 5)
    assert draw(KINDS[2], 4, 5, region=((2, 2), (0, 5))).shape == (0, 5)


def test_places_beyond_32_bits_have_numbers_of_their_own(monkeypatch: Any) -> None:
    side = 1 << 17
    kind = ("integers", 2.0**31, torch.int64)
    region = ((32_766, 32_770), (side - 500, side))
    numbers = draw(kind, side, side, region=region)
    again = [draw(kind, side, side, region=((row, row + 1), region[1])) for row in range(32_766, 32_770)]
    assert torch.equal(numbers, torch.cat(again))
    # The lower 32 bits of these places are the same.
    rows = [draw(kind, side, side, region=((row, row + 1), (0, 500))) for row in (0, 1 << 15, 1 << 16)]
    assert not any(torch.isin(a, b).any() for a, b in itertools.combinations(rows, 2))
    # Around the place where they begin again.
    line = 1 << 34
    around = draw(kind, line, region=(((1 << 32) - 40, (1 << 32) + 40),))
    parts = [draw(kind, line, region=((low, low + 20),)) for low in range((1 << 32) - 40, (1 << 32) + 40, 20)]
    assert torch.equal(around, torch.cat(parts))
    assert len(around.unique()) == 80


def test_neighbours_are_one_axis() -> None:
    def axes(sizes: Sequence[int], *region: tuple[int, int]) -> list[tuple[int, int, int]]:
        return [(axis.low, axis.high, axis.stride) for axis in Places.from_region(sizes, region).axes]

    assert axes([4, 5, 6], (0, 4), (0, 5), (0, 6)) == [(0, 120, 1)]
    assert axes([4, 5, 6], (1, 3), (0, 5), (0, 6)) == [(30, 90, 1)]
    assert axes([4, 5, 6], (2, 3), (1, 4), (0, 6)) == [(66, 84, 1)]
    assert axes([4, 5, 6], (1, 3), (0, 5), (2, 4)) == [(5, 15, 6), (2, 4, 1)]
    assert axes([]) == [(0, 1, 1)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_is_made_of_plain_operators(kind: Any) -> None:
    """No generator of a device, and nothing that reads a value: fake devices would refuse these."""
    assert draw(kind, 6, 4, region=((1, 3), (0, 2)), device=torch.device("meta")).shape == (2, 2)
    with FakeTensorMode():
        for device in ("cpu", "cuda"):
            assert (
                draw(kind, 6, 4, region=((1, 3), (0, 2)), device=torch.device(device)).device.type == device
            )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_compiled_draw_is_the_same(kind: Any) -> None:
    keys, places = keys_of(1), Places.from_region([6, 4], ((1, 3), (0, 4)))
    torch._dynamo.reset()
    compiled = torch.compile(drawn, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*kind, [2, 4], keys, places, CPU), drawn(*kind, [2, 4], keys, places, CPU))


# ---- that it is random -------------------------------------------------------------------------

MANY = 1 << 18


def within(actual: float, expected: float, deviation: float) -> None:
    """Five deviations: keys are fixed, so it holds or it does not."""
    assert abs(actual - expected) < 5 * deviation, (actual, expected, deviation)


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers(key: int, dtype: torch.dtype) -> None:
    x = draw(("uniform", 0.0, dtype), 512, 512, key=key).flatten()
    assert 0 <= x.min() < x.max() < 1
    x = x.double()
    within(x.mean().item(), 0.5, math.sqrt(1 / 12 / MANY))
    within(x.var().item(), 1 / 12, math.sqrt(1 / 180 / MANY))
    counts = torch.histc(x, 1024, 0, 1)
    within(((counts - 256) ** 2 / 256).sum().item(), 1023, math.sqrt(2 * 1023))
    for lag in (1, 2, 3, 64, 511, 512, 513, 4096):
        centred = x - 0.5
        within((centred[lag:] * centred[:-lag]).mean().item() * 12, 0, 1 / math.sqrt(MANY - lag))
    # Pairs of neighbours fill the square.
    pairs = (x[::2] * 32).long() * 32 + (x[1::2] * 32).long()
    counts = torch.bincount(pairs, minlength=1024).double()
    within(((counts - 128) ** 2 / 128).sum().item(), 1023, math.sqrt(2 * 1023))


@pytest.mark.slow
def test_each_bit_is_one_in_half_of_all_words_and_changes_with_each_bit_of_the_key() -> None:
    def bits(key: int) -> Tensor:
        words = draw(("integers", 2.0**62, torch.int64), MANY, key=key)
        return torch.stack([words >> at & 1 for at in range(62)]).double()

    first = bits(5)
    for share in first.mean(1).tolist():
        within(share, 0.5, 0.5 / math.sqrt(MANY))
    for at in (0, 1, 31, 32, 63):
        changed = (first != bits(5 ^ 1 << at)).double()
        for share in changed.mean(1).tolist():
            within(share, 0.5, 0.5 / math.sqrt(MANY))
    # Of one word with another bit.
    together = (first @ first.T / MANY - 0.25).fill_diagonal_(0).abs().max().item()
    assert together < 5 * math.sqrt(3) / 4 / math.sqrt(MANY)


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.1, 0.5, 0.9, 1.0])
def test_masks_keep_as_often_as_they_should(p: float) -> None:
    mask = draw(("keep", p, torch.bool), 512, 512).double()
    deviation = math.sqrt(p * (1 - p) / MANY) or 1e-12
    within(mask.mean().item(), p, deviation)
    for rows in (mask, mask.T):
        counts = rows.sum(1)
        if 0 < p < 1:
            # Rows and columns are no more alike than chance has it.
            within(counts.var().item() / (512 * p * (1 - p)), 1, math.sqrt(2 / 511))
    again = draw(("keep", p, torch.bool), 512, 512, key=2).double()
    within(((mask - p) * (again - p)).mean().item(), 0, (p * (1 - p) or 1e-12) / math.sqrt(MANY))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_numbers(dtype: torch.dtype) -> None:
    x = draw(("normal", 0.0, dtype), MANY).double()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        within((x**power).mean().item(), moment, math.sqrt(variance / MANY))
    ordered = torch.special.ndtr(x.sort().values)
    steps = (torch.arange(MANY) + 0.5) / MANY
    assert (ordered - steps).abs().max().item() < 1.95 / math.sqrt(MANY)  # Kolmogorov's, one in a thousand
    within((x[1:] * x[:-1]).mean().item(), 0, 1 / math.sqrt(MANY))


def test_complex_normal_numbers_have_the_variance_of_one() -> None:
    x = draw(("normal", 0.0, torch.complex64), MANY)
    within(x.abs().square().mean().item(), 1, 1 / math.sqrt(MANY))
    within((x.real * x.imag).mean().item(), 0, 0.5 / math.sqrt(MANY))


def test_exponential_numbers_and_integers() -> None:
    x = draw(("exponential", 2.0, torch.float32), MANY).double()
    assert x.min() > 0
    within(x.mean().item(), 0.5, 0.5 / math.sqrt(MANY))
    within(x.square().mean().item(), 0.5, math.sqrt(1.25 / MANY))
    counts = torch.bincount(draw(("integers", 7.0, torch.int64), MANY), minlength=7).double()
    assert len(counts) == 7
    within(((counts - MANY / 7) ** 2 / (MANY / 7)).sum().item(), 6, math.sqrt(12))


GOLDEN: list[Any] = [
    [False, False, True, True, True, True],
    [0.0, 0.0, 1.0, 0.0, 0.0, 0.0],
    [
        0.49109208583831787,
        0.4025137424468994,
        0.7904045581817627,
        0.02548593282699585,
        0.14530938863754272,
        0.3337477445602417,
    ],
    [
        0.4910920993438903,
        0.4025137670662219,
        0.7904045972501125,
        0.025485954860183013,
        0.14530940421382077,
        0.3337477697748208,
    ],
    [0.48828125, 0.40234375, 0.7890625, 0.0234375, 0.14453125, 0.33203125],
    [
        -0.11865956336259842,
        0.2641684114933014,
        -1.4250400066375732,
        -1.1324118375778198,
        0.9282513856887817,
        -0.39591866731643677,
    ],
    [
        1.0578320247971276,
        -0.7868552007416957,
        0.6215293814709293,
        2.704357765952258,
        -1.9479136994922923,
        0.9726497546918654,
    ],
    [-0.11865234375, 0.26416015625, -1.4248046875, -1.1328125, 0.92822265625, -0.39599609375],
    [
        (-0.08390498161315918 + 0.18679527938365936j),
        (-1.007655382156372 - 0.8007360696792603j),
        (0.6563728451728821 - 0.27995675802230835j),
        (-0.2760412096977234 - 0.3807253837585449j),
        (-1.4629220962524414 + 0.8011839985847473j),
        (1.0286449193954468 + 0.6336299777030945j),
    ],
    [
        0.0044739097356796265,
        0.05128566920757294,
        0.6182400584220886,
        0.32171592116355896,
        0.21901269257068634,
        0.09091217815876007,
    ],
    [2, 0, 0, 2, 0, 3],
]
