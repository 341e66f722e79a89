"""Autocast inside a model: what it casts becomes operators of the graph.

Every operator under autocast is run without data under the real autocast, and what reaches the level below
is looked at: mostly casts of arguments, and then the operator as it is. Where it is more, the operator is
replaced by what was seen.

Models are traced on the CPU, whose autocast casts there by itself: each node notes the autocast that it was
made under, and casts are written afterwards. Those of a GPU's are written while the model is traced: tensors
of the CPU are not cast by it, and the model has to see the dtypes that it will see.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ..errors import CaptureError
from . import lines
from .dispatch import Call, Record, put_in_place
from .fx_nodes import insert, is_no_grad

NOTE = "shardwright_autocast"
CAST = "shardwright_cast"
# All models are traced on it.
DEVICE = "cpu"
# Those whose autocast is known.
DEVICES = (DEVICE, "cuda")

_TO_COPY = torch.ops.aten._to_copy.default


@dataclass(frozen=True)
class Autocast:
    """`region` is the number of the outermost region: casts of parameters are kept for it."""

    dtype: torch.dtype
    region: int
    cached: bool
    device: str = DEVICE


def ambient() -> tuple[tuple[str, torch.dtype], ...]:
    """The autocast around a call, by device."""
    return tuple((d, torch.get_autocast_dtype(d)) for d in DEVICES if torch.is_autocast_enabled(d))


@contextmanager
def no_autocast() -> Iterator[None]:
    """For graphs, whose casts are explicit."""
    with _under(None):
        yield


def make_casts_explicit(program: ExportedProgram) -> str | None:
    """The device whose autocast there was. Comes before the graph is run again in any way."""
    explicit = _Explicit(program)
    noted = [node for node in program.graph.nodes if node.meta.get(NOTE) is not None]
    for node in noted:
        if isinstance(node.target, torch._ops.OpOverload) and node.meta[NOTE].device == DEVICE:
            explicit.visit(node, node.meta[NOTE])
    return noted[0].meta[NOTE].device if noted else None


def read_casts(program: ExportedProgram) -> None:
    """A parameter that is only read through one cast has its dtype in the graph: the cast is made
    outside, and the gradient arises in the dtype that is kept. Several casts have several gradients."""
    for node in _parameters(program).values():
        cast = next(iter(node.users), None)
        if cast is None or len(node.users) > 1 or is_no_grad(cast):
            continue
        if (cast.meta.get("custom") or {}).get(CAST):
            node.meta["val"] = cast.meta["val"]
            cast.replace_all_uses_with(node)
            program.graph.erase_node(cast)


def _parameters(program: ExportedProgram) -> dict[str, fx.Node]:
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    specs = program.graph_signature.input_specs
    return {str(s.target): nodes[s.arg.name] for s in specs if s.kind is InputKind.PARAMETER}


class _Explicit:
    def __init__(self, program: ExportedProgram):
        self.program = program
        self._parameters = set(_parameters(program).values())
        self._kept: dict[tuple[int, bool, fx.Node], fx.Node] = {}
        self._known: dict[str, _Seen] = {}

    def visit(self, node: fx.Node, autocast: Autocast) -> None:
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        values = [leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
        if not any(isinstance(value, FakeTensor) for value in pytree.tree_leaves(values)):
            return
        key = f"{node.target} {autocast.dtype} {_signature(values)}"
        if key not in self._known:
            self._known[key] = _look(node.target, values, spec, autocast)
        seen = self._known[key]
        if seen.dtypes != _dtypes(node.meta.get("val")):
            raise _other_dtypes(node)
        if seen.casts is None:
            self._replace(node, leaves, seen)
            return
        for at, dtype in seen.casts.items():
            leaves[at] = self._cast(leaves[at], dtype, node, autocast)
        node.args, node.kwargs = pytree.tree_unflatten(leaves, spec)

    def _cast(self, source: fx.Node, dtype: torch.dtype, user: fx.Node, autocast: Autocast) -> fx.Node:
        """Autocast keeps a parameter's cast to its own dtype until the outermost region ends."""
        keeps = autocast.cached and dtype == autocast.dtype and source in self._parameters
        keeps = keeps and source.meta["val"].dtype == torch.float32 and source.meta["val"].requires_grad
        key = (autocast.region, is_no_grad(user), source)
        if keeps and key in self._kept:
            return self._kept[key]
        cast = insert(user, _TO_COPY, (source,), {"dtype": dtype}, source.meta["val"].to(dtype))
        cast.meta["custom"] = {**(cast.meta.get("custom") or {}), CAST: source in self._parameters}
        if keeps:
            self._kept[key] = cast
        return cast

    def _replace(self, node: fx.Node, leaves: Sequence[Any], seen: _Seen) -> None:
        """Puts the operators that were seen in the place of one."""
        for target, *_ in seen.calls:
            if getattr(target, "_schema", None) is None or target._schema.is_mutable:
                raise no_casts(node.target, node.stack_trace)
        arguments = {id(tensor): leaves[at] for at, tensor in seen.arguments.items()}
        put_in_place(self.program, node, seen.calls, arguments, seen.out)


