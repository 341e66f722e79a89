"""Autocast inside a model: what it casts becomes operators of the graph.

While the model is traced, each node notes the autocast that it was made under. Afterwards every such
operator is run without data under the real autocast, and what reaches the level below is looked at:
mostly casts of arguments, and then the operator as it is. Where it is more, the operator is replaced by
what was seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from .parts import Call, Record, put_in_place
from .simplify import insert, is_no_grad

NOTE = "shardwright_autocast"
CAST = "shardwright_cast"
# All models are traced on it.
DEVICE = "cpu"

_TO_COPY = torch.ops.aten._to_copy.default


@dataclass(frozen=True)
class Autocast:
    """`region` is the number of the outermost region: casts of parameters are kept for it."""

    dtype: torch.dtype
    region: int
    cached: bool


def ambient() -> tuple[tuple[str, torch.dtype], ...]:
    """The autocast around a call, by device."""
    devices = ("cpu", "cuda")
    return tuple((d, torch.get_autocast_dtype(d)) for d in devices if torch.is_autocast_enabled(d))


@contextmanager
def no_autocast() -> Iterator[None]:
    """For graphs, whose casts are explicit."""
    with torch.autocast(DEVICE, enabled=False):
        yield


def make_casts_explicit(program: ExportedProgram) -> bool:
    """Whether there was any autocast. Comes before the graph is run again in any way."""
    explicit = _Explicit(program)
    noted = [node for node in program.graph.nodes if node.meta.get(NOTE) is not None]
    for node in noted:
        if isinstance(node.target, torch._ops.OpOverload):
            explicit.visit(node, node.meta[NOTE])
    return bool(noted)


def has_autocast(program: ExportedProgram) -> bool:
    """Of a traced program: whether its casts are those of one kind of device."""
    return bool(program.graph_module.meta.get(NOTE))


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
            self._known[key] = _look(node, values, spec, autocast.dtype)
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
                raise _no_casts(node)
        arguments = {id(tensor): leaves[at] for at, tensor in seen.arguments.items()}
        put_in_place(self.program, node, seen.calls, arguments, seen.out)


# ---- looking below autocast ----------------------------------------------------------------


@dataclass
class _Seen:
    """Casts by the position of the argument; `None` where it is more than casts of arguments."""

    dtypes: list[torch.dtype]
    casts: dict[int, torch.dtype] | None
    arguments: dict[int, Tensor]
    calls: list[Call]
    out: Any


def _look(node: fx.Node, values: Sequence[Any], spec: pytree.TreeSpec, dtype: torch.dtype) -> _Seen:
    arguments = {at: _fresh(value) for at, value in enumerate(values) if isinstance(value, FakeTensor)}
    calls, out = _run(node, values, spec, arguments, dtype)
    found = _Seen(_dtypes(out), {}, arguments, calls, out)
    if _text(calls, arguments, {}) == _without(node, values, spec, arguments):
        return found
    found.casts = casts = _casts(calls, arguments)
    cast = {at: tensor.to(casts.get(at, tensor.dtype)) for at, tensor in arguments.items()}
    if _text(calls, arguments, casts) != _without(node, values, spec, cast):
        found.casts = None
    return found


def _without(
    node: fx.Node, values: Sequence[Any], spec: pytree.TreeSpec, arguments: dict[int, Tensor]
) -> str | None:
    """What the operator calls without autocast; it may refuse arguments of several dtypes."""
    try:
        return _text(_run(node, values, spec, arguments, None)[0], arguments, {})
    except (RuntimeError, TypeError):
        return None


def _run(
    node: fx.Node,
    values: Sequence[Any],
    spec: pytree.TreeSpec,
    arguments: dict[int, Tensor],
    dtype: torch.dtype | None,
) -> tuple[list[Call], Any]:
    """What an operator calls below autocast, which is off without a dtype."""
    given = [arguments.get(at, value) for at, value in enumerate(values)]
    args, kwargs = pytree.tree_unflatten(given, spec)
    mode = next(iter(arguments.values())).fake_mode  # type: ignore[attr-defined]
    cast = torch.autocast(DEVICE, dtype=dtype, enabled=dtype is not None, cache_enabled=False)
    with torch.no_grad(), cast, mode, Record() as record:
        out = node.target(*args, **kwargs)  # type: ignore[operator]
    return record.calls, out


def _casts(calls: Sequence[Call], arguments: dict[int, Tensor]) -> dict[int, torch.dtype]:
    places = {id(tensor): at for at, tensor in arguments.items()}
    found = {}
    for target, args, kwargs, _ in calls:
        if target is _TO_COPY and id(args[0]) in places:
            found[places[id(args[0])]] = kwargs["dtype"]
    return found


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


def _fresh(value: FakeTensor) -> Tensor:
    """An own tensor for each position, so that a cast says which argument it is of."""
    with value.fake_mode, torch.no_grad():
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)


def _signature(values: Sequence[Any]) -> str:
    def say(value: Any) -> str:
        return f"{value.dtype}{list(value.shape)}{list(value.stride())}"

    return str([say(value) if isinstance(value, Tensor) else value for value in values])


def _dtypes(value: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _no_casts(node: fx.Node) -> CaptureError:
    return CaptureError(
        "SW0129",
        f"what autocast makes of `{node.target}` cannot be written as operators",
        place=lines.with_source(node.stack_trace),
        why="it changes a tensor in place, in another dtype",
        fix="call it outside of the autocast region, or with `torch.autocast(..., enabled=False)` around it",
    )


def _other_dtypes(node: fx.Node) -> CaptureError:
    return CaptureError(
        "SW0130",
        f"autocast gives `{node.target}` another dtype than it had when the model was traced",
        place=lines.with_source(node.stack_trace),
        why="autocast was changed in another way than by `with torch.autocast(...)`",
        fix="use `with torch.autocast(...)` alone",
    )
