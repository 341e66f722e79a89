"""The passes that rewrite the graph which PyTorch exports, in their order.

`PASSES` is all of them, each with the reason why it stands where it does. Those before `functional` see the
program as the model writes it, in place and with tensors that lie as in the model. Those after it see
functional operators of ATen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from ..autocast import make_casts_explicit, read_casts
from ..casts import Casting, cast_parameters
from ..opaque.rules import write_registered
from ..random.distributions import in_known_distributions
from ..random.draws import refuse_unkeyed_draws
from ..random.memory_format import draw_on_fresh, note_order
from ..random.unread_draws import draw_what_is_lost, drawn, is_unread
from ..state.names import Names
from ..static_inputs.reading import Reading
from ..torch_errors import quiet
from .canonical import make_canonical
from .checkpointed_updates import repeat_updates, writes_under_checkpoints
from .detached import keep_detach, refuse_hidden_writes, write_without_detach
from .experts import fuse_experts
from .functional import make_functional
from .grouped_heads import group_heads
from .instance_norms import write_out_statistics
from .masks import simplify_masks
from .mixtures import fuse_mixtures
from .mutation import merge_ties, refuse_changed_inputs
from .parameter_updates import as_buffers, as_parameters
from .python_values import refuse_python_values
from .simplify import simplify, sweep
from .strided import index_strided


@dataclass
class Traced:
    """A program on its way through the passes, and what they find out of it."""

    program: ExportedProgram
    module: nn.Module
    names: Names
    casting: Casting
    backward: bool
    """Whether one follows each forward."""
    keeps: bool
    """Whether the forward left something in attributes."""
    reading: Reading
    """What it read of inputs in Python."""
    device: str | None = None
    """The kind of device whose autocast the program has, if it has any."""
    writes: str | None = None
    """The model's first line that writes a buffer or parameter under a checkpoint, where a backward follows;
    empty where it is not known."""
    for_backward: bool | None = None
    """Whether buffers are updated again as backward does; none if that makes no difference."""
    is_sure: bool = True
    """Whether that is right without looking at what backward does."""
    draws: list[tuple[fx.Node, bool]] = field(default_factory=list)
    """The nodes that drew in the program as written, and whether nobody reads what they did."""

    def trained(self) -> set[str]:
        """The parameters that are trained, and the inputs of which the caller wants the gradient."""
        named = self.module.named_parameters(remove_duplicate=False)
        parameters = {name for name, parameter in named if parameter.requires_grad}
        inputs = set(self.program.graph_signature.user_inputs)
        wanted = (
            node.name
            for node in self.program.graph.nodes
            if node.op == "placeholder" and node.name in inputs and _wants_gradient(node)
        )
        return {*parameters, *wanted}


@dataclass(frozen=True)
class Pass:
    name: str
    run: Callable[[Traced], None]
    why: str
    """Why it stands where it does."""


def run_passes(traced: Traced) -> None:
    for each in PASSES:
        each.run(traced)


def _wants_gradient(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.requires_grad


def _of_program(rewrite: Callable[[ExportedProgram], None]) -> Callable[[Traced], None]:
    """A pass that needs nothing else."""
    return lambda traced: rewrite(traced.program)


def _refuse_python_values(traced: Traced) -> None:
    refuse_python_values(traced.program.graph)


def _make_casts_explicit(traced: Traced) -> None:
    with quiet():
        traced.device = make_casts_explicit(traced.program)


def _merge_ties(traced: Traced) -> None:
    merge_ties(traced.program, traced.names)


def _find_updates_under_checkpoints(traced: Traced) -> None:
    writes = writes_under_checkpoints(traced.program)
    traced.writes = writes if traced.backward else None
    traced.for_backward = None if writes is None else False


def _parameters_as_buffers(traced: Traced) -> None:
    as_buffers(traced.program, traced.module, traced.names, traced.casting)


def _note_draws(traced: Traced) -> None:
    traced.draws = [(node, is_unread(node)) for node in drawn(traced.program)]


def _make_functional(traced: Traced) -> None:
    traced.program = make_functional(traced.program)


def _draw_what_is_lost(traced: Traced) -> None:
    draw_what_is_lost(traced.program, traced.draws)


def _buffers_as_parameters(traced: Traced) -> None:
    as_parameters(traced.program, traced.module, traced.names)


def _cast_parameters(traced: Traced) -> None:
    cast_parameters(traced.program, traced.module, traced.casting)


def _simplify(traced: Traced) -> None:
    simplify(traced.program, traced.trained())


def _repeat_updates(traced: Traced) -> None:
    if traced.backward:
        updates = repeat_updates(traced.program, traced.trained())
        traced.for_backward, traced.is_sure = updates.are_repeated or None, updates.are_sure


def _sweep(traced: Traced) -> None:
    sweep(traced.program.graph)


PASSES = (
    # The program as the model writes it.
    Pass("registered rules", _of_program(write_registered), "operators with a rule of the user's stay one"),
    Pass("refuse Python values", _refuse_python_values, "nothing has been rewritten, so lines are exact"),
    Pass("explicit casts", _make_casts_explicit, "before the graph is run again in any way"),
    Pass("merge ties", _merge_ties, "before writes are looked for: all names of a buffer see its changes"),
    Pass(
        "find updates under checkpoints",
        _find_updates_under_checkpoints,
        "before parameters become buffers and writes become functional",
    ),
    Pass("parameters as buffers", _parameters_as_buffers, "decomposing lets a forward write buffers only"),
    Pass(
        "write without detach",
        _of_program(write_without_detach),
        "before hidden writes are refused: these hide nothing",
    ),
    Pass(
        "refuse hidden writes",
        _of_program(refuse_hidden_writes),
        "before they are functional, which loses their gradient",
    ),
    Pass("index strided", _of_program(index_strided), "while tensors lie as in the model"),
    Pass(
        "instance norms' statistics",
        _of_program(write_out_statistics),
        "before they are functional: the operator does not say that it writes",
    ),
    Pass(
        "draw on fresh tensors",
        _of_program(draw_on_fresh),
        "while draws in place and out of place can be told from each other",
    ),
    Pass("keep detach", _of_program(keep_detach), "before `detach_` is dropped; after what is refused of it"),
    Pass("note draws", _note_draws, "the last that sees all draws: the next drops unread ones"),
    # From here on operators are functional.
    Pass("functional", _make_functional, "after everything that needs writes in place"),
    Pass("draw what is lost", _draw_what_is_lost, "before draws are rewritten: they can still be counted"),
    Pass("buffers as parameters", _buffers_as_parameters, "first of what reads the kinds of inputs"),
    Pass(
        "refuse changed inputs",
        _of_program(refuse_changed_inputs),
        "after parameters are themselves again: only writes of inputs are left",
    ),
    Pass("cast parameters", _cast_parameters, "before casts that are read once are merged"),
    Pass("read casts", _of_program(read_casts), "after all casts of parameters are written"),
    Pass("canonical operators", _of_program(make_canonical), "before what goes by operators' names"),
    Pass(
        "known distributions",
        _of_program(in_known_distributions),
        "before their order is noted: of what is drawn by keys",
    ),
    Pass("note memory format", _of_program(note_order), "the last that sees tensors lie as in the model"),
    Pass("simplify", _simplify, "layouts are needed no more; the patterns below are of simple graphs"),
    Pass("repeat updates", _repeat_updates, "of simple updates; before fusing hides what they are made of"),
    Pass("fuse experts", _of_program(fuse_experts), "before mixtures, which are made of these products"),
    Pass("fuse mixtures", _of_program(fuse_mixtures), "after experts"),
    Pass(
        "simplify masks",
        _of_program(simplify_masks),
        "of simple graphs; leaves what a mask is made of unread",
    ),
    Pass("group heads", _of_program(group_heads), "after masks: kernels know groups where there is none"),
    Pass("sweep", _sweep, "what fusing, masks and repeated heads leave unread"),
    Pass(
        "refuse other draws", _of_program(refuse_unkeyed_draws), "of what is left, whose operators are final"
    ),
)
"""All passes, in order. A pass may rely on every one before it."""
