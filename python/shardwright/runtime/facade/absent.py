"""What stands in the place of an output that does not leave: it says so when somebody uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ...errors import RuntimeFault
from ..programs.program import Program


class NotThere(RuntimeFault, TypeError):
    """Also a TypeError, which is what Python code expects of an object that has no elements."""


class Absent:
    """An output of the model that was not asked for. Any use but to look at it is an error."""

    __slots__ = ("_name",)

    def __init__(self, name: str):
        self._name = name

    def __repr__(self) -> str:
        return f"<output {self._name!r}, which was not asked for>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        self._refuse(f".{name}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        flat = [*args, *(kwargs or {}).values()]
        flat += [inner for value in flat if isinstance(value, (list, tuple)) for inner in value]
        next(value for value in flat if isinstance(value, Absent))._refuse(
            f" in {getattr(func, '__name__', func)}"
        )

    def _refuse(self, use: str) -> NoReturn:
        raise NotThere(
            "SW0802",
            f"the model's output `{self._name}` is used{f' ({self._name}{use})' if use else ''}, and does not"
            " leave the program",
            why="by default only the loss leaves: other outputs would have to be gathered on every rank",
            fix=f'ask for it: `sw.parallelize(..., outputs=["{self._name}"])`, or outputs="all"',
        )


def marked(program: Program, outputs: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """The outputs, with what leaves on no rank replaced by what says so."""
    leaving = {at for role in program.roles for at, output in enumerate(role.outputs) if output is not None}
    return [
        output if output is not None or at in leaving else Absent(names[at] if at < len(names) else str(at))
        for at, output in enumerate(outputs)
    ]


def _refusing(use: str) -> Callable[..., NoReturn]:
    return lambda self, *_: self._refuse(use)


# What Python looks up on the class.
_USES = {
    " as a condition": ["bool"],
    "[...]": ["getitem", "setitem", "delitem", "contains"],
    " in a loop": ["iter", "len", "reversed"],
    " as a number": ["int", "float", "index", "complex", "round", "abs", "neg", "pos", "invert"],
    " as an array": ["array"],
    " in a call": ["call"],
    " in arithmetic": [
        side + name
        for name in (
            "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift",
            "rshift",
        )
        for side in ("", "r")
    ],
    " in a comparison": ["lt", "le", "gt", "ge"],
}  # fmt: skip
for _use, _names in _USES.items():
    for _name in _names:
        setattr(Absent, f"__{_name}__", _refusing(_use))
