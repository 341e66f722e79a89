"""Programs that somebody has edited, on disk."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardwright import api
from shardwright.runtime import load_program
from shardwright.start.compiling import Bundle


def tables(change: Callable[[dict[str, Any]], Any]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    return edit


def set_entry(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the entry at a path, whose last element is the value."""
    *way, last, value = path

    def change(data: Any) -> None:
        for step in way:
            data = data[step]
        data[last] = value

    return change


def half(text: str) -> str:
    return text[: len(text) // 2]


def swap(a: str, b: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert a in text, text
        return text.replace(a, b, 1)

    return edit


def without(start: str) -> Callable[[str], str]:
    """Without the statement that begins so."""

    def edit(text: str) -> str:
        edited = re.sub(
            rf"\n    {re.escape(start)}\((?:[^\n]*\)|\n(?:        [^\n]*\n)*    \))(?=\n)", "", text
        )
        assert edited != text, text
        return edited

    return edit


EDITS: dict[str, tuple[str, Callable[[str], str] | None]] = {
    "another version": ("program.json", tables(set_entry("shardwright", "0.0.9"))),
    "another format": ("program.json", tables(set_entry("format", 9))),
    "another digest": ("program.json", tables(set_entry("digest", "0" * 32))),
    "another world": ("program.json", tables(set_entry("world", 3))),
    "truncated program.json": ("program.json", half),
    "empty program.json": ("program.json", lambda _: ""),
    "program.json of numbers": ("program.json", lambda _: "[1, 2]"),
    "a rank without a table": ("program.json", tables(lambda data: data["roles"][0].update(ranks=[0]))),
    "a region beyond its tensor": ("program.json", tables(set_entry("regions", 0, 0, 1, 1000))),
    "a region that is smaller": ("program.json", tables(set_entry("regions", 0, 0, 1, 1))),
    "an input of other ranks": ("program.json", tables(set_entry("roles", 0, "inputs", 0, 1, 0))),
    "other factors of a tensor": ("program.json", tables(set_entry("tensors", 2, "factors", [[32], [64]]))),
    "no program.json": ("program.json", None),
    "no role": ("ROLE", None),
    "truncated role": ("ROLE", half),
    "empty role": ("ROLE", lambda _: ""),
    "role with an import": ("ROLE", swap("\n\ndef ", "\nimport os\n\ndef ")),
    "role with a call at import": ("ROLE", lambda text: text + '\nprint("here")\n'),
    "role with a loop": ("ROLE", swap("    return", "    for i in x: pass\n    return")),
    "role with another operator": ("ROLE", swap("F.gelu(", "torch.tanh(")),
    "role with another argument": ("ROLE", swap("x + ", "x + x + ")),
    "role with another parameter": ("ROLE", swap("p.layers[0]", "p.layers[1]")),
    "role without a backward": ("ROLE", without("run.grad")),
    "role with an unknown method": ("ROLE", swap("run.all_reduce(", "run.all_reverse(")),
    "role with another reduction": ("ROLE", swap("run.all_reduce(", "run.all_gather(")),
}


def swap_entries(key: str, first: int, second: int) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        a, b = data["tensors"][first], data["tensors"][second]
        a[key], b[key] = b[key], a[key]

    return change


# The table of tensors, which the runtime reads: the first two are inputs, then come parameters.
UNSEEN: dict[str, tuple[str, Callable[[str], str]]] = {
    "names of two parameters": ("program.json", tables(swap_entries("names", 2, 6))),
    "positions of two inputs": ("program.json", tables(swap_entries("position", 0, 1))),
    "a parameter that is frozen": ("program.json", tables(set_entry("tensors", 2, "frozen", True))),
    "another dtype": ("program.json", tables(set_entry("tensors", 2, "dtype", "f32"))),
    "no table of tensors": ("program.json", tables(set_entry("tensors", []))),
    "gradients of no argument": ("program.json", tables(set_entry("roles", 0, "grads", "0", "results", []))),
    "no calls with gradients": ("program.json", tables(set_entry("roles", 0, "grads", {}))),
    "an output of another tensor": (
        "program.json",
        tables(set_entry("roles", 0, "outputs", 0, "tensor", 2)),
    ),
    "random operators of no use": ("program.json", tables(set_entry("random", [{"op": 0}]))),
}


def role_of(bundle: Bundle) -> str:
    """The file of rank 0."""
    return load_program(bundle.files).role(0).file


def folder_with(bundle: Bundle, target: Path, title: str) -> Path:
    name, edit = (EDITS | UNSEEN)[title]
    name = role_of(bundle) if name == "ROLE" else name
    api.save_program(bundle, target)
    text = (target / name).read_text()
    if edit is None:
        (target / name).unlink()
    else:
        (target / name).write_text(edit(text))
        assert (target / name).read_text() != text
    return target
