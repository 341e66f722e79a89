"""What only unused outputs of a model read has no gradient, as on one device, on all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shardwright as sw
from shardwright.runtime import LocalComm, ParallelModule, load_program, run_local
from shardwright.start.compiling import compile_model

torch.set_num_threads(1)

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def seeded(module: nn.Module) -> None:
    """Values of its own generator: the ranks are threads here, and draw from the global one in any order."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5, generator=generator)


class Heads(nn.Module):
    """`trunk` is read by both results, `first` and `second` by one each; `scale` only through `detach`."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.first, self.second = (nn.Linear(4, 4).double() for _ in range(3))
        seeded(self)
        self.scale = nn.Parameter(torch.full((4,), 2.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.trunk(x).tanh()
        loss = (self.first(y) * self.scale.detach()).square().mean()
        return {"loss": loss, "aux": (self.second(y) * self.scale).square().mean(), "y": y}


USES = {
    "one": lambda out: out["loss"],
    "other": lambda out: out["aux"],
    "detached": lambda out: out["loss"] + out["aux"].detach(),
    "both": lambda out: out["loss"] + 0.5 * out["aux"],
    "in turns": None,
}
PLANS = ["replicate", "data", "megatron", "zero3", "zero1", "data:2 x megatron:1"]


def train(model: Any, optimizer: Any, use: str) -> None:
    for step in range(4):
        optimizer.zero_grad()
        out = model(X)
        chosen = USES[use] or USES["one" if step % 2 else "other"]
        assert chosen is not None
        chosen(out).backward()
        optimizer.step()


def lacking(model: nn.Module) -> list[str]:
    return sorted(name for name, p in model.named_parameters() if p.grad is None)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("use", USES)
def test_unused_outputs_train_nothing(plan: str, use: str) -> None:
    alone = Heads()
    train(alone, torch.optim.AdamW(alone.parameters(), lr=0.1, weight_decay=0.3), use)
    expected = {name: p.detach() for name, p in alone.named_parameters()}

    def rank(_: int, comm: LocalComm) -> tuple[list[str], dict[str, Tensor]]:
        model = sw.parallelize(Heads(), X, plan=plan, cache=False, progress=False, comm=comm)
        train(model, sw.optimizer(model, torch.optim.AdamW, lr=0.1, weight_decay=0.3), use)
        return lacking(model), model.full_state_dict()

    for without, actual in run_local(2, rank):
        assert without == lacking(alone)
        for name, value in expected.items():
            assert torch.allclose(actual[name], value, rtol=1e-9, atol=1e-12), name


def test_an_input_that_only_an_unused_output_reads_has_no_gradient() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return a.square().mean(), b.square().mean()

    def rank(_: int, comm: LocalComm) -> None:
        a, b = (X.clone().requires_grad_() for _ in range(2))
        model = sw.parallelize(Two(), (a, b), plan="data", cache=False, progress=False, comm=comm)
        model(a, b)[0].backward()
        assert a.grad is not None and b.grad is None
        with pytest.raises(RuntimeError, match="to not have been used in the graph"):
            torch.autograd.grad(model(a, b)[0], [b])

    run_local(2, rank)


def test_outputs_that_are_asked_for_and_not_used_train_nothing() -> None:
    """Whole, and in parts: of a part that some rank uses, all have a gradient."""

    def rank(rank: int, comm: LocalComm) -> None:
        outputs = {"y": "local"}
        model = sw.parallelize(
            Heads(), X, outputs=outputs, plan="data", cache=False, progress=False, comm=comm
        )
        model(X)["y"].sum().backward()
        heads = ["first.bias", "first.weight", "scale", "second.bias", "second.weight"]
        assert lacking(model) == heads
        model.zero_grad()
        out = model(X)
        (out["loss"] + (out["y"].sum() if rank else 0)).backward()
        assert lacking(model) == ["scale", "second.bias", "second.weight"]

    run_local(2, rank)


def test_ranks_that_use_other_outputs_are_told() -> None:
    messages: list[str] = []

    def rank(rank: int, comm: LocalComm) -> None:
        model = sw.parallelize(Heads(), X, plan="data", cache=False, progress=False, comm=comm)
        out = model(X)
        with pytest.raises(sw.RuntimeFault) as refused:
            (out["loss"] + out["aux"] * 2 if rank == 1 else out["loss"]).backward()
        messages.append(str(refused.value))

    run_local(3, rank)
    assert len(messages) == 3 and set(messages) == {
        "error[SW0818]: the ranks begin backward from different outputs\n"
        "  why: ranks 0 and 2: `loss` | rank 1: `loss`, `aux`\n"
        "  help: compute the same loss on all ranks, of the same outputs of the model"
    }


class Named(nn.Module):
    """A loss, and something that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.ones(4, dtype=torch.float64)) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * self.a).square().mean(), x * self.b


def test_a_step_starts_from_the_loss_alone() -> None:
    """Also of a program that came without its model, from which everything leaves."""
    module = Named()
    bundle, _ = compile_model(module, (X,), plan="data", devices=2, outputs="all")

    def rank(_: int, comm: LocalComm) -> None:
        program = load_program(bundle.files, digest=bundle.digest, world=2, graph=bundle.graph_text)
        model = ParallelModule(program, comm, module.state_dict(), bundle.captured)
        model.train_step([X, X])
        assert lacking(model) == ["b"]
        loose = ParallelModule(replace(program, graph=""), comm, module.state_dict(), bundle.captured)
        loose(X)[0].backward()
        assert lacking(loose) == []

    run_local(2, rank)


class Several(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4).double() for _ in range(2)])
        self.number = number

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x).tanh()
        return {f"part{at}": x.square().mean() * at for at in range(1, self.number + 1)} or {"y": x}


@pytest.mark.parametrize("plan", ["data", "stages:2 x 1f1b"])
def test_a_step_that_has_no_loss_to_start_from_says_why(plan: str) -> None:
    messages: list[str] = []

    def rank(_: int, comm: LocalComm) -> None:
        for module in (Several(2), Several(0), Several(1).requires_grad_(False)):
            model = sw.parallelize(module, X, plan=plan, cache=False, progress=False, comm=comm)
            with pytest.raises(sw.RuntimeFault) as refused:
                model.train_step([X, X])
            messages.append(f"{refused.value.code}: {refused.value.why}; {refused.value.fix}")

    run_local(2, rank)
    by_hand = (
        "" if "stages" in plan else "call the model, and `backward` from what you compute of its outputs; or "
    )
    fix = f"{by_hand}let the model compute its loss, and return that as its only scalar"
    how = "and it is not known how to weight them"
    assert set(messages) == {
        f"SW0708: the model has `part1`, `part2`, {how}; {fix}",
        f"SW0708: the model has none: `y`, {how}; {fix}",
        "SW0709: no output of the model depends on a parameter that requires a gradient;"
        " let some require one, `requires_grad_(True)`, or call the model for its outputs alone",
    }
