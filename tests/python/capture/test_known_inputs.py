"""Inputs that a model reads in Python, by their names: a program is for their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import shardwright as sw
from shardwright import Graph
from shardwright.capture import CallSpec, Captured, capture
from shardwright.cli import main
from shardwright.runtime import ParallelModule, run_local
from shardwright.start.compiling import compile_model

torch.set_num_threads(1)


class Convolution(nn.Module):
    """A graph convolution with self-loops, as graph packages have it."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        edges = edges[:, edges[0] != edges[1]]
        own = torch.arange(len(x))
        rows, columns = torch.cat([edges, own.expand(2, -1)], 1)
        degree = torch.zeros(len(x), dtype=x.dtype).index_add(
            0, columns, torch.ones(len(rows), dtype=x.dtype)
        )
        weight = (degree[rows] * degree[columns]).rsqrt()
        messages = self.linear(x)[rows] * weight[:, None]
        return torch.zeros(len(x), messages.shape[1], dtype=x.dtype).index_add(0, columns, messages)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Convolution(6, 8), Convolution(8, 4)
        self.double()

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(self.first(x, edges).relu(), edges).square().mean()


EDGES = torch.tensor([[0, 1, 2, 2, 4, 5], [1, 2, 2, 3, 5, 4]])
OTHER = torch.tensor([[0, 1, 1, 2, 4, 3], [0, 1, 2, 3, 5, 3]])


def example(edges: Tensor = EDGES) -> tuple[Tensor, Tensor]:
    return torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), edges


