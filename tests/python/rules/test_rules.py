"""Each rule on real tensors: the split operator equals the whole one, forward and backward.

Every case of `rule_cases` is captured once. Then its operators are split along each dim that their
rule allows, in two and three parts, by value, and along two dims at once; all else runs whole, on every
rank or on one. The program is compiled, which proves it, and all its ranks run in this process.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equality import Held, Result, assemble, assert_equal
from rule_cases import CASES, Case
from shardwright._core import Draft, Graph, Plan, compile, operators_table
from shardwright.capture import Captured, capture
from shardwright.rules import verifying
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import sources
from shardwright.start.further_programs import skeleton_of

Splits = tuple[tuple[str, int], ...]

DEVICES = {1: [1], 2: [1, 0], 3: [1, 2, 0], 4: [1, 2, 0, 1]}
"""In another order than the ranks, and with a repeat."""
SEED = 11


class Body(nn.Module):
    """The operators under test: their module path is `body`."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.fn = case.fn

    def forward(self, *operands: Tensor) -> Any:
        return self.fn(*operands)


class Whole(nn.Module):
    """The operators of a case, and a loss that gives each element of each result its own weight."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.body = Body(case)
        self.kinds = [kind for kind, _ in case.operands]
        self.made = case.made
        self.inputs: list[Tensor] = []
        for at, (kind, make) in enumerate(case.operands):
            value = make()
            if kind == "input":
                self.inputs.append(value)
            elif kind == "buffer":
                self.register_buffer(f"p{at}", value)
            else:
                self.register_parameter(f"p{at}", nn.Parameter(pieces(value) if at in case.made else value))
        results = copy.deepcopy(self).results(self.inputs)
        self.weighted = [at for at, result in enumerate(results) if result.requires_grad]
        self.inputs += [torch.randn_like(results[at]) for at in self.weighted]

    def results(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        given = iter(inputs)
        operands = [
            next(given) if kind == "input" else self.operand(at) for at, kind in enumerate(self.kinds)
        ]
        results = self.body(*operands)
        return list(results) if isinstance(results, (list, tuple)) else [results]

    def operand(self, at: int) -> Tensor:
        held = getattr(self, f"p{at}")
        return held.sum(0) if at in self.made else held

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        results = self.results(inputs)
        weights = inputs[len(inputs) - len(self.weighted) :]
        losses = [(results[at] * weight).sum() for at, weight in zip(self.weighted, weights, strict=True)]
        return [torch.stack(losses).sum(), *results] if losses else results


def pieces(value: Tensor) -> Tensor:
    """Three tensors whose sum it is, none of them near a third of it."""
    others = torch.randn(2, *value.shape, dtype=value.dtype)
    return torch.cat([(value - others.sum(0))[None], others])


@dataclass
class Prepared:
    module: Whole
    captured: Captured
    graph: Graph
    expected: Result


@cache
def prepared(case: Case) -> Prepared:
    module = Whole(case)
    captured = capture(module, tuple(module.inputs), verify=False)
    return Prepared(module, captured, Graph(captured.graph_text), whole(module))


def whole(module: Whole) -> Result:
    plain = copy.deepcopy(module)
    torch.manual_seed(SEED)
    results = plain(*plain.inputs)
    differentiate(plain, results)
    return Result(
        {str(at): result.detach() for at, result in enumerate(results)},
        {name: p.grad for name, p in plain.named_parameters() if p.grad is not None},
        {},
        dict(plain.named_buffers()),
    )


def differentiate(module: nn.Module, results: Sequence[Tensor]) -> None:
    if results[0].requires_grad:
        results[0].backward()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_carry_gradients_where_they_do_in_pytorch(case: Case) -> None:
    it = prepared(case)
    results = copy.deepcopy(it.module)(*it.module.inputs)
    ours = [output is not None and output[2] for output in it.graph.outputs]
    assert ours == [result.requires_grad for result in results]


def split_up(case: Case, graph: Graph, splits: Splits) -> Plan:
    """Splits the operators of a case; a split by value finds partial sums there."""
    parts = 1
    for _, count in splits:
        parts *= count
    devices = DEVICES[parts]
    draft = Draft(graph, "split", max(devices) + 1)
    for operator in graph.operators:
        makes = operator.path == "" and operator.target == "aten.sum.dim_IntList"
        if operator.path == "body" and operator.target in case.targets:
            draft.single(operator)
            for algo, count in splits:
                draft.trans(operator, algo, count)
            draft.place(operator, devices)
        elif makes and splits == (("value", parts),):
            draft.trans(operator, "a", parts)
            draft.place(operator, devices)
        elif parts == 3:
            draft.single(operator)
            draft.place(operator, [0])
        else:
            draft.trans(operator, "replicate", max(devices) + 1)
            draft.place(operator, list(range(max(devices) + 1)))
    return draft.finish()


def run(case: Case, it: Prepared, plan: Plan) -> Result:
    compiled = compile(plan, "all")
    program = load_program(dict(compiled.files), digest=compiled.digest, world=plan.devices)
    values = sources(it.module, it.captured)
    mode = "single-device" if case.random else "keyed"

    def rank(rank: int, comm: Any) -> tuple[list[list[Tensor]], list[Held]]:
        generator = torch.Generator().manual_seed(SEED)
        skeleton = skeleton_of(it.module)
        model = ParallelModule(
            program, comm, values, it.captured, randomness=mode, generator=generator, skeleton=skeleton
        )
        results = model(*it.module.inputs)
        differentiate(model, results)
        held = [
            Held(
                shard.tensor.names[0],
                shard.tensor.kind,
                shard.tensor.factors,
                shard.region,
                shard.data.detach().clone(),
                shard.data.grad if isinstance(shard.data, nn.Parameter) else None,
            )
            for shard in model.shards.held
        ]
        return [[result.detach() for result in results]], held

    assembled = assemble(run_local(plan.devices, rank))
    assembled.losses = {name.removeprefix("0."): value for name, value in assembled.losses.items()}
    assembled.parameters = {}
    return assembled


def choices(case: Case) -> list[Splits]:
    """In one piece, each dim in two and three parts, two dims at once, by value, and both."""
    dims = list(case.dims.items())
    counts = {dim: [parts for parts in case.parts if parts <= size] or [2] for dim, size in dims}
    every_choice: list[Splits] = [(), *(((dim, parts),) for dim, _ in dims for parts in counts[dim])]
    if len(dims) > 1:
        every_choice.append(((dims[-1][0], 2), (dims[0][0], 2)))
    if case.made:
        every_choice += [(("value", parts),) for parts in case.parts]
        every_choice += [(("value", 2), (dims[0][0], 2))] if dims else []
    return every_choice


def name_of(splits: Splits) -> str:
    return ",".join(f"{algo}:{parts}" for algo, parts in splits) or "whole"


def splits_of_all() -> list[Any]:
    params = []
    for case in CASES:
        for splits in choices(case):
            params.append(pytest.param(case, splits, id=f"{case.name}[{name_of(splits)}]"))
    return params


@pytest.mark.parametrize("case, splits", splits_of_all())
def test_the_split_operator_equals_the_whole_one(case: Case, splits: Splits) -> None:
    it = prepared(case)
    assert_allowed(case, it.graph)
    plan = split_up(case, it.graph, splits)
    actual = run(case, it, plan)
    shapes = {name: (value.shape, value.dtype) for name, value in actual.losses.items()}
    assert shapes == {name: (value.shape, value.dtype) for name, value in it.expected.losses.items()}
    assert_equal(actual, it.expected, plan.text)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_shares_pass_where_the_rule_says_so(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clauses of all operators that a case has; its dims are tried above."""
    monkeypatch.setattr(verifying, "_choices", lambda dims: iter(()))
    outcomes = verifying.verify_rules(prepared(case).graph)
    assert [f"{one.operator.target}: {one.problem}" for one in outcomes if one.problem] == []


def assert_allowed(case: Case, graph: Graph) -> None:
    """The rules allow what the case says, no more and no less."""
    operators = [o for o in graph.operators if o.path == "body"]
    assert {o.target for o in operators} == case.targets | case.others
    for operator in operators:
        if operator.target in case.targets:
            assert dict(operator.dims) == case.dims, f"the rule is {operator.rule}"


def test_every_family_occurs() -> None:
    rows = re.findall(r"^\| (\w+) \| \w* \| [^|]+ \| (`.*`) \|$", operators_table(), re.MULTILINE)
    families = {name: set(re.findall(r"`([^`]+)`", targets)) for name, targets in rows}
    assert len(families) > 10
    tried = set().union(*(case.targets for case in CASES if case.dims))
    # What only plans make, no model has: `test_rewritings.py` and `test_expert_exchange.py` compare these.
    of_models = {
        name: targets
        for name, targets in families.items()
        if not all(target.startswith("sw.") for target in targets)
    }
    assert [name for name, targets in of_models.items() if not targets & tried] == []


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
