"""Rules that were written by hand, and what `shardwright ops discover` finds of them.

`python rediscovered.py` prints the whole figure.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from rule_cases import CASES, Case
from shardwright.discovering import Discovered, Example, discover, examples
from test_rules import prepared

# Calls whose parts are called with the same arguments, but for sizes that are ints: of other rules no text
# could say all. The first operator of each case.
ROWS = """
    unary add div binary pow clamp-tensor masked_fill prelu mul mul-broadcast where lerp addcmul
    t transpose permute squeeze unsqueeze repeat_interleave unfold diagonal meshgrid
    split unbind cat cat-uneven stack glu select pad slice_scatter diff roll flip
    linear linear-3d linear-no-bias linear-1d matmul matmul-batch matmul-broadcast matmul-wide matmul-vector
    matmul-dot mm bmm addmm einsum einsum-three einsum-sum dot mv outer
    attention attention-causal attention-mask attention-gqa layer_norm rms_norm group_norm instance_norm
    softmax log_softmax embedding cross_entropy-none nll_loss-none
    sum sum-dim mean-dim amax var logsumexp norm prod cumsum topk sort histc
    conv1d conv1d-groups conv1d-depthwise conv2d conv_transpose1d max_pool2d avg_pool bilinear pixel_shuffle
"""
NAMES = ROWS.split()
# Beyond what is written, and read: rows and columns of pixels.
MORE = {
    "pixel_shuffle": "a (b c^) d e -> a b (d f^) (e g^) ; linear 0",
}
# What is added is never `None`; a mean is the sum of the parts' sums, divided by another number.
PART = {"addmm", "mean-dim"}

Place = tuple[str, int, int, int]
"""Input or output, its number, its dim, and the elements of that which lie outside."""
Dims = set[tuple[str, int, frozenset[Place]]]
"""Mark, size and places of each."""


@dataclass
class Rediscovered:
    name: str
    written: str
    discovered: Discovered
    missing: Dims
    more: Dims
    linear: bool
    """Whether it is linear in all that the written rule says."""

    @property
    def in_full(self) -> bool:
        return not self.missing and self.linear


def rediscovered(name: str) -> Rediscovered:
    case = next(case for case in CASES if case.name == name)
    example = _example(case)
    written = example.operator.rule or ""
    discovered = discover(example.function, example.args, example.kwargs)
    shapes = (example.operator.shapes[0], example.operator.shapes[1])
    sizes = {dim.name: dim.size for dim in discovered.dims}
    theirs, rewritten = dims_of(written, shapes, dict(example.operator.dims))
    ours, _ = dims_of(discovered.rule, shapes, sizes)
    return Rediscovered(
        name,
        written,
        discovered,
        theirs - ours,
        {dim for dim in ours - theirs if dim[1:] not in {other[1:] for other in rewritten}},
        all(
            [int(at) for at in operands.split()] in discovered.linear
            for operands in re.findall(r"linear ([\d ]+)", written)
        ),
    )


def _example(case: Case) -> Example:
    it = prepared(case)
    inputs = it.module.inputs

    def value(name: str) -> Tensor:
        kind, _, number = name.rpartition("_")
        if kind == "inputs":
            return inputs[int(number)]
        if name.startswith("sum"):
            return it.module.operand(case.made[int(number) if kind else 0]).detach()
        return it.module.operand(int(number[1:])).detach()

    wanted = (one for one in examples(it.graph, lambda one: one.path == "body", value))
    return next(one for one in wanted if one.operator.target in case.targets)


def dims_of(
    rule: str, shapes: tuple[list[list[int]], list[list[int]]], sizes: dict[str, int]
) -> tuple[Dims, Dims]:
    """Dims that a part may have with the arguments of the whole, and those that must be rewritten, or know
    where they begin."""
    body, *clauses = rule.split(";")
    sides = [
        [_terms(operand) for operand in side.split(",")] if side.strip() else [] for side in body.split("->")
    ]
    sizes = {**sizes, **{dim: int(size) for dim, size in re.findall(r"(\w+)=(\d+)", " ".join(clauses))}}
    known = _sizes(sides, shapes, sizes)
    marks: dict[str, str] = {}
    places: dict[str, set[Place]] = {}
    for side, operands in zip(("input", "output"), sides, strict=True):
        for number, terms in enumerate(operands):
            for dim, product in enumerate(terms):
                outer = 1
                for name, mark in product:
                    marks[name] = marks.get(name, "") + mark
                    places.setdefault(name, set()).add((side, number, dim, outer))
                    outer *= known[name]
    plain: Dims = set()
    rewritten: Dims = set()
    for name, at in places.items():
        mark = "".join(sorted(set(marks[name])))
        entry = ("".join(set(mark) - set("@~")), known[name], frozenset(at))
        if "^" not in mark and known[name] > 1:
            (rewritten if set(mark) & set("@~") else plain).add(entry)
    return plain, rewritten


def _terms(operand: str) -> list[list[tuple[str, str]]]:
    by_side = []
    for term in re.findall(r"\([^)]*\)|[^\s!()]+", operand):
        names = [re.fullmatch(r"(\w+)(\W*)", word) for word in term.strip("()").split()]
        if term == "1":
            by_side.append([])
        elif term not in ("scalar", "-"):
            by_side.append([(name[1], name[2]) for name in names if name])
    return by_side


def _sizes(
    sides: Sequence[Sequence[list[list[tuple[str, str]]]]],
    shapes: tuple[list[list[int]], list[list[int]]],
    sizes: dict[str, int],
) -> dict[str, int]:
    known = dict(sizes)
    for _ in range(4):
        for operands, of_operands in zip(sides, shapes, strict=True):
            for terms, shape in zip(operands, of_operands, strict=False):
                for product, size in zip(terms, shape, strict=False):
                    unknown = [name for name, _ in product if name not in known]
                    if len(unknown) == 1:
                        known[unknown[0]] = size // prod(known[name] for name, _ in product if name in known)
    return known


def lines(names: Sequence[str]) -> Iterator[str]:
    all_of = []
    for name in names:
        one = rediscovered(name)
        all_of.append(one)
        said = "in full" if one.in_full else f"without {one.missing or 'a linear clause'}"
        more = f", and {one.more}" if one.more else ""
        yield f"{name}: {one.written}  |  {one.discovered.rule}  |  {said}{more}"
    full = sum(one.in_full for one in all_of)
    more = sum(bool(one.more) for one in all_of)
    yield f"{full} of {len(all_of)} in full ({full / len(all_of):.0%}); of {more} more than is written"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in lines(sys.argv[1:] or NAMES):
        print(line, flush=True)
