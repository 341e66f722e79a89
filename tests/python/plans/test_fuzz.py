"""A short run of the fuzzer, what it once found, and the fuzzer itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import equality
from fuzz import counting, making, pairs, session, shrinking
from fuzz.known import KNOWN, Known
from fuzz.mended import MENDED, Mended
from fuzz.operators import OPERATORS
from fuzz.pairs import Finding, Found, Way, compare, prepare
from fuzz.programs import Leaf, Program, Step

torch.set_num_threads(1)

SEED = 1
SHARE = 5


def findings(case: Mended) -> list[Finding]:
    program = Program("", pasted=case.source)
    try:
        compare(prepare(program), Way(case.plan, case.devices, case.outputs, batches=case.batches))
    except Found as failure:
        return [failure.finding]
    return []


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 30, SHARE))
def test_random_programs_equal_the_single_device(start: int) -> None:
    for number in range(start, start + SHARE):
        tally = session.one(SEED, number, plans=6)
        assert not tally.findings, shrinking.snippet(tally.findings[0])


@pytest.mark.parametrize("case", MENDED, ids=lambda case: case.name)
def test_what_was_mended_holds(case: Mended) -> None:
    failures = findings(case)
    assert not failures, shrinking.snippet(failures[0])


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.example.name)
def test_what_is_known_to_go_wrong_still_does(known: Known) -> None:
    """One that holds now leaves `known.py` for `mended.py`."""
    failures = findings(known.example)
    assert failures, "this holds now"
    assert session.is_known(failures[0]) == known.example.name


def test_the_same_seed_gives_the_same_programs_and_plans() -> None:
    for number in (0, 7):
        one, other = making.program(3, number), making.program(3, number)
        assert one == other
        assert session.ways(one) == session.ways(other)


def test_every_operator_is_wanted_by_one_program_and_its_family_is_counted() -> None:
    names = [op.name for op in OPERATORS]
    assert len(names) == len(set(names))
    assert {f"operator {name}" for name in names} <= set(counting.wanted())
    assert making.program(5, 11).operators.count(OPERATORS[11].name) >= 1


def spoiled_program() -> Program:
    leaves = (Leaf("p0", "param", "normal(4, 6)"), Leaf("x1", "input", "normal(4, 6)", False))
    steps = (
        Step(("v0",), "{p0}.sin()"),
        Step(("v1",), "{v0} * {x1}"),
        Step(("v2",), "{v1}.exp() + {v1}"),
        Step(("v3",), "{v2}.sum()"),
    )
    return Program("0.0", leaves, steps, ("v3",), results=("v1",))


@pytest.mark.slow
def test_a_difference_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of a single device that are wrong by a little stand for a program that is."""
    plain = pairs.single_device

    def spoiled(*args: Any, **kwargs: Any) -> equality.Result:
        result = plain(*args, **kwargs)
        result.gradients = {name: grad * (1 + 1e-7) for name, grad in result.gradients.items()}
        return result

    monkeypatch.setattr(pairs, "single_device", spoiled)
    [finding] = session.tried(spoiled_program(), [Way("data", 2)]).findings
    assert finding.coarse_key == "compare gradient"
    small = shrinking.shrunk(finding, seconds=60)
    assert len(small.program.steps) <= 2
    assert not small.program.results
    text = shrinking.snippet(small)
    assert "class Model" in text
    assert "DEVICES = 2" in text


def test_results_that_depend_on_rounding_are_no_findings() -> None:
    """The sign of a sum that is zero but for rounding."""
    leaves = (Leaf("p0", "param", "normal(5, 7)"),)
    steps = (
        Step(("v0",), "{p0} - {p0}.mean()"),
        Step(("v1",), "({v0}.sum() * 1e9).sin() * {p0}.sum()"),
    )
    tally = session.tried(Program("0.0", leaves, steps, ("v1",)), [Way("random:2", 3), Way("random:4", 3)])
    assert not tally.findings
    assert tally.counts["unstable pairs"] == 2
