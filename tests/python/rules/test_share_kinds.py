"""Shares of a maximum are no shares of a sum: what passes them on, and by what they are put together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equality import assert_equal, reference, run
from shardwright._core import Draft, Graph, Operator, Plan
from shardwright.capture import capture
from shardwright.rules.verifying import verify_rules
from shardwright.start.compiling import compile_plan

torch.set_num_threads(1)


class Features(nn.Module):
    """Attention by random features takes off a maximum that has no gradient."""

    def __init__(self, extreme: Callable[..., Tensor]) -> None:
        super().__init__()
        self.q, self.extreme = nn.Linear(8, 8).double(), extreme

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        m = self.extreme(q, dim=-1, keepdim=True).detach()
        return (torch.exp(q - m) ** 2).mean()


@pytest.mark.parametrize("extreme", [torch.amax, torch.amin])
@pytest.mark.parametrize("seed, devices", [(111, 2), (111, 3), (8, 3), (5, 4)])
def test_a_detached_maximum_under_random_plans(
    extreme: Callable[..., Tensor], seed: int, devices: int
) -> None:
    torch.manual_seed(0)
    module, x = Features(extreme), torch.randn(2, 4, 8, dtype=torch.float64)
    captured = capture(module, (x,))
    plan = Plan.random(Graph(captured.graph_text), devices, seed)
    bundle, _ = compile_plan(captured, plan)
    assert_equal(run(bundle, module, (x,)), reference(module, (x,)), plan.text)


class Chain(nn.Module):
    """A maximum of an input goes through operators before it meets what is trained."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.then = nn.Parameter(torch.randn(6, dtype=torch.float64)), then

    def forward(self, x: Tensor) -> Tensor:
        return (self.then(x.amax(-1, keepdim=True)) * x * self.weight).sin().sum()


def _passes(operator: Operator) -> bool:
    return any(f"; {through} " in (operator.rule or "") for through in ("rising", "falling"))


def _by_value(module: nn.Module, x: Tensor) -> str:
    """The program with the maximum divided along what it reduces, and what passes shares of it by value."""
    captured = capture(module, (x,))
    graph = Graph(captured.graph_text)
    draft, passing = Draft(graph, "by value", 2), True
    for operator in graph.operators:
        if operator.target.startswith("aten.amax"):
            draft.trans(operator, "b", 2)
        elif passing and _passes(operator):
            draft.trans(operator, "value", 2)
        else:
            passing = False
            draft.trans(operator, "replicate", 2)
        draft.place(operator, [0, 1])
    plan = draft.finish()
    bundle, _ = compile_plan(captured, plan)
    assert_equal(run(bundle, module, (x,)), reference(module, (x,)), plan.text)
    return "\n".join(bundle.files.values())


@pytest.mark.parametrize(
    "then, by",
    [
        (lambda m: m.detach().exp(), "max"),
        (lambda m: -(2 * m), "min"),
        (lambda m: (1 - m).neg().tanh(), "max"),
        # A root is no such function: it is taken of the completed maximum.
        (lambda m: m.abs().sqrt(), "max"),
    ],
)
def test_shares_are_completed_behind_what_passes_them(then: Callable[[Tensor], Tensor], by: str) -> None:
    torch.manual_seed(1)
    text = _by_value(Chain(then), torch.randn(5, 6, dtype=torch.float64))
    assert text.count(f'"{by}"') == 1, text
    assert '"max"' not in text or '"min"' not in text


OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "moves": lambda x: torch.cat([x.t().flip(0), x.reshape(-1)[:3].expand(4, 3).t()], 1)[:, [1, 0, 2]],
    "pieces": lambda x: torch.stack(x.split([1, 2], 1)[1].unbind(1)).roll(1),
    "chosen": lambda x: torch.where(torch.arange(3) > 1, x, -x),
    "rises": lambda x: x.exp().sigmoid().relu().erf().atan().clamp(-1, 0.7).floor(),
    "falls": lambda x: (-x).erfc(),
    "numbers": lambda x: ((x + 2) * -3 - 1) / 0.5,
    "cast": lambda x: x.to(torch.float32).to(torch.float64),
    "logical": lambda x: (x > 0).logical_not().view(-1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_said_to_pass_shares_does_so_on_tensors(name: str) -> None:
    class Applied(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return OPERATORS[name](x)

    captured = list(
        verify_rules(Graph(capture(Applied(), (torch.randn(4, 3, dtype=torch.float64),)).graph_text))
    )
    assert [str(one.problem) for one in captured if one.problem] == []
    passing = [one for one in captured if _passes(one.operator)]
    assert passing
    # Under a maximum and a minimum, in two and three parts.
    extremes = [sum(tried.partial != () for tried in one.tried) for one in passing]
    assert all(count >= 4 for count in extremes), [one.operator.target for one in passing]


def test_rows_of_a_table_of_which_the_largest_is_taken_are_no_sum() -> None:
    """`embedding_bag` is linear in its table, but where it takes the largest."""

    class Bags(nn.Module):
        def __init__(self, mode: str) -> None:
            super().__init__()
            self.mode = mode

        def forward(self, table: Tensor, rows: Tensor) -> Tensor:
            return F.embedding_bag(rows, table, mode=self.mode)

    args = torch.randn(7, 4, dtype=torch.float64), torch.tensor([[0, 2], [5, 1]])
    for mode, linear in (("sum", True), ("mean", True), ("max", False)):
        graph = Graph(capture(Bags(mode), args).graph_text)
        rules = [o.rule or "" for o in graph.operators if "embedding_bag" in o.target]
        assert [("linear" in rule) for rule in rules] == [linear], (mode, rules)
