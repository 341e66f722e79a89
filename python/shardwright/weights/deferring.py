"""A model without values, and how the single device would have initialised it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from ..errors import RuntimeFault, with_article
from ..runtime.agreement.agreement import number_of
from .replay import Ref
from .tape import Tape

Module = TypeVar("Module", bound=nn.Module)


def deferred(factory: Callable[[], Module], seed: int = 0) -> Module:
    """The module that `factory` builds, on meta: nothing is allocated.

    `parallelize` gives each rank its parts of the values that the single device has after
    `torch.manual_seed(seed); factory()`, bit by bit the same, making few tensors at a time.
    """
    tape = Tape(seed)
    with _conversions(), tape:
        module = factory()
    if not isinstance(module, nn.Module):
        raise RuntimeFault(
            "SW0751",
            "the initialisation of the model cannot be recorded",
            why=f"the factory returned {with_article(type(module).__name__)}",
            fix="give a function without arguments that returns a torch.nn.Module",
        )
    refs, emptied = _emptied(module, tape)
    for prefix, child in module.named_modules():
        start = f"{prefix}." if prefix else ""
        refs_below = {name.removeprefix(start): ref for name, ref in refs.items() if name.startswith(start)}
        held = {name.removeprefix(start): t for name, t in emptied.items() if name.startswith(start)}
        _records[child] = Recorded(tape, refs_below, held)
    return module


def recorded(module: nn.Module) -> Recorded | None:
    """The record of a module that `deferred` has made, or of a part of it."""
    return _records.get(module)


@dataclass(frozen=True)
class Recorded:
    tape: Tape
    refs: dict[str, Ref] = field(repr=False)
    emptied: dict[str, Tensor] = field(repr=False)

    def names(self) -> set[str]:
        return set(self.refs)

    def mark(self, name: str) -> int:
        """Another number where another initialisation was recorded."""
        return number_of(f"{self.tape.mark()} {self.refs[name]}".encode())

    def values(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors, one after another, each to be copied before the next is taken."""
        wanted = set(names)
        written = sorted(name for name in wanted if self.emptied[name]._version)
        if written:
            raise RuntimeFault(
                "SW0751",
                f"{', '.join(written[:8])} were changed after the initialisation was recorded",
                why="the model is on meta, where a change leaves no value",
                fix="make the change inside of the function that `deferred` is given",
            )
        return self.tape.values({name: self.refs[name] for name in wanted})


_records: WeakKeyDictionary[nn.Module, Recorded] = WeakKeyDictionary()


@contextmanager
def _conversions() -> Iterator[None]:
    """`module.double()` swaps fake tensors, which PyTorch refuses for those that it has noted down."""
    swap = torch.utils.swap_tensors

    def replace(one: Tensor, other: Tensor) -> None:
        if isinstance(one, FakeTensor):
            one.data = other.data
        else:
            swap(one, other)

    torch.utils.swap_tensors = replace
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap


def _emptied(module: nn.Module, tape: Tape) -> tuple[dict[str, Ref], dict[str, Tensor]]:
    """Puts tensors on meta in the place of fake ones; values where the graph would have constants."""
    fakes = dict(_fakes(module))
    refs = {name: tape.ref(fake) for name, fake in fakes.items() if fake.device.type != "meta"}
    memo = {id(fake): _without_value(fake) for fake in fakes.values()}
    emptied = {name: memo[id(fake)] for name, fake in fakes.items()}
    for child in module.modules():
        for held in (child._parameters, child._buffers):
            for name, tensor in held.items():
                if isinstance(tensor, FakeTensor):
                    held[name] = memo[id(tensor)]  # type: ignore[assignment]
        _give_constants(child, memo, tape)
    return refs, emptied


def _fakes(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for prefix, child in module.named_modules(remove_duplicate=False):
        for name, tensor in (*child._parameters.items(), *child._buffers.items()):
            if isinstance(tensor, FakeTensor):
                yield (f"{prefix}.{name}" if prefix else name), tensor


def _without_value(fake: Tensor) -> Tensor:
    empty = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta")
    made = nn.Parameter(empty, fake.requires_grad) if isinstance(fake, nn.Parameter) else empty
    for key, value in vars(fake).items():
        if type(value) in (bool, int, float, str) and key not in _FAKES_OWN:
            setattr(made, key, value)
    return made


def _give_constants(module: nn.Module, memo: dict[int, Tensor], tape: Tape) -> None:
    """Tensors in other attributes: those of parameters and buffers, or small ones that are baked in."""
    for key, value in list(vars(module).items()):
        if key in ("_parameters", "_buffers", "_modules"):
            continue
        leaves, tree = pytree.tree_flatten(value)
        if not any(isinstance(leaf, FakeTensor) for leaf in leaves):
            continue
        refs = {
            at: tape.ref(leaf)
            for at, leaf in enumerate(leaves)
            if isinstance(leaf, FakeTensor) and id(leaf) not in memo
        }
        leaves = [memo.get(id(leaf), leaf) for leaf in leaves]
        for at, made in tape.values(refs):
            leaves[at] = made.clone()
        module.__dict__[key] = pytree.tree_unflatten(leaves, tree)


# What every fake tensor has.
_FAKES_OWN = {"_is_param", "fake_device", "fake_mode", "constant", "real_tensor", "pytype", "dispatch_keys"}
