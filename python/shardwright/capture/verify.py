"""Compares the captured graph with the module: outputs, buffers and all gradients."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from ..errors import CaptureError
from .autocast import no_autocast
from .casts import Casting
from .guard import plain_checkpoint
from .lines import place_of_error
from .simplify import is_no_grad
from .spec import ResultSpec
from .swap import borrowed, same_randomness
from .text import Sources

_TOLERANCE = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
}
_COARSE = 2e-2
_SEED = 1234
_RANDOM_NOTE = (
    "graph and module were not compared: their random operators draw different numbers from one seed"
)


@dataclass
class Results:
    """What one run gave, by the names that people know."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)


def can_verify(module: nn.Module, bound: inspect.BoundArguments) -> bool:
    """Whether every parameter, buffer and argument has a value."""
    tensors = [*module.parameters(), *module.buffers(), *_tensors(bound)]
    return not any(t.is_meta or isinstance(t, FakeTensor) for t in tensors)


def verify_capture(
    module: nn.Module,
    bound: inspect.BoundArguments,
    program: ExportedProgram,
    sources: Sources,
    constants: dict[str, Tensor],
    result: ResultSpec,
    casting: Casting,
) -> list[str]:
    """Raises where they differ; returns notes about what could not be compared."""
    if not can_verify(module, bound):
        raise CaptureError(
            "SW0113",
            "graph and module cannot be compared",
            why="a parameter, a buffer or an argument is on meta and has no value",
            fix="leave out `verify=True`, or capture a module with values",
        )
    with same_randomness(), torch.enable_grad():
        expected = _expected(module, bound, casting)
        found = _run_graph(module, bound, program, sources, constants, casting)
    problem = _first_difference(found, expected)
    if problem is None:
        return []
    if _is_random(program):
        return [_RANDOM_NOTE]
    raise CaptureError(
        "SW0114",
        f"the captured graph does not compute what the module computes: {problem}",
        why="torch.export lost something of the module, such as a custom backward or a change of"
        " a tensor that it does not see",
        fix="run parts of the model through `shardwright.capture` to find the one that differs",
    )


def _expected(module: nn.Module, bound: inspect.BoundArguments, casting: Casting) -> Results:
    try:
        return _run_module(module, bound, casting)
    except Exception as error:
        raise CaptureError(
            "SW0115",
            "the model fails on the example inputs",
            place=place_of_error(error),
            why=f"{type(error).__name__}: {str(error).strip().splitlines()[0]}",
            fix="make the model run, forward and backward, on these inputs without Shardwright",
        ) from error


def _run_module(module: nn.Module, bound: inspect.BoundArguments, casting: Casting) -> Results:
    args, kwargs = _copies((bound.args, bound.kwargs))
    clones: dict[int, Tensor] = {}

    def table(tensor: Tensor) -> Tensor:
        if id(tensor) not in clones:
            is_param = isinstance(tensor, nn.Parameter)
            clones[id(tensor)] = _read(tensor, casting) if is_param else tensor.detach().clone()
        return clones[id(tensor)]

    def attribute(tensor: Tensor) -> Tensor:
        return table(tensor) if isinstance(tensor, nn.Parameter) else tensor

    torch.manual_seed(_SEED)
    with borrowed(module, table, attribute), plain_checkpoint():
        leaves = pytree.tree_leaves(module(*args, **kwargs))
        results = Results(buffers={n: b.detach() for n, b in module.named_buffers()})
    outputs = [leaf if isinstance(leaf, Tensor) else None for leaf in leaves]
    return _with_gradients(results, outputs, module, _tensors((args, kwargs)))


def _run_graph(
    module: nn.Module,
    bound: inspect.BoundArguments,
    program: ExportedProgram,
    sources: Sources,
    constants: dict[str, Tensor],
    casting: Casting,
) -> Results:
    device = next((t.device for t in [*module.parameters(), *_tensors(bound)]), torch.device("cpu"))
    leaves = pytree.tree_leaves(_copies((bound.args, bound.kwargs)))
    values: dict[fx.Node, Any] = {}
    for name, node in sources.params.items():
        values[node] = module.get_parameter(name).to(node.meta["val"].dtype)
    for name, nodes in sources.buffers.items():
        values.update(dict.fromkeys(nodes, module.get_buffer(name).detach().clone()))
    for name, node in sources.constants.items():
        values[node] = constants[name].to(device)
    for node, leaf in zip(_user_inputs(program), leaves, strict=True):
        values[node] = leaf
    torch.manual_seed(_SEED)
    flat = [values.get(node) for node in program.graph.nodes if node.op == "placeholder"]
    with no_autocast():
        outputs = _Interpreter(program.graph_module, device).run(*flat)
    return _named_results(program, module, outputs, [t for t in leaves if isinstance(t, Tensor)])


def _read(parameter: Tensor, casting: Casting) -> Tensor:
    """The cast that a rank makes of what it keeps, and that of the graph."""
    return parameter.to(casting.read(parameter)).to(casting.computed(parameter))


