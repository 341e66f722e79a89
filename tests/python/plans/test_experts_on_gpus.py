"""Experts make the host look as seldom as they can, and are one product where there is a kernel for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright import library
from shardwright.library import counts, expert_linear, experts, through
from shardwright.runtime import LocalComm, run_local
from shardwright.runtime.execution import rows as exchanged
from shardwright.runtime.programs.cuts import Cut
from shardwright.runtime.rows import Known, combine, dispatch, expert_rows, known

torch.set_num_threads(1)
TOKENS, WIDTH, INSIDE, TOTAL, SLOTS = 24, 8, 16, 4, 2


def given(dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, ...]:
    """Tokens, their experts and weights, and the experts' matrices."""
    torch.manual_seed(seed)
    x = torch.randn(TOKENS, WIDTH, dtype=dtype, requires_grad=True)
    weights, chosen = torch.randn(TOKENS, TOTAL).to(dtype).softmax(-1).topk(SLOTS)
    chosen[0] = chosen[0, 0]  # one token has chosen one expert twice
    up = (torch.randn(TOTAL, INSIDE, WIDTH) / 4).to(dtype).requires_grad_()
    down = (torch.randn(TOTAL, WIDTH, INSIDE) / 4).to(dtype).requires_grad_()
    return x, chosen, weights.detach(), up, down


