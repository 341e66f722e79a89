"""Precisions: computing in bfloat16 or float16 over float32 parameters, against the same by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import equality
import models
import shardwright as sw
from shardwright import Precision, RuntimeFault
from shardwright.precision import precision_of
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import compile_model, sources

torch.set_num_threads(1)

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
Given = str | Precision
PLANS = [
    ("replicate", 1),
    ("data", 4),
    ("megatron", 2),
    ("data:2 x megatron:2", 4),
    ("zero3", 4),
    ("data:2 x zero1:2", 4),
    ("stages:2 x zb-h1", 2),
]


def on_ranks(
    module: nn.Module,
    args: Sequence[Any],
    plan: str,
    devices: int,
    precision: Given,
    body: Callable[[ParallelModule], Any],
) -> list[Any]:
    bundle, _ = compile_model(module, args, plan=plan, devices=devices, precision=precision)
    program = load_program(bundle.files, world=devices)
    values = sources(module, bundle.captured)

    def rank(_: int, comm: Any) -> Any:
        return body(ParallelModule(program, comm, values, bundle.captured, training=module.training))

    return run_local(devices, rank)


@dataclass
class Outcome:
    losses: list[float]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def by_hand(module: nn.Module, args: Sequence[Tensor], dtype: torch.dtype, steps: int = 3) -> Outcome:
    """Parameters in float32, cast for each forward; those of batch norm are not."""
    module = copy.deepcopy(module)
    norms = {f"{name}." for name, part in module.named_modules() if isinstance(part, nn.BatchNorm2d)}
    sgd = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    given = [x.to(dtype) if x.is_floating_point() else x for x in args]
    outcome = Outcome([], {}, {})
    for _ in range(steps):
        sgd.zero_grad()
        cast = {
            name: p if any(name.startswith(norm) for norm in norms) else p.to(dtype)
            for name, p in module.named_parameters()
        }
        loss = equality.scalars(functional_call(module, cast, tuple(given)))[0]
        loss.backward()
        outcome.losses.append(loss.item())
        outcome.gradients = outcome.gradients or {n: p.grad.clone() for n, p in _with_grad(module)}
        sgd.step()
    outcome.parameters = {name: p.detach() for name, p in module.named_parameters()}
    return outcome


def _with_grad(module: nn.Module) -> list[Any]:
    return [(name, p) for name, p in module.named_parameters() if p.grad is not None]


def train(model: ParallelModule, args: Sequence[Any], steps: int = 3) -> Any:
    sgd = sw.optimizer(model, torch.optim.SGD, lr=0.05, momentum=0.9)
    losses, grads = [], {}
    for step in range(steps):
        sgd.zero_grad()
        loss = model.train_step(tuple(args))
        losses.append(loss.item() if loss is not None else None)
        if step == 0:
            assert {p.grad.dtype for _, p in _with_grad(model)} == {FP32}
            saved = model.full_state_dict()
            for shard in model.shards.held:
                if shard.data.requires_grad:
                    shard.data.data, shard.kept = shard.data.grad.clone(), shard.data.data  # type: ignore
            grads = model.full_state_dict()
            for shard in model.shards.held:
                if shard.data.requires_grad:
                    shard.data.data = shard.kept  # type: ignore[attr-defined]
            assert all(torch.equal(x, saved[n]) for n, x in model.full_state_dict().items())
        sgd.step()
    return Outcome(losses, grads, model.full_state_dict())


def error(ours: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    """Of all tensors together, relative."""
    gap = sum(float((ours[n].double() - x.double()).norm() ** 2) for n, x in truth.items())
    return (gap / sum(float(x.double().norm() ** 2) for x in truth.values())) ** 0.5


@pytest.mark.oldest
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize(("plan", "devices"), PLANS)
@pytest.mark.parametrize("name", ["mlp", "gpt", "resnet"])
def test_as_exact_as_the_same_by_hand(name: str, plan: str, devices: int, dtype: torch.dtype) -> None:
    """No further from the exact result than one device is; on one device the very same."""
    module, args = getattr(models, name)()
    truth = by_hand(module, args, FP64)
    module = module.float()
    hand = by_hand(module, args, dtype)
    word = {BF16: "bf16", FP16: "fp16"}[dtype]
    for ours in on_ranks(module, args, plan, devices, word, lambda model: train(model, args)):
        for kind in ("gradients", "parameters"):
            actual, wanted, exact = (getattr(x, kind) for x in (ours, hand, truth))
            if devices == 1:
                assert error({n: actual[n] for n in wanted}, wanted) < 2e-3
            limit = 1.5 * error(wanted, exact) + (2e-3 if dtype == BF16 else 1e-3)
            assert error(actual, exact) < limit
            assert error(wanted, exact) > 1e-5, "the reference was not computed in half precision"
        for a, b in zip(ours.losses, truth.losses, strict=True):
            assert a == pytest.approx(b, rel=2e-2 if dtype == BF16 else 2e-3)


class Scale(nn.Module):
    """The gradient of each weight is the sum of its column of the batch."""

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), value))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum()


# In bfloat16 all sums of them, in any order of pairs, lose the ones.
ROWS = torch.tensor([[256.0] * 4, [1.0] * 4, [1.0] * 4, [1.0] * 4])


@pytest.mark.parametrize(("reduce", "expected"), [(FP32, 259.0), (BF16, 256.0)])
def test_gradients_are_reduced_in_their_own_dtype(reduce: torch.dtype, expected: float) -> None:
    precision = Precision(compute=BF16, reduce=reduce)

    def body(model: ParallelModule) -> tuple[Tensor, Any]:
        model.train_step(ROWS)
        grad = next(model.parameters()).grad
        assert grad is not None
        return grad, model.issued

    for grad, issued in on_ranks(Scale(), (ROWS,), "data", 4, precision, body):
        assert grad.dtype == FP32
        assert grad.tolist() == [expected] * 4
        sizes = [size for kind, _, size in issued if kind == "reduce_gradients"]
        assert sizes == [4 * reduce.itemsize]


def test_micro_batches_are_summed_in_the_master_dtype() -> None:
    def body(model: ParallelModule) -> list[float]:
        model.train_step([row.expand(2, 4) for row in ROWS], scale=0.5)
        one_by_one = model.weight.grad.tolist()  # type: ignore[union-attr, operator]
        model.zero_grad()
        for row in ROWS:
            (model(row.expand(2, 4)) / 2).backward()
        assert model.weight.grad.tolist() == one_by_one  # type: ignore[union-attr, operator]
        return one_by_one  # type: ignore[no-any-return]

    args = (ROWS[:2],)
    for devices in (1, 2):
        for actual in on_ranks(Scale(), args, "data", devices, "bf16", body):
            assert actual == [259.0] * 4


def test_steps_smaller_than_half_precision_add_up() -> None:
    """A bfloat16 weight of 1 would stay 1: half of its last place is 2^-9."""
    x = torch.full((2, 4), 2.0**-6)

    def body(model: ParallelModule) -> Tensor:
        sgd = sw.optimizer(model, torch.optim.SGD, lr=2.0**-7)
        for _ in range(64):
            sgd.zero_grad()
            model.train_step(x)
            sgd.step()
        return model.full_state_dict()["weight"]

    for actual in on_ranks(Scale(), (x,), "data", 2, "bf16", body):
        assert actual.tolist() == [1 - 64 * 2.0**-12] * 4


def test_any_change_of_a_parameter_is_read_by_the_next_forward() -> None:
    """Also one that leaves no trace: in place, through `.data`."""

    def body(model: ParallelModule) -> list[float]:
        weight = next(model.parameters())
        numbers = [float(model(ROWS))]
        weight.data.mul_(2)
        numbers.append(float(model(ROWS)))
        with torch.no_grad():
            weight.zero_()
        numbers.append(float(model(ROWS)))
        return numbers

    for actual in on_ranks(Scale(), (ROWS,), "replicate", 1, "bf16", body):
        assert actual[1] == 2 * actual[0] != 0
        assert actual[2] == 0


@pytest.mark.parametrize("plan", ["data", "megatron"])
def test_state_dicts_hold_the_masters(plan: str) -> None:
    module, args = models.gpt()
    module = module.float()
    module.register_buffer("table", torch.full((2,), 1 / 3, dtype=FP64))

    def body(model: ParallelModule) -> None:
        full = model.full_state_dict()
        for name, value in module.state_dict().items():
            assert torch.equal(full[name], value), name
            assert full[name].dtype == value.dtype
        assert {p.dtype for p in model.parameters()} == {FP32}
        other = {n: x * 1.0001 for n, x in full.items()}
        model.load_full_state_dict(other)
        assert all(torch.equal(x, other[n]) for n, x in model.full_state_dict().items())

    on_ranks(module, args, plan, 2, "bf16", body)


@pytest.mark.slow
def test_other_shapes_and_evaluation_keep_the_precision() -> None:
    module, args = models.gpt()
    module = module.float()
    short = tuple(x[:2] for x in args)
    hand = by_hand(module, short, BF16, steps=1)

    def body(_: int, comm: Any) -> list[Tensor]:
        model = sw.parallelize(module, args, precision="bf16", comm=comm)
        model.train_step(short)
        grads = {n: p.grad for n, p in model.named_parameters()}
        model.eval()
        with torch.no_grad():
            loss = model(*short)[1]
        assert loss.dtype == BF16
        assert float(loss) == pytest.approx(hand.losses[0], rel=2e-2)
        return [grads["ln_f.weight"], grads["ln_f.bias"]]  # type: ignore[list-item]

    for weight, bias in run_local(2, body):
        assert weight.dtype == FP32
        ours = {"ln_f.weight": weight, "ln_f.bias": bias}
        assert error(ours, {name: hand.gradients[name] for name in ours}) < 1e-2


def test_parameters_of_one_dtype_computed_with_in_another() -> None:
    """Then their gradients arise in the wider one: the uses of a tied weight add up there."""
    module, args = models.gpt()
    module = module.float()
    hand = by_hand(module, args, BF16, steps=1)
    precision = Precision(compute=BF16, param=FP32)
    bundle, _ = compile_model(module, args, plan="megatron", devices=2, precision=precision)
    assert 'f32[101,32] "wte.weight"' in bundle.graph_text
    for ours in on_ranks(module, args, "megatron", 2, precision, lambda model: train(model, args, 1)):
        assert error({n: ours.gradients[n] for n in hand.gradients}, hand.gradients) < 1e-2


@pytest.mark.parametrize("inside", [True, False])
def test_a_program_from_the_cache_keeps_its_dtypes(
    inside: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    module: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    if inside:
        module.forward = torch.autocast("cpu", dtype=BF16)(module.forward)  # type: ignore[method-assign]
    captures = []
    for _ in range(2):
        model = sw.parallelize(module, ROWS, precision=None if inside else "fp16", outputs="all")
        captures.append(model.variants.first.captured)
        assert model(ROWS).dtype == (BF16 if inside else FP16)
    assert len(list(tmp_path.rglob("info.json"))) == 1, "the second comes from the cache"
    for name in ("precision", "kept", "autocast", "device"):
        assert getattr(captures[0], name) == getattr(captures[1], name)
    assert captures[1].kept == {name: FP32 for name, _ in module.named_parameters()}


def test_words_and_dtypes() -> None:
    assert precision_of("bf16") == Precision(compute=BF16, param=BF16, reduce=FP32, master=FP32)
    assert Precision(compute=FP64).master == FP64
    assert precision_of(None) is None
    for wrong in (lambda: precision_of("int8"), lambda: Precision(compute=torch.int8)):
        with pytest.raises(RuntimeFault, match="SW0765"):
            wrong()


# ---- loss scaling --------------------------------------------------------------------------

SMALL = torch.full((4, 4), 2.0**-4)
# On the third rank the gradient, 2^15 times as large, is more than float16 can hold.
LARGE = SMALL.clone()
LARGE[2] = 2.0**4


def weights(model: ParallelModule) -> list[float]:
    return model.full_state_dict()["weight"].tolist()  # type: ignore[no-any-return]


def scaling(model: ParallelModule) -> Any:
    assert model.loss_scaling is not None
    return model.loss_scaling


Make = Callable[[ParallelModule], torch.optim.Optimizer]
MAKERS: list[Make] = [
    lambda model: sw.optimizer(model, torch.optim.AdamW, lr=0.1),
    lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True),
]


@pytest.mark.parametrize("make", MAKERS)
def test_an_overflow_on_one_rank_leaves_the_step_out_on_all(make: Make) -> None:
    def body(model: ParallelModule) -> list[Any]:
        adamw = make(model)
        model.train_step(LARGE)
        assert scaling(model).scale == 2.0**14
        adamw.step()
        assert weights(model) == [1.0] * 4
        assert not adamw.state
        adamw.zero_grad()
        model.train_step(SMALL)
        grad = next(model.parameters()).grad
        assert grad is not None
        assert grad.tolist() == [0.25] * 4
        adamw.step()
        return [weights(model), float(adamw.state[next(model.parameters())]["step"])]

    plain = Scale()
    adamw = torch.optim.AdamW(plain.parameters(), lr=0.1)
    plain(SMALL).backward()
    adamw.step()
    for actual, steps in on_ranks(Scale(), (SMALL,), "data", 4, "fp16", body):
        assert actual == pytest.approx(plain.weight.tolist(), rel=1e-6)
        assert steps == 1


@pytest.mark.parametrize("order", [(LARGE, SMALL), (SMALL, LARGE)])
@pytest.mark.parametrize("together", [True, False])
def test_an_overflow_in_any_micro_batch_leaves_the_step_out(order: Any, together: bool) -> None:
    def body(model: ParallelModule) -> None:
        sgd = sw.optimizer(model, torch.optim.SGD, lr=0.1)
        if together:
            model.train_step(list(order))
        else:
            for batch in order:
                model(batch).backward()
        assert bool(sw.clip_grad_norm_(model, 1.0).isnan())
        sgd.step()
        assert weights(model) == [1.0] * 4
        sgd.zero_grad(set_to_none=False)
        model.train_step(SMALL)
        sgd.step()
        assert weights(model) == pytest.approx([0.975] * 4)

    on_ranks(Scale(), (SMALL,), "data", 4, "fp16", body)


def test_gradients_that_float16_cannot_hold_are_kept() -> None:
    """2^-30 is zero in float16; 2^15 times as much is not."""
    tiny = torch.full((4, 4), 2.0**-20)

    def body(model: ParallelModule) -> list[float]:
        (model(tiny) * 2.0**-10).backward()
        return next(model.parameters()).grad.tolist()  # type: ignore[union-attr, no-any-return]

    for actual in on_ranks(Scale(), (tiny,), "data", 4, "fp16", body):
        assert actual == [2.0**-28] * 4


def test_the_scale_grows_after_good_steps_and_its_state_is_saved() -> None:
    precision = Precision(compute=FP16, loss_scale=2.0**12, growth_interval=3)

    def body(model: ParallelModule) -> list[float]:
        scales = []
        for at in range(12):
            model.train_step(SMALL if at != 4 else torch.full((4, 4), 2.0**6))
            scales.append(scaling(model).scale)
            if at == 7:
                state = scaling(model).state_dict()
            model.zero_grad()
        scaling(model).load_state_dict(state)
        assert scaling(model).scale == scales[7]
        model.train_step(SMALL)
        assert scaling(model).scale == scales[8]
        return scales

    for actual in on_ranks(Scale(), (SMALL,), "data", 4, precision, body):
        powers = [12, 12, 13, 13, 12, 12, 12, 13, 13, 13, 14, 14]
        assert actual == [2.0**power for power in powers]


def test_a_step_with_a_closure_is_refused_with_loss_scaling() -> None:
    def body(model: ParallelModule) -> None:
        sgd = sw.optimizer(model, torch.optim.SGD, lr=0.1)
        with pytest.raises(RuntimeFault, match="SW0766"):
            sgd.step(lambda: 1.0)

    on_ranks(Scale(), (SMALL,), "data", 1, "fp16", body)


def _on_gloo(rank: int, word: str) -> list[Any]:
    module, args = models.gpt()
    model = sw.parallelize(module.float(), args, plan="data:2 x megatron:2", precision=word)
    sgd = sw.optimizer(model, torch.optim.SGD, lr=0.05)
    losses = []
    for _ in range(2):
        losses.append(model.train_step(args).item())  # type: ignore[union-attr]
        sw.clip_grad_norm_(model, 1.0)
        sgd.step()
        sgd.zero_grad()
    return losses


@pytest.mark.processes
@pytest.mark.parametrize("word", ["bf16", "fp16"])
def test_half_precision_on_processes(word: str) -> None:
    module, args = models.gpt()
    hand = by_hand(module.float(), args, {"bf16": BF16, "fp16": FP16}[word], steps=1)
    losses = sw.launch(_on_gloo, 4, (word,), timeout=300)
    assert losses[0] == pytest.approx(hand.losses[0], rel=2e-2)
    assert losses[1] < losses[0]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.up, self.norm, self.down = nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (self.down(torch.relu(self.norm(self.up(x)))) - x).square().mean()


NORM_PLANS = ["data", "megatron", "zero3", 1, 2, 3]


def _trained(model: Any, batch: Tensor, optimizer: Any) -> list[float]:
    losses = []
    for _ in range(3):
        loss = model(batch)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _normed_on_gloo(rank: int, dtype: torch.dtype) -> list[tuple[list[float], dict[str, Tensor]]]:
    runs = []
    batch = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    for plan in NORM_PLANS:
        chosen = plan if isinstance(plan, str) else partial(_random, seed=plan)
        model = sw.parallelize(Normed().to(dtype), batch, plan=chosen, cache=False, progress=False)
        losses = _trained(model, batch, sw.optimizer(model, torch.optim.SGD, lr=0.1))
        runs.append((losses, model.full_state_dict()))
    return runs


def _random(graph: Any, draft: Any, seed: int) -> sw.Plan:
    return sw.Plan.random(graph, 3, seed)


@pytest.mark.processes
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_a_batch_norm_of_a_model_in_half_precision_trains_on_processes(dtype: torch.dtype) -> None:
    """Its running statistics are exchanged in bytes: a wrong dtype would be garbage."""
    batch = torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    plain = Normed().to(dtype)
    expected = _trained(plain, batch, torch.optim.SGD(plain.parameters(), lr=0.1))
    for losses, state in sw.launch(_normed_on_gloo, 3, (dtype,), timeout=400):
        assert losses == pytest.approx(expected, rel=5e-2)
        for name, value in plain.state_dict().items():
            assert state[name].dtype == value.dtype
            torch.testing.assert_close(state[name], value, rtol=5e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["fp8", "FP8", "mxfp8", "nvfp4"])
def test_narrower_types_are_refused_by_name(name: str) -> None:
    with pytest.raises(RuntimeFault, match="SW0765") as refused:
        precision_of(name)
    assert "is not there" in refused.value.what and 'give "bf16"' in str(refused.value.fix)
