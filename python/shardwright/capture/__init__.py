"""Capture: a PyTorch module and example inputs become the text of a graph."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx, nn

from ..errors import CaptureError
from .experts import notes as notes_on_experts
from .names import Names
from .spec import CallSpec, ResultSpec
from .text import constants_of, print_graph, sources_of
from .trace import results_of, trace
from .verify import can_verify, verify_capture

__all__ = ["CallSpec", "CaptureError", "Captured", "ResultSpec", "capture"]


@dataclass
class Captured:
    """A graph and what is needed to call its program like the module."""

    graph_text: str
    constants: dict[str, Tensor]
    """The values of the ``const`` lines, by name, on the CPU."""
    in_spec: CallSpec
    out_spec: ResultSpec
    buffer_aliases: dict[str, str] = field(default_factory=dict)
    """Further names of tied buffers, and the name that has the ``buffer`` line."""
    verified: bool = False
    """Whether graph and module were compared on the example inputs."""
    notes: list[str] = field(default_factory=list)

    @property
    def structure(self) -> Hashable:
        """By this a program is chosen for a call."""
        return self.in_spec.structure

    def describe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Hashable, list[Tensor]]:
        """The structure of any call, and its tensors."""
        return self.in_spec.describe(args, kwargs)

    def tensor_names(self, structure: Hashable) -> list[str]:
        """What a person calls the tensors of a structure, by position."""
        return self.in_spec.tensor_names(structure)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Tensor]:
        """The tensors of a call, by the positions of the ``input`` lines."""
        return self.in_spec.flatten(args, kwargs)

    def output_names(self) -> list[str]:
        """What a person calls the results, such as ``hidden_states.0``, by the ``output`` lines."""
        return self.out_spec.names()

    def unflatten(self, outputs: Sequence[Tensor | None]) -> Any:
        """The module's result from the tensors of the ``output`` lines."""
        return self.out_spec.unflatten(outputs)


def capture(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    verify: bool | None = None,
) -> Captured:
    """Captures one forward of a module in the mode (training or not) that it is in.

    The text is the same for real and meta tensors, and says which inputs require a gradient. ``verify``
    compares the graph with the module
    on the example inputs, gradients too; by default where parameters and inputs have values.
    The module is as before afterwards.
    """
    call = CallSpec.of_call(module.forward, args, kwargs or {})
    bound = call.bind(args, kwargs or {})
    names = Names.of(module)
    program = trace(module, names, bound.args, bound.kwargs)
    result = ResultSpec.of_leaves(_result_tree(program), _leaves(results_of(program)))
    sources = sources_of(program, names)
    constants = constants_of(program, sources)
    wanted = [tensor.requires_grad for tensor in call.flatten(args, kwargs)]
    text = print_graph(module, program, names, sources, call, result, wanted)
    captured = Captured(text, constants, call, result, _aliases(names))
    if verify or (verify is None and can_verify(module, bound)):
        captured.notes += verify_capture(module, bound, program, sources, constants, result)
        captured.verified = not captured.notes
    captured.notes += notes_on_experts(module)
    return captured


def _result_tree(program: Any) -> Any:
    return program.call_spec.out_spec


def _leaves(results: list[Any]) -> list[Any]:
    return [leaf.meta["val"] if isinstance(leaf, fx.Node) else leaf for leaf in results]


def _aliases(names: Names) -> dict[str, str]:
    return {other: first for first, (_, *rest) in names.buffers.items() for other in rest}
