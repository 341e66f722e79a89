"""From a module to a functional ATen graph, by torch.export, losing nothing on the way."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from ..errors import CaptureError, ShardwrightError
from . import lines
from .autocast import NOTE, make_casts_explicit, no_autocast, read_casts
from .casts import Casting, cast_parameters
from .checkpointed_regions import SPANS, mark_spans
from .control_flow.asserts import passing_checks
from .fx_nodes import NO_GRAD, mark_no_grad
from .guard import guarded
from .lines import module_of, place_in, said_in
from .opaque.losses import losses_as_operators
from .opaque.modules import Opaque, standing_for
from .opaque.plain import said_of
from .opaque.rules import registered_as_operators, write_registered
from .opaque.selected import selecting_late
from .passes.canonical import settle_meaning
from .passes.checkpointed_updates import update_again, writes_under_checkpoints
from .passes.dead_code import drop_unread
from .passes.detached import keep_detach, refuse_hidden_writes, write_without_detach
from .passes.experts import fuse_experts
from .passes.functional import write_out
from .passes.instance_norms import write_out_statistics
from .passes.masks import simplify_masks
from .passes.mixtures import fuse_mixtures
from .passes.parameter_updates import as_buffers, as_parameters
from .passes.simplify import simplify, sweep
from .passes.strided import index_strided
from .random.distributions import in_known_distributions
from .random.draws import refuse_chance
from .random.memory_format import draw_on_fresh, note_order
from .random.unread_draws import draw_what_is_lost, drawn, is_unread
from .settings import capturable_experts, masks_as_they_run
from .state.batch_norms import averages_in_tensors
from .state.hidden import changes, kept_by, kept_error
from .state.names import Names
from .state.registered import Registered
from .state.swap import Fake, borrowed, same_randomness
from .static_inputs.buffers import Known
from .static_inputs.named import READS_DATA
from .static_inputs.static_evaluation import knowing

_UNKNOWN_TYPE = re.compile(r"Found <class '([^']*)'> in output, which is not a known type")
_CHANGED_CONSTANT = re.compile(r"Constant (\S+) is mutated in the forward")
_OPERATOR = re.compile(r"\w+::\w+")
# In the meta of a program: whether the forward left something in attributes, and what it read of inputs.
KEEPS = "shardwright_keeps"
READS = "shardwright_reads"
# Whether buffers are updated again as backward does, none if that makes no difference; and the first line
# that writes one under a checkpoint, where a backward follows.
AGAIN = "shardwright_again"
WRITES = "shardwright_writes"
_GRAD_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST_REGION = torch.ops.higher_order.wrap_with_autocast
_LOGGERS = ("torch.fx", "torch._export", "torch.export", "torch._subclasses.fake_tensor")
_DATA_DEPENDENT = (
    "GuardOnDataDependentSymNode",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
)


def trace(
    module: nn.Module,
    names: Names,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    casting: Casting,
    device: str | None = None,
    opaque: Opaque | None = None,
    known: Known | None = None,
    inputs: Sequence[Tensor] = (),
    floats: bool = True,
    backward: bool = True,
) -> ExportedProgram:
    """The decomposed program, functional, with its no_grad regions as marks on nodes. The values of some
    `inputs` are known, to Python with `floats` also numbers that are no integers. With a `backward`, what is
    under a checkpoint runs again in it."""
    known = known or Known(module)
    program = _export(module, args, kwargs, casting, device, opaque or Opaque(), known, inputs, floats)
    _inline_regions(program)
    if known.forget_written(program):
        return trace(module, names, args, kwargs, casting, device, opaque, known, inputs, floats, backward)
    write_registered(program)
    _refuse_values_in_python(program.graph)
    with quiet():
        found = make_casts_explicit(program)
    _merge_ties(program, names)
    writes = writes_under_checkpoints(program)
    as_buffers(program, module, names, casting)
    write_without_detach(program)
    refuse_hidden_writes(program)
    index_strided(program)
    write_out_statistics(program)
    draw_on_fresh(program)
    keep_detach(program)
    drew = [(node, is_unread(node)) for node in drawn(program)]
    functional = _make_functional(program)
    draw_what_is_lost(functional, drew)
    as_parameters(functional, module, names)
    _refuse_mutation(functional)
    cast_parameters(functional, module, casting)
    read_casts(functional)
    settle_meaning(functional)
    in_known_distributions(functional)
    note_order(functional)
    simplify(functional, _trained(functional, module))
    again = False if writes is not None else None
    if backward:
        again = update_again(functional, _trained(functional, module)) or None
    fuse_experts(functional)
    fuse_mixtures(functional)
    simplify_masks(functional)
    sweep(functional.graph)
    refuse_chance(functional)
    functional.graph_module.meta |= {NOTE: found, AGAIN: again, WRITES: writes if backward else None}
    for kept in (KEEPS, READS):
        functional.graph_module.meta[kept] = program.graph_module.meta[kept]
    return functional


def _trained(program: ExportedProgram, module: nn.Module) -> set[str]:
    """The parameters that are trained, and the inputs of which the caller wants the gradient."""
    parameters = {name for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    inputs = set(program.graph_signature.user_inputs)
    wanted = (
        node.name
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in inputs and _wants_gradient(node)
    )
    return {*parameters, *wanted}


def _wants_gradient(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.requires_grad


def _export(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    casting: Casting,
    device: str | None,
    opaque: Opaque,
    known: Known,
    inputs: Sequence[Tensor],
    floats: bool,
) -> ExportedProgram:
    attach = known.attached(module)
    fake = Fake(casting.computed)
    registered = Registered()
    attribute = fake.attributes(module, registered)
    fresh = pytree.tree_map_only(Tensor, fake.fresh, (tuple(args), dict(kwargs)))
    try:
        with (
            quiet(),
            same_randomness(),
            torch.enable_grad(),
            guarded(device, module),
            capturable_experts(module),
            masks_as_they_run(),
            averages_in_tensors(module),
            borrowed(module, fake.once, attribute),
            standing_for(module, opaque),
            passing_checks(opaque.checks),
            losses_as_operators(),
            selecting_late(),
            registered_as_operators(),
            registered,
            knowing(module, args, kwargs, inputs, floats) as reading,
        ):
            # Export takes back what it sees, so this looks at once after the forward.
            before, after = kept_by(module), []
            module.register_forward_hook(lambda *_: after.append(kept_by(module)))
            module.register_forward_pre_hook(attach)
            program = torch.export.export(module, *fresh, strict=False)
            program.graph_module.meta[KEEPS] = any(changes(before, kept) for kept in after)
            program.graph_module.meta[READS] = reading()
            return program
    except ShardwrightError:
        raise
    except Exception as error:
        raise said_in(place_in(error), refusal(error)) from error


def _make_functional(program: ExportedProgram) -> ExportedProgram:
    """Turns in-place operators into functional ones and leaves the others whole."""
    if write_out(program):
        return program
    program.graph_module.recompile()  # what follows runs its code
    try:
        with quiet(), torch.enable_grad(), no_autocast():
            functional: ExportedProgram = program.run_decompositions({})
    except Exception as error:
        raise refusal(error) from error
    # PyTorch takes a buffer `mean` for an operator of that name.
    for node in functional.graph.find_nodes(op="placeholder"):
        node.meta.pop("custom", None)
    _in_order(functional)
    return functional


def _in_order(program: ExportedProgram) -> None:
    """The results in the order in which the model gives them. PyTorch made its containers anew, which
    orders the keys of some (of Transformers' outputs, what was set later), and tells their structure as it
    was."""
    specs, output = program.graph_signature.output_specs, program.graph.output_node()
    users = [at for at, spec in enumerate(specs) if spec.kind is OutputKind.USER_OUTPUT]
    tree = program.call_spec.out_spec
    if tree is None or tree.num_leaves != len(users):
        return
    made = pytree.tree_leaves(pytree.tree_unflatten(list(range(len(users))), tree))
    by_place = dict(zip(made, users, strict=True))
    order = list(range(len(specs)))
    for place, at in enumerate(users):
        order[at] = by_place[place]
    specs[:] = [specs[at] for at in order]
    output.args = (tuple(output.args[0][at] for at in order),)


@contextmanager
def quiet() -> Iterator[None]:
    """PyTorch tells much that our own errors tell better."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        printed = io.StringIO()
        try:
            with redirect_stderr(printed):
                yield
            sys.stderr.write(printed.getvalue())
        finally:
            for logger, level in zip(loggers, levels, strict=False):
                logger.setLevel(level)


def refusal(error: Exception) -> CaptureError:
    """What is said of an error of PyTorch's, or of the model's, while it is captured."""
    place = lines.place_of_error(error)
    if any(kind.__name__ in _DATA_DEPENDENT for kind in type(error).__mro__):
        return data_dependent(place)
    first = str(error).strip().split("\n")[0]
    if unknown := _UNKNOWN_TYPE.search(first):
        return unknown_type(unknown[1])
    if changed := _CHANGED_CONSTANT.match(first):
        return kept_error(changed[1], place)
    fix = (
        "check that the model runs on these inputs; if it does, write this line with tensor"
        " operators that torch.export can trace"
    )
    if "no fake impl" in first and (operator := _OPERATOR.search(first)):
        fix = (
            f'register what its results look like, `torch.library.register_fake("{operator[0]}")`, and its'
            " backward with `register_autograd`; or put the call into a module of its own, which then runs"
            " as it is"
        )
    return CaptureError(
        "SW0101", "the model cannot be captured", place=place, why=lines.said_by(error), fix=fix
    )


def unknown_type(name: str) -> CaptureError:
    return CaptureError(
        "SW0108",
        f"the model returns a `{name.rpartition('.')[2]}`, whose tensors are not known",
        why="only tuples, lists, dicts, and classes that are registered with PyTorch are taken apart",
        fix="return one of those, or register the class once: for a dataclass"
        " `torch.export.register_dataclass(Class, serialized_type_name=...)`",
    )


def data_dependent(place: str | None) -> CaptureError:
    return CaptureError(
        "SW0102",
        READS_DATA,
        place=place,
        why="a branch, size or number taken from data would be baked into the program",
        fix="keep the value in a tensor (torch.where, masks), or pass it as a Python argument",
    )


def _refuse_values_in_python(graph: fx.Graph) -> None:
    """Sizes and numbers that are taken from data."""
    for node in graph.nodes:
        tensors = [leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]
        sized = any(type(size) is not int for tensor in tensors for size in tensor.shape)
        read = next((one for one in node.all_input_nodes if isinstance(one.meta.get("val"), _SYMBOLIC)), None)
        if sized or (tensors and read):
            where = read or node
            error = said_of(where.stack_trace, data_dependent(lines.with_source(where.stack_trace)))
            raise said_in(module_of(where), error)


_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


# ---- regions -------------------------------------------------------------------------------


def _inline_regions(program: ExportedProgram) -> None:
    """Puts the nodes of every region into the graph, marked: decomposing would lose the regions."""
    module = program.graph_module
    # Export cuts regions out of the graph, and a node that nothing reads may be forgotten among the readers
    # of another.
    for node in module.graph.nodes:
        for read in node.all_input_nodes:
            read.users.setdefault(node)
    for name, inner in _inline_all(module):
        program.graph_signature.replace_all_uses(name, inner.name)
    for node in (node for node in module.graph.nodes if node.op == "call_function"):
        mark_no_grad(node, node.meta.get(NO_GRAD, False))
        mark_spans(node, node.meta.get(SPANS, ()))
    drop_unread(module.graph)


def _inline_all(owner: fx.GraphModule) -> list[tuple[str, fx.Node]]:
    """The names of the regions' results, and the nodes that are there instead."""
    renamed = []
    for node in list(owner.graph.nodes):
        if node.target in (_GRAD_REGION, _AUTOCAST_REGION):
            renamed += _inline(owner, node)
    return renamed


def _inline(owner: fx.GraphModule, call: fx.Node) -> list[tuple[str, fx.Node]]:
    body, operands = _body(owner, call)
    _inline_all(body)
    results = _copy_body(body, call, operands)
    renamed = []
    for user in list(call.users):
        inner = results[user.args[1]]  # type: ignore[index]
        renamed.append((user.name, inner))
        user.replace_all_uses_with(inner)
        owner.graph.erase_node(user)
    owner.graph.erase_node(call)
    return renamed


def _body(owner: fx.GraphModule, call: fx.Node) -> tuple[fx.GraphModule, list[Any]]:
    place = 1 if call.target is _GRAD_REGION else 4
    reference: Any = call.args[place]
    body = owner.get_submodule(str(reference.target))
    assert isinstance(body, fx.GraphModule)
    return body, list(call.args[place + 1 :])


def _copy_body(body: fx.GraphModule, call: fx.Node, operands: list[Any]) -> Sequence[Any]:
    """Copies the nodes of a region before its call; returns its results."""
    copies: dict[fx.Node, Any] = dict(zip(body.graph.find_nodes(op="placeholder"), operands, strict=False))
    results: Any = ()
    for node in body.graph.nodes:
        if node.op == "output":
            results = pytree.tree_map_only(fx.Node, copies.__getitem__, node.args[0])
        elif node.op == "call_function":
            with call.graph.inserting_before(call):
                copies[node] = call.graph.node_copy(node, copies.__getitem__)
    return results  # type: ignore[no-any-return]


# ---- mutation ------------------------------------------------------------------------------


def _merge_ties(program: ExportedProgram, names: Names) -> None:
    """All names of a buffer become one input, so that all see its changes."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    first: dict[str, fx.Node] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.BUFFER:
            node = nodes[spec.arg.name]
            kept = first.setdefault(names.canonical(str(spec.target)), node)
            if kept is not node:
                node.replace_all_uses_with(kept)
                _unalias(program, str(spec.target))


def _unalias(program: ExportedProgram, name: str) -> None:
    """Decomposing refuses a change of a tensor that is there twice."""
    for values in (program.state_dict, program.constants):
        if name in values:
            values[name] = values[name].clone()


def _refuse_mutation(program: ExportedProgram) -> None:
    nodes = {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.output_specs:
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION):
            continue
        node = nodes.get(spec.arg.name)
        raise CaptureError(
            "SW0109",
            f"the model changes an argument, `{spec.target}`, in place",
            place=lines.with_source(node.stack_trace) if node else None,
            why="ranks hold copies and shards of an input, which would then differ",
            fix="compute a new tensor, or keep the value in a buffer",
        )


def updated_of(program: ExportedProgram) -> list[str]:
    """The buffers and parameters that a forward changes."""
    specs = program.graph_signature.output_specs
    return [str(spec.target) for spec in specs if spec.kind is OutputKind.BUFFER_MUTATION]


def results_of(program: ExportedProgram) -> list[fx.Node | Any]:
    """The leaves of the result: nodes, and baked values."""
    nodes = {node.name: node for node in program.graph.nodes}
    leaves: list[Any] = []
    for spec in program.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_OUTPUT:
            baked = isinstance(spec.arg, ConstantArgument)
            leaves.append(spec.arg.value if baked else nodes[spec.arg.name])
    return leaves
