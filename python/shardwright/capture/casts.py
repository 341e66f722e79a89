"""In which dtypes a model is traced that is not computed in its own."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.nn.modules.batchnorm import _NormBase

from ..precision import Precision


class Casting:
    """The dtypes of a module's parameters under a precision, or their own without one.

    What stands beside running statistics, which are buffers and keep their dtype, keeps its own:
    batch norm computes with both.
    """

    def __init__(self, module: nn.Module, precision: Precision | None = None):
        self.precision = precision
        norms = [
            part for part in module.modules() if isinstance(part, _NormBase) and list(part.buffers(False))
        ]
        self._kept = {id(parameter) for norm in norms for parameter in norm.parameters(False)}

    def read(self, parameter: Tensor) -> torch.dtype:
        """What a forward reads of a parameter."""
        return self._cast(parameter, self.precision.param) if self.precision else parameter.dtype

    def computed(self, parameter: Tensor) -> torch.dtype:
        """What the model's operators see of it."""
        return self._cast(parameter, self.precision.compute) if self.precision else parameter.dtype

    def _cast(self, parameter: Tensor, dtype: torch.dtype) -> torch.dtype:
        keeps = not parameter.is_floating_point() or id(parameter) in self._kept
        return parameter.dtype if keeps else dtype


def cast_parameters(program: ExportedProgram, module: nn.Module, casting: Casting) -> None:
    """Where they are read in another dtype than computed with: the model was traced with the latter."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in program.graph_signature.input_specs:
        node = nodes.get(spec.arg.name)
        if spec.kind is InputKind.PARAMETER and node is not None:
            parameter = module.get_parameter(str(spec.target))
            if casting.read(parameter) != casting.computed(parameter) and node.users:
                _cast_after(node, casting.read(parameter))


def _cast_after(node: fx.Node, dtype: torch.dtype) -> None:
    value = node.meta["val"]
    first = next(user for user in node.graph.nodes if user in node.users)
    with node.graph.inserting_before(first):
        cast = node.graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": value.dtype})
    cast.meta = {**first.meta, "val": value}
    node.replace_all_uses_with(cast, lambda user: user is not cast)
    node.meta["val"] = value.to(dtype)
