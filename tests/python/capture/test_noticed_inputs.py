"""What a model reads of its inputs in Python is noticed, where nobody names them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import checking
import shardwright as sw
from shardwright.capture import Captured, capture
from shardwright.runtime import ParallelModule, run_local
from shardwright.runtime.execution.variants import MANY
from test_known_inputs import EDGES, OTHER, Net, Vision, example, images, targets

torch.set_num_threads(1)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each trace, how many inputs are known in it."""
    from shardwright import capture as package

    original, counted = package.trace, list[int]()

    def trace(tracing: Any) -> Any:
        counted.append(len(tracing.inputs))
        return original(tracing)

    monkeypatch.setattr(package, "trace", trace)
    return counted


def read(captured: Captured) -> tuple[str, ...]:
    return tuple(captured.known_names)


# ---- noticed -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.oldest
@pytest.mark.parametrize(
    ("model", "args", "name"), [(Net, example, "edges"), (Vision, images, "sizes")], ids=["net", "vision"]
)
def test_what_is_read_is_noticed(
    model: Callable[[], nn.Module], args: Callable[[], tuple[Tensor, ...]], name: str, traces: list[int]
) -> None:
    captured = capture(model(), args())
    assert captured.verified and not captured.as_python and read(captured) == (name,)
    assert captured.notes == [
        f"the program is for what the model reads of `{name}`: other calls get programs of their own"
    ]
    assert captured.graph_text == capture(model(), args(), known_inputs=[name]).graph_text
    assert traces == [0, 2, 1]


def test_a_model_that_reads_nothing_is_traced_once(traces: list[int]) -> None:
    captured = capture(nn.Linear(8, 8), (torch.randn(2, 8),))
    assert traces == [0] and not captured.known_names and captured.in_spec.reading is None


def test_what_does_not_follow_from_inputs_is_not_known(traces: list[int]) -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            x = self.linear(x)
            return x * 2 if x.sum() > 0 else x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.linear = Inner(), nn.Linear(8, 8)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.linear(self.inner(x, mask)) * mask.sum()

    captured = capture(Outer(), (torch.randn(2, 8), torch.ones(2, 1)))
    assert targets(captured)[0] == "shardwright.module.default" and not captured.known_names
    assert traces == [0, 2, 0]


def _of_a_parameter(self: Any, x: Tensor, n: Tensor) -> Tensor:
    for _ in range(int(n)):
        x = self.linear(x)
    return x if self.linear.weight.sum() > 0 else -x  # of a parameter


