"""Buffers that a model reads in Python: their values are known while it is traced, and stay as they were."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equality
import shardwright as sw
from shardwright import Graph, Plan
from shardwright.capture import capture
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.runtime.guards import fixed_values
from shardwright.start.compiling import Bundle, compile_model, compile_plan, sources
from shardwright.start.further_programs import skeleton_of

torch.set_num_threads(1)


class Conv(nn.Module):
    """Pads by sizes that are buffers, as audio codecs do."""

    def __init__(self, channels: int, size: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, size, stride)
        self.register_buffer("stride", torch.tensor(stride))
        self.register_buffer("size", torch.tensor(size), persistent=False)
        self.register_buffer("causal", torch.tensor(True))

    def forward(self, x: Tensor) -> Tensor:
        length, padding = x.shape[-1], self.size - self.stride
        frames = torch.ceil((length - self.size + padding) / self.stride + 1).to(torch.int64) - 1
        extra = frames * self.stride + self.size - padding - length
        left = padding if self.causal else padding // 2
        return F.gelu(self.conv(F.pad(x, (left, padding - left + extra))) * self.stride)


class Codec(nn.Module):
    def __init__(self, stride: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Conv(4, 5, stride), Conv(4, 3, 1)])
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def example(length: int = 21) -> tuple[Tensor, ...]:
    return (torch.randn(4, 4, length, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),)


FIXED = {
    "layers.0.stride": 2,
    "layers.0.size": 5,
    "layers.0.causal": True,
    "layers.1.stride": 1,
    "layers.1.size": 3,
    "layers.1.causal": True,
}


@pytest.mark.oldest
def test_a_model_that_pads_by_buffers_is_captured_whole() -> None:
    captured = capture(Codec(), example())
    assert captured.verified and captured.fixed == FIXED
    targets = [op.target for op in Graph(captured.graph_text).operators]
    assert targets.count("aten.pad.default") == 2
    assert not any(target.startswith("shardwright.") for target in targets)
    assert "aten.mul.Tensor(%conv1d, %b_layers_0_stride)" in captured.graph_text, "tensors stay tensors"
    assert captured.notes == [
        "the program is for `layers.0.stride` = 2 and the values of 5 more buffers: the model reads them in"
        " Python"
    ]


@pytest.mark.parametrize("plan", ["data", "megatron", "zero3"])
def test_programs_train_as_one_device(plan: str) -> None:
    model, args = Codec(), example()
    bundle, _ = compile_model(model, args, plan=plan, devices=2)
    equality.assert_equal(equality.run(bundle, model, args), equality.reference(model, args))


def test_tied_buffers_are_one() -> None:
    model = Codec()
    model.layers[1].causal = model.layers[0].causal  # type: ignore[assignment]
    assert capture(model, example()).fixed.keys() == FIXED.keys() - {"layers.1.causal"}


# ---- what is not known -------------------------------------------------------------------------


class Reading(nn.Module):
    """Reads a count, however it gets it."""

    def __init__(self, count: Callable[[Any, Tensor], Any], size: Tensor | None = None) -> None:
        super().__init__()
        self.count = count
        self.linear = nn.Linear(4, 4)
        self.register_buffer("size", torch.tensor([2, 3]) if size is None else size)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        for _ in range(int(self.count(self, ids))):
            x = self.linear(x)
        return x.sum()


def fixed_by(count: Callable[[Any, Tensor], Any], size: Tensor | None = None) -> dict[str, Any] | str:
    """What is fixed, or the code by which the model is refused: it reads data."""
    try:
        args = torch.randn(2, 4), torch.tensor([2, 1])
        return capture(Reading(count, size), args, known_inputs=()).fixed
    except sw.ShardwrightError as error:
        return str(error.code)


SIZE = {"size": [2, 3]}


def _of_a_constant(m: Any, ids: Tensor) -> Tensor:
    n = torch.tensor(0)
    n += m.size[0]
    return n


def _of_a_view_of_a_constant(m: Any, ids: Tensor) -> Tensor:
    n = torch.tensor(0)
    n.view(1).add_(m.size[0])
    return n


def _written_first(m: Any, ids: Tensor) -> Tensor:
    m.size.add_(1)
    return m.size[0]  # type: ignore[no-any-return]


def _written_by_a_view(m: Any, ids: Tensor) -> Tensor:
    m.size[1:].add_(ids[1:])
    return m.size[1]  # type: ignore[no-any-return]


def _written_later(m: Any, ids: Tensor) -> int:
    n = int(m.size[0])
    m.size.copy_(ids)
    return n


def _assigned(m: Any, ids: Tensor) -> int:
    n = int(m.size[0])
    m.size = m.size + 1
    return n


def _copy_written_by_a_view(m: Any, ids: Tensor) -> Tensor:
    n = m.size[0].clone()
    n.view(1).copy_(ids[:1])
    return n  # type: ignore[no-any-return]


def test_what_is_computed_of_buffers_alone_is_known() -> None:
    assert fixed_by(lambda m, ids: m.size[0]) == SIZE
    assert fixed_by(lambda m, ids: m.size.tolist()[1]) == SIZE
    assert fixed_by(lambda m, ids: m.size[1] * 2 - torch.tensor(1)) == SIZE
    assert fixed_by(lambda m, ids: 3 if m.size[0] == 2 else 2) == SIZE
    assert fixed_by(lambda m, ids: 2) == {}, "nothing is read"


@pytest.mark.parametrize(
    "count",
    [
        lambda m, ids: ids[0],
        lambda m, ids: m.size[0] + ids[0],
        _of_a_constant,
        _written_first,
        _written_by_a_view,
        _written_later,
        _assigned,
        _copy_written_by_a_view,
    ],
)
def test_data_is_not_known_nor_what_the_forward_writes(count: Callable[[Any, Tensor], Any]) -> None:
    assert fixed_by(count) == "SW0102"


def test_a_constant_that_is_written_by_a_view_is_not_taken_for_what_it_was() -> None:
    """PyTorch's tracing takes it for that, with or without buffers; the comparison sees it."""
    assert fixed_by(_of_a_view_of_a_constant) == "SW0114"