# ---- casts that are written while a model is traced ------------------------------------------


class Casts:
    """Of operators, as they are traced, whose autocast is not that of the device they are traced on."""

    def __init__(self, now: Callable[[], Autocast | None]):
        self._now = now
        self._known: dict[str, _Seen] = {}
        # Parameters too, so that none of these numbers names another one.
        self._kept: dict[tuple[int, bool, torch.dtype, int], tuple[Tensor, Tensor]] = {}
        self.casting = False

    def call(self, plain: Callable[..., Any], mode: Any, func: Any, pre: bool, args: Any, kwargs: Any) -> Any:
        """In the place of what writes an operator into the graph that is traced, and runs it."""
        autocast = self._now()
        if autocast is None or autocast.device == DEVICE or self.casting:
            return plain(mode, func, pre, args, kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        seen = self._seen(func, leaves, spec, autocast)
        if seen is None or seen.casts == {}:
            return plain(mode, func, pre, args, kwargs)
        if seen.sums_in is not None:
            return plain(mode, func, pre, args, {**kwargs, "dtype": seen.sums_in})
        if seen.casts is None:
            with mode:  # autocast knows what it is made of
                result = func.decompose(*args, **kwargs)
            if result is NotImplemented:
                raise no_casts(func, lines.trace_of_caller(sys._getframe(1)))
            return result
        for at, dtype in seen.casts.items():
            leaves[at] = self._cast(plain, mode, pre, leaves[at], dtype, autocast)
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        return plain(mode, func, pre, args, kwargs)

    def _seen(
        self, func: Any, leaves: Sequence[Any], spec: pytree.TreeSpec, autocast: Autocast
    ) -> _Seen | None:
        if not any(isinstance(leaf, FakeTensor) for leaf in leaves):
            return None
        key = f"{func} {autocast.dtype} {_signature(leaves)} {spec}"
        if key not in self._known:
            with torch._C.DisableTorchFunction():
                seen = self._known[key] = _look(func, leaves, spec, autocast)
                if seen.casts is None:
                    seen.sums_in = _sums_in(func, leaves, spec, seen)
        return self._known[key]

    def _cast(
        self,
        plain: Callable[..., Any],
        mode: Any,
        pre: bool,
        x: Tensor,
        dtype: torch.dtype,
        autocast: Autocast,
    ) -> Tensor:
        """As autocast's own cache: a leaf that is trained is cast once in a region."""
        keeps = autocast.cached and dtype == autocast.dtype and x.dtype == torch.float32
        keeps = keeps and x.requires_grad and x.is_leaf
        key = (autocast.region, torch.is_grad_enabled(), dtype, id(x))
        if keeps and key in self._kept:
            return self._kept[key][1]
        self.casting = True
        try:
            cast: Tensor = plain(mode, _TO_COPY, pre, (x,), {"dtype": dtype})
        finally:
            self.casting = False
        if keeps:
            self._kept[key] = x, cast
        return cast


# ---- looking below autocast ----------------------------------------------------------------


@dataclass
class _Seen:
    """Casts by the position of the argument; `None` where it is more than casts of arguments."""

    dtypes: list[torch.dtype]
    casts: dict[int, torch.dtype] | None
    arguments: dict[int, Tensor]
    calls: list[Call]
    out: Any
    sums_in: torch.dtype | None = None
    """The `dtype=` that autocast gives to an operator that has one, such as a softmax."""


def _look(target: Any, values: Sequence[Any], spec: pytree.TreeSpec, autocast: Autocast) -> _Seen:
    arguments = {
        at: _fresh(value, autocast.device) for at, value in enumerate(values) if isinstance(value, FakeTensor)
    }
    calls, out = _run(target, values, spec, arguments, autocast)
    seen = _Seen(_dtypes(out), {}, arguments, calls, out)
    if _text(calls, arguments, {}) == _without(target, values, spec, arguments):
        return seen
    seen.casts = casts = _casts(calls, arguments)
    cast = {at: tensor.to(casts.get(at, tensor.dtype)) for at, tensor in arguments.items()}
    if _text(calls, arguments, casts) != _without(target, values, spec, cast):
        seen.casts = None
    return seen


def _sums_in(target: Any, values: Sequence[Any], spec: pytree.TreeSpec, seen: _Seen) -> torch.dtype | None:
    args, kwargs = pytree.tree_unflatten(list(range(len(values))), spec)
    names = [argument.name for argument in target._schema.arguments]
    if "dtype" not in names or "dtype" in kwargs or names.index("dtype") < len(args):
        return None
    flat = pytree.tree_flatten((args, {**kwargs, "dtype": len(values)}))
    given = [*values, torch.float32]
    arguments = {flat[0].index(at): tensor for at, tensor in seen.arguments.items()}
    without = _without(target, [given[at] for at in flat[0]], flat[1], arguments)
    return torch.float32 if without == _text(seen.calls, arguments, {}) else None


def _without(
    target: Any, values: Sequence[Any], spec: pytree.TreeSpec, arguments: dict[int, Tensor]
) -> str | None:
    """What the operator calls without autocast; it may refuse arguments of several dtypes."""
    try:
        return _text(_run(target, values, spec, arguments, None)[0], arguments, {})
    except (RuntimeError, TypeError):
        return None


def _run(
    target: Any,
    values: Sequence[Any],
    spec: pytree.TreeSpec,
    arguments: dict[int, Tensor],
    autocast: Autocast | None,
) -> tuple[list[Call], Any]:
    """What an operator calls below autocast, which is off where there is none."""
    given = [arguments.get(at, value) for at, value in enumerate(values)]
    args, kwargs = pytree.tree_unflatten(given, spec)
    mode = next(iter(arguments.values())).fake_mode  # type: ignore[attr-defined]
    with torch.no_grad(), _under(autocast), mode, Record() as record:
        out = target(*args, **kwargs)
    return record.calls, out


@contextmanager
def _under(autocast: Autocast | None) -> Iterator[None]:
    """As `torch.autocast`, which switches off what the machine does not have."""
    saved = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICES]
    cached = torch.is_autocast_cache_enabled()
    try:
        torch.set_autocast_cache_enabled(False)
        for device in DEVICES:
            torch.set_autocast_enabled(device, autocast is not None and autocast.device == device)
        if autocast is not None:
            torch.set_autocast_dtype(autocast.device, autocast.dtype)
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)
        for device, enabled, dtype in saved:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