class Vision(nn.Module):
    """Patches of images of several sizes: positions, pieces and lengths are read from the sizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Linear(5, 8), nn.Linear(8, 8)
        self.double()

    def forward(self, patches: Tensor, sizes: Tensor) -> Tensor:
        x = self.embed(patches)
        places = [torch.arange(h)[:, None] * 10 + torch.arange(w) for h, w in sizes]
        x = x + torch.cat([place.flatten() for place in places])[:, None].to(x.dtype).sin()
        ends = sizes.prod(-1).cumsum(0)
        images = [x[end - length : end] for end, length in zip(ends, sizes.prod(-1), strict=True)]
        largest = x.split(sizes.prod(-1).tolist())[int(sizes.prod(-1).argmax())]
        rows = torch.repeat_interleave(torch.arange(len(sizes)), sizes.prod(-1))
        pooled = torch.stack([image.mean(0) for image in images])
        return (self.out(x - pooled[rows]).square().mean() + largest.mean()).square()


SIZES = torch.tensor([[2, 3], [1, 4]])


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(10, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), SIZES


def targets(captured: Captured) -> list[str]:
    return [op.target for op in Graph(captured.graph_text).operators]


# ---- captured whole ------------------------------------------------------------------------------


@pytest.mark.oldest
@pytest.mark.parametrize(
    ("model", "args", "name"), [(Net, example, "edges"), (Vision, images, "sizes")], ids=["net", "vision"]
)
def test_what_is_read_of_them_is_known(
    model: Callable[[], nn.Module], args: Callable[[], tuple[Tensor, ...]], name: str
) -> None:
    captured = capture(model(), args(), known_inputs=[name])
    assert captured.verified and not captured.as_python
    assert not any(target.startswith("shardwright.") for target in targets(captured))
    assert captured.notes == [
        f"the program is for what the model reads of `{name}`: other calls get programs of their own"
    ]


def test_what_has_as_many_elements_as_values_say_is_a_constant() -> None:
    constants = capture(Net(), example(), known_inputs=["edges"]).constants
    assert [value.tolist() for value in constants.values()] == [[0, 1, 3, 4, 5]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["data", "megatron", "zero3", "replicate"])
def test_programs_train_as_one_device(plan: str) -> None:
    for model, args, name in [(Net(), example(), "edges"), (Vision(), images(), "sizes")]:
        bundle, _ = compile_model(model, args, plan=plan, devices=2, known_inputs=[name])
        equality.assert_equal(equality.run(bundle, model, args), equality.reference(model, args))


@pytest.mark.slow
def test_a_tensor_in_a_structure_is_called_by_its_key() -> None:
    class Batches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, batch: dict[str, Tensor], **more: Tensor) -> Tensor:
            return self.net(batch["x"], batch["edges"]) + len(torch.arange(int(more["count"])))

    x, edges = example()
    args, kwargs = ({"x": x, "edges": edges},), {"count": torch.tensor(3)}
    for names in (["edges", "count"], ["batch['edges']", "more"]):
        captured = capture(Batches(), args, kwargs, known_inputs=names)
        assert captured.in_spec.known_names == ("batch['edges']", "more['count']") and not captured.as_python


# ---- other values --------------------------------------------------------------------------------


@pytest.mark.slow
def test_other_values_get_a_program_of_their_own() -> None:
    x, _ = example()
    model = Net()

    def rank(_: int, comm: Any) -> tuple[list[float], int]:
        parallel = sw.parallelize(model, example(), plan="data", comm=comm, known_inputs="edges", cache=False)
        losses = [float(parallel(x, edges)) for edges in (EDGES, OTHER, EDGES.clone(), OTHER)]
        return losses, len(parallel.programs)

    expected = [float(model(x, edges)) for edges in (EDGES, OTHER, EDGES, OTHER)]
    assert expected[0] != expected[1]
    for losses, programs in run_local(2, rank):
        assert losses == pytest.approx(expected, rel=1e-12) and programs == 2


@pytest.mark.slow
def test_values_are_part_of_the_key_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))

    def loss(edges: Tensor) -> tuple[float, list[str]]:
        def rank(_: int, comm: Any) -> tuple[float, list[str]]:
            parallel = sw.parallelize(Net(), example(edges), plan="data", comm=comm, known_inputs=("edges",))
            return float(parallel(*example(edges))), parallel.programs

        return run_local(1, rank)[0]

    for edges in (EDGES, OTHER, EDGES):
        assert loss(edges)[0] == pytest.approx(float(Net()(*example(edges))), rel=1e-12)


@pytest.mark.parametrize("edges", [EDGES, EDGES.repeat(1, 20)], ids=["few", "many"])
def test_a_captured_call_is_one_with_these_values(edges: Tensor) -> None:
    call = CallSpec.of_call(Net().forward, example(edges), {}, ["edges"])
    assert CallSpec.from_text(call.text(), Net().forward).structure == call.structure
    assert call.describe(*(example(edges.clone()), {}))[0] == call.structure
    other = edges.clone()
    other[0, -1] += 1
    assert call.describe(example(other), {})[0] != call.structure
    with pytest.raises(
        sw.CaptureError, match="the argument `edges` has another value than in the captured call"
    ):
        call.flatten(example(other))


def test_a_captured_call_is_one_of_which_the_model_reads_this() -> None:
    call = capture(Net(), example(), known_inputs=["edges"]).in_spec
    again = CallSpec.from_text(call.text(), Net().forward)
    for one in (call, again):
        assert one.structure == call.structure
        # Which edges are no loops is read, and not between which nodes the others are.
        assert one.describe(example(EDGES.flip(0)), {})[0] == call.structure
        assert one.describe(example(OTHER), {})[0] != call.structure
        assert len(one.flatten(example(EDGES.flip(0)))) == 2
        with pytest.raises(
            sw.CaptureError, match="the model reads other values of `edges` than in the"
        ) as raised:
            one.flatten(example(OTHER))
        assert raised.value.why == "it was [[0, 1, 3, 4, 5]], now it is [[2, 3, 4]]"


# ---- what is not known ---------------------------------------------------------------------------


class Reading(nn.Module):
    """Computes as often as something says."""

    def __init__(self, count: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.count = nn.Linear(4, 4), count

    def forward(self, x: Tensor, known: Tensor, unknown: Tensor) -> Tensor:
        for _ in range(int(self.count(known, unknown))):
            x = self.linear(x)
        return x.sum()


def is_known(count: Callable[[Tensor, Tensor], Any]) -> bool:
    """Whether it is; what is not is data that the model reads, and refused."""
    args = torch.randn(2, 4), torch.tensor([2, 3]), torch.tensor([1, 2])
    try:
        captured = capture(Reading(count), args, known_inputs=["known"])
    except sw.CaptureError as error:
        assert error.code == "SW0102"
        return False
    return captured.verified and targets(captured).count("aten.linear.default") > 0


def _written(known: Tensor, unknown: Tensor) -> Tensor:
    made = known.clone()
    made[0] = unknown[1]
    return made[0]


def _written_by_a_view(known: Tensor, unknown: Tensor) -> Tensor:
    made = torch.zeros(2, dtype=torch.long)
    made[1:].copy_(unknown[1:])
    return made[1]


def _written_into(known: Tensor, unknown: Tensor) -> Tensor:
    made = torch.zeros(2, dtype=torch.long)
    torch.add(unknown, 1, out=made)
    return made[0]


def _written_by_an_operator(known: Tensor, unknown: Tensor) -> Tensor:
    made = known.clone()
    torch.ops.aten.add_.Tensor(made, unknown)
    return made[0]


def _on_a_device(known: Tensor, unknown: Tensor) -> Tensor:
    here = torch.arange(3, device="cpu")[known.to("cpu", torch.long).to(unknown.device) - 1]
    return here[0]


def written_with_what_is_known(known: Tensor, unknown: Tensor) -> Tensor:
    made = torch.zeros(2, dtype=torch.long)
    made[known == 3] += known[0]
    made[:1] = known[1]
    return made[0]


@pytest.mark.parametrize(
    ("count", "known"),
    [
        (lambda known, unknown: known[0], True),
        (lambda known, unknown: known.sum() - len(unknown), True),
        (lambda known, unknown: len(unknown[known == 3]), True),
        (lambda known, unknown: unknown[: known[0]].numel(), True),
        (lambda known, unknown: sum(known.unique().tolist()), True),
        (written_with_what_is_known, True),
        (lambda known, unknown: unknown[0], False),
        (lambda known, unknown: (known * unknown)[0], False),
        (lambda known, unknown: known[unknown.argmax()], False),
        (_written, False),
        (_written_by_a_view, False),
        (_written_into, False),
        (_written_by_an_operator, False),
        (_on_a_device, True),
        (lambda known, unknown: known.double().bernoulli_(0.5).sum(), False),
        (lambda known, unknown: torch.randint_like(known, 3)[0], False),
        (lambda known, unknown: torch.randperm(3)[0], False),
    ],
)
def test_only_what_follows_from_them_is_known(count: Callable[[Tensor, Tensor], Any], known: bool) -> None:
    assert is_known(count) is known


def test_nothing_is_known_after_a_forward_that_fails() -> None:
    assert not is_known(lambda known, unknown: unknown[0])
    assert not torch.overrides._get_current_function_mode_stack()


def test_the_caller_s_tensor_is_as_it_was() -> None:
    class Shifts(nn.Module):
        def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
            sizes = sizes.clone()
            sizes += 1
            return x[: int(sizes[0])].sum()

    sizes = torch.tensor([2, 3])
    captured = capture(Shifts(), (torch.randn(5), sizes), known_inputs=["sizes"])
    assert captured.verified and sizes.tolist() == [2, 3]


# ---- bad input -----------------------------------------------------------------------------------


def test_what_cannot_be_known_is_refused() -> None:
    def why(names: list[str], *args: Any) -> str:
        with pytest.raises(sw.CaptureError) as refused:
            capture(Net(), args or example(), known_inputs=names)
        assert refused.value.code == "SW0146"
        return str(refused.value)

    assert "no tensor of the call has this name" in why(["edge"]) and "the call has `x`, `edges`" in why(
        ["edge"]
    )
    assert "it has no values" in why(["edges"], example()[0], EDGES.to("meta"))


def test_ranks_with_their_own_parts_do_not_know_the_whole() -> None:
    def rank(_: int, comm: Any) -> ParallelModule:
        return sw.parallelize(
            Net(), example(), plan="data", comm=comm, known_inputs=["edges"], inputs="local"
        )

    with pytest.raises(sw.CaptureError, match="no rank knows the whole"):
        run_local(1, rank)


@pytest.mark.slow
def test_a_command_is_told_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.py"
    file.write_text("from test_known_inputs import Net, example\ndef net():\n    return Net(), example()\n")

    def coverage(*more: str) -> str:
        assert main(["ops", "coverage", f"{file}:net", *more]) == 0
        return capsys.readouterr().out

    for none in ("", "()"):
        assert "3 of 5 operators have a rule" in coverage("--known-inputs", none)
    assert "41 of 41 operators have a rule" in coverage("--known-inputs", "edges")
    assert "41 of 41 operators have a rule" in coverage()