class Does(nn.Module):
    def __init__(self, forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self.linear, self.does = nn.Linear(4, 4), forward

    def forward(self, *args: Tensor) -> Tensor:
        return self.does(self, *args)


def test_what_stands_in_the_way_behind_them_is_told() -> None:
    with pytest.raises(sw.CaptureError) as refused:
        capture(Does(_of_a_parameter), (torch.randn(2, 4), torch.tensor(2)))
    assert refused.value.code == "SW0102" and str(refused.value.place).endswith("# of a parameter")


@pytest.mark.parametrize(
    ("forward", "code"),
    [
        (lambda self, x, n: self.linear(x) * x.max().item(), "SW0102"),
        (lambda self, x, n: self.linear(x) * float(x.detach().numpy().max()), "SW0101"),
        (lambda self, x, n: self.linear(x) * (2 if _dropped(n)[0] > 0 else 1), "SW0102"),
    ],
)
def test_numbers_that_each_batch_has_others_of_are_not_read(forward: Any, code: str) -> None:
    with pytest.raises(sw.CaptureError) as refused:
        capture(Does(forward), (torch.randn(2, 4), torch.tensor([2, 1])))
    assert refused.value.code == code


def _dropped(n: Tensor) -> Tensor:
    n = n.double()
    F.dropout(n, 0.5, True, inplace=True)
    return n


def test_what_numpy_is_given_is_read_and_the_rest_is_not() -> None:
    def forward(self: Any, x: Tensor, n: Tensor) -> Tensor:
        first = (n[:2] - 1).numpy()
        return self.linear(x)[:, : first[0]].sum() + torch.arange(10)[first[1]] + n.sum()

    captured = capture(Does(forward), (torch.randn(2, 4), torch.tensor([2, 3, 4])))
    assert captured.verified and captured.in_spec.reading is not None
    assert captured.in_spec.reading.results == ("[1, 2]",)
    assert captured.is_of((torch.randn(2, 4), torch.tensor([2, 3, 9])), {})
    assert not captured.is_of((torch.randn(2, 4), torch.tensor([2, 4, 4])), {})


def test_a_mask_is_not_read_where_it_says_what_becomes_a_number() -> None:
    def forward(self: Any, x: Tensor, mask: Tensor, n: Tensor) -> Tensor:
        x = self.linear(x) * (2 if n.max() > 3 else 1)
        x[mask] = 0.0
        return x

    args = torch.randn(2, 4), torch.tensor([True, False]), torch.tensor([1, 5])
    captured = capture(Does(forward), args)
    assert captured.verified and read(captured) == ("args[2]",)


def test_writing_elsewhere_makes_no_input_one_that_is_read() -> None:
    def forward(self: Any, x: Tensor, n: Tensor) -> Tensor:
        sums = torch.zeros_like(x)
        sums += x
        count = n.clone()
        count += 1
        return (self.linear(x) + sums)[: int(count[0])]

    captured = capture(Does(forward), (torch.randn(4, 4), torch.tensor([1, 5])))
    assert captured.verified and read(captured) == ("args[1]",)
    assert captured.is_of((torch.randn(4, 4), torch.tensor([1, 7])), {})
    assert not captured.is_of((torch.randn(4, 4), torch.tensor([2, 5])), {})


@pytest.mark.slow
def test_where_much_is_read_and_little_runs_as_it_is_nothing_is() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return checking.selected(x, labels)

    few = torch.randn(4, 8), torch.tensor([1, 0, 3, 2])
    many = torch.randn(400, 8), torch.arange(400) % 8
    assert read(capture(Model(), few)) == ("labels",)
    captured = capture(Model(), many)
    assert not read(captured) and list(captured.as_python) == ["checking:selected"]


@pytest.mark.slow
def test_where_a_model_has_no_products_what_runs_as_it_is_counts_all_the_same() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            source, target = edges[:, edges[0] != edges[1]]
            return torch.zeros_like(x).index_add(0, target, x[source] * self.scale)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Sums(), Sums()

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return self.second(self.first(x, edges), edges).square().mean()

    edges = torch.stack([torch.arange(400) % 20, torch.arange(400) % 17])
    args = torch.randn(20, 8), edges
    captured = capture(Outer(), args)
    assert read(captured) == ("edges",) and not captured.as_python
    whole = capture(Outer(), args, known_inputs=())
    shares = [share for _, share in whole.as_python.values()]
    assert len(shares) == 2 and 0.8 < sum(shares) <= 1


@pytest.mark.slow
def test_where_reading_leaves_much_as_it_is_nothing_is_read() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.linear(x)
            return x if self.linear.weight.sum() > 0 else -x

    class Small(nn.Module):
        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            for _ in range(int(n)):
                x = x + 1
            return x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small, self.inner = Small(), Inner()

        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            return self.inner(self.small(x, n)).sum()

    captured = capture(Outer(), (torch.randn(2, 4), torch.tensor(2)))
    assert not read(captured) and set(captured.as_python) == {"small", "inner"}


# ---- programs ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_value_gets_a_program_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    x, _ = example()
    model = Net()

    def rank(_: int, comm: Any) -> tuple[list[float], int]:
        parallel = sw.parallelize(model, example(), plan="data", comm=comm, cache=False, progress=True)
        with torch.no_grad():
            losses = [float(parallel(x, edges)) for edges in (EDGES, OTHER, EDGES.flip(0), OTHER)]
        return losses, len(parallel.programs)

    with torch.no_grad():
        expected = [float(model(x, edges)) for edges in (EDGES, OTHER, EDGES.flip(0), OTHER)]
    for losses, programs in run_local(2, rank):
        assert losses == pytest.approx(expected, rel=1e-12) and programs == 2
    first = capfd.readouterr().err.split("another program")[0]
    assert first.count("the program is for what the model reads of `edges`") == 1


def test_nothing_is_read_where_nobody_may() -> None:
    def rank(_: int, comm: Any, **options: Any) -> ParallelModule:
        return sw.parallelize(Does(_pieces), _sizes(1), plan="data", comm=comm, cache=False, **options)

    for options in ({"known_inputs": ()}, {"inputs": "local"}):
        with pytest.raises(sw.CaptureError, match="SW0102"):
            run_local(1, lambda number, comm, options=options: rank(number, comm, **options))


def _pieces(self: Any, x: Tensor, sizes: Tensor) -> Tensor:
    return torch.stack([self.linear(piece).mean() for piece in x.split(sizes.tolist())]).square().sum()


def _sizes(first: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(first))
    return x, torch.tensor([first, 20 - first])


@pytest.mark.slow
def test_after_many_one_that_reads_nothing_is_for_all() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.linear = Does(_pieces), nn.Linear(4, 4)

        def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
            return self.part(x, sizes) + self.linear(x).mean()

    model = Model()
    firsts = list(range(1, MANY + 4))

    def rank(_: int, comm: Any) -> tuple[list[float], int]:
        parallel = sw.parallelize(model, _sizes(1), plan="data", comm=comm, cache=False)
        with torch.no_grad():
            return [float(parallel(*_sizes(first))) for first in firsts], len(parallel.programs)

    with pytest.warns(UserWarning, match="from here on one that reads nothing is for all that is read"):
        [(losses, programs)] = run_local(1, rank)
    with torch.no_grad():
        assert losses == pytest.approx([float(model(*_sizes(first))) for first in firsts], rel=1e-5)
    assert programs == MANY


def test_what_only_a_later_program_reads_is_the_same_on_all_ranks() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            return self.linear(x).sum() * n.sum() if self.training or n[0] > 1 else -self.linear(x).sum()

    x = torch.randn(4, 4)

    def rank(number: int, comm: Any) -> list[float]:
        parallel = sw.parallelize(Model(), (x, torch.tensor([2, 1])), plan="data", comm=comm, cache=False)
        parallel.eval()
        with torch.no_grad():
            for _ in range(4):  # the first calls of a kind are compared by all that they hold
                parallel(x, torch.tensor([2, 1]))
            return [float(parallel(x, torch.tensor([1 + number, 1])))]

    with pytest.raises(sw.RuntimeFault, match="the ranks were given different inputs") as refused:
        run_local(2, rank)
    assert refused.value.code == "SW0781"


def test_of_parts_of_a_batch_nothing_is_read() -> None:
    """Each part may say the same, and the whole something else."""

    def forward(self: Any, x: Tensor, mask: Tensor) -> Tensor:
        y = self.linear(x).mean(-1)
        return y.square().mean() if mask.all() else y.mean()

    args = torch.randn(8, 4), torch.ones(8, dtype=torch.bool)

    def rank(_: int, comm: Any, names: Any) -> ParallelModule:
        options: dict[str, Any] = {"plan": "data", "cache": False, "micro_batches": 2}
        return sw.parallelize(Does(forward), args, comm=comm, known_inputs=names, **options)

    for names, code in ((None, "SW0102"), ("*", "SW0361")):
        with pytest.raises(sw.ShardwrightError) as refused:
            run_local(1, lambda number, comm, names=names: rank(number, comm, names))
        assert refused.value.code == code


# ---- the cache -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_cache_has_a_program_for_what_is_read_of_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))

    def is_kept(edges: Tensor) -> bool:
        def rank(_: int, comm: Any) -> float:
            parallel = sw.parallelize(Net(), example(edges), plan="data", comm=comm, progress=True)
            with torch.no_grad():
                return float(parallel(*example(edges)))

        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("error")
            assert run_local(1, rank)[0] == pytest.approx(float(Net()(*example(edges))), rel=1e-12)
        return "from the cache" in capfd.readouterr().err

    kept = [is_kept(edges) for edges in (EDGES, OTHER, EDGES.flip(0), OTHER, EDGES)]
    assert kept == [False, False, True, True, True]
