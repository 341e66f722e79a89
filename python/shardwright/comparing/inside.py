"""Which tensor inside of the model is the first that differs.

Another program of the same plan is made, from which every tensor of the graph leaves, each rank's part of it:
nothing else is communicated but what completes partial sums. Beside it the graph is run on one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import as_python
from .._core import Graph, Plan, compile
from ..capture import Captured
from ..capture.verify.against_module import buffers_of
from ..capture.verify.interpreter import Evaluator, Given
from ..runtime.execution.inputs import Arguments
from ..runtime.programs.parts import OutputPart
from ..start.compiling import Bundle
from .judging import Gap, gap_of, norm_of, parts_of
from .order import Node, Order
from .ranks import Job, Part, steps_of_ranks
from .result import First
from .rounding import FINE, SMALL, Spreads


class _Leaving(Captured):
    """The same call, of which a list of tensors leaves."""

    leaving: Sequence[str] = ()

    def unflatten(self, outputs: Sequence[Tensor | None]) -> Any:
        return list(outputs)

    def output_names(self) -> list[str]:
        return list(self.leaving)


def first_inside(
    module: nn.Module,
    bundle: Bundle,
    plan: Plan,
    job: Job,
    values: Mapping[str, Tensor],
    order: Order,
    spreads: Spreads,
    dtype: str,
) -> First | None:
    """Of the first micro-batch, in the order of the forward. None where all of these are equal."""
    names = [made.name for node in order.nodes for made in node.results]
    text = _leaving(bundle.graph_text, names)
    graph = Graph(text)
    kept = {name: str(kept) for name, kept in bundle.captured.kept.items()}
    compiled = compile(Plan.parse(graph, plan.text), ["local"] * len(names), None, "global", None, kept)
    captured = _Leaving(**vars(bundle.captured))
    captured.leaving = names
    inside = replace(job, files=dict(compiled.files), digest=compiled.digest, captured=captured)
    [ranks] = steps_of_ranks([inside], [values], processes=False)
    parts = parts_of(ranks, "output")
    expected = _expected(module, bundle, values, job.batches[0], job.seed)
    typical = _typical(expected.values())
    for node in order.nodes:
        for made in node.results:
            if made.name not in expected or made.name not in parts:
                continue
            whole = expected[made.name]
            gap = gap_of(whole, parts[made.name])
            size = max(norm_of(whole), SMALL * typical) or 1.0
            limit = spreads.of_value(made.name).limit(None) if whole.is_floating_point() else 0.0
            limit = max(limit, FINE) if dtype == "float64" and whole.is_floating_point() else limit
            if gap.size > limit * size:
                return _first(node, gap, size, limit, dtype, bundle)
    return None


def _leaving(text: str, names: Sequence[str]) -> str:
    lines = [line for line in text.splitlines() if not line.startswith("output ")]
    at = next((at for at, line in enumerate(lines) if line.startswith("update ")), len(lines))
    return "\n".join([*lines[:at], *(f"output %{name}" for name in names), *lines[at:]]) + "\n"


def _expected(
    module: nn.Module, bundle: Bundle, values: Mapping[str, Tensor], call: Arguments, seed: int
) -> dict[str, Tensor]:
    """What the graph makes on one device, by its names."""
    expected: dict[str, Tensor] = {}

    def watch(operator: Any, result: Any) -> None:
        several = result if isinstance(result, (tuple, list)) else (result,)
        for name, value in zip(operator.results, several, strict=True):
            if name and isinstance(value, Tensor):
                expected[name] = value.detach().clone()

    captured = bundle.captured
    args, kwargs = call
    constants = captured.constants
    given = Given(
        captured.flatten(args, kwargs),
        lambda name: values[name],
        {name: buffer.detach().clone() for name, buffer in buffers_of(module).items()},
        constants,
        torch.device("cpu"),
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        with as_python.running(as_python.Modules(module.get_submodule)):
            Evaluator(bundle.graph_text).run(given, watch)
    return expected


def _typical(tensors: Any) -> float:
    norms = [norm_of(x) for x in tensors if x.is_floating_point()]
    return (sum(n * n for n in norms) / max(len(norms), 1)) ** 0.5


def _first(node: Node, gap: Gap, size: float, limit: float, dtype: str, bundle: Bundle) -> First:
    rule = next(
        (op.rule for op in Graph(bundle.graph_text).operators if op.name == node.results[0].name), None
    )
    ranks = tuple(sorted(rank for rank, far in gap.by_rank.items() if not far <= limit * size))
    return First(
        what=f"what `{node.target}` gives" + (f", {gap.note}" if gap.note else ""),
        line=node.line,
        dtype=dtype,
        difference=gap.size / size,
        limit=limit,
        ranks=ranks,
        part=said_of_part(gap.where),
        operator=node.target,
        path=node.path,
        rule=rule,
        hint="all that is made before it is equal: look at this operator and its rule",
    )


def said_of_part(part: Part | None) -> str:
    """Such as `[0:2, :, 16:32]`; nothing where it is the whole."""
    if part is None:
        return ""
    output_part = OutputPart(part.factors, part.region)
    if output_part.is_whole:
        return ""
    try:
        cuts = output_part.slices
    except Exception:  # a part of a fused dim
        return str(list(part.region))
    shape = [1] * 0 + [_size(dim) for dim in part.factors]
    ranges = [
        ":" if (s.start, s.stop) == (0, n) else f"{s.start}:{s.stop}"
        for s, n in zip(cuts, shape, strict=True)
    ]
    return f"[{', '.join(ranges)}]"


def _size(dim: Sequence[int]) -> int:
    size = 1
    for factor in dim:
        size *= factor
    return size
