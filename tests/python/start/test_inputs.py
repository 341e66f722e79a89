"""What loops give to a model: whole batches, parts of them, micro-batches, and all that does not fit.

Ranks are threads of one process here; `test_loops.py` has real processes.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import default_collate as collate

import shardwright as sw
from models import mlp
from shardwright.runtime import ParallelModule, optimizer, run_local
from shardwright.runtime.agreement.agreement import FEW, digest
from shardwright.runtime.communication.verdicts import WAITS, State, judge

BATCH = 8


def on_ranks(
    world: int,
    module: nn.Module,
    example: Sequence[Any],
    loop: Callable[[ParallelModule], Any],
    *,
    plan: str = "data",
    inputs: str = "global",
    kwargs: Mapping[str, Any] | None = None,
) -> list[Any]:
    """What each rank's loop returns; an error is returned too."""

    def rank(_: int, comm: Any) -> Any:
        model = sw.parallelize(module, example, dict(kwargs or {}), plan=plan, inputs=inputs, comm=comm)
        try:
            return loop(model)
        except sw.ShardwrightError as error:
            return error

    return run_local(world, rank)


def samples(count: int) -> TensorDataset:
    generator = torch.Generator()
    generator.manual_seed(5)
    return TensorDataset(*(torch.randn(count, n, generator=generator).double() for n in (32, 1)))


def order(count: int, epoch: int, seed: int = 3) -> list[int]:
    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    return torch.randperm(count, generator=generator).tolist()


def whole_loader(count: int, epoch: int) -> DataLoader[Any]:
    return DataLoader(samples(count), batch_size=BATCH, sampler=order(count, epoch))


def plain_losses(count: int, epochs: int = 2) -> list[float]:
    module, _ = mlp(batch=BATCH)
    adamw = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for epoch in range(epochs):
        for batch in whole_loader(count, epoch):
            adamw.zero_grad()
            loss = module(*batch)
            loss.backward()
            adamw.step()
            losses.append(loss.item())
    return losses


def losses_of(model: ParallelModule, count: int, epochs: int = 2) -> list[float]:
    data = samples(count)
    sampler = sw.sampler(model, data, BATCH, seed=3) if model.inputs == "local" else None
    adamw = optimizer(model, torch.optim.AdamW, lr=1e-2)
    losses = []
    for epoch in range(epochs):
        if sampler:
            sampler.set_epoch(epoch)
        for batch in DataLoader(data, batch_sampler=sampler) if sampler else whole_loader(count, epoch):
            adamw.zero_grad()
            loss = model.train_step(batch)
            assert loss is not None
            adamw.step()
            losses.append(loss.item())
    return losses


