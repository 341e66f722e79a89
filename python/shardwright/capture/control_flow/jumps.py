"""Where the branches of a model's code lead: what Python does with the truth of a value."""

from __future__ import annotations

import dis
import functools
import types

_ASKS = {"_IF_TRUE": True, "_IF_FALSE": False}


@functools.cache
def jumps_of(code: types.CodeType) -> dict[int, dict[bool, tuple[int | None, str]]]:
    """Where each instruction that asks for a truth leads, by its value: the line, and what comes there."""
    instructions = list(dis.get_instructions(code))
    places = {one.offset: at for at, one in enumerate(instructions)}
    lines_of = {at: line for first, last, line in code.co_lines() for at in range(first, last)}

    def target(offset: int) -> tuple[int | None, str]:
        return lines_of.get(offset), instructions[places[offset]].opname

    jumps = {}
    for at, one in enumerate(instructions[:-1]):
        asks = instructions[at + 1] if one.opname == "TO_BOOL" else one
        value = next((value for name, value in _ASKS.items() if asks.opname.endswith(name)), None)
        if value is not None and asks.argval in places:
            after = instructions[places[asks.offset] + 1].offset
            jumps[one.offset] = {value: target(asks.argval), not value: target(after)}
    return jumps
