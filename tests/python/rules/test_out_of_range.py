"""Numbers that a table or a loss does not have: the model's own error, or its own value, in parts too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw
from shardwright._core import Draft, Graph, Plan, compile
from shardwright.capture import capture
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import sources

GOOD = torch.tensor([[0, 1], [2, 3], [1, 1], [3, 2]])
WRONG = (40, 8, -1, -7, -9)


class Model(nn.Module):
    def __init__(self, fn: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fn = fn
        self.table = nn.Parameter(torch.randn(8, 6, dtype=torch.float64))
        self.experts = nn.Parameter(torch.randn(8, 6, 5, dtype=torch.float64))
        self.rows = nn.Parameter(torch.randn(8, 8, dtype=torch.float64))
        self.tall = nn.Parameter(torch.randn(8, 2, dtype=torch.float64))

    def forward(self, i: Tensor) -> Tensor:
        return self.fn(self, i).sin().sum()


def expert_rows(m: Model, i: Tensor) -> Tensor:
    return torch.bmm(m.rows[:, :6].unsqueeze(1), m.experts[i.flatten()])


def loss(m: Model, i: Tensor, **more: Any) -> Tensor:
    return F.cross_entropy(m.rows, i.flatten(), **more)


def written(name: str) -> Callable[[Model, Tensor], Tensor]:
    return lambda m, i: getattr(m.tall, name)(0, i, m.rows[:4, :2])


READS: dict[str, Callable[[Model, Tensor], Tensor]] = {
    "embedding": lambda m, i: F.embedding(i, m.table),
    "embedding with padding": lambda m, i: F.embedding(i, m.table, padding_idx=1),
    "experts": expert_rows,
    "cross_entropy": loss,
    "cross_entropy ignoring": lambda m, i: loss(m, i, ignore_index=7),
    "cross_entropy smooth": lambda m, i: loss(m, i, label_smoothing=0.1),
    "cross_entropy summed": lambda m, i: loss(m, i, reduction="sum"),
    "cross_entropy of each": lambda m, i: loss(m, i, reduction="none"),
    "nll_loss": lambda m, i: F.nll_loss(m.rows.log_softmax(-1), i.flatten()),
    "index": lambda m, i: m.table[i],
    "index of columns": lambda m, i: m.rows[:, i],
    "index_select": lambda m, i: m.table.index_select(0, i.flatten()),
    "gather": lambda m, i: m.tall.gather(0, i),
    "take_along_dim": lambda m, i: m.tall.take_along_dim(i, 0),
    "one_hot": lambda m, i: F.one_hot(i, 8).double() @ m.table,
    "scatter": written("scatter"),
    "scatter_add": written("scatter_add"),
    "index_put": lambda m, i: m.table.index_put((i.flatten(),), m.rows[:, :6]),
    "index_add": lambda m, i: m.table.index_add(0, i.flatten(), m.rows[:, :6]),
}


def plans(graph: Graph) -> dict[str, Plan]:
    """Whole, over the batch, and each dim of each operator in turn."""
    longest = max(len(operator.dims) for operator in graph.operators)
    return {
        "replicate": Plan.named(graph, "replicate", 2),
        **{f"split {number}": split_all(graph, number) for number in range(longest)},
        **{f"random {seed}": Plan.random(graph, 2, seed) for seed in range(2)},
    }


def split_all(graph: Graph, number: int) -> Plan:
    draft = Draft(graph, "split", 2)
    for operator in graph.operators:
        names = [name for name, size in operator.dims.items() if size > 1]
        draft.trans(operator, names[number % len(names)] if names else "replicate", 2)
        draft.place(operator, [0, 1])
    return draft.finish()


@pytest.mark.parametrize("name", READS)
def test_a_number_out_of_range_is_what_it_is_for_the_model(name: str) -> None:
    model = Model(READS[name])
    captured = capture(model, (GOOD,))
    expected = {wrong: outcome(lambda wrong=wrong: model(with_wrong(wrong)).item()) for wrong in WRONG}
    for title, plan in plans(Graph(captured.graph_text)).items():
        compiled = compile(plan)
        program = load_program(dict(compiled.files), digest=compiled.digest, world=2)
        values = sources(model, captured)

        def rank(rank: int, comm: Any, bad: Tensor) -> float:
            loss = ParallelModule(program, comm, values, captured)(bad)  # noqa: B023
            loss.backward()
            return loss.item()

        for wrong, wanted in expected.items():
            bad = with_wrong(wrong)
            actual = outcome(lambda bad=bad: run_local(2, lambda r, comm: rank(r, comm, bad))[0])
            assert same(actual, wanted), f"{title}, {wrong}: {actual!r} is not {wanted!r}\n{plan.text}"


@pytest.mark.processes
def test_every_process_learns_of_a_label_that_only_one_has() -> None:
    with pytest.raises(sw.ShardwrightError, match="Target -7 is out of bounds"):
        sw.launch(one_wrong_label, 2)


def one_wrong_label(rank: int) -> None:
    model = sw.parallelize(Model(loss), (GOOD,), plan="data", cache=False, progress=False)
    error = outcome(lambda: model(with_wrong(-7)).item())
    assert isinstance(error, (IndexError, sw.ShardwrightError)), error
    raise error


def with_wrong(number: int) -> Tensor:
    bad = GOOD.clone()
    bad[2, 1] = number
    return bad


def outcome(run: Callable[[], float]) -> Any:
    try:
        return run()
    except (IndexError, RuntimeError, sw.ShardwrightError) as error:
        return error


def same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, Exception):
        return type(actual) is type(expected) and str(actual).split("\n")[0] == str(expected).split("\n")[0]
    return isinstance(actual, float) and abs(actual - expected) <= 1e-9 * abs(expected)