# Every count of the last batch: as many parts as rows, more, fewer, and no short batch.
@pytest.mark.parametrize("inputs", ["global", "local"])
@pytest.mark.parametrize(
    ("world", "plan", "count"),
    [
        (2, "data", 21),
        (4, "data", 22),
        (4, "data", 19),
        (4, "data", 16),
        (4, "data:2 x megatron:2", 21),
        (2, "megatron", 19),
        (2, "replicate", 19),
    ],
)
def test_loops_in_both_modes_equal_the_single_device(world: int, plan: str, count: int, inputs: str) -> None:
    module, _ = mlp(batch=BATCH)
    example = collate([samples(count)[at] for at in range(BATCH)])
    of_ranks = on_ranks(world, module, example, lambda m: losses_of(m, count), plan=plan, inputs=inputs)
    expected = plain_losses(count)
    assert len(expected) == 2 * -(-count // BATCH)
    for losses in of_ranks:
        assert losses == pytest.approx(expected, rel=1e-10)


def test_a_sampler_gives_each_rank_its_rows_of_every_batch() -> None:
    module, example = mlp(batch=BATCH)

    def loop(model: ParallelModule) -> list[list[int]]:
        return list(sw.sampler(model, samples(22), BATCH, seed=3))

    by_rank = on_ranks(4, module, example, loop, plan="data:2 x megatron:2", inputs="local")
    assert by_rank[0] == by_rank[1] and by_rank[2] == by_rank[3]
    batches = [a + b for a, b in zip(by_rank[0], by_rank[2], strict=True)]
    assert [len(batch) for batch in batches] == [8, 8, 6]
    assert [len(part) for part in by_rank[0]] == [4, 4, 3]
    assert [*chain(*batches)] == order(22, 0)


class Total(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return (self.head(x) - target).square().sum()


def test_rows_that_several_ranks_load_count_once() -> None:
    """A last batch of three on four ranks: in a sum, unlike in a mean, copies would show."""
    torch.manual_seed(0)
    module, data = Total().double(), samples(11)
    example = collate([data[at] for at in range(BATCH)])

    def loop(model: ParallelModule) -> Any:
        sampler = sw.sampler(model, data, BATCH, shuffle=False)
        return [model.train_step(batch).item() for batch in DataLoader(data, batch_sampler=sampler)]

    expected = [module(*batch).item() for batch in DataLoader(data, BATCH)]
    assert on_ranks(4, module, example, loop, inputs="local") == [pytest.approx(expected, rel=1e-12)] * 4


def sampler_of(world: int, count: int, state: Any = None, **options: Any) -> Callable[..., Any]:
    """The batches that a sampler gives after it has got a state; all ranks' rows together."""
    module, example = mlp(batch=BATCH)

    def loop(model: ParallelModule) -> Any:
        made = sw.sampler(model, samples(count), BATCH, **options)
        if state is not None:
            made.load_state_dict(state)
        return made, list(made)

    return lambda: on_ranks(world, module, example, loop, inputs="local")


def test_a_sampler_goes_on_where_it_was_on_another_number_of_ranks() -> None:
    (first, _), *_ = sampler_of(4, 30, seed=3)()
    first.set_epoch(2)
    taken = [next(it) for it in [iter(first)] for _ in range(2)]
    assert len(taken) == 2
    state = first.state_dict()
    resumed = sampler_of(2, 30, state, seed=3)()
    batches = [[*chain(*rows)] for rows in zip(*(rows for _, rows in resumed), strict=True)]
    assert [*chain(*batches)] == order(30, 2)[2 * BATCH :]
    # Setting the epoch that a state is in, as loops do, keeps the position; another begins anew.
    (made, _), *_ = sampler_of(2, 30, seed=3)()
    made.load_state_dict(state)
    made.set_epoch(2)
    assert len(list(made)) == 2
    assert len(list(made)) == 4
    assert made.state_dict(1)["taken"] == 1


def bad_samplers() -> dict[str, tuple[str, Callable[[ParallelModule], Any]]]:
    def load(model: ParallelModule, state: Mapping[str, Any]) -> None:
        sw.sampler(model, samples(30), BATCH).load_state_dict(state)

    return {
        "no indices": ("SW0787", lambda m: sw.sampler(m, Stream(), BATCH)),  # type: ignore[arg-type]
        "no sample": ("SW0787", lambda m: sw.sampler(m, samples(0), BATCH)),
        "only a short batch": ("SW0787", lambda m: sw.sampler(m, samples(3), BATCH, drop_last=True)),
        "alike": ("SW0790", lambda m: [sw.sampler(m, samples(19), BATCH), sw.sampler(m, samples(12), 6)]),
        "another seed": ("SW0788", lambda m: load(m, sw.sampler(m, samples(30), BATCH, seed=1).state_dict())),
        "no position": ("SW0788", lambda m: load(m, {})),
        "too many": ("SW0788", lambda m: sw.sampler(m, samples(30), BATCH).state_dict(9)),
    }


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize("title", bad_samplers())
def test_a_sampler_that_cannot_be(title: str) -> None:
    code, make = bad_samplers()[title]
    module, example = mlp(batch=BATCH)
    for error in on_ranks(4, module, example, make, inputs="local"):
        assert isinstance(error, sw.ShardwrightError), error
        assert error.code == code
        assert error.fix and error.why


def test_a_sampler_is_for_parts() -> None:
    module, example = mlp(batch=BATCH)
    errors = on_ranks(2, module, example, lambda m: sw.sampler(m, samples(9), BATCH))
    assert [error.code for error in errors] == ["SW0787"] * 2


# ---- micro-batches and structures --------------------------------------------------------------


class Tagger(nn.Module):
    """Takes a mapping, a nested structure, or tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, 5)

    def forward(self, ids: Tensor, labels: Tensor, rest: Any = None) -> Tensor:
        x = self.words(ids)
        if rest is not None:
            x = x * rest["mask"][0][..., None]
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten(), ignore_index=-100)


def tagged(batch: int = 4, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator()
    generator.manual_seed(seed)
    labels = torch.randint(5, (batch, 6), generator=generator)
    labels[0, :3] = -100
    mask = torch.rand(batch, 6, generator=generator).double()
    return {
        "ids": torch.randint(11, (batch, 6), generator=generator),
        "labels": labels,
        "rest": {"mask": (mask,)},
    }


def tagger() -> nn.Module:
    torch.manual_seed(0)
    return Tagger().double()


def as_tuple(batch: dict[str, Any]) -> Any:
    return tuple(batch.values())


def as_list(batch: dict[str, Any]) -> Any:
    return list(batch.values())


def as_user_dict(batch: dict[str, Any]) -> Any:
    return UserDict({**batch, "rest": UserDict(batch["rest"])})


@pytest.mark.parametrize("form", [dict, as_tuple, as_list, as_user_dict])
@pytest.mark.parametrize("scale", [None, 0.25])
def test_micro_batches_of_any_form_and_size(form: Callable[[Any], Any], scale: float | None) -> None:
    batches = [tagged(4, 0), tagged(3, 1), tagged(6, 2)]
    reference = tagger()
    losses = [reference(**batch) for batch in batches]
    for loss in losses:
        (loss * (scale or 1 / 3)).backward()

    def loop(model: ParallelModule) -> Any:
        loss = model.train_step([form(batch) for batch in batches], scale)
        assert loss is not None
        adamw = optimizer(model, torch.optim.SGD, lr=1.0)
        adamw.step()
        return loss.item(), model.full_state_dict()

    actual = on_ranks(2, tagger(), (), loop, kwargs=batches[0])
    for loss, state in actual:
        assert loss == pytest.approx(float(torch.stack(losses).mean()), rel=1e-12)
        for name, parameter in reference.named_parameters():
            expected = parameter.detach() - parameter.grad
            assert torch.allclose(state[name], expected, rtol=1e-10, atol=1e-14), name


def test_a_list_of_tensors_is_one_batch_as_loaders_make_it() -> None:
    module, example = mlp(batch=BATCH)
    expected = module(*example).item()
    actual = on_ranks(2, module, example, lambda m: [m.train_step(x).item() for x in ([*example], [example])])
    assert actual == [[pytest.approx(expected)] * 2] * 2


def test_nothing_is_lost_by_a_forward_whose_backward_never_comes() -> None:
    module, example = mlp(batch=BATCH)
    loss = module(*example)
    loss.backward()

    def loop(model: ParallelModule) -> Any:
        model(*example)
        model(*example).backward()
        return [shard.data.grad.clone() for shard in model.shards.held]

    names = [name for name, _ in module.named_parameters()]
    for grads in on_ranks(2, module, example, loop, plan="data"):
        for name, grad in zip(names, grads, strict=True):
            assert torch.allclose(grad, module.get_parameter(name).grad, rtol=1e-10)


def test_not_a_number_goes_through_as_on_one_device() -> None:
    module, (x, target) = mlp(batch=BATCH)
    x = x.clone()
    x[0, 0] = float("nan")

    def loop(model: ParallelModule) -> Any:
        loss = model.train_step((x, target))
        return loss.isnan().item(), all(shard.data.grad.isnan().any() for shard in model.shards.held)

    assert on_ranks(2, module, (x, target), loop) == [(True, True)] * 2


# ---- ranks that are given different things -----------------------------------------------------


def refusals(
    give: Callable[[int, Any], Any],
    *,
    plan: str = "data",
    inputs: str = "global",
    world: int = 4,
    warm: int = 0,
) -> list[sw.ShardwrightError]:
    """What the ranks say when each is given its own thing. After an error that all ranks raise, the
    loop may go on: that is tried too."""
    module, example = mlp(batch=BATCH)

    def loop(model: ParallelModule) -> Any:
        rank = model.comm.rank
        part = example if inputs == "global" else tuple(x[rank * 2 : rank * 2 + 2] for x in example)
        for _ in range(warm):
            model.train_step(part)
        try:
            model.train_step(give(rank, part))
        except sw.ShardwrightError as error:
            assert model.train_step(part) is not None
            return error
        return None

    return on_ranks(world, module, example, loop, plan=plan, inputs=inputs)


def swapped(batch: Any) -> Any:
    return tuple(x.flip(0) for x in batch)


def only(rank: int, change: Callable[[Any], Any]) -> Callable[[int, Any], Any]:
    return lambda at, batch: change(batch) if at == rank else batch


@pytest.mark.parametrize(
    ("title", "give", "what"),
    [
        ("one", only(2, swapped), "rank 2 was given another batch than the other ranks"),
        (
            "each",
            lambda rank, batch: tuple(x.roll(rank, 0) for x in batch),
            "ranks 0, 1, 2 and 3 were given different batches",
        ),
    ],
)
def test_loaders_that_shuffle_differently(title: str, give: Any, what: str) -> None:
    errors = refusals(give)
    assert [(error.code, error.what) for error in errors] == [("SW0780", what)] * 4
    # In the third step as well; a rank that reads the batch in another layout is given the same.
    assert [error.code for error in refusals(give, plan="megatron", warm=2)] == ["SW0780"] * 4


def test_copies_of_a_part_are_compared() -> None:
    module, example = mlp(batch=BATCH)

    def loop(model: ParallelModule) -> Any:
        rows = slice(0, 4) if model.comm.rank < 2 else slice(4, 8)
        part = tuple(x[rows] for x in example)
        return model.train_step(swapped(part) if model.comm.rank == 3 else part)

    errors = on_ranks(4, module, example, loop, plan="data:2 x megatron:2", inputs="local")
    assert {(error.code, error.what) for error in errors} == {
        ("SW0780", "ranks 2 and 3 were given different batches")
    }


def test_inputs_of_other_kinds_on_one_rank() -> None:
    errors = refusals(only(1, lambda batch: tuple(x[:4] for x in batch)))
    assert [error.code for error in errors] == ["SW0781"] * 4
    assert errors[0].why == (
        "ranks 0, 2 and 3: x is (8, 32) of float64; target is (8, 1) of float64"
        " | rank 1: x is (4, 32) of float64; target is (4, 1) of float64"
    )
    errors = refusals(only(0, lambda batch: [batch, batch]))
    assert {(error.code, error.why) for error in errors} == {
        ("SW0781", "rank 0: 2 batches | ranks 1, 2 and 3: 1 batches")
    }
    assert {error.code for error in refusals(only(3, lambda batch: tuple(x.float() for x in batch)))} == {
        "SW0781"
    }


def test_what_one_rank_cannot_take_is_told_to_all() -> None:
    given = {
        "SW0105": lambda batch: (batch[0],),
        "SW0789": lambda batch: (batch[0].numpy(), batch[1]),
        "SW0706": lambda batch: [],
    }
    for code, change in given.items():
        errors = refusals(only(1, change))
        assert [error.code for error in errors] == ["SW0784", code, "SW0784", "SW0784"]
        assert errors[0].what == "rank 1 cannot take its batch"
        assert code in (errors[0].why or "")


def test_arrays_and_tensors_without_values() -> None:
    numpy = pytest.importorskip("numpy")
    for change in (lambda b: (numpy.ones((8, 32)), b[1]), lambda b: (b[0], b[1].to("meta"))):
        errors = refusals(lambda rank, batch, change=change: change(batch))
        assert [error.code for error in errors] == ["SW0789"] * 4


def test_parts_that_are_no_batch() -> None:
    longer = only(2, lambda batch: tuple(torch.cat([x, x]) for x in batch))
    errors = refusals(longer, inputs="local")
    assert [(error.code, error.what) for error in errors] == [
        ("SW0786", "the parts of a batch are 2, 2, 4 and 2 long")
    ] * 4
    unequal = only(2, lambda batch: (batch[0], batch[1][:1]))
    errors = refusals(unequal, inputs="local")
    assert [error.code for error in errors] == ["SW0784", "SW0784", "SW0786", "SW0784"]


def test_a_rank_that_evaluates_while_the_others_train() -> None:
    module, example = mlp(batch=BATCH)

    def loop(model: ParallelModule) -> Any:
        for _ in range(2):
            model.train_step(example)
        if model.comm.rank == 1:
            with torch.no_grad():
                return model.eval()(*example)
        return model.train_step(example)

    for world in (2, 4):
        errors = on_ranks(world, module, example, loop)
        assert {error.code for error in errors} == {"SW0782"}
        assert {error.what for error in errors} == {"rank 1 left the loop after step 2"}
        assert "it calls forward in evaluation mode without gradients, the others train_step" in errors[0].why


def test_a_rank_that_takes_the_state_dict_while_the_others_train() -> None:
    module, example = mlp(batch=BATCH)

    def loop(model: ParallelModule) -> Any:
        model.full_state_dict()
        return model.full_state_dict() if model.comm.rank == 1 else model.train_step(example)

    for inputs in ("global", "local"):
        errors = on_ranks(4, module, example, loop, plan="megatron", inputs=inputs)
        assert {error.what for error in errors} == {"rank 1 left the loop after step 0"}
        assert "it calls full_state_dict, the others train_step" in errors[0].why


# ---- what follows from where the ranks are -----------------------------------------------------


def state(call: int = 5, kind: str = "train_step", **rest: Any) -> State:
    place = {"waiting": True, "still": 30.0, "place": "train.py:7", **rest}
    return State(call=call, steps=call - 1, kind=kind, **place)


@pytest.mark.parametrize(
    ("others", "what"),
    [
        ([state()], None),
        ([state(6, waiting=False)], None),
        ([state(4, "", waiting=False, still=900.0)], None),
        ([state(4, "", still=3.0)], None),
        ([state(5, "", ended=True), state(waiting=False)], None),
        ([state(4, failed="ValueError: of the last step")], "the ranks wait for each other for ever"),
        ([state(4, "", ended=True)], "rank 1 left the loop after step 3"),
        ([state(4, "", ended=True), state(4, "", ended=True)], "ranks 1 and 2 left the loop after step 3"),
        ([state(), state(failed="ValueError: a mistake")], "rank 2 failed"),
        ([state(5, "", ended=True)], "the ranks wait for each other for ever"),
        ([state(4, "")], "the ranks wait for each other for ever"),
        ([state(6)], "the ranks wait for each other for ever"),
        ([state(6), state(waiting=False)], None),
    ],
)
def test_what_follows_from_where_the_ranks_are(others: list[State], what: str | None) -> None:
    """A rank that is busy, or only late, or in a slow message of the same call, is waited for."""
    verdict = judge([state(), *others], 0, patience=20.0)
    assert (verdict and verdict.what) == what


def test_the_code_that_waits_is_where_the_watcher_looks_for_it() -> None:
    assert [place for place in WAITS if not Path(place).exists()] == []


def test_a_step_in_evaluation_mode_is_that_of_the_single_device() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), Mean()).double()
    x = torch.randn(8, 4, dtype=torch.float64)
    expected = module.eval()(x)
    expected.backward()
    grads = [p.grad.clone() for p in module.parameters()]
    module.train()

    def loop(model: ParallelModule) -> Any:
        model.eval()
        loss = model.train_step(x)
        return loss.item(), [shard.data.grad for shard in model.shards.held]

    for loss, actual in on_ranks(2, module, (x,), loop):
        assert loss == pytest.approx(expected.item(), rel=1e-12)
        assert all(torch.allclose(a, b, rtol=1e-10) for a, b in zip(actual, grads, strict=True))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


def test_a_digest_notices_order_and_place_in_small_and_large_tensors() -> None:
    for rows in (16, FEW // 16):
        x = torch.arange(rows * 40, dtype=torch.float32).reshape(rows, 40)
        others = [x.flip(0), x.roll(1, 0), x.roll(1, 1), x.clone()]
        others[3][rows // 2, 7] += 1
        assert digest([x]) == digest([x.clone()])
        assert len({digest([y]) for y in [x, *others]}) == 5
    assert digest([x[:3], x[3:]]) != digest([x[3:], x[:3]])
    assert digest([torch.ones(3, dtype=torch.bool), torch.zeros(0), torch.tensor(2.5)]) > 0


class WithUnread(nn.Module):
    """Reads the first input; what becomes of the second is nowhere asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, rows: Tensor, unread: Tensor) -> dict[str, Tensor]:
        return {"loss": (rows * self.weight).sum(), "unread": unread.sin()}


@pytest.mark.parametrize(
    "unread", [[2, 2, 2, 2], [2, 1, 1, 1]], ids=["a common tensor", "a part of the batch"]
)
def test_an_input_that_no_output_needs_may_be_as_long_as_one_rank_s_part(unread: list[int]) -> None:
    rows, lengths = torch.randn(5, 4).double(), [2, 1, 1, 1]

    def loop(model: ParallelModule) -> float:
        at = model.comm.rank
        begin = sum(lengths[:at])
        part = rows[begin : begin + lengths[at]]
        return float(model(part, torch.ones(unread[at], 3))["loss"])

    actual = on_ranks(4, WithUnread(), (rows, torch.ones(5, 3)), loop, inputs="local")
    assert actual == [pytest.approx(rows.sum().item(), rel=1e-12)] * 4


def test_an_input_that_no_output_needs_is_a_part_on_all_ranks_or_on_none() -> None:
    def loop(model: ParallelModule) -> float:
        length = 2 if model.comm.rank == 0 else 1
        return float(model(torch.ones(length, 4).double(), torch.ones(2 + model.comm.rank, 3))["loss"])

    for error in on_ranks(
        4, WithUnread(), (torch.ones(5, 4).double(), torch.ones(5, 3)), loop, inputs="local"
    ):
        assert error.code == "SW0786" and "a tensor is 2, 3, 4 and 5 long" in str(error)
