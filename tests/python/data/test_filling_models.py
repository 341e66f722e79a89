"""Models of Transformers, unchanged, whose batches are filled up: beside the single device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import equality
import shardwright as sw
import zoo
from claims import Proved, refuted
from shardwright import Graph
from shardwright.start.compiling import compile_plan
from shardwright.start.planning import make_plan
from test_filling_claims import same

pytest.importorskip("transformers")

TEXT = {"input_ids": 0, "labels": -100}
MASKED = TEXT | {"attention_mask": 0}
SOURCE, TARGET = {"input_ids": 0, "attention_mask": 0}, {"labels": -100}
LONG = 13


def with_mask(model: zoo.Model) -> zoo.Model:
    module, args, kwargs = model
    return module, args, kwargs | {"attention_mask": zoo.padded(*kwargs["input_ids"].shape)}


CASES: dict[str, tuple[Callable[[], zoo.Model], list[Any]]] = {
    "llama": (zoo.llama, [TEXT]),
    "llama with a mask": (lambda: with_mask(zoo.llama()), [MASKED]),
    "llama, eager": (lambda: with_mask(zoo.llama("eager")), [MASKED]),
    "gpt2": (zoo.gpt2, [TEXT]),
    "gpt2, eager": (lambda: with_mask(zoo.gpt2("eager")), [MASKED]),
    "bert": (zoo.bert, [MASKED]),
    "bert, eager": (lambda: zoo.bert("eager"), [MASKED]),
    "t5": (lambda: zoo.t5(1), [SOURCE, TARGET]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_a_filled_batch_has_the_loss_and_gradients_of_the_batch(name: str) -> None:
    make, groups = CASES[name]
    module, args, batch = make()
    with zoo.widened():
        proved = Proved(module, batch, LONG, groups)
        assert not refuted(proved)
        assert not same(proved)
        expected = equality.reference(module, args, 1, batch)
    plan = make_plan(Graph(proved.captured.graph_text), "data", 2)
    bundle, _ = compile_plan(proved.captured, plan)
    actual = equality.run(bundle, module, args, 1, kwargs=proved.long)
    equality.assert_equal(actual, expected, name)


@pytest.mark.parametrize(
    ("make", "groups", "words"),
    [
        (lambda: without_mask(zoo.bert()), [TEXT], "it has no mask, and `is_causal` is not set"),
        (lambda: without_mask(zoo.bert("eager")), [TEXT], "gets a share of it"),
        (zoo.bert, [MASKED | {"attention_mask": 1}], "not known to hide keys"),
        (zoo.llama, [TEXT | {"labels": 0}], "what it puts behind is not what the batch is filled up with"),
        (lambda: without_mask(zoo.t5(1)), [{"input_ids": 0}, TARGET], "not known to hide keys"),
        (lambda: zoo.t5(1), [SOURCE, {"labels": 0}], "those that are ignored -100"),
    ],
)
def test_what_is_filled_up_wrongly_is_refused(make: Any, groups: Any, words: str) -> None:
    module, _, batch = make()
    with zoo.widened(), pytest.raises(sw.CaptureError, match="SW0170") as refused:
        Proved(module, batch, LONG, groups)
    assert words in (refused.value.why or "")
    assert "transformers/" in (refused.value.place or "")


def without_mask(model: zoo.Model) -> zoo.Model:
    module, args, kwargs = model
    return module, args, {name: value for name, value in kwargs.items() if name != "attention_mask"}


@pytest.mark.slow
def test_a_mask_is_not_needed_where_attention_is_causal() -> None:
    """What is filled stands behind, whatever a mask says of it."""
    module, _, batch = with_mask(zoo.llama())
    with zoo.widened():
        proved = Proved(module, batch, LONG, [MASKED | {"attention_mask": 1}])
        assert not same(proved)
    assert torch.equal(proved.long["attention_mask"][:, -1], torch.ones(zoo.BATCH, dtype=torch.long))
