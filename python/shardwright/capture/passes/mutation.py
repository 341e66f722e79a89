"""What a forward changes in place: buffers, by whichever of their names, and no inputs."""

from __future__ import annotations

from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from ...errors import CaptureError
from .. import lines
from ..state.names import Names


def merge_ties(program: ExportedProgram, names: Names) -> None:
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


def refuse_changed_inputs(program: ExportedProgram) -> None:
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