def _casts(calls: Sequence[Call], arguments: dict[int, Tensor]) -> dict[int, torch.dtype]:
    places = {id(tensor): at for at, tensor in arguments.items()}
    saved = {}
    for target, args, kwargs, _ in calls:
        if target is _TO_COPY and id(args[0]) in places:
            saved[places[id(args[0])]] = kwargs["dtype"]
    return saved


def _text(calls: Sequence[Call], arguments: dict[int, Tensor], casts: dict[int, torch.dtype]) -> str:
    """The calls, tensors by number; casts of arguments are left out, and stand for the arguments."""
    names = {id(tensor): f"argument {at}" for at, tensor in arguments.items()}
    for at in casts:
        names[id(arguments[at])] = f"argument {at} before its cast"
    said: list[str] = []
    for target, args, kwargs, out in calls:
        if target is _TO_COPY and names.get(id(args[0]), "").endswith("before its cast"):
            names[id(out)] = names[id(args[0])].removesuffix(" before its cast")
            continue
        named = pytree.tree_map_only(Tensor, lambda x: names.get(id(x), "constant"), (args, kwargs))
        for at, tensor in enumerate(pytree.tree_leaves(out)):
            names.setdefault(id(tensor), f"result {len(said)} {at}")
        said.append(f"{target} {named} {_dtypes(out)}")
    return "\n".join(said)


def _fresh(value: FakeTensor, device: str) -> Tensor:
    """An own tensor for each position, so that a cast says which argument it is of."""
    with value.fake_mode, torch.no_grad():
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)


def _signature(values: Sequence[Any]) -> str:
    def say(value: Any) -> str:
        return f"{value.dtype}{list(value.shape)}{list(value.stride())}"

    return str([say(value) if isinstance(value, Tensor) else value for value in values])


def _dtypes(value: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def no_casts(target: Any, trace: str | None) -> CaptureError:
    return CaptureError(
        "SW0129",
        f"what autocast makes of `{target}` cannot be written as operators",
        place=lines.with_source(trace),
        why="it does more than cast its arguments: it may change a tensor in place, in another dtype",
        fix="call it outside the autocast region, or with `torch.autocast(..., enabled=False)` around it",
    )


def _other_dtypes(node: fx.Node) -> CaptureError:
    return CaptureError(
        "SW0130",
        f"autocast gives `{node.target}` another dtype than it had when the model was traced",
        place=lines.with_source(node.stack_trace),
        why="something other than `with torch.autocast(...)` changed autocast",
        fix="use `with torch.autocast(...)` alone",
    )
