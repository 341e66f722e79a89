"""What an operator costs, as commands print it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._core import Cost


def cost_lines(cost: Cost) -> list[str]:
    """What an operator costs: forward, backward, and what is kept between them."""
    from ..report.computed_work import operations_of
    from ..report.memory import size_of

    names = [name for name, *_ in cost.inputs]
    gradients = [
        f"{operations_of(flops)} for the gradient of %{name}"
        for name, flops in dict(zip(names, cost.gradients, strict=True)).items()
        if flops
    ]
    lines = [f"  forward  {operations_of(cost.flops)}, {_moved(cost.forward)}"]
    if any(cost.backward) or gradients:
        lines.append(f"  backward {', '.join([*gradients, _moved(cost.backward)])}")
    kept = [f"%{name}" for name in kept_tensors(cost)]
    if cost.kept[2]:
        kept.append(f"{size_of(cost.kept[2])} besides")
    lines.append(f"  kept     {', '.join(kept) or 'nothing'}")
    return lines


def kept_tensors(cost: Cost) -> list[str]:
    """The names of the inputs and outputs that are kept for backward."""
    inputs, outputs, _ = cost.kept
    made = [shard for shard in (cost.outputs[at] for at in outputs) if shard is not None]
    return list(dict.fromkeys([*(cost.inputs[at][0] for at in inputs), *(name for name, *_ in made)]))


def _moved(moved: tuple[int, int]) -> str:
    from ..report.memory import size_of

    read, written = map(size_of, moved)
    return f"{read} read, {written} written" if any(moved) else "nothing moved"
