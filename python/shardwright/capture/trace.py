"""From a module to a functional ATen graph, by torch.export, losing nothing on the way."""

from __future__ import annotations

from .export import Tracing, export
from .passes import Traced, run_passes


def trace(tracing: Tracing) -> Traced:
    """The decomposed program, functional, with its no_grad regions as marks on nodes."""
    exported = export(tracing)
    traced = Traced(
        exported.program,
        tracing.module,
        tracing.names,
        tracing.casting,
        tracing.backward,
        exported.keeps,
        exported.reading,
    )
    run_passes(traced)
    return traced
