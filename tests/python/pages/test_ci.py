"""CI makes what `make lint test` makes."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conftest import first_cases

ROOT = Path(__file__).resolve().parents[3]


def steps_of(target: str) -> list[str]:
    [needed] = re.findall(rf"^{target}: (.*?) ##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return str(needed).split()


def test_every_step_is_made_once() -> None:
    calls = re.findall(r"^(?:exec )?make ([^#&\n]*)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    made = [word for call in calls for word in call.split() if "=" not in word]
    assert sorted(made) == sorted(steps_of("lint") + steps_of("test"))


def test_the_inner_loop_takes_the_first_cases_of_each_test() -> None:
    nodes = ["a.py::one[x]", "a.py::one[y::z[0]]", "b.py::one[x]", "a.py::two", "a.py::one[w]"]
    items: list[Any] = [SimpleNamespace(nodeid=node) for node in nodes]
    assert [item.nodeid for item in first_cases(items, 1)] == [nodes[0], nodes[2], nodes[3]]
    assert [item.nodeid for item in first_cases(items, 2)] == nodes[:4]
