"""`shardwright ops discover`: rules that are found by running functions on parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import discovering_examples
import shardwright as sw
from rediscovered import MORE, NAMES, PART, dims_of, rediscovered
from shardwright.cli import main
from shardwright.discovering import Discovered, discover

torch.set_num_threads(1)

FILE = Path(discovering_examples.__file__)


def discovered(name: str) -> Discovered:
    function, args, *kwargs = getattr(discovering_examples, name)()
    return discover(function, args if isinstance(args, tuple) else (args,), *kwargs)


# ---- Rules that were written by hand -----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_was_written_by_hand_is_found_again(name: str) -> None:
    one = rediscovered(name)
    assert one.in_full == (name not in PART), f"{one.written}: {one.discovered.rule}, without {one.missing}"
    # What is found beyond the written rule has been read.
    assert (one.discovered.rule if one.more else None) == MORE.get(name)


def test_most_are_found_in_full() -> None:
    assert len(NAMES) >= 60 and len(set(NAMES)) == len(NAMES)
    assert set(MORE) | PART <= set(NAMES) and len(PART) <= len(NAMES) / 10


def test_dims_are_compared_by_their_places() -> None:
    shapes = ([[4, 6], [6]], [[4, 3]])
    ours = dims_of("a (b c^), (b c^) -> a b", shapes, {})
    assert ours == dims_of("x (y two^), (y two^) -> x y ; linear 0", shapes, {})
    assert ours != dims_of("a (c^ b), (c^ b) -> a b", shapes, {})
    assert dims_of("a k@, k@ -> a n^", shapes, {})[1] == {
        ("", 6, frozenset({("input", 0, 1, 1), ("input", 1, 0, 1)}))
    }


# ---- What is found -----------------------------------------------------------------------------


@pytest.mark.slow
def test_heads_and_their_argument_are_found() -> None:
    one = discovered("attend")
    assert one.text == (
        '@sw.register_op("a b (c d^), a e^ (c d^), a e^ (c f) -> a b (c f) ; linear 2", sizes={"c": "heads"})'
    )
    assert one.verified > 20 and len(one.shapes) == 3 and one.difference < 1e-9


def test_operators_of_libraries_are_registered_by_a_call() -> None:
    one = discovered("swish")
    assert one.text == 'sw.register_op("a b -> a b, a b")(torch.ops.registering.swish.default)'


def test_factors_are_found_where_they_lie() -> None:
    assert discovered("of_halves").rule == "a (b c^) -> a (c^ b) ; linear 0 ; size c=2"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("averaging", "a^ b, b -> a^ b ; linear 0 ; linear 1"),
        ("numbered", "a b^ -> a b^ ; linear 0"),
        ("largest", "a b> -> a"),
        ("clamped", "a b^ -> a"),
    ],
)
def test_what_does_not_hold_stays_whole(name: str, rule: str) -> None:
    assert discovered(name).rule == rule


def test_dims_of_one_element_are_named_as_not_tried() -> None:
    one = discover(torch.mul, (torch.rand(4, 1), torch.rand(4, 6)))
    assert one.rule == "a 1, a b -> a b ; linear 0 ; linear 1"
    assert one.untried == ["dims of one element, in tensor 0: an example with more would tell"]


# ---- The command -------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], name: str, *words: str) -> str:
    assert main(["ops", "discover", f"{FILE}:{name}", *words]) == 0
    return capsys.readouterr().out


def test_the_command_says_what_to_register_and_how_sure_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "largest")
    assert '@sw.register_op("a b> -> a")' in said
    assert "b    6     dim 1 of tensor 0  are the maximum" in said
    assert "compared" in said and "on tensors of [4, 6]; " in said


def test_the_command_takes_modules_that_python_finds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FILE.parent)
    assert main(["ops", "discover", "discovering_examples:numbered", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["functions"][0]
    assert row["rule"] == "a b^ -> a b^ ; linear 0" and row["dims"][0]["name"] == "a"


@pytest.mark.slow
def test_operators_of_a_model_that_have_no_rule_are_tried(capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "net")
    assert "wrong_rules:Mixing" in said and '@sw.register_op("a^ b -> a^ b ; linear 0")' in said
    assert "calls of Net have no rule: one was found for" in said
    rows: list[dict[str, Any]] = json.loads(printed(capsys, "net", "--json"))["functions"]
    assert [row["rule"] for row in rows if row["name"] == "wrong_rules:Mixing"] == ["a^ b -> a^ b ; linear 0"]


# ---- What is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("noisy", "it draws random numbers"),
        ("counting", "it gives something else each time"),
        ("in_place", "it changes a tensor that it is given, number 0"),
        ("of_ints", "none of its tensors is of real numbers"),
        ("too_many", "its example has 1,049,600 elements"),
        ("without_values", "its example has no values"),
        ("empty", "it is given a tensor without elements"),
        ("failing", "it does not run on its example, in double precision (RuntimeError: "),
        ("not_plain", "a `object` is among its arguments"),
    ],
)
def test_what_cannot_be_tried_is_refused(name: str, why: str) -> None:
    with pytest.raises(sw.CaptureError) as error:
        discovered(name)
    assert error.value.code == "SW0142"
    assert why in str(error.value.why)
    assert error.value.fix


def refused(capsys: pytest.CaptureFixture[str], named: str) -> str:
    assert main(["ops", "discover", named]) == 1
    return capsys.readouterr().err


def test_what_is_no_example_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, f"{FILE}:takes")
    assert "error[SW0141]" in said and "takes is a function that takes arguments" in said
    assert "return takes, (torch.rand(4, 6), 2)" in said
    said = refused(capsys, f"{FILE}:nothing")
    assert "error[SW0141]" in said and "returned no function with its example arguments" in said
    assert "did you mean `attend`" in refused(capsys, f"{FILE}:atend")
    assert "did you mean `attend`" in refused(capsys, "discovering_examples:atend")
    assert "no_such_module cannot be imported" in refused(capsys, "no_such_module:example")
    assert "there is no Python file no_such.py" in refused(capsys, "no_such.py:example")
