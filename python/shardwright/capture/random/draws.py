"""Random numbers: which operators draw them, and drawing the same on both sides of a comparison."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import CaptureError
from .. import lines
from ..dispatch import called
from ..lines import module_of, said_in

# Drawn by keys, so that copies agree and parts differ.
_KEYED = {
    "aten.bernoulli.p",
    "aten.exponential.default",
    "aten.randint.default",
    "aten.randint_like.default",
    "aten.dropout.default",
    "aten.native_dropout.default",
    "aten.rand.default",
    "aten.rand_like.default",
    "aten.randn.default",
    "aten.randn_like.default",
    "aten.scaled_dot_product_attention.default",
}
# One mask, however it is drawn: in place, out of place, or with what it masks.
_MASKS = {"bernoulli_", "bernoulli", "native_dropout", "dropout"}
# The same numbers, whether a tensor of them is made or filled.
_ALIKE = {
    "normal": ("normal_", "normal", "normal_functional", "randn", "randn_like"),
    # A coin with a probability for each element is a number that is below it or not.
    "uniform": ("uniform_", "uniform", "rand", "rand_like", "bernoulli_", "bernoulli"),
    "integers": ("random_", "random", "randint", "randint_like"),
}
# Of these nothing is random where the probability leaves no choice.
_CERTAIN = (0, 1)


def refuse_unkeyed_draws(program: ExportedProgram) -> None:
    """Each rank would draw other numbers, and copies of one tensor would differ."""
    for node in program.graph.nodes:
        if draws(node.target, node.args, node.kwargs) and str(node.target) not in _KEYED:
            error = CaptureError(
                "SW0132",
                f"the model draws random numbers with `{node.target}`",
                place=lines.with_source(node.stack_trace),
                why="ranks would draw different numbers for copies of one tensor",
                fix="use `torch.rand`, `torch.randn` or dropout, or give the numbers as an input",
            )
            raise said_in(module_of(node), error)


def draws(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator draws with these arguments: attention, say, does so for its dropout only."""
    if torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ()):
        return False
    names = [argument.name for argument in target._schema.arguments]
    named = dict(zip(names, args, strict=False)) | dict(kwargs)
    if any("dropout" in name for name in names):
        probability = next((v for n, v in named.items() if n in ("dropout", "dropout_p")), 0)
        return bool(probability) and named.get("train", True) is not False
    if _name(target) in _MASKS and "p" in named and not isinstance(named["p"], (Tensor, fx.Node)):
        return named["p"] not in _CERTAIN and named.get("train", True) is not False
    return True


@dataclass
class Draw:
    """What the generator was when an operator drew."""

    kind: str
    shape: tuple[int, ...]
    place: str
    state: Tensor

    @property
    def key(self) -> tuple[str, tuple[int, ...], str]:
        return self.kind, self.shape, self.place


class Recording(TorchDispatchMode):
    """Notes every draw of a module's run.

    Here, and where they are replayed, numbers are drawn in the order of the dims: how a tensor lies in memory
    is not in the graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if draws(func, args, kwargs):
            place = lines.short(lines.trace_of_caller(sys._getframe(1)))
            state = _state(_device(args, kwargs))
            self.draws.append(Draw(_kind(func), _shape(args), place, state))
            return _drawn(func, args, kwargs)
        return called(func, args, kwargs)


class Replaying(TorchDispatchMode):
    """Lets a graph's run draw what was noted, each operator what its own line drew, in order.

    ``place`` gives the line of the operator that is being run. What the module drew for no result is
    left over, as the graph has no such operator; the reverse is a difference.
    """

    def __init__(self, draws: Sequence[Draw], place: Callable[[], str]):
        super().__init__()
        self._left = list(draws)
        self._place = place
        self.unknown: list[str] = []
        """The lines of draws that the module does not make."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if draws(func, args, kwargs):
            key = (_kind(func), _shape(args), self._place())
            at = next((i for i, draw in enumerate(self._left) if draw.key == key), None)
            if at is None:
                self.unknown.append(f"`{func}` at {key[2] or 'an unknown line'}")
            else:
                _restore(_device(args, kwargs), self._left.pop(at).state)
            return _drawn(func, args, kwargs)
        return called(func, args, kwargs)


def _drawn(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """In the order of the dims."""
    given = args[0] if args else None
    if not isinstance(given, Tensor) or given.is_contiguous():
        return called(func, args, kwargs)
    result = func(given.contiguous(), *args[1:], **kwargs)
    return given.copy_(result) if _name(func).endswith("_") else result


def _kind(target: Any) -> str:
    name = _name(target)
    if name in _MASKS and _has_one_probability(target):
        return "mask"
    alike = (kind for kind, names in _ALIKE.items() if name in names)
    return next(alike, name.rstrip("_"))


def _has_one_probability(target: Any) -> bool:
    return any(it.name == "p" and str(it.type) == "float" for it in target._schema.arguments)


def _name(target: Any) -> str:
    return str(target._schema.name).partition("::")[2]


def _shape(args: Sequence[Any]) -> tuple[int, ...]:
    first = next((arg for arg in args if isinstance(arg, Tensor) or _is_list(arg)), ())
    return tuple(first.shape) if isinstance(first, Tensor) else tuple(first)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    tensor = next((arg for arg in args if isinstance(arg, Tensor)), None)
    named = kwargs.get("device")
    return torch.device(named) if named is not None else tensor.device if tensor is not None else _CPU


_CPU = torch.device("cpu")


def _state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _restore(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
