"""From a module to the graph that `torch.export` makes of it, with what else a forward says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..errors import ShardwrightError
from .casts import Casting
from .control_flow.asserts import passing_checks
from .guard import guarded
from .lines import place_in, said_in
from .opaque.losses import losses_as_operators
from .opaque.modules import Opaque, standing_for
from .opaque.rules import registered_as_operators
from .opaque.selected import selecting_late
from .passes.regions import inline_regions
from .settings import capturable_experts, masks_as_they_run
from .state.batch_norms import averages_in_tensors
from .state.hidden import changes, kept_by
from .state.names import Names
from .state.registered import Registered
from .state.swap import Fake, borrowed, same_randomness
from .static_inputs.buffers import Known
from .static_inputs.reading import Reading
from .static_inputs.static_evaluation import knowing
from .torch_errors import quiet, refusal


@dataclass(frozen=True)
class Tracing:
    """What is traced, and what is known while it is."""

    module: nn.Module
    names: Names
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    casting: Casting
    device: str | None = None
    opaque: Opaque = field(default_factory=Opaque)
    known: Known | None = None
    """The values of buffers; without, those of the module."""
    inputs: Sequence[Tensor] = ()
    """Those whose values are known."""
    floats: bool = True
    """Whether Python is told numbers that are no integers."""
    backward: bool = True
    """Whether one follows: then what is under a checkpoint runs again in it."""


@dataclass(frozen=True)
class Exported:
    program: ExportedProgram
    """As it was written, in place where the model writes so; its regions are marks on nodes."""
    keeps: bool
    """Whether the forward left something in attributes."""
    reading: Reading
    """What it read of inputs in Python."""


def export(tracing: Tracing) -> Exported:
    """Traced again as long as it has read buffers that it writes."""
    known = tracing.known or Known(tracing.module)
    while True:
        exported = _export(tracing, known)
        inline_regions(exported.program)
        if not known.forget_written(exported.program):
            return exported


def _export(tracing: Tracing, known: Known) -> Exported:
    module, args, kwargs = tracing.module, tracing.args, tracing.kwargs
    attach = known.attached(module)
    fake = Fake(tracing.casting.computed)
    registered = Registered()
    attribute = fake.attributes(module, registered)
    fresh = pytree.tree_map_only(Tensor, fake.fresh, (tuple(args), dict(kwargs)))
    try:
        with (
            quiet(),
            same_randomness(),
            torch.enable_grad(),
            guarded(tracing.device, module),
            capturable_experts(module),
            masks_as_they_run(),
            averages_in_tensors(module),
            borrowed(module, fake.once, attribute),
            standing_for(module, tracing.opaque),
            passing_checks(tracing.opaque.checks),
            losses_as_operators(),
            selecting_late(),
            registered_as_operators(),
            registered,
            knowing(module, args, kwargs, tracing.inputs, tracing.floats) as reading,
        ):
            # Export takes back what it sees, so this looks at once after the forward.
            before, after = kept_by(module), []
            module.register_forward_hook(lambda *_: after.append(kept_by(module)))
            module.register_forward_pre_hook(attach)
            program = torch.export.export(module, *fresh, strict=False)
            return Exported(program, any(changes(before, kept) for kept in after), reading())
    except ShardwrightError:
        raise
    except Exception as error:
        raise said_in(place_in(error), refusal(error)) from error