class Looks(TorchDispatchMode):
    """What of a device a host would wait for: a value, or a size that follows from values."""

    WAITS = ("_local_scalar_dense", "nonzero", "bincount", "masked_select", "unique", "is_nonzero", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if any(word in name for word in self.WAITS):
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """`.tolist()` of a tensor is no operator: it is counted by itself."""
    reads: list[str] = []
    plain = Tensor.tolist
    with monkeypatch.context() as patch, Looks() as mode:
        patch.setattr(Tensor, "tolist", lambda x: reads.append("tolist") or plain(x))
        yield reads
    reads += list(mode.found.elements())


def test_the_host_looks_once_for_all_experts_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    x, chosen, weights, up, down = given()
    how: dict[str, Any] = {"activation": "relu", "gated": False, "transposed": False}
    with looks(monkeypatch) as reads:
        rows = dispatch(x, chosen, TOTAL, False)
        made = expert_rows(rows, up, down, **how)
        combine(made, chosen, weights, TOTAL, False).sum().backward()
    assert reads == ["tolist"]
    with looks(monkeypatch) as reads:
        experts(x, chosen, weights, up, down, 0, TOTAL, drops=False, **how).sum().backward()
    assert reads == ["tolist"]
    with looks(monkeypatch) as reads:
        expert_linear(x, up, chosen[:, 0], 0, TOTAL, False).sum().backward()
    assert reads == ["tolist"]


def test_rows_come_back_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is there one for their gradients, which go the same ways."""
    there = Cut([[TOTAL], [TOKENS], [WIDTH]], 0, [2, 2])
    looked: list[int] = []
    plain = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda x: looked.append(x.numel()) or plain(x))

    def rank(rank: int, comm: LocalComm) -> None:
        x, chosen, _, _, _ = given(seed=rank)
        rows = dispatch(x, chosen, TOTAL, False).detach()
        join = Cut([[2], [2 * TOKENS], [WIDTH]], 1, [TOKENS, TOKENS])
        gone = exchanged.all_to_all(comm, rows, (0, 1), there, join)
        back = exchanged.all_to_all(comm, gone, (0, 1), join, there)
        again = exchanged.all_to_all(comm, back, (0, 1), there, join)
        assert torch.equal(back.to_dense(), rows.to_dense())
        assert torch.equal(again.to_dense(), gone.to_dense())

    run_local(2, rank)
    # Of each rank: of all its experts, of those that are dropped and of those that are wrong; then how many
    # rows go and come.
    assert sorted(looked) == [4, 4, TOTAL + 2, TOTAL + 2]


@pytest.mark.parametrize("seed", range(3))
def test_places_are_those_of_nonzero(seed: int) -> None:
    torch.manual_seed(seed)
    from shardwright.runtime.rows import _places

    for size in ((5, 7), (1, 1), (3, 1)):
        for share in (0.0, 0.4, 1.0):
            has = torch.rand(size) < share
            assert torch.equal(_places(has, int(has.sum())), has.nonzero().t())
    numbers = torch.randint(0, 6, (20,)).sort().values
    assert torch.equal(counts(numbers, 8), torch.bincount(numbers, minlength=8))
    assert counts(numbers[:0], 3).tolist() == [0, 0, 0]


def test_what_is_known_goes_with_its_memory() -> None:
    what, places = Known(), torch.zeros(2, 3, dtype=torch.int64)
    what[places] = [1, 2]
    assert what.get(places.detach()) == [1, 2] and what.get(places.clone()) is None
    assert what.get(places[:, 1:]) is None and what.get(places[:, :2]) is None
    del places
    for _ in range(5):
        fresh = torch.zeros(2, 3, dtype=torch.int64)
        assert what.get(fresh) is None
        what[fresh] = [3]
        assert len(what._of) == 1
        del fresh
    assert isinstance(known, Known)


# ---- one product for all experts --------------------------------------------------------------


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """PyTorch has this kernel on CPUs too, where it is not the quickest way; its calls."""
    called: list[tuple[int, ...]] = []
    plain = torch._grouped_mm

    def product(x: Tensor, weight: Tensor, *, offs: Tensor) -> Tensor:
        called.append(tuple(weight.shape))
        return plain(x, weight, offs=offs)

    monkeypatch.setattr(torch, "_grouped_mm", product)
    monkeypatch.setattr(library, "_has_grouped_products", lambda device: True)
    return called


WAYS: dict[str, Callable[..., Tensor]] = {
    "rows": lambda x, chosen, weights, up, down, **how: combine(
        expert_rows(dispatch(x, chosen, TOTAL, False), up, down, **how), chosen, weights, TOTAL, False
    ),
    "operator": lambda x, chosen, weights, up, down, **how: experts(
        x, chosen, weights, up, down, 0, TOTAL, drops=False, **how
    ),
    "some experts": lambda x, chosen, weights, up, down, **how: experts(
        x, chosen, weights, up[1:3], down[1:3], 1, TOTAL, drops=False, **how
    ),
    "linear": lambda x, chosen, weights, up, down, **how: expert_linear(x, up, chosen[:, 0], 0, TOTAL, False),
}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_one_product_computes_what_each_expert_does(way: str, gated: bool, grouped: list[Any]) -> None:
    how: dict[str, Any] = {"activation": "silu", "gated": gated, "transposed": False}
    results = []
    for many in (True, False):
        x, chosen, weights, up, down = given(torch.bfloat16)
        if gated:
            down = down[:, :, : INSIDE // 2].detach().contiguous().requires_grad_()
        with pytest.MonkeyPatch.context() as patch:
            if not many:
                patch.setattr(library, "_has_grouped_products", lambda device: False)
            before = len(grouped)
            product = WAYS[way](x, chosen, weights, up, down, **how)
            assert (len(grouped) > before) is many
        learning = [x, up] if way == "linear" else [x, up, down]
        results.append([product, *torch.autograd.grad(product.float().square().sum(), learning)])
    for one, other in zip(*results, strict=True):
        assert float((one - other).float().norm()) <= 2e-2 * float(other.float().norm())


def test_with_that_product_the_host_reads_no_sizes(
    grouped: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, chosen, _, up, down = given(torch.bfloat16)
    rows = dispatch(x, chosen, TOTAL, False)
    monkeypatch.setattr("shardwright.runtime.rows.known", Known())  # as of rows that have come from others
    with looks(monkeypatch) as reads:
        expert_rows(rows, up, down, "relu", False, False)
    assert reads == [] and len(grouped) == 2


def test_where_there_is_none_each_expert_is_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _, _, up, down = given(torch.bfloat16)
    assert not library._grouped(x, up)  # on a CPU
    monkeypatch.setattr(library, "_has_grouped_products", lambda device: True)
    assert library._grouped(x, up)
    assert not library._grouped(x.float(), up.float()) and not library._grouped(x[:0], up)
    assert not library._grouped(x[:, :5], up[:, :, :5])  # 16 bytes
    with torch.no_grad():
        made = through(x.float(), up.float(), down.float(), [TOKENS, 0, 0, 0], "relu", False)
        assert torch.allclose(made, F.linear(F.linear(x.float(), up[0].float()).relu(), down[0].float()))
