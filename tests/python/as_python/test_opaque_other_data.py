"""What a run meets that no example showed, of modules and functions that run as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import shardwright as sw
from shardwright import Graph, Plan
from shardwright.capture import capture
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import compile_plan, sources
from shardwright.start.further_programs import skeleton_of
from test_opaque import Note, Taken

torch.set_num_threads(1)


class OneOfTwo(nn.Module):
    """Which of its layers computes is said by the data."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) if x.sum() > 0 else self.down(x)


def test_what_the_example_did_not_use_is_trained_when_other_data_do() -> None:
    torch.manual_seed(3)
    model, example = Note(OneOfTwo()).double(), torch.rand(4, 8, dtype=torch.float64)
    captured = capture(model, (example,), known_inputs=())
    for plan in ("data", "zero3"):
        bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), plan, 2))
        options = lambda: {"skeleton": skeleton_of(model)}  # noqa: E731
        for batch, unused in ((example, "down"), (-example, "up")):
            actual = equality.run(bundle, model, (batch,), options=options, updates=equality.SGD)
            expected = equality.reference(model, (batch,), updates=equality.SGD)
            # Where gradients are reduced one of zeros stands for none.
            for name in (f"inner.{unused}.weight", f"inner.{unused}.bias"):
                assert name not in expected.gradients
                assert not actual.gradients.pop(name, torch.zeros(())).any()
            equality.assert_equal(actual, expected)


class Seldom(nn.Module):
    """Writes a buffer, or what it is given, under conditions."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place
        self.register_buffer("used", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        if x.sum() < 0:
            if self.place == "in place":
                self.used.add_(1)
            elif self.place == "anew":
                self.used = self.used + 1
            elif self.place == "given":
                x.mul_(2)
        return y + self.used


@pytest.mark.parametrize("place", ["in place", "anew", "given"])
def test_a_change_that_no_example_showed_is_an_error(place: str) -> None:
    example = torch.rand(4, 8, dtype=torch.float64)
    inner = nn.Sequential(nn.Identity(), sw.opaque(Seldom(place)))
    model = Note(inner).double()
    captured = capture(model, (example,), known_inputs=())
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "data", 2))
    options = lambda: {"skeleton": skeleton_of(model)}  # noqa: E731
    equality.assert_equal(
        equality.run(bundle, model, (example,), options=options), equality.reference(model, (example,))
    )
    changed = "a tensor that it is given" if place == "given" else "its `used`"
    with pytest.raises(sw.ShardwrightError, match=f"SW0866.*`inner.1`.* changes {changed}, and did not"):
        equality.run(bundle, model, (-example,), options=options)


def seldom(x: Tensor) -> Tensor:
    y = x * 2
    if x.sum() < 0:
        x.mul_(2)
    return y


def test_a_function_that_changes_what_it_is_given_later_is_an_error() -> None:
    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(seldom(x + 0)).sum()

    model, example = Calls().double(), torch.rand(4, 8, dtype=torch.float64)
    captured = capture(model, (example,), known_inputs=())
    assert "test_opaque_other_data:seldom" in captured.graph_text
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "replicate", 1))
    with pytest.raises(
        sw.ShardwrightError, match=r"SW0866.*`test_opaque_other_data:seldom`.* changes a tensor that it is"
    ):
        equality.run(bundle, model, (-example,))


def test_other_sizes_than_those_of_the_example_are_an_error_of_the_run() -> None:
    model, args = Note(Taken()).double(), (torch.randn(4, 8, dtype=torch.float64),)
    captured = capture(model, args, known_inputs=())
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "replicate", 1))
    with pytest.raises(sw.RuntimeFault) as caught:
        equality.run(bundle, model, (1e7 * args[0].abs(),), options=lambda: {"skeleton": skeleton_of(model)})
    assert caught.value.code == "SW0865"
    assert caught.value.why == "it was float64[4,8], now float64[2,8]"


class Ranked(nn.Module):
    """Gives other sizes on a rank that is not the first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rank", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x[:2] if self.rank > 0 else x


def test_other_sizes_on_other_ranks_are_an_error_of_that_rank() -> None:
    model, args = Note(Ranked()).double(), (torch.randn(4, 8, dtype=torch.float64),)
    captured = capture(model, args, known_inputs=())
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "replicate", 2))
    program = load_program(bundle.files, digest=bundle.digest, world=2)

    def rank(number: int, comm: Any) -> str | None:
        values = sources(model, captured)
        parallel = ParallelModule(program, comm, values, captured, skeleton=skeleton_of(model))
        for shard in parallel.shards.held:
            if shard.tensor.kind == "buffer":
                shard.data.fill_(number)
        if number == 0:
            parallel(*args)
            return None
        with pytest.raises(sw.RuntimeFault) as caught:
            parallel(*args)
        return f"{caught.value.code}: {caught.value.what}, {caught.value.why}"

    _, said = run_local(2, rank)
    assert said is not None and said.startswith("SW0865: the module `inner`")
    assert said.endswith("it was float64[4,8], now float64[2,8]")