def test_numbers_and_tables_are_not_known() -> None:
    assert fixed_by(lambda m, ids: m.size[0], torch.tensor([2.0, 3.0])) == "SW0102"
    assert fixed_by(lambda m, ids: m.size[0], torch.arange(2, 19)) == "SW0102"
    assert fixed_by(lambda m, ids: m.size[0], torch.arange(2, 18)) == {"size": list(range(2, 18))}


def test_what_has_no_value_is_not_known() -> None:
    model = Reading(lambda m, ids: m.size[0]).to("meta")
    with pytest.raises(sw.ShardwrightError) as refused:
        capture(model, (torch.randn(2, 4), torch.tensor([2, 1])))
    assert refused.value.code == "SW0102"


# ---- the values stay ---------------------------------------------------------------------------


def made(devices: int = 2) -> Bundle:
    return compile_model(Codec(), example(), plan="data", devices=devices)[0]


def on_ranks(body: Callable[[ParallelModule], Any], model: nn.Module | None = None) -> list[Any]:
    bundle = made()
    program = load_program(bundle.files, digest=bundle.digest, world=2)
    values = sources(model or Codec(), bundle.captured)
    return run_local(2, lambda _, comm: body(ParallelModule(program, comm, values, bundle.captured)))


def refusal(action: Callable[[], Any]) -> str:
    with pytest.raises(sw.ShardwrightError) as refused:
        action()
    assert refused.value.code == "SW0867"
    return str(refused.value)


def test_a_start_with_another_value_is_refused() -> None:
    said = refusal(lambda: on_ranks(lambda model: model, Codec(stride=3)))
    assert "`layers.0.stride`" in said and "it was 2, and now it is 3" in said


