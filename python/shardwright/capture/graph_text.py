"""The text form of a graph, which ``crates/graph`` reads; its module doc is the contract."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from ..errors import CaptureError
from . import lines
from .casts import Casting
from .checkpointed_regions import spans_of
from .fx_nodes import is_getitem, is_no_grad, results_of
from .random.memory_format import ORDER
from .spec import CallSpec, ResultSpec
from .state.memory import Aliases
from .state.names import Names
from .tensor_names import assigned_names
from .torch_errors import data_dependent

DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
# They say where and how a tensor lies on a device, which the graph does not know.
_PLACEMENT = ("device", "layout", "pin_memory", "memory_format")
_PLACEMENT_TYPES = (torch.device, torch.layout, torch.memory_format)


@dataclass
class Sources:
    """What the placeholders of a program stand for."""

    inputs: list[fx.Node | None] = field(default_factory=list)
    params: dict[str, fx.Node] = field(default_factory=dict)
    buffers: dict[str, list[fx.Node]] = field(default_factory=dict)
    constants: dict[str, fx.Node] = field(default_factory=dict)


def sources_of(program: ExportedProgram, names: Names) -> Sources:
    sources = Sources()
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        node = nodes[spec.arg.name]
        if spec.kind is InputKind.USER_INPUT:
            sources.inputs.append(node if isinstance(node.meta.get("val"), Tensor) else None)
        elif spec.kind is InputKind.PARAMETER:
            # Of several names of a parameter one is read.
            name = names.canonical(str(spec.target))
            if node.users or name not in sources.params:
                sources.params[name] = node
        elif spec.kind is InputKind.BUFFER:
            sources.buffers.setdefault(names.canonical(str(spec.target)), []).append(node)
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            sources.constants[str(spec.target)] = node
        elif node.users:
            raise _strange_input(spec)
    sources.constants = {name: node for name, node in sources.constants.items() if node.users}
    return sources


def constants_of(program: ExportedProgram, sources: Sources, aliases: Aliases) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    for name, node in sources.constants.items():
        value = program.constants[name]
        if not isinstance(value, Tensor) or isinstance(value, FakeTensor) or value.is_meta:
            raise _no_source(name, node)
        if aliases.base(value) is not None:
            raise _registered_elsewhere(name, node)
        values[name] = value.detach().resolve_conj().resolve_neg()
    return values


def print_graph(
    module: nn.Module,
    program: ExportedProgram,
    names: Names,
    sources: Sources,
    call: CallSpec,
    result: ResultSpec,
    casting: Casting,
    wanted: Sequence[bool],
) -> str:
    """``wanted`` says of which inputs the caller wants the gradient."""
    return _Printer(module, program, names, sources, casting, wanted).text(call, result)


class _Printer:
    def __init__(
        self,
        module: nn.Module,
        program: ExportedProgram,
        names: Names,
        sources: Sources,
        casting: Casting,
        wanted: Sequence[bool],
    ) -> None:
        self.module = module
        self.casting, self.wanted = casting, wanted
        self.program = program
        self.state = names
        self.sources = sources
        self.taken: set[str] = set()
        self.calls: dict[str, int] = {}
        self.tensors: dict[fx.Node, str] = {}
        self.modules: dict[str, str] = {}
        self.spans: dict[int, int] = {}
        self.assigned = assigned_names([n for n in program.graph.nodes if self.is_op(n)])

    def text(self, call: CallSpec, result: ResultSpec) -> str:
        head = [
            "shardwright-graph 1",
            f"model {_quoted(type(self.module).__name__)}",
            f"in_spec {_quoted(call.text())}",
            f"out_spec {_quoted(result.text())}",
        ]
        sources = [*self.inputs(), *self.params(), *self.buffers(), *self.constants()]
        ops = [self.op(n) for n in self.program.graph.nodes if self.is_op(n)]
        modules = [f"module {_quoted(path)} {_quoted(kind)}" for path, kind in self.modules.items()]
        return "\n".join([*head, *modules, *sources, *ops, *self.outputs(), *self.updates()]) + "\n"

    # -- sources

    def inputs(self) -> list[str]:
        tensors = [node for node in self.sources.inputs if node is not None]
        grad = [" grad" if wanted else "" for wanted in self.wanted]
        return [f"input {self.define(n, n.name)} {i}{grad[i]}" for i, n in enumerate(tensors)]

    def params(self) -> list[str]:
        written = []
        for first, group in self.state.params.items():
            param = self.module.get_parameter(first)
            node = self.sources.params.get(first)
            frozen = "" if param.requires_grad else " frozen"
            typed = self.define_state(node, "p_" + first, param, self.casting.read(param))
            written.append(f"param {typed} {' '.join(map(_quoted, group))}{frozen}")
        return written

    def buffers(self) -> list[str]:
        written = []
        for first in self.state.buffers:
            buffer = self.module.get_buffer(first)
            nodes = self.sources.buffers.get(first, [])
            typed = self.define_state(nodes[0] if nodes else None, "b_" + first, buffer, buffer.dtype)
            self.tensors.update(dict.fromkeys(nodes, self.tensors[nodes[0]]))
            transient = "" if first in self.state.persistent else " transient"
            written.append(f"buffer {typed} {_quoted(first)}{transient}")
        return written

    def constants(self) -> list[str]:
        named = self.sources.constants.items()
        return [f"const {self.define(n, f'c_{i}')} {_quoted(name)}" for i, (name, n) in enumerate(named)]

    def define_state(self, node: fx.Node | None, wanted: str, tensor: Tensor, dtype: torch.dtype) -> str:
        name = self.fresh(wanted)
        if node is not None:
            self.tensors[node] = name
            dtype = node.meta["val"].dtype
        return _typed(name, tensor.shape, dtype, None)

    def define(self, node: fx.Node, wanted: str) -> str:
        self.tensors[node] = self.fresh(wanted)
        value = node.meta["val"]
        return _typed(self.tensors[node], value.shape, value.dtype, node)

    def fresh(self, wanted: str) -> str:
        base = re.sub(r"[^A-Za-z0-9_]", "_", wanted)
        name, count = base, 0
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    # -- operators

    @staticmethod
    def is_op(node: fx.Node) -> bool:
        return node.op == "call_function" and not is_getitem(node)

    def op(self, node: fx.Node) -> str:
        target = _target(node)
        arguments = ", ".join([*map(self.value_in(node), node.args), *self.keywords(node)])
        outputs = ", ".join(self.results(node))
        path, place = self.path(node), lines.short(node.stack_trace)
        region = " nograd" if is_no_grad(node) else ""
        if spans := [self.spans.setdefault(span, len(self.spans)) for span in spans_of(node)]:
            region += f" span {spans}"
        if ORDER in node.meta:
            region += f" order {node.meta[ORDER]}"
        return f"op {outputs} = {target}({arguments}) in {_quoted(path)} at {_quoted(place)}{region}"

    def results(self, node: fx.Node) -> list[str]:
        """The results, named as the model names them, else after the operator."""
        value = node.meta.get("val")
        assigned = self.assigned.get(node, [])
        if isinstance(value, Tensor):
            return [self.define(node, assigned[0] if len(assigned) == 1 else self.numbered(node))]
        if not isinstance(value, (tuple, list)):
            raise data_dependent(lines.with_source(node.stack_trace))
        readers = {int(user.args[1]): user for user in node.users}  # type: ignore[arg-type]
        if len(assigned) == len(value):
            names = dict(enumerate(assigned))
        elif len(assigned) == len(readers) == 1:
            names = dict.fromkeys(readers, assigned[0])
        else:
            base = self.numbered(node)
            names = {i: base if len(readers) == 1 else f"{base}_{i}" for i in readers}
        places = range(len(value))
        return [self.define(readers[i], names[i]) if i in readers else "_" for i in places]

    def numbered(self, node: fx.Node) -> str:
        base = node.target._opname.strip("_")  # type: ignore[union-attr]
        count = self.calls.get(base, 0)
        self.calls[base] = count + 1
        return f"{base}_{count}" if count else base

    def keywords(self, node: fx.Node) -> list[str]:
        order = [argument.name for argument in node.target._schema.arguments]  # type: ignore
        kept = sorted((k for k in node.kwargs if k not in _PLACEMENT), key=order.index)
        return [f"{key}={self.value_in(node)(node.kwargs[key])}" for key in kept]

    def value_in(self, node: fx.Node) -> Callable[[Any], str]:
        def value(item: Any) -> str:
            if isinstance(item, fx.Node):
                if item not in self.tensors:
                    raise data_dependent(lines.with_source(item.stack_trace or node.stack_trace))
                return f"%{self.tensors[item]}"
            if isinstance(item, (list, tuple)):
                return f"[{', '.join(map(value, item))}]"
            if item is None or isinstance(item, _PLACEMENT_TYPES):
                return "None"
            if isinstance(item, (bool, int, float)):
                return repr(item)
            if isinstance(item, str):
                return _quoted(item)
            if isinstance(item, torch.dtype):
                return _dtype(item, node)
            if isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                raise data_dependent(lines.with_source(node.stack_trace))
            raise _strange_argument(node, item)

        return value

    def path(self, node: fx.Node) -> str:
        """The innermost module, and the classes of all modules around it."""
        path = ""
        for key, (name, kind) in (node.meta.get("nn_module_stack") or {}).items():
            full = kind if isinstance(kind, str) else kind.__qualname__
            self.modules.setdefault(name, full.rsplit(".", 1)[-1])
            call = re.search(r"@\d+$", key)
            path = name + (call[0] if call else "")
        return path

    # -- results

    def outputs(self) -> list[str]:
        return [self.output(leaf) for leaf in results_of(self.program)]

    def output(self, leaf: Any) -> str:
        if not isinstance(leaf, fx.Node):
            return "output none"
        if leaf not in self.tensors:
            raise data_dependent(lines.with_source(leaf.stack_trace))
        return f"output %{self.tensors[leaf]}"

    def updates(self) -> list[str]:
        nodes = {node.name: node for node in self.program.graph.nodes}
        written = {}
        for spec in self.program.graph_signature.output_specs:
            if spec.kind is OutputKind.BUFFER_MUTATION:
                name = self.state.canonical(str(spec.target))
                written[name] = f"update {_quoted(name)} %{self.tensors[nodes[spec.arg.name]]}"
        return [written[name] for name in (*self.state.params, *self.state.buffers) if name in written]


def _target(node: fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    if getattr(node.target, "__module__", None) in ("_operator", "math"):
        raise data_dependent(lines.with_source(node.stack_trace))
    raise CaptureError(
        "SW0110",
        f"the graph cannot hold the operator `{node.target}`",
        place=lines.with_source(node.stack_trace),
        why="it is not an ATen operator and not a registered custom operator",
        fix="write this part with plain tensor operators",
    )


def _typed(name: str, sizes: Sequence[Any], dtype: torch.dtype, node: fx.Node | None) -> str:
    if not all(type(size) is int for size in sizes):
        raise data_dependent(lines.with_source(node.stack_trace) if node else None)
    return f"%{name} {_dtype(dtype, node)}[{','.join(map(str, sizes))}]"


def _dtype(dtype: torch.dtype, node: fx.Node | None) -> str:
    if dtype not in DTYPES:
        raise CaptureError(
            "SW0111",
            f"the graph cannot hold tensors of type {dtype}",
            place=lines.with_source(node.stack_trace) if node else None,
            fix=f"use one of {', '.join(DTYPES.values())}",
        )
    return DTYPES[dtype]


def _quoted(text: str) -> str:
    return json.dumps(text)


def _strange_argument(node: fx.Node, item: Any) -> CaptureError:
    return CaptureError(
        "SW0110",
        f"the graph cannot hold the argument `{item!r}` of `{node.target}`",
        place=lines.with_source(node.stack_trace),
        fix="pass numbers, strings, dtypes and tensors only",
    )


def _strange_input(spec: InputSpec) -> CaptureError:
    return CaptureError(
        "SW0110",
        f"the model reads `{spec.target}`, which is not a tensor",
        fix="replace the object by tensors and plain Python values",
    )


def _registered_elsewhere(name: str, node: fx.Node) -> CaptureError:
    reader = next(iter(node.users), None)
    return CaptureError(
        "SW0136",
        f"the model reads the memory of a parameter or buffer under another name, `{name}`",
        place=lines.with_source(reader.stack_trace) if reader else None,
        why="it would be a constant of the program, and would not follow changes of the parameter or buffer",
        fix="read it by its own name, from the module that it is registered in",
    )


def _no_source(name: str, node: fx.Node) -> CaptureError:
    reader = next(iter(node.users), None)
    return CaptureError(
        "SW0112",
        f"the tensor `{name}` has no value",
        place=lines.with_source(reader.stack_trace) if reader else None,
        why="it is on meta, and neither a parameter nor a buffer that could be loaded later",
        fix="make it a buffer, or make it inside forward",
    )
