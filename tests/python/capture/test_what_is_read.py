"""A program is for what a model reads of known inputs, whatever else they hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shardwright as sw
from shardwright.capture import Captured, capture
from shardwright.runtime import run_local
from test_known_inputs import Reading, written_with_what_is_known

torch.set_num_threads(1)


class Images(nn.Module):
    """Drops images of nothing but zeros, and looks further only at marked ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.marked = nn.Linear(4, 4), nn.Linear(4, 4)
        self.double()

    def forward(self, pixels: Tensor, marks: Tensor) -> Tensor:
        real = (pixels == 0).sum(-1) != pixels.shape[1]
        x = self.inner(pixels[real])
        if marks.any():
            x = x + self.marked(x)[: int(marks.sum())].mean(0)
        return x.square().mean()


def pixels(*empty: int, seed: int = 0) -> Tensor:
    made = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    made[list(empty)] = 0
    return made


def marks(*at: int) -> Tensor:
    made = torch.zeros(6, dtype=torch.bool)
    made[list(at)] = True
    return made


@pytest.mark.slow
def test_a_program_is_for_what_is_read_and_not_for_all_that_inputs_hold() -> None:
    model = Images()
    calls = [
        ((pixels(2), marks()), 1),
        ((pixels(2, seed=1), marks()), 1),
        ((pixels(2, seed=2), marks(1)), 2),
        ((pixels(2, seed=3), marks(3)), 2),
        ((pixels(2), marks(1, 3)), 3),  # which the first program does not read
        ((pixels(), marks()), 4),
        ((pixels(2, seed=4), marks(0, 5)), 4),
        ((pixels(2, seed=5), marks()), 4),
    ]

    def rank(_: int, comm: Any) -> list[tuple[float, int]]:
        parallel = sw.parallelize(model, calls[0][0], plan="data", comm=comm, known_inputs="*", cache=False)
        return [(float(parallel(*args)), len(parallel.programs)) for args, _ in calls]

    for calls_of_rank in run_local(2, rank):
        for (loss, programs), (args, count) in zip(calls_of_rank, calls, strict=True):
            assert loss == pytest.approx(float(model(*args)), rel=1e-12) and programs == count


@pytest.mark.slow
def test_programs_of_what_is_read_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    model = Images()

    def rank(_: int, comm: Any) -> list[float]:
        parallel = sw.parallelize(model, (pixels(2), marks()), plan="data", comm=comm, known_inputs="*")
        return [float(parallel(*args)) for args in calls]

    calls = [(pixels(2, seed=1), marks()), (pixels(2), marks(1)), (pixels(2), marks(1, 3))]
    expected = [float(model(*args)) for args in calls]
    for _ in range(2):
        assert run_local(1, rank)[0] == pytest.approx(expected, rel=1e-12)


def _fails_for_some(known: Tensor, unknown: Tensor) -> Tensor | int:
    try:
        return known.reshape(int(known[0]), -1).shape[1]
    except RuntimeError:
        return 3


def _inside_a_lookup(known: Tensor, unknown: Tensor) -> int:
    try:
        return torch.arange(2)[known].shape[0]
    except IndexError:
        return 1


READS: list[Callable[[Tensor, Tensor], Any]] = [
    lambda known, unknown: known[0],
    lambda known, unknown: known.max() if known.any() else 1,
    lambda known, unknown: len(unknown[known > 1]),
    lambda known, unknown: unknown[: known[0]].numel(),
    lambda known, unknown: sum(known.unique().tolist()),
    lambda known, unknown: sum(int(one) for one in known if one != 1),
    lambda known, unknown: torch.repeat_interleave(known, known).numel(),
    lambda known, unknown: torch.where(known > 0)[0].numel(),
    lambda known, unknown: torch.zeros_like(unknown).index_put((known.clamp(max=1),), known).sum(),
    lambda known, unknown: unknown.new_zeros(2).add_(known).sum(),
    lambda known, unknown: known[:1].expand_as(unknown).sum(),
    lambda known, unknown: int(known.double().mean()),
    lambda known, unknown: known.cumsum(0)[(known[0], known.argmax()),][0],
    lambda known, unknown: int(known.numpy().sum()),
    lambda known, unknown: int((1 / known).masked_fill_(1 / known == float("inf"), 0).sum()),
    written_with_what_is_known,
    _fails_for_some,
    _inside_a_lookup,
]