def test_a_state_dict_of_another_value_changes_nothing() -> None:
    def body(model: ParallelModule) -> bool:
        before = model.full_state_dict()
        other = Codec(stride=3).state_dict()
        with torch.no_grad():
            other["layers.0.conv.bias"].add_(1)
        refusal(lambda: model.load_state_dict(other))
        refusal(lambda: model.load_full_state_dict(other))
        model.load_state_dict({**other, "layers.0.stride": torch.tensor(2)})
        changed = model.full_state_dict()
        return not torch.equal(before["layers.0.conv.bias"], changed["layers.0.conv.bias"])

    assert on_ranks(body) == [True, True]


def test_a_checkpoint_of_another_value_changes_nothing(tmp_path: Path) -> None:
    sw.save(Codec(stride=3), None, tmp_path / "other")
    sw.save(Codec(), None, tmp_path / "same")

    def body(model: ParallelModule) -> bool:
        before = {name: value.clone() for name, value in model.full_state_dict().items()}
        with torch.no_grad():
            next(model.parameters()).add_(1)
        kept = model.full_state_dict()
        refusal(lambda: sw.load(model, None, tmp_path / "other"))
        now = model.full_state_dict()
        assert all(torch.equal(now[name], value) for name, value in kept.items())
        sw.load(model, None, tmp_path / "same")
        now = model.full_state_dict()
        return all(torch.equal(now[name], value) for name, value in before.items())

    assert on_ranks(body) == [True, True]


def test_a_value_that_a_loop_writes_is_refused_at_the_next_call() -> None:
    def body(model: ParallelModule) -> None:
        model(*example())
        with torch.no_grad():
            dict(model.named_buffers())["layers.0.stride"].fill_(3)
        refusal(lambda: model(*example()))
        refusal(lambda: model.train_step(example()))

    on_ranks(body)


def test_values_that_hold_at_a_call_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU each reading is a wait."""

    def body(model: ParallelModule) -> int:
        model(*example())
        compared: list[str] = []
        original = fixed_values._require
        monkeypatch.setattr(
            fixed_values, "_require", lambda name, *rest: (compared.append(name), original(name, *rest))
        )
        model(*example())
        monkeypatch.setattr(fixed_values, "_require", original)
        return len(compared)

    bundle = made(1)
    program = load_program(bundle.files, digest=bundle.digest, world=1)
    values = sources(Codec(), bundle.captured)
    [count] = run_local(1, lambda _, comm: body(ParallelModule(program, comm, values, bundle.captured)))
    assert count == 0


# ---- other programs of the model ---------------------------------------------------------------


def test_a_program_for_another_length_knows_the_values_too() -> None:
    model = Codec()
    parallel = sw.parallelize(model, example(), plan="replicate", progress=False)
    assert torch.allclose(parallel(*example(34)), model(*example(34)), rtol=1e-12)
    parallel.eval()
    assert torch.allclose(parallel(*example(34)), model(*example(34)), rtol=1e-12)


def test_a_start_with_another_value_does_not_take_the_program_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    for stride in (2, 3, 2):
        model = Codec(stride)
        with torch.no_grad():
            model.layers[0].stride.fill_(stride)  # type: ignore[operator, union-attr]
        parallel = sw.parallelize(model, example(), plan="replicate", progress=False)
        assert torch.allclose(parallel(*example()), model(*example()), rtol=1e-12)


def test_a_copy_of_the_model_is_guarded_too() -> None:
    parallel = sw.parallelize(Codec(), example(), plan="replicate", progress=False)
    other = copy.deepcopy(parallel)
    assert torch.equal(other(*example()), parallel(*example()))
    with torch.no_grad():
        dict(other.named_buffers())["layers.0.stride"].fill_(3)
    refusal(lambda: other(*example()))


def test_random_plans_train_as_one_device() -> None:
    model, args = Codec(), example()
    expected, captured = equality.reference(model, args), capture(model, args)
    for seed in range(3):
        bundle, _ = compile_plan(captured, Plan.random(Graph(captured.graph_text), 3, seed))
        options = lambda: {"skeleton": skeleton_of(model, captured.fixed)}  # noqa: E731
        equality.assert_equal(equality.run(bundle, model, args, options=options), expected)
