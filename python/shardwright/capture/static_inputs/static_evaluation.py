"""Inputs whose values are known while a model is traced, as those of Python arguments are.

The user names them. Whatever follows from nothing but them and plain numbers is computed beside the trace.
What leaves tensors for Python is a number then, and what has as many elements as the values say, such as
`edges[:, edges[0] != edges[1]]`, is a constant of the graph. So a program is right where this is the same,
which a `Tape` notes: a call of which something else is read is another program's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from .reading import Reading, Tape, memory_of, tensors_in, value_of

# Nothing larger is computed beside the trace.
_MOST = 1 << 24
# Make tensors of plain numbers alone.
_MADE = frozenset(["arange", "eye", "full", "linspace", "ones", "tensor", "zeros"])
# Take sizes, also as tensors of one number.
_SIZED = frozenset(
    [
        "chunk",
        "expand",
        "interpolate",
        "narrow",
        "pad",
        "repeat",
        "reshape",
        "split",
        "tile",
        "unflatten",
        "view",
    ]
)
# Take of another tensor no more than its shape, or make a tensor of a number for it.
_OF_SHAPE = {"expand_as": "expand", "reshape_as": "reshape", "view_as": "view"}
_LIKE = frozenset(["full_like", "ones_like", "zeros_like"])
_NEW = frozenset(["new_full", "new_ones", "new_zeros"])
# Names of functions that write their first argument, also with an overload behind.
_IN_PLACE = re.compile(
    r"__set(item)?__|\w*[^_]_(\.\w+)?|__i(add|sub|mul|div|truediv|floordiv|mod|pow|and|or|xor|lshift|rshift)__"
)
_DEVICE = re.compile(r"(cpu|cuda|xpu|mps)(:\d+)?")
_UNKNOWN = object()
_CPU = torch.device("cpu")


@contextmanager
def knowing(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    known: Sequence[Tensor],
    floats: bool = True,
) -> Iterator[Callable[[], Reading]]:
    """Forwards of the module, which are given these arguments in another form, know the values of some.
    Gives what the last one read of them; numbers that are no integers only with `floats`."""
    evaluation = _StaticEvaluation(floats)
    if not known:
        yield evaluation.reading
        return
    given = pytree.tree_leaves((tuple(args), dict(kwargs)))
    positions = {id(tensor): at for at, tensor in enumerate(known)}

    def begin(_: nn.Module, args: Any, kwargs: Any) -> None:
        evaluation.forget()
        for leaf, traced in zip(given, pytree.tree_leaves((args, kwargs)), strict=True):
            if id(leaf) in positions:
                with _untraced():
                    value = value_of(leaf)  # copied: a forward may write it
                evaluation.begin(traced, value, positions[id(leaf)])
        forward.enter_context(evaluation)

    def end(*_: Any) -> None:
        forward.close()

    # While it is traced, PyTorch calls no hook after a forward that fails.
    with (
        ExitStack() as forward,
        module.register_forward_pre_hook(begin, with_kwargs=True),
        module.register_forward_hook(end),
    ):
        yield evaluation.reading


def is_known(traced: Tensor) -> bool:
    """Whether the value is, in the forward that is being traced."""
    modes = torch.overrides._get_current_function_mode_stack()
    return any(isinstance(mode, _StaticEvaluation) and mode.value(traced) is not None for mode in modes)


class _StaticEvaluation(TorchFunctionMode):
    """Computes what is known beside what is traced."""

    def __init__(self, floats: bool) -> None:
        super().__init__()
        self._floats = floats
        self.forget()

    def forget(self) -> None:
        # With the traced tensors, so that an id stays that of one.
        self._values: dict[int, tuple[Tensor, Tensor]] = {}
        self._written: set[int] = set()
        self._tape = Tape()

    def reading(self) -> Reading:
        return self._tape.reading()

    def begin(self, traced: Tensor, value: Tensor, position: int) -> None:
        """An input."""
        self._tape.begin(value, position)
        self.know(traced, value)

    def know(self, traced: Tensor, value: Tensor) -> None:
        self._values[id(traced)] = traced, value

    def value(self, traced: Any) -> Tensor | None:
        _, value = self._values.get(id(traced), (None, None))
        return None if value is None or memory_of(value) in self._written else value

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__iter__ and self.value(args[0]) is not None:
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        args, kwargs = self._with_numbers(func, tuple(args), dict(kwargs or {}))
        func, args, kwargs = self._by_shapes(func, args, kwargs)
        computed, follows = self._computed(func, args, kwargs)
        if computed is _UNKNOWN:
            for tensor in _written(func, args, kwargs):
                value = self.value(tensor)
                self._written |= set() if value is None else {memory_of(value)}
            return func(*args, **kwargs)
        if follows:
            return pytree.tree_map_only(Tensor, self._constant, computed)
        traced = func(*args, **kwargs)
        for one, value in zip(tensors_in(traced), tensors_in(computed), strict=True):
            self.know(one, value)
        return traced

    def _computed(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, bool]:
        """What a call gives, if all that it is given is known; whether that, or its shape, follows from
        values and not from shapes."""
        given = tensors_in((args, kwargs))
        made = getattr(func, "__name__", "") in _MADE
        if not (given or made) or any(self.value(tensor) is None for tensor in given):
            return _UNKNOWN, False
        args, kwargs = self._values_of((args, kwargs))
        with _untraced():
            shapes = _shapes(func, args, kwargs)
            if shapes is None and (not given or _written(func, args, kwargs)):
                return _UNKNOWN, False
            if any(tensor.numel() > _MOST for tensor in tensors_in(shapes)):
                return _UNKNOWN, False
            before = torch.get_rng_state()
            versions = [(value, value._version) for value in tensors_in((args, kwargs))]
            try:
                result = func(*args, **kwargs)
            except Exception:
                for value, _ in versions:
                    self._tape.tell(value)
                self._forget_written(versions)
                return _UNKNOWN, False  # the trace says what is wrong with it
            if not torch.equal(before, torch.get_rng_state()):
                torch.set_rng_state(before)
                self._forget_written(versions)
                return _UNKNOWN, False
            is_read = shapes is None
            if is_read and not self._floats and _has_floats(result):
                self._forget_written(versions)
                return _UNKNOWN, False
            self._tape.note(func, args, kwargs, result, is_read=is_read, writes=_written(func, args, kwargs))
        return result, is_read

    def _forget_written(self, versions: Sequence[tuple[Tensor, int]]) -> None:
        """What a call has written that does not count, whatever its name is: `dropout(x, inplace=True)`."""
        self._written |= {memory_of(value) for value, version in versions if value._version != version}

    def _values_of(self, tree: Any) -> Any:
        """What is given, with values in the place of tensors. These are on the CPU."""

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return self.value(leaf)
            is_device = isinstance(leaf, torch.device) or bool(_DEVICE.fullmatch(leaf))
            return _CPU if is_device else leaf

        return pytree.tree_map_only((Tensor, torch.device, str), value, tree)

    def _with_numbers(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Arguments with numbers for the sizes, and places for the masks, that are known."""
        if func is Tensor.__setitem__ and not (isinstance(args[2], Tensor) and args[2].dim()):
            # A number is put where a mask says, whatever that is.
            return (args[0], self._places(args[1], masks=False), *args[2:]), kwargs
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            return (args[0], self._places(args[1]), *args[2:]), kwargs
        if getattr(func, "__name__", "") in _SIZED:
            args, kwargs = pytree.tree_map_only(Tensor, self._number, (args, kwargs))
        return args, kwargs

    def _by_shapes(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """A call that is given of tensors that are not known what it needs: shapes, dtypes and devices."""
        name = getattr(func, "__name__", "")
        if name in _OF_SHAPE and len(args) == 2 and self.value(args[1]) is None:
            return getattr(Tensor, _OF_SHAPE[name]), (args[0], tuple(args[1].shape)), kwargs
        if name not in _LIKE | _NEW or not args or self.value(args[0]) is not None:
            return func, args, kwargs
        given = {key: value for key, value in kwargs.items() if key != "memory_format" and value is not None}
        like, *rest = args
        size, kind = ((tuple(like.shape),), name[:-5]) if name in _LIKE else ((), name[4:])
        return getattr(torch, kind), (*size, *rest), {"dtype": like.dtype, "device": like.device, **given}

    def _places(self, index: Any, masks: bool = True) -> Any:
        sizes: list[Any] = []
        for one in index if isinstance(index, tuple) else (index,):
            value = self.value(one) if isinstance(one, Tensor) else None
            if masks and value is not None and value.dtype == torch.bool and value.dim():
                with _untraced():
                    places = value.nonzero(as_tuple=True)
                    by = {"as_tuple": True}
                    self._tape.note(torch.nonzero, (value,), by, places, is_read=True)
                sizes += [self._constant(each) for each in places]
            elif isinstance(one, slice):
                sizes.append(slice(*map(self._number, (one.start, one.stop, one.step))))
            elif isinstance(one, (tuple, list)) and one and all(self.value(each) is not None for each in one):
                sizes.append(
                    self.__torch_function__(torch.stack, (), (list(one),))
                )  # or else PyTorch reads them
            else:
                sizes.append(one)
        return tuple(sizes) if isinstance(index, tuple) or len(sizes) > 1 else sizes[0]

    def _number(self, one: Any) -> Any:
        value = self.value(one) if isinstance(one, Tensor) else None
        if value is None or value.dim() or value.is_floating_point():
            return one
        with _untraced():
            self._tape.tell(value)
            return value.item()

    def _constant(self, value: Tensor) -> Tensor:
        with _untraced():
            numbers = value.tolist()
        made = torch.tensor(numbers, dtype=value.dtype).reshape(value.shape)
        self.know(made, value)
        return made


def _has_floats(result: Any) -> bool:
    """They are others in each batch."""
    leaves = pytree.tree_leaves(result)
    return any(
        leaf.is_floating_point() or leaf.is_complex()
        if isinstance(leaf, Tensor)
        else isinstance(leaf, (float, complex))
        for leaf in leaves
    )


def _shapes(func: Any, args: Any, kwargs: Any) -> Any:
    """What a call gives, without values; nothing where values tell."""
    try:
        with FakeTensorMode() as mode:
            args, kwargs = pytree.tree_map_only(Tensor, mode.from_tensor, (args, kwargs))
            return (func(*args, **kwargs),)
    except Exception:
        return None


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """What a call writes."""
    schema = getattr(getattr(func, "default", func), "_schema", None)
    if schema is not None and schema.is_mutable:
        return tensors_in((args, kwargs))
    in_place = _IN_PLACE.fullmatch(getattr(func, "__name__", ""))
    return tensors_in((args[:1] if in_place else (), kwargs.get("out")))


@contextmanager
def _untraced() -> Iterator[None]:
    # Also what functions do themselves, such as turning gradients off, is seen by a trace.
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield
