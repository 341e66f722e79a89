"""The `sw.*` operators against PyTorch's on whole tensors, and the keys of random numbers."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from runtime_programs import batch, data, mlp
from shardwright.runtime import Comm, ParallelModule, load_program, ops, run_local
from shardwright.runtime.execution.randomness import key_of, keyed_masks
from shardwright.runtime.execution.run.executing import _current

STATE = mlp().state_dict()


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_parts_of_an_embedding_add_up() -> None:
    weight = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    indices = torch.tensor([[0, 6, 2], [3, 3, 5]])
    whole = F.embedding(indices, weight, padding_idx=3)
    parts = [(0, 3), (3, 7), (7, 7)]
    total = sum(ops.embedding_shard(weight[lo:hi], indices, lo, 3, 7) for lo, hi in parts)
    assert isinstance(total, Tensor)
    close(total, whole)
    ours = torch.autograd.grad(total.square().sum(), weight)
    close(ours[0], torch.autograd.grad(whole.square().sum(), weight)[0])


@pytest.mark.parametrize("ignore", [-100, 2])
def test_parts_of_a_pick_add_up(ignore: int) -> None:
    x = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[0, 6, 2], [ignore, 3, 5]])
    whole = F.nll_loss(-x, targets.clamp(min=-100), ignore_index=ignore, reduction="none") * -1
    total = sum(-ops.pick(-x[:, lo:hi], targets, 1, lo, ignore, 7) for lo, hi in [(0, 3), (3, 7), (7, 7)])
    assert isinstance(total, Tensor)
    close(total, -whole)
    close(
        torch.autograd.grad(total.square().sum(), x)[0],
        torch.autograd.grad(whole.square().sum(), x)[0],
    )


def test_empty_parts_still_need_gradients() -> None:
    weight = torch.randn(0, 3, requires_grad=True)
    assert ops.embedding_shard(weight, torch.tensor([1]), 5, -1, 9).requires_grad
    assert ops.pick(torch.randn(2, 0, requires_grad=True), torch.tensor([1, 2]), 1, 0, -100, 3).requires_grad


def test_parts_of_a_mean_add_up() -> None:
    x = torch.randn(4, 5)
    parts = [ops.mean(part, [0], True, 4, torch.float64) for part in x.split([3, 1])]
    close(parts[0] + parts[1], x.mean(0, True, dtype=torch.float64))


class _FakeRun:
    def __init__(self, masks: Any):
        self.masks, self.comm = masks, SimpleNamespace(device=torch.device("cpu"))


@pytest.fixture
def drawing() -> Any:
    regions = {17: [((0, 2), (0, 3)), ((2, 4), (0, 3))]}
    program: Any = SimpleNamespace(ranks=[SimpleNamespace(random=regions)], draws={}, tensors={})
    token = _current.set(_FakeRun(keyed_masks(program, 0, seed=1, step=2, micro_batch=3)))  # type: ignore[arg-type]
    yield
    _current.reset(token)


def test_dropout_is_keyed_by_region(drawing: Any) -> None:
    x = torch.ones(200, 30, dtype=torch.float64)
    first, again, other = (ops.dropout(x, 0.25, 17, slot) for slot in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert set(first.unique().tolist()) == {0.0, 1 / 0.75}
    assert abs((first > 0).double().mean().item() - 0.75) < 0.02
    out, mask = ops.native_dropout(x, 0.25, 17, 0)
    assert torch.equal(out, first)
    assert torch.equal(mask, first > 0)
    assert not ops.dropout(x, 1.0, 17, 0).any()


def test_keys_are_stable() -> None:
    keys = {
        key_of(*numbers, ((0, 1),)) for numbers in [(0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0)]
    }
    assert len(keys) == 4
    assert key_of(0, 1, 2, 3, ((0, 4), (1, 2))) == 12683734703416064591


@pytest.mark.parametrize(
    ("causal", "mask"),
    [
        (False, None),
        (True, None),
        (False, "bool"),
        (False, "float"),
        (False, "bool with an empty row"),
    ],
)
def test_attention_without_dropped_places_is_attention(drawing: Any, causal: bool, mask: str | None) -> None:
    q = torch.randn(2, 4, 5, 8, dtype=torch.float64)
    k, v = (
        torch.randn(2, 2, 6, 8, dtype=torch.float64),
        torch.randn(2, 2, 6, 3, dtype=torch.float64),
    )
    given: Tensor | None = None
    if mask:
        given = torch.randn(5, 6) > 0 if mask.startswith("bool") else torch.randn(5, 6, dtype=torch.float64)
    if given is not None and "row" in str(mask):
        given[2] = False
    ours = ops.attention(q, k, v, given, 1e-12, causal, 0.3, True, 0, 17, 0)
    close(
        ours,
        F.scaled_dot_product_attention(q, k, v, given, 0.0, causal, scale=0.3, enable_gqa=True),
    )


@pytest.mark.parametrize("bounds", [(0, 2, 5), (0, 1, 4, 5), (0, 5)])
@pytest.mark.parametrize("keys", [5, 4, 3, 2, 7])
@pytest.mark.parametrize("batch", [(2,), ()], ids=str)
@pytest.mark.parametrize("width", [8, 3])
def test_parts_of_causal_attention_are_rows_of_the_whole(
    bounds: tuple[int, ...], keys: int, batch: tuple[int, ...], width: int
) -> None:
    shapes = [(*batch, 4, 5, 8), (*batch, 2, keys, 8), (*batch, 2, keys, width)]
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)
    parts = [ops.causal_attention(q[..., a:b, :], k, v, 0.3, True, a) for a, b in pairwise(bounds)]
    close(torch.cat(parts, -2), whole)
    # As transposed as what a model gives.
    seed = torch.randn(whole.transpose(-3, -2).shape, dtype=torch.float64).transpose(-3, -2)
    joined = torch.autograd.grad(torch.cat(parts, -2), (q, k, v), seed)
    for ours, theirs in zip(joined, torch.autograd.grad(whole, (q, k, v), seed), strict=True):
        close(ours, theirs)


def test_dropped_places_of_causal_attention_do_not_see_ahead(drawing: Any) -> None:
    shape = (2, 4, 5, 8)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    part = ops.attention(q[..., 3:, :], k, v, None, 1e-12, True, None, False, 3, 17, 0)
    close(part, whole[..., 3:, :])


def _step(files: dict[str, str], comm: Comm, randomness: str, steps: int = 1) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(11)
    model = ParallelModule(
        load_program(files), comm, STATE, randomness=randomness, generator=generator, seed=4
    )
    losses = [model.train_step([batch(1), batch(2)]) for _ in range(steps)]
    grad = dict(model.named_parameters())["up.weight"].grad
    assert grad is not None
    return [loss for loss in losses if loss is not None], grad


def test_single_device_masks_are_those_of_the_plain_module() -> None:
    plain = mlp(dropout=0.5)
    torch.manual_seed(11)
    losses = [plain(*batch(seed)) for seed in (1, 2)]
    sum(loss / 2 for loss in losses).backward()  # type: ignore[union-attr]
    expected = torch.stack(losses).mean().detach()
    for world in (1, 2, 3):
        for loss, grad in run_local(
            world, lambda rank, comm: _step(data(comm.world, dropout=0.5), comm, "single-device")
        ):
            close(loss[0], expected)
            assert plain.up.weight.grad is not None
            close(grad, plain.up.weight.grad)


def test_recomputation_draws_the_same_masks() -> None:
    for randomness in ("keyed", "single-device"):
        kept, again = (
            run_local(
                2,
                lambda rank, comm, r=r, mode=randomness: _step(
                    data(2, dropout=0.5, recompute=r), comm, mode, steps=2
                ),
            )
            for r in (False, True)
        )
        for (losses, grad), (losses_again, grad_again) in zip(kept, again, strict=True):
            assert losses == losses_again
            assert torch.equal(grad, grad_again)
        if randomness == "keyed":
            assert kept[0][0][0] != kept[0][0][1]
