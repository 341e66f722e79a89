"""From a module to a functional ATen graph, by torch.export, losing nothing on the way."""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from ..errors import CaptureError
from . import lines
from .guard import guarded
from .swap import Fake, borrowed

_NO_GRAD = "shardwright_no_grad"
_GRAD_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST_REGION = torch.ops.higher_order.wrap_with_autocast
_DATA_DEPENDENT = (
    "GuardOnDataDependentSymNode",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
)
_ASSERTIONS = ("aten._assert_", "aten.sym_constrain_range", "aten._functional_assert_")


def trace(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ExportedProgram:
    """The decomposed program; :func:`is_no_grad` tells which of its nodes run without gradients."""
    program = _export(module, args, kwargs)
    _inline_regions(program)
    _refuse_hidden_mutation(program)
    _keep_detach(program)
    with _quiet():
        program = program.run_decompositions({})
    _refuse_mutation(program)
    _clean(program.graph)
    return program


def is_no_grad(node: fx.Node) -> bool:
    return bool((node.meta.get("custom") or {}).get(_NO_GRAD))


def _export(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ExportedProgram:
    fake = Fake()
    known = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    fresh = pytree.tree_map_only(Tensor, fake.fresh, (tuple(args), dict(kwargs)))
    try:
        with _quiet(), guarded(), borrowed(module, fake.once, fake.attribute(known)):
            return torch.export.export(module, *fresh, strict=False)
    except CaptureError:
        raise
    except Exception as error:
        raise _refusal(error) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch tells much that our own errors tell better."""
    loggers = [logging.getLogger(name) for name in ("torch.fx", "torch._export", "torch.export")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels):
                logger.setLevel(level)


def _refusal(error: Exception) -> CaptureError:
    place = lines.place_of_error(error)
    if any(kind.__name__ in _DATA_DEPENDENT for kind in type(error).__mro__):
        return data_dependent(place)
    first = str(error).strip().split("\n")[0]
    return CaptureError(
        "SW0101",
        "the model cannot be captured",
        place=place,
        why=f"{type(error).__name__}: {first}",
        fix="check that the model runs on these inputs; if it does, write this line with tensor"
        " operators that torch.export can trace",
    )


def data_dependent(place: str | None) -> CaptureError:
    return CaptureError(
        "SW0102",
        "the model reads the value of a tensor in Python",
        place=place,
        why="a branch, size or number taken from data would be baked into the program",
        fix="keep the value in a tensor (torch.where, masks), or pass it as a Python argument",
    )


# ---- regions -------------------------------------------------------------------------------


def _inline_regions(program: ExportedProgram) -> None:
    """Puts the nodes of every region into the graph, marked: decomposing would lose the regions."""
    module = program.graph_module
    for node in list(module.graph.nodes):
        if node.target is _GRAD_REGION or node.target is _AUTOCAST_REGION:
            _inline(program, module, node, no_grad=False)
    module.graph.eliminate_dead_code()
    module.recompile()


def _inline(program: ExportedProgram, owner: fx.GraphModule, call: fx.Node, no_grad: bool) -> None:
    if call.target is _GRAD_REGION:
        no_grad = not call.args[0]
        body_ref, operands = call.args[1], call.args[2:]
    else:
        _refuse_autocast(owner, call)
        body_ref, operands = call.args[4], call.args[5:]
    body = owner.get_submodule(str(body_ref.target))  # type: ignore[union-attr]
    results = _copy_body(program, body, call, list(operands), no_grad)
    for user in list(call.users):
        inner = results[user.args[1]]  # type: ignore[index]
        program.graph_signature.replace_all_uses(user.name, inner.name)
        user.replace_all_uses_with(inner)
        user.graph.erase_node(user)
    call.graph.erase_node(call)


def _copy_body(
    program: ExportedProgram, body: nn.Module, call: fx.Node, operands: list[Any], no_grad: bool
) -> Any:
    assert isinstance(body, fx.GraphModule)
    copies: dict[fx.Node, Any] = {}
    for node in body.graph.nodes:
        if node.op == "placeholder":
            copies[node] = operands[len(copies)]
        elif node.op == "output":
            return pytree.tree_map_only(fx.Node, copies.__getitem__, node.args[0])
        elif node.op == "get_attr":
            copies[node] = node
        else:
            with call.graph.inserting_before(call):
                copy = call.graph.node_copy(node, copies.__getitem__)
            copy.meta["custom"] = {**(node.meta.get("custom") or {}), _NO_GRAD: no_grad}
            copies[node] = copy
            if node.target is _GRAD_REGION or node.target is _AUTOCAST_REGION:
                _inline(program, body, copy, no_grad)
    raise AssertionError("a region without an output")


def _refuse_autocast(owner: fx.GraphModule, call: fx.Node) -> None:
    _device, _dtype, enabled, *_ = call.args
    if not enabled:
        return
    body = owner.get_submodule(str(call.args[4].target))  # type: ignore[union-attr]
    traces = [node.stack_trace for node in body.graph.nodes if node.stack_trace]  # type: ignore
    raise CaptureError(
        "SW0106",
        "the model switches autocast on inside its forward",
        place=lines.with_source(traces[0]) if traces else None,
        why="what autocast does depends on the device, which the graph does not know",
        fix="cast explicitly (`x.to(torch.bfloat16)`), or ask for a precision when compiling",
    )


# ---- mutation ------------------------------------------------------------------------------


def _refuse_hidden_mutation(program: ExportedProgram) -> None:
    """An in-place operator without gradients keeps its tensor's gradient; its functional form
    would lose it."""
    kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
    carries: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if kinds[node.name] in (InputKind.PARAMETER, InputKind.USER_INPUT):
                carries.add(node)
        elif not is_no_grad(node) and carries.intersection(node.all_input_nodes):
            carries.add(node)
        elif is_no_grad(node) and carries.intersection(_mutated(node)):
            raise CaptureError(
                "SW0107",
                "the model changes a tensor that carries a gradient inside `torch.no_grad`",
                place=lines.with_source(node.stack_trace),
                why=f"`{node.target}` changes the value and keeps the gradient of the old one",
                fix="change the `.detach()` of a copy, or compute the new value out of place",
            )


def _mutated(node: fx.Node) -> list[fx.Node]:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    named = {arg.name: value for arg, value in zip(schema.arguments, node.args)} | node.kwargs
    written = [arg.name for arg in schema.arguments if arg.alias_info and arg.alias_info.is_write]
    return [v for name in written if isinstance(v := named.get(name), fx.Node)]


def _keep_detach(program: ExportedProgram) -> None:
    """Making operators functional drops ``detach_``, and with it the cut in the gradient."""
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.detach_.default:
            source = node.args[0]
            if getattr(source, "target", None) is torch.ops.aten.lift_fresh_copy.default:
                continue
            node.target = torch.ops.aten.detach.default
            source.replace_all_uses_with(node, lambda user, node=node: user > node)
    program.graph_module.recompile()


def _refuse_mutation(program: ExportedProgram) -> None:
    nodes = {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION):
            continue
        node = nodes.get(spec.arg.name)
        what = "an argument" if "INPUT" in spec.kind.name else "a parameter"
        raise CaptureError(
            "SW0109",
            f"the model changes {what}, `{spec.target}`, in place",
            place=lines.with_source(node.stack_trace) if node else None,
            why="the parts of a parallel program hold copies and shards, which would differ",
            fix="compute a new tensor, or keep the value in a buffer",
        )


# ---- cleaning ------------------------------------------------------------------------------


def _clean(graph: fx.Graph) -> None:
    """Drops assertions, and what only they read."""
    for node in reversed(list(graph.nodes)):
        if node.op not in ("call_function", "get_attr"):
            continue
        is_assertion = str(node.target).startswith(_ASSERTIONS)
        if is_assertion or not node.users:
            graph.erase_node(node)


def results_of(program: ExportedProgram) -> list[fx.Node | Any]:
    """The leaves of the result: nodes, and baked values."""
    nodes = {node.name: node for node in program.graph.nodes}
    leaves: list[Any] = []
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_OUTPUT:
            baked = isinstance(spec.arg, ConstantArgument)
            leaves.append(spec.arg.value if baked else nodes[spec.arg.name])
    return leaves


def is_getitem(node: fx.Node) -> bool:
    return node.target is operator.getitem
