"""Values of an emitted function live until their last use, also in loops."""

from __future__ import annotations

import ast
import weakref
from typing import Any

from shardwright.runtime.programs.freeing import free_early


class Value:
    def __init__(self, name: str):
        self.name = name


class Run:
    """Makes values, and notes which are alive whenever one is made."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Value]] = []
        self.alive: list[str] = []

    def make(self, name: str, *_: Value) -> Value:
        values = (made() for made in self.made)
        self.alive.append(" ".join(value.name for value in values if value is not None))
        value = Value(name)
        self.made.append(weakref.ref(value))
        return value


def alive(source: str) -> list[str]:
    names: dict[str, Any] = {}
    exec(compile(free_early(ast.parse(source)), "source", "exec"), names)
    run = Run()
    names["forward"](run)
    return run.alive


def test_in_straight_lines() -> None:
    source = """
def forward(run):
    a = run.make("a")
    b = run.make("b", a)
    c = run.make("c", b)
    unread = run.make("unread")
    d = run.make("d", c)
    return d
"""
    assert alive(source) == ["", "a", "b", "c", "c"]


def test_in_a_loop() -> None:
    """What a turn takes from the one before is freed after its last use, not when it is replaced."""
    source = """
def forward(run):
    kept = run.make("kept")
    x = run.make("x")
    for n in range(3):
        y = run.make(f"y{n}", x)
        z = run.make(f"z{n}", y, kept)
        x = run.make(f"x{n}", z)
    last = run.make("last", x)
    return last
"""
    assert alive(source) == [
        "", "kept",
        "kept x", "kept y0", "kept z0",
        "kept x0", "kept y1", "kept z1",
        "kept x1", "kept y2", "kept z2",
        "x2",
    ]  # fmt: skip


def test_what_stands_between_turns() -> None:
    """It reads what an iteration made, and makes what the next starts with; after the last there is none."""
    source = """
def forward(run):
    x = run.make("x")
    kept = run.make("kept")
    for n in range(3):
        y = run.make(f"y{n}", x)
        z = run.make(f"z{n}", y)
        if n < 2:
            x = run.make(f"x{n}", y, z, kept)
    last = run.make("last", y, z)
    return last
"""
    assert alive(source) == [
        "", "x",
        "x kept", "kept y0", "kept y0 z0",
        "kept x0", "kept y1", "kept y1 z1",
        "kept x1", "kept y2",
        "y2 z2",
    ]  # fmt: skip


def test_what_stands_between_turns_and_is_not_read_behind_them() -> None:
    source = """
def forward(run):
    g = run.make("g")
    for n in reversed(range(2)):
        a = run.make(f"a{n}", g)
        b = run.make(f"b{n}", a)
        if n > 0:
            g = run.make(f"g{n}", a)
    last = run.make("last", b)
    return last
"""
    assert alive(source) == ["", "g", "a1", "a1 b1", "g1", "a0", "b0"]


def test_what_stands_between_turns_and_a_name_of_before_the_loop() -> None:
    source = """
def forward(run):
    z = run.make("before")
    x = run.make("x", z)
    for n in range(2):
        y = run.make(f"y{n}", x)
        z = run.make(f"z{n}", y)
        if n < 1:
            x = run.make(f"x{n}", z)
    last = run.make("last", z)
    return last
"""
    assert alive(source) == ["", "before", "x", "y0", "z0", "x0", "y1", "z1"]


def test_what_stands_between_turns_first_of_all() -> None:
    source = """
def forward(run, x=None, z=None):
    for n in range(2):
        y = run.make(f"y{n}", x)
        z = run.make(f"z{n}", y)
        if n < 1:
            x = run.make(f"x{n}", z)
    last = run.make("last", z)
    return last
"""
    assert alive(source) == ["", "y0", "z0", "x0", "y1", "z1"]


def test_another_condition_in_a_loop() -> None:
    source = """
def forward(run):
    x = run.make("x")
    for n in range(2):
        y = run.make(f"y{n}", x)
        if n < 2:
            x = run.make(f"x{n}", y)
    return x
"""
    assert alive(source) == ["", "x", "x y0", "x0", "x0 y1"]


def test_what_a_loop_does_not_read() -> None:
    source = """
def forward(run, unread=None):
    for n in range(2):
        x = run.make(f"x{n}")
    return x
"""
    assert alive(source) == ["", "x0"]


def test_below_a_condition() -> None:
    source = """
def forward(run):
    a = run.make("a")
    if a:
        run.make("b", a)
    run.make("c")
    return None
"""
    assert alive(source) == ["", "a", ""]
