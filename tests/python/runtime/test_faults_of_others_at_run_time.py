"""Faults that others have found in training on many devices, for which an emitted program has no word: here
the model, the plan and the loop are right, and compared with the single device.

The workloads are those of TrainCheck (OSDI'25; OrderLab/TrainCheck-Evaluation-Workloads), by their names.
Two of its eighteen are about nothing that a parallel program does: `transformers-23723` (how many tokens are
generated) and `transformers-34204` (a processor of images).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import equality
import shardwright as sw
from late import late
from mutants import WIDTH, llama, program
from shardwright.runtime import LocalComm, ParallelModule, run_local

FINE = ["float64"]


def rows(seed: int = 0, count: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, count, WIDTH, dtype=torch.float64, generator=generator)
    return x, y


class Net(nn.Module):
    """`function` is called between its two layers."""

    def __init__(self, function: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.function = function
        self.double()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.down(self.function(self.up(self.norm(x)))), y)


Loop = Callable[[Any, Any], Any]


def both(module: nn.Module, loop: Loop, plan: str, world: int = 2) -> None:
    """The same loop on one device and on each rank: afterwards all values are the same."""
    plain = copy.deepcopy(module)
    loop(plain, None)

    def rank(_: int, comm: LocalComm) -> dict[str, Tensor]:
        model = sw.parallelize(
            copy.deepcopy(module), rows(), plan=plan, comm=comm, cache=False, progress=False
        )
        loop(model, comm)
        return model.full_state_dict()

    for actual in run_local(world, rank):
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(actual[name], value, rtol=1e-9, atol=1e-12)


def sgd(model: nn.Module, rate: float = 0.1) -> torch.optim.Optimizer:
    if isinstance(model, ParallelModule):
        return sw.optimizer(model, torch.optim.SGD, lr=rate)
    return torch.optim.SGD(model.parameters(), lr=rate)


# llm-infra-verifier: messages that are on their way.


@pytest.mark.parametrize("plan", ["data:2 x megatron:2 x stages:2 x 1f1b", "zero3", "sequence"])
def test_nothing_is_read_before_it_is_awaited_and_no_buffer_is_used_twice(plan: str) -> None:
    """`RB4a` and `RB4b`: an all-reduce that nobody awaits before the optimizer, and two into one buffer."""
    bundle = program(plan, 8 if "stages" in plan else 2)
    module, args = llama()
    batches = equality.micro_batches(args, 4)
    expected = equality.steps_reference(module, batches, 2)
    equality.assert_equal(equality.run_steps(bundle, module, batches, 2, local=late()), expected)


def test_what_is_awaited_for_nothing_would_be_seen() -> None:
    """The stand-in shows the fault: where waiting brings nothing, what is read is no number."""
    module, args = llama()
    with pytest.raises(AssertionError, match=r"not covered|disagree"):
        equality.run_steps(program("sequence", 2), module, [args], 1, local=late(forgets=True))


# NVIDIA/Megatron-LM#7452, and reports like it.


class Sink(nn.Module):
    """Attention with a learned logit for each head that no key has; the words' weights are tied."""

    def __init__(self, words: int = 33) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.qkv = nn.Embedding(words, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.sinks, self.norm = nn.Parameter(torch.randn(4)), nn.LayerNorm(WIDTH)
        self.out, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, words, bias=False)
        self.head.weight = self.words.weight
        self.double()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.words(x)
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.norm(h)).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / 2
        sinks = self.sinks[:, None, None].expand(x.shape[0], 4, x.shape[1], 1)
        weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
        h = h + self.out((weights @ v).transpose(1, 2).flatten(2))
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


def words(count: int = 33) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(count, (2, 4, 6), generator=generator)
    y[0, :3] = -100
    return x, y