@pytest.mark.parametrize("count", READS, ids=map(str, range(len(READS))))
def test_where_the_same_is_read_the_graph_is_the_same(count: Callable[[Tensor, Tensor], Any]) -> None:
    values = [torch.tensor([a, b]) for a in range(3) for b in range(3)]

    def captured(known: Tensor) -> Captured | None:
        args = torch.ones(2, 4), known, torch.tensor([1, 2])
        try:
            return capture(Reading(count), args, known_inputs=["known"], verify=False)
        except sw.CaptureError:
            return None

    def graph(of_call: Captured) -> tuple[str, dict[str, list[Any]]]:
        text = "\n".join(line for line in of_call.graph_text.splitlines() if "in_spec" not in line)
        return text, {name: value.tolist() for name, value in of_call.constants.items()}

    made = [captured(known) for known in values]
    assert sum(one is not None for one in made) >= 5
    for one in filter(None, made):
        for known, other in zip(values, made, strict=True):
            if one.is_of((torch.ones(2, 4), known, torch.tensor([1, 2])), {}):
                assert other is not None and graph(one) == graph(other)


def test_what_is_read_is_no_more_than_is_read() -> None:
    args = torch.ones(2, 4), torch.tensor([1, 3]), torch.tensor([1, 2])
    count = READS[0]
    captured = capture(Reading(count), args, known_inputs=["known", "unknown"])
    for other in (torch.tensor([1, 0]), torch.tensor([1, 9])):
        assert captured.is_of((args[0], other, args[2] + 1), {})
    assert not captured.is_of((args[0], torch.tensor([2, 3]), args[2]), {})


def test_what_cannot_be_played_again_is_all_that_an_input_holds() -> None:
    def count(known: Tensor, unknown: Tensor) -> int:
        return int(known.numpy().max())

    def args(values: list[float]) -> tuple[Tensor, ...]:
        return torch.ones(2, 4), torch.tensor(values), torch.tensor([1, 2])

    captured = capture(Reading(count), args([1, 3]), known_inputs=["known"])
    assert captured.notes == [
        "the program is for what the model reads of `known`: other calls get programs of their own"
    ]
    assert captured.is_of(args([1, 3]), {}) and not captured.is_of(args([0, 3]), {})

    def after_writing(known: Tensor, unknown: Tensor) -> int:
        known = known.clone()
        numbers = known.numpy()
        known += 1
        return int(numbers.max())

    captured = capture(Reading(after_writing), args([1, 3]), known_inputs=["known"])
    assert captured.notes == [
        "the program is for the values of `known`: other calls get programs of their own"
    ]
    assert captured.is_of(args([1, 3]), {}) and not captured.is_of(args([0, 3]), {})
    with pytest.raises(sw.CaptureError, match="what `numpy` reads of it cannot be written down") as refused:
        capture(Reading(count), args([1.0, 3.0]), known_inputs="*")
    assert refused.value.code == "SW0146"


@pytest.mark.slow
def test_a_mask_that_is_known_is_left_to_the_attention() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 32, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, **heads)
    model = transformers.LlamaForCausalLM(config).double()

    def example(*padded: int) -> dict[str, Tensor]:
        mask = torch.ones(2, 8, dtype=torch.long)
        mask[0, list(padded)] = 0
        return {"input_ids": torch.arange(16).reshape(2, 8), "attention_mask": mask}

    def causal(mask: Tensor) -> list[str]:
        kwargs = {**example(), "attention_mask": mask}
        captured = capture(model, (), kwargs, known_inputs=["attention_mask"])
        assert captured.verified
        attentions = [line for line in captured.graph_text.splitlines() if "scaled_dot_product" in line]
        return [line for line in attentions if ", None, 0.0, True" in line]

    assert causal(example()["attention_mask"]) and not causal(example(0)["attention_mask"])


class Clamped(nn.Module):
    """Looks up positions that it computes with functions in whose place others stand during a trace."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.positions = nn.Embedding(4, 4)
        self.double()

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        found = [self.positions(torch.clamp(torch.arange(n) / n, max=0.9).mul(4).long()) for n in sizes]
        return (x + torch.cat(found)).square().mean()


def test_functions_that_are_replaced_during_a_trace_are_written_down() -> None:
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    captured = capture(Clamped(), (x, torch.tensor([2, 4])))
    assert captured.in_spec.reading is not None
    results = captured.in_spec.reading.results
    assert results == ("[0, 1]", "[0, 1, 2, 3]")
