"""A call that all ranks make together is given the same on all, or all are told which rank gives what.

Only plain data, and what has a name, can be compared: of an object of another kind it is the class.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import takewhile
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from ...errors import RuntimeFault, with_article
from ..communication.comm import Comm
from ..communication.verdicts import listed
from ..programs.program import own_version
from .agreement import digest, number_of
from .together import together

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
# Of longer texts as much is told.
_LONGEST = 200
VERSION = "the version of shardwright"


class Words(str):
    """What is to be said of a value, in place of it."""


def require_alike(comm: Comm, call: str, given: Callable[[], Mapping[str, Any]]) -> None:
    """`given` are a call's arguments by name, or raises what is wrong with them; either is for all ranks."""
    together(
        comm,
        lambda: {VERSION: repr(own_version()), **{name: text_of(value) for name, value in given().items()}},
        lambda ranks: _refuse_unlike(call, ranks),
    )


def same_everywhere(comm: Comm, marks: Sequence[Any]) -> bool:
    """Whether all ranks have the same marks. All ranks call this."""
    if comm.world == 1:
        return True
    mine = number_of(repr(marks).encode())
    # The sum alone could be right on one rank by chance, and all have to decide alike.
    squares = [mine, (mine % (1 << 20)) ** 2]
    return comm.tally(squares, "a comparison of all ranks") == [comm.world * number for number in squares]


def text_of(value: Any) -> str:
    """The same text for the same value, on every rank."""
    if isinstance(value, Words):
        return value
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, PurePath):
        return repr(str(value))
    if isinstance(value, functools.partial):
        return f"partial({text_of(value.func)}, {text_of(value.args)}, {text_of(value.keywords)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{text_of(k)}: {text_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(text_of, value))) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(text_of, value)) + "]"
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return _named(value)
    kind = type(value).__qualname__
    if is_dataclass(value):
        return f"{kind}({', '.join(f'{f.name}={text_of(getattr(value, f.name))}' for f in fields(value))})"
    text = getattr(value, "text", None)
    return with_article(kind) + (f" ({text})" if isinstance(text, str) else "")


def kind_of(value: Any) -> Words:
    """Of a tensor its shape and dtype alone."""
    if not isinstance(value, Tensor):
        return Words(text_of(value))
    dtype = str(value.dtype).removeprefix("torch.")
    grad = " that requires a gradient" if value.requires_grad else ""
    return Words(f"{tuple(value.shape)} of {dtype}{grad}")


def _tensor(value: Tensor) -> str:
    if value.device.type == "meta":
        return kind_of(value)
    if value.numel() == 1:
        return f"tensor({value.item()!r}) of {str(value.dtype).removeprefix('torch.')}"
    return f"{kind_of(value)}, with the digest {digest([value]):x}"


def _named(value: Any) -> str:
    """Functions without a name of their own are told apart by their line."""
    name = f"{value.__module__}.{value.__qualname__}"
    code = getattr(value, "__code__", None)
    return f"{name} of line {code.co_firstlineno}" if "<lambda>" in name and code is not None else name


def _refuse_unlike(call: str, ranks: Sequence[Mapping[str, str]]) -> None:
    names = list(dict.fromkeys(name for said in ranks for name in said))
    unlike = [name for name in names if len({said.get(name) for said in ranks}) > 1]
    if unlike:
        versions = unlike[0] == VERSION
        raise RuntimeFault(
            "SW0835",
            f"the ranks call `{call}` with other {'versions' if versions else 'arguments'}",
            why=" | ".join(_who_says(name, [said.get(name) for said in ranks]) for name in unlike[:4]),
            fix="install the same version for all ranks"
            if versions
            else "give the same on all ranks: they run one program, and step shards of the same parameters",
        )


def _who_says(name: str, given: Sequence[str | None]) -> str:
    ranks: dict[str | None, list[int]] = {}
    for rank, text in enumerate(given):
        ranks.setdefault(text, []).append(rank)
    letters = zip(*(text or "" for text in ranks), strict=False)
    alike = sum(1 for _ in takewhile(lambda at: len(set(at)) == 1, letters))
    said = (f"{listed(who)}: {_short(text, alike)}" for text, who in ranks.items())
    return f"{name}: {'; '.join(said)}"


def _short(text: str | None, alike: int) -> str:
    """Around the place from which on a long text is another."""
    if text is None:
        return "nothing"
    if len(text) <= _LONGEST:
        return text
    low = max(0, min(alike - _LONGEST // 4, len(text) - _LONGEST))
    high = low + _LONGEST
    return ("..." if low else "") + text[low:high] + ("..." if high < len(text) else "")