@pytest.mark.parametrize(("plan", "world"), [("megatron", 2), ("data:2 x megatron:2", 4), ("sequence", 2)])
def test_megatron_7452_the_norm_of_all_gradients_counts_each_once(plan: str, world: int) -> None:
    """Its eighth finding (the logits of sinks), and NVIDIA/Megatron-LM#5916, #7228 and
    ROCm/TransformerEngine#715: parameters that all ranks hold, in parts, or twice because they are tied."""
    module, batch = Sink(), words()
    plain = copy.deepcopy(module)
    plain(*batch).backward()
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    sgd(plain).step()

    def rank(_: int, comm: LocalComm) -> tuple[Tensor, dict[str, Tensor]]:
        model = sw.parallelize(
            copy.deepcopy(module), batch, plan=plan, comm=comm, cache=False, progress=False
        )
        model.train_step(batch)
        norm = sw.clip_grad_norm_(model, 0.1)
        sgd(model).step()
        return norm, model.full_state_dict()

    for norm, values in run_local(world, rank):
        torch.testing.assert_close(norm, expected, rtol=1e-9, atol=0)
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(values[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("plan", ["data:2", "megatron:2", "sequence:2", "data:2 x megatron:2"])
def test_megatron_1754_words_that_cannot_be_divided_and_7452_other_counts_of_labels(plan: str) -> None:
    """33 words on two ranks, and rows with other numbers of labels: the loss is the mean over all labels."""
    assert sw.verify(Sink(), words(), plan=plan, dtypes=FINE).raise_if_different()


@pytest.mark.slow
def test_megatron_6660_gradients_of_micro_batches_in_groups_of_one() -> None:
    comparison = sw.verify(*llama(), plan="zero3", devices=1, micro_batches=4, dtypes=FINE)
    assert comparison.raise_if_different()


# TrainCheck.


@pytest.mark.slow
def test_deepspeed_1801_clipped_gradients_are_the_same_on_ranks_that_hold_the_same() -> None:
    """Norms, which all ranks of a tensor-parallel group hold, drifted apart: one rank alone clipped them."""
    module, batch = llama()

    def rank(_: int, comm: LocalComm) -> dict[str, Tensor]:
        model = sw.parallelize(
            copy.deepcopy(module), batch, plan="megatron", comm=comm, cache=False, progress=False
        )
        adam = sw.optimizer(model, torch.optim.AdamW, lr=1e-2)
        for _ in range(3):
            adam.zero_grad()
            model.train_step(batch)
            sw.clip_grad_norm_(model, 1e-2)
            adam.step()
        held = [s for s in model.shards.held if s.tensor.kind == "param" and "norm" in s.tensor.names[0]]
        return {shard.tensor.names[0]: shard.data.detach().clone() for shard in held}

    one, two = run_local(2, rank)
    assert len(one) == 5 and all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["norm.weight"], module.get_parameter("norm.weight"))


class Routed(nn.Module):
    """All tokens choose the first of four experts, which lives on one rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Parameter(torch.randn(4, 8, WIDTH)), nn.Parameter(torch.randn(4, WIDTH, 4))
        self.double()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        chosen = torch.zeros(x.shape[0], 1, dtype=torch.long, device=x.device)
        return F.mse_loss(sw.experts(x, chosen, torch.ones_like(x[:, :1]), self.up, self.down), y)


@pytest.mark.parametrize("plan", ["expert", "data"])
def test_deepspeed_5794_ranks_that_get_no_tokens_still_meet_the_others(plan: str) -> None:
    assert sw.verify(Routed(), rows(), plan=plan, devices=2, dtypes=FINE).raise_if_different()


@pytest.mark.parametrize("plan", ["data", "megatron", "zero3"])
def test_pytorch_104336_a_model_that_was_moved_is_still_synchronised(plan: str) -> None:
    """DDP's hooks stayed with the tensors that were left behind."""

    def loop(model: nn.Module, _: Any) -> None:
        optimizer = sgd(model)
        for seed in range(3):
            optimizer.zero_grad()
            model(*rows(seed)).backward()
            optimizer.step()
            model.cpu()
            model.to("cpu")

    both(Net(), loop, plan)


def test_x_jxmnop_ddp_out_of_sync_the_plain_module_is_not_trained_by_mistake() -> None:
    """Sometimes the module, sometimes its wrapper: whoever steps the former hears of it."""
    module = Net()

    def rank(_: int, comm: LocalComm) -> None:
        model = sw.parallelize(module, rows(), plan="data", comm=comm, cache=False, progress=False)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        model.train_step(rows())
        with pytest.raises(sw.RuntimeFault, match="SW0801"):
            optimizer.step()

    run_local(2, rank)


@pytest.mark.slow
def test_pytorch_51800_a_norm_that_training_prepares_is_right_in_evaluation() -> None:
    module = Net()
    module.up = spectral_norm(module.up)
    assert sw.verify(module.eval(), rows(), plan="data", devices=2, dtypes=FINE).raise_if_different()
    assert sw.verify(module.train(), rows(), plan="data", devices=2, dtypes=FINE).raise_if_different()


class Losing(LocalComm):
    """Every third sum is lost on its way to rank 1: it has zeros there."""

    lost = 0

    def all_reduce(self, x: Tensor, ranks: Any, op: str) -> Any:
        work = super().all_reduce(x, ranks, op)
        self.lost += 1
        if self.rank == 1 and self.lost % 3 == 0:
            x.zero_()
        return work


def test_pytorch_84803_pytorch_96600_and_baichuan2_86_data_that_links_lose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault of the machine, which no proof can see: a step beside the model does, and names where."""
    from shardwright.comparing import ranks

    plain = run_local
    monkeypatch.setattr(
        ranks,
        "run_local",
        lambda world, fn: plain(world, lambda rank, comm: fn(rank, Losing(comm._shared, rank))),
    )
    comparison = sw.verify(*llama(), plan="megatron", devices=2, dtypes=FINE)
    assert not comparison.equal and comparison.first is not None and comparison.first.ranks == (1,)
    assert comparison.first.operator == "aten.linear.default" and comparison.first.path == "layers.0.mlp.down"


def test_pytorch_115607_steps_without_gradients_do_not_count() -> None:
    """Of Adam the number of its step decides how large it is."""

    def loop(model: nn.Module, _: Any) -> None:
        kind, numbers = torch.optim.Adam, {"lr": 1e-2}
        adam = (
            sw.optimizer(model, kind, **numbers)
            if isinstance(model, ParallelModule)
            else kind(model.parameters(), **numbers)
        )
        for seed in range(4):
            adam.zero_grad()
            if seed != 2:
                model(*rows(seed)).backward()
            adam.step()

    both(Net(), loop, "zero3")


@pytest.mark.parametrize("plan", ["data", "megatron", "zero3"])
def test_pytorch_forum_84911_and_stackoverflow_60335387_what_is_frozen_stays(plan: str) -> None:
    module = Net()
    for parameter in (*module.up.parameters(), *module.down.parameters()):
        parameter.requires_grad_(False)
    comparison = sw.verify(module, rows(), plan=plan, devices=2, dtypes=FINE).raise_if_different()
    assert {row.name for row in comparison.rows if row.kind == "gradient"} == {"norm.weight", "norm.bias"}


class FreezesInTrain(Net):
    def train(self, mode: bool = True) -> FreezesInTrain:
        super().train(mode)
        for parameter in self.up.parameters():
            parameter.requires_grad_(False)
        return self


def test_mmpretrain_702_stages_that_are_frozen_by_train() -> None:
    """What is trained is what the module says when it is parallelized, whoever said it to the module."""
    before = sw.verify(FreezesInTrain(), rows(), plan="data", devices=2, dtypes=FINE).raise_if_different()
    after = sw.verify(
        FreezesInTrain().train(), rows(), plan="data", devices=2, dtypes=FINE
    ).raise_if_different()
    names = [{row.name for row in compared.rows if row.kind == "gradient"} for compared in (before, after)]
    assert names[0] - names[1] == {"up.weight", "up.bias"}


def test_transformers_33844_what_drops_in_evaluation_too_does_so_here() -> None:
    """The plan changes nothing of a model that is wrong: it drops, and the same elements."""
    module = Net(lambda x: F.dropout(x, 0.5)).eval()
    assert sw.verify(module, rows(), plan="data", devices=2, dtypes=FINE).raise_if_different()
    still = sw.verify(
        Net(lambda x: F.dropout(x, 0.5, training=False)).eval(), rows(), plan="data", devices=2, dtypes=FINE
    )
    losses = [x for compared in (still,) for x in compared.rows if x.kind == "loss"]
    assert still.equal and len(losses) == 1


def halved(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.relu(F.linear(x, torch.eye(32, dtype=x.dtype))).to(x.dtype)


def test_lightning_thunder_725_functions_that_are_called_in_autocast_are_cast() -> None:
    comparison = sw.verify(
        Net(halved).float(), tuple(x.float() for x in rows()), plan="data", devices=2, dtypes=["model"]
    )
    assert comparison.raise_if_different()


def test_transformers_17877_a_model_is_initialised_once_and_as_ever() -> None:
    deferred, plain = sw.deferred(Net), Net()
    model = sw.verify(deferred, rows(), plan="data", devices=2, dtypes=FINE).raise_if_different()
    assert len(model.rows) == 13
    actual = run_local(
        1,
        lambda _, comm: sw.parallelize(
            deferred, rows(), plan="replicate", comm=comm, cache=False, progress=False
        ).full_state_dict(),
    )[0]
    assert all(torch.equal(actual[name], value) for name, value in plain.state_dict().items())


def test_stackoverflow_67180955_ranks_read_other_rows() -> None:
    """Each row of a batch is read by one of them."""
    data = list(range(64))

    def rank(_: int, comm: LocalComm) -> list[int]:
        half = tuple(x[:4] for x in rows())
        model = sw.parallelize(
            Net(), half, plan="data", comm=comm, inputs="local", cache=False, progress=False
        )
        return [number for batch in sw.sampler(model, data, 8) for number in batch]

    one, two = run_local(2, rank)
    assert sorted([*one, *two]) == data and not set(one) & set(two)
