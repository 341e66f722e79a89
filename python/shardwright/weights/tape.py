"""Records what a constructor does to tensors, without doing it, and does it again piece by piece.

While recording, tensors are fake: they have shapes and say that they are on the CPU, but no memory.
The tape lists what was written into which memory. Views need no entries: an entry says of each of
its tensors where in its memory it lies. `replay` makes values of what is listed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import RuntimeFault
from ..runtime.agreement.agreement import digest, number_of
from .replay import Draw, Entry, Ref, replay

# In-place operators that do not read what they write to.
_FILLING = {
    "normal_", "uniform_", "fill_", "zero_", "copy_", "random_", "bernoulli_", "exponential_", "cauchy_",
    "log_normal_", "geometric_",
}  # fmt: skip
_SCALAR = torch.ops.aten._local_scalar_dense.default
# While recording, the seed of the default generator says how many draws were recorded before.
_COUNTING = 0x5EED << 40


@dataclass
class Tape(TorchDispatchMode):
    """`with tape:` records; afterwards `tape.ref(tensor)` and `tape.values(refs)`."""

    seed: int
    entries: list[Entry] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """The bytes of each memory."""

    def __post_init__(self) -> None:
        super().__init__()
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._numbers: dict[int, int] = {}
        # Addresses of memories that are gone would name others.
        self._alive: list[Any] = []
        self._draws = 0
        self._marked: tuple[int, int] | None = None

    def __enter__(self) -> Tape:
        self._state = torch.get_rng_state()
        torch.default_generator.manual_seed(_COUNTING)
        self._fake.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._fake.__exit__(*error)
        torch.set_rng_state(self._state)

    def ref(self, tensor: Tensor) -> Ref:
        """Where a fake tensor lies."""
        storage = tensor.untyped_storage()
        number = self._numbers.get(storage._cdata)
        if number is None:
            number = self._numbers[storage._cdata] = len(self.sizes)
            self.sizes.append(storage.nbytes())
            self._alive.append(storage)
        size, stride = tuple(tensor.shape), tuple(tensor.stride())
        return Ref(number, tensor.dtype, size, stride, int(tensor.storage_offset()))

    def values(self, wanted: Mapping[Any, Ref]) -> Iterator[tuple[Any, Tensor]]:
        """Each wanted tensor, as soon as nothing writes to it any more; it is to be copied at once."""
        return replay(self.seed, self.entries, self.sizes, wanted)

    def mark(self) -> int:
        """Another number where other values were recorded, as with another seed."""
        if self._marked is None or self._marked[0] != len(self.entries):
            calls = [(str(e.func), e.args, e.kwargs, e.results, e.draw) for e in self.entries]
            described = pytree.tree_map_only(Tensor, lambda x: (x.shape, x.dtype, digest([x])), calls)
            self._marked = len(self.entries), number_of(repr((self.seed, described)).encode())
        return self._marked[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        written = _written(func, args, kwargs)
        if any(not isinstance(tensor, FakeTensor) for tensor in written):
            return _write_outside(func, args, kwargs)
        if func is _SCALAR:
            return self._really(func, args, kwargs)
        draw = self._draw(func, args, kwargs) if torch.Tag.nondeterministic_seeded in func.tags else None
        try:
            results = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self._really(func, args, kwargs)
        self._record(func, args, kwargs, written, results, draw)
        return results

    def _record(
        self, func: Any, args: Any, kwargs: Any, written: list[Tensor], results: Any, draw: Draw | None
    ) -> None:
        args, kwargs = pytree.tree_map_only(Tensor, self._ref_or_constant, (args, kwargs))
        read = {leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Ref)}
        known = len(self.sizes)
        out = [self.ref(leaf) if isinstance(leaf, Tensor) else None for leaf in pytree.tree_leaves(results)]
        made = {ref.memory for ref in out if ref is not None and ref.memory >= known}
        targets = {self.ref(tensor) for tensor in written}
        if not made and not targets:
            return  # a view
        _refuse_devices(results)
        if not read:
            _say_dtype(func, args, kwargs, out)
        if func._schema.name.removeprefix("aten::") in _FILLING:
            read -= targets
        sources = {ref.memory for ref in read}
        covered = {ref.memory for ref in targets if self._covers(ref)} - sources
        writes = made | {ref.memory for ref in targets}
        self.entries.append(Entry(func, args, kwargs, out, sources, writes, made | covered, draw))

    def _covers(self, ref: Ref) -> bool:
        """Whether a tensor is all of its memory."""
        elements = 1
        for size, stride in sorted(zip(ref.size, ref.stride, strict=True), key=lambda dim: dim[1]):
            if size > 1 and stride != elements:
                return False
            elements *= size
        return ref.offset == 0 and elements * ref.dtype.itemsize >= self.sizes[ref.memory]

    def _ref_or_constant(self, tensor: Tensor) -> Ref:
        if isinstance(tensor, FakeTensor):
            return self.ref(tensor)
        with unset_fake_temporarily():
            return self.ref(self._constant(tensor.detach().clone()))

    def _constant(self, value: Tensor) -> FakeTensor:
        """A fake tensor with this value."""
        fake = self._fake.from_tensor(value)
        ref = self.ref(fake)
        memory = {ref.memory}
        self.entries.append(Entry(torch.clone, (value,), {}, [ref], set(), memory, memory, None))
        return fake

    def _really(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Python needs the values: a number, or how many elements there are."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        refs = {at: self.ref(leaf) for at, leaf in enumerate(leaves) if isinstance(leaf, FakeTensor)}
        with unset_fake_temporarily():
            for at, value in self.values(refs):
                leaves[at] = value.clone()
            args, kwargs = pytree.tree_unflatten(leaves, tree)
            return pytree.tree_map_only(Tensor, self._constant, func(*args, **kwargs))

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Draw:
        """What happened to the default generator since the last draw, which only its seed can tell."""
        if any(isinstance(leaf, torch.Generator) for leaf in pytree.tree_leaves((args, kwargs))):
            raise _refusal("it draws random numbers from a generator of its own", "use the default generator")
        seed, number = torch.initial_seed(), self._draws
        before = seed - _COUNTING
        self._draws += 1
        torch.default_generator.manual_seed(_COUNTING + self._draws)
        if before == number:
            return Draw(number)
        return Draw(number, restored=before) if 0 <= before < number else Draw(number, seed=seed)


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    leaves = []
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            leaves += [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return leaves


def _write_outside(func: Any, args: Any, kwargs: Any) -> Any:
    """A tensor that was not made by PyTorch's operators, such as an array's: it is written for real."""
    leaves = pytree.tree_leaves((args, kwargs))
    random = torch.Tag.nondeterministic_seeded in func.tags
    if random or any(isinstance(leaf, FakeTensor) for leaf in leaves):
        raise _refusal("it writes to a tensor that it has not made itself", "write to a copy of it")
    with unset_fake_temporarily():
        return func(*args, **kwargs)


def _say_dtype(func: Any, args: Any, kwargs: Any, out: list[Ref | None]) -> None:
    """The default dtype may be another one when this is replayed."""
    names = [argument.name for argument in func._schema.arguments]
    if "dtype" in names[len(args) :] and kwargs.get("dtype") is None and out and out[0] is not None:
        kwargs["dtype"] = out[0].dtype


def _refuse_devices(results: Any) -> None:
    for leaf in pytree.tree_leaves(results):
        if isinstance(leaf, Tensor) and leaf.device.type not in ("cpu", "meta"):
            raise _refusal(
                f"it makes tensors on {leaf.device}", "build the model on the CPU: nothing is allocated"
            )


def _refusal(why: str, fix: str) -> RuntimeFault:
    return RuntimeFault("SW0751", "the initialisation of the model cannot be recorded", why=why, fix=fix)
