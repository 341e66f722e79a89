"""What a proof of filled lengths claims of each tensor, held against the tensors themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shardwright._core import Graph, prove_filled
from shardwright.capture import Captured, capture
from shardwright.capture.verify.interpreter import Evaluator, Given
from shardwright.data.lengths import pad_to

Batch = dict[str, Tensor]
Known = tuple[str, list[tuple[int, int, int, int, int]], list[tuple[str, float, float]]]
LOW = -1e4


class Proved:
    """A model at a length and at a shorter one, and what is known of its tensors."""

    def __init__(self, module: nn.Module, batch: Batch, length: int, groups: Sequence[Mapping[str, float]]):
        """`groups` are the inputs that have one length each, by name, with what fills them up."""
        self.module, self.batch = module, batch
        self.long = {**batch}
        for values in groups:
            self.long = pad_to(self.long, length, values)
        self.captured, self.shorter = (
            capture(module, (), given, verify=False) for given in (self.long, batch)
        )
        names = self.captured.in_spec.input_names()
        fills = [[(names.index(name), 1, value) for name, value in values.items()] for values in groups]
        graphs = Graph(self.captured.graph_text), Graph(self.shorter.graph_text)
        self.known: list[Known] = prove_filled(*graphs, fills, [])

    def tensors(self, short: bool, garbage: int | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """The value of each operator's results, and the loss. With `garbage`, whatever has a gradient and is
        only known to be finite where it is filled is overwritten there."""
        captured, batch = (self.shorter, self.batch) if short else (self.captured, self.long)
        tails = {} if garbage is None else {name: (tails, contents) for name, tails, contents in self.known}
        generator = torch.Generator().manual_seed(garbage or 0)
        tensors: dict[str, Tensor] = {}
        seen = {x.untyped_storage().data_ptr() for x in [*self._values(captured).values(), *batch.values()]}

        def watch(op: Any, result: Any) -> None:
            several = result if isinstance(result, (tuple, list)) else [result]
            for name, value in zip(op.results, several, strict=True):
                if name is None:
                    continue
                # What shares memory with another tensor stays as it is.
                place = value.untyped_storage().data_ptr()
                if name in tails and place not in seen and value.requires_grad and value.is_contiguous():
                    spoil(value.data, *tails[name], generator)
                seen.add(place)
                tensors[name] = value

        values = self._values(captured)
        given = Given(
            captured.flatten((), batch),
            lambda name: values[name],
            values,
            captured.constants,
            torch.device("cpu"),
        )
        outputs = Evaluator(captured.graph_text).run(given, watch).outputs
        [loss] = [x for x in outputs if x is not None and x.dim() == 0]
        return tensors, loss

    def _values(self, captured: Captured) -> dict[str, Tensor]:
        named = [*self.module.named_parameters(remove_duplicate=False), *self.module.named_buffers()]
        return dict(named)

    def gradients(self, loss: Tensor) -> dict[str, Tensor | None]:
        names, parameters = zip(*self.module.named_parameters(), strict=True)
        return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))


def set_of(tails: list[tuple[int, int, int, int, int]], shape: Sequence[int]) -> Tensor:
    """For each element the set of tails that it is in."""
    flat = torch.zeros(list(shape), dtype=torch.long)
    for bit, (dim, outer, long, short, inner) in enumerate(tails):
        row = (torch.arange(long) >= short).repeat_interleave(inner).repeat(outer).long() << bit
        flat += row.view([-1 if at == dim else 1 for at in range(len(shape))])
    return flat


def spoil(value: Tensor, tails: Any, contents: Any, generator: torch.Generator) -> None:
    sets = set_of(tails, value.shape)
    for number, (kind, low, high) in enumerate(contents):
        if number and kind == "within" and low == -float("inf") and high == float("inf"):
            chosen = sets == number
            value[chosen] = torch.randn(int(chosen.sum()), generator=generator, dtype=value.dtype) * 3


def slack(bound: float) -> float:
    """Of what is computed with few digits."""
    return 1e-6 * max(1.0, abs(bound)) if abs(bound) < float("inf") else 0.0


def refuted(proved: Proved) -> list[str]:
    """The claims that do not hold."""
    long, short, wrong = proved.tensors(False)[0], proved.tensors(True)[0], []
    for name, tails, contents in proved.known:
        if name not in long:
            continue
        sets, value = set_of(tails, long[name].shape), long[name].double()
        outside, expected = value[sets == 0], short[name].double().flatten()
        if not torch.allclose(outside, expected, rtol=1e-9, atol=1e-12, equal_nan=True):
            wrong.append(f"{name}: outside of tails it is another")
        for number, (kind, low, high) in enumerate(contents):
            there = value[sets == number]
            holds = {
                "wild": torch.ones_like(there, dtype=torch.bool),
                "low": there <= LOW / 2,
                "mixed": ~there.isnan() & (there < float("inf")),
                "within": there.isfinite() & (there >= low - slack(low)) & (there <= high + slack(high)),
            }[kind]
            # Outside of tails it is what the model makes of the batch.
            if number and not holds.all():
                wrong.append(
                    f"{name}: in {number} it is not {kind} {low} {high}: {there[~holds][:3].tolist()}"
                )
    return wrong