def _user_inputs(program: ExportedProgram) -> Iterator[fx.Node]:
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            yield nodes[spec.arg.name]


def _named_results(
    program: ExportedProgram, module: nn.Module, outputs: Sequence[Any], inputs: list[Tensor]
) -> Results:
    results = Results(buffers={n: b.detach() for n, b in module.named_buffers()})
    canonical = {id(buffer): name for name, buffer in module.named_buffers()}
    plain: list[Tensor | None] = []
    for spec, value in zip(program.graph_signature.output_specs, outputs, strict=True):
        if spec.kind is OutputKind.BUFFER_MUTATION:
            name = canonical[id(module.get_buffer(str(spec.target)))]
            results.buffers[name] = value.detach()
        else:
            plain.append(None if isinstance(spec.arg, ConstantArgument) else value)
    return _with_gradients(results, plain, module, inputs)


class _Interpreter(fx.Interpreter):
    """Runs the very nodes that the text lists: regions without gradients, on the real device."""

    def __init__(self, module: fx.GraphModule, device: torch.device) -> None:
        super().__init__(module)
        self.device = device

    def run_node(self, n: fx.Node) -> Any:
        with torch.set_grad_enabled(not is_no_grad(n)):
            return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": self.device}
        return super().call_function(target, args, kwargs)


def _with_gradients(
    results: Results, outputs: list[Tensor | None], module: nn.Module, inputs: list[Tensor]
) -> Results:
    for index, output in enumerate(outputs):
        if output is not None:
            results.outputs[f"output {index}"] = output.detach()
    wanted: dict[str, Tensor] = {}
    wanted |= {f"the gradient of parameter `{n}`": p for n, p in module.named_parameters()}
    wanted |= {f"the gradient of input {i}": t for i, t in enumerate(inputs)}
    wanted = {name: tensor for name, tensor in wanted.items() if tensor.requires_grad}
    terms = [_weighted(o, i) for i, o in enumerate(outputs) if o is not None and o.requires_grad]
    tensors = list(wanted.values())
    given: Sequence[Tensor | None] = [None] * len(tensors)
    if terms and tensors:
        total = torch.stack([term.to(terms[0].device) for term in terms]).sum()
        given = torch.autograd.grad(total, tensors, allow_unused=True)
    for (name, tensor), gradient in zip(wanted.items(), given, strict=True):
        results.gradients[name] = torch.zeros_like(tensor) if gradient is None else gradient
    return results


def _weighted(output: Tensor, index: int) -> Tensor:
    """A scalar that depends on every element in its own way."""
    real = torch.view_as_real(output) if output.is_complex() else output
    real = real.to(torch.float64).flatten()
    places = torch.arange(real.numel(), dtype=torch.float64, device=real.device)
    return (real * torch.cos(places + index)).sum()


def _first_difference(found: Results, expected: Results) -> str | None:
    for kind in ("outputs", "buffers", "gradients"):
        ours, theirs = getattr(found, kind), getattr(expected, kind)
        if list(ours) != list(theirs):
            return f"the {kind} are {', '.join(ours)}, not {', '.join(theirs)}"
        scale = _scale(list(theirs.values()))
        for name, tensor in theirs.items():
            label = f"buffer `{name}`" if kind == "buffers" else name
            difference = _difference(ours[name], tensor, scale)
            if difference is not None:
                return f"{label} {difference}"
    return None


def _scale(tensors: list[Tensor]) -> float:
    """The root mean square of the norms, so that a gradient that is mathematically zero is fine."""
    norms = [_norm(t) ** 2 for t in tensors if t.is_floating_point() or t.is_complex()]
    return (sum(norms) / len(norms)) ** 0.5 if norms else 0.0


def _difference(ours: Tensor, theirs: Tensor, scale: float) -> str | None:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"is {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return None if torch.equal(ours, theirs) else "differs"
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    error = _norm(torch.where(same, torch.zeros_like(ours), ours - theirs), finite=False)
    bound = _TOLERANCE.get(theirs.dtype, _COARSE) * max(_norm(theirs), 1e-3 * scale)
    if error <= bound:
        return None
    return f"differs by {error:.1e}, more than {bound:.1e}"


def _norm(tensor: Tensor, finite: bool = True) -> float:
    wide = tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)
    if finite:
        wide = torch.where(wide.isfinite(), wide, torch.zeros_like(wide))
    return float(torch.linalg.vector_norm(wide))


def _is_random(program: ExportedProgram) -> bool:
    tag = torch.Tag.nondeterministic_seeded
    return any(tag in getattr(node.target, "tags", ()) for node in program.graph.nodes)


def _copies(tree: Any) -> Any:
    def copy(tensor: Tensor) -> Tensor:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(Tensor, copy, tree)


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, inspect.BoundArguments):
        tree = (tree.args, tree.kwargs)
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
