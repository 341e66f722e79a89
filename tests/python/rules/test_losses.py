"""Every loss of `torch.nn.functional`, with every reduction and every optional argument, against the whole.

Unlike the cases of `test_rules.py`, these say nothing of rules: whatever operators a loss is captured as,
each is split along each dim that it has, all of them at once, and then by random plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from equality import assert_equal
from rule_cases import Case, Spec, between, data, given, ints, normal
from shardwright import CaptureError
from shardwright._core import Draft, Graph, Operator, Plan
from shardwright.capture import capture
from test_rules import Whole, prepared, run

Loss = tuple[str, Callable[..., Tensor], tuple[Spec, ...]]
"""A name, a function that takes a `reduction`, and its operands."""

PAIR = (normal(4, 6), normal(4, 6))
UNIT = between(0.1, 0.9, 4, 6)
SIGNS = given([[1.0, -1.0, 1.0, 1.0, -1.0, -1.0]] * 4)
MANY = given([[1.0, 0.0, 1.0, 1.0, 0.0, 0.0]] * 4)


def loss(fn: Callable[..., Tensor], *names: str, **more: Any) -> Callable[..., Tensor]:
    """Operands after the first have these names; those without one are given by position."""

    def call(*operands: Tensor, reduction: str) -> Tensor:
        plain = len(operands) - len(names)
        named = dict(zip(names, operands[plain:], strict=True))
        return fn(*operands[:plain], **named, **more, reduction=reduction)

    return call


def positive(*shape: int) -> Spec:
    return "input", between(0.2, 2, *shape)[1]


def log_probabilities(*shape: int) -> Spec:
    return "param", lambda: torch.randn(shape, dtype=torch.float64).log_softmax(-1)


def labels(values: Any, ignored: int) -> Spec:
    """`None` among values is a label that is ignored."""
    return given([[ignored if v is None else v for v in row] for row in values])


def distances() -> Iterator[Loss]:
    for beta in (0.0, 0.7):
        yield f"smooth_l1 beta {beta}", loss(F.smooth_l1_loss, beta=beta), PAIR
    yield "l1", loss(F.l1_loss), PAIR
    for name, fn, more in (("mse", F.mse_loss, {}), ("huber", F.huber_loss, {"delta": 0.7})):
        yield name, loss(fn, **more), PAIR
        yield f"{name} weight", loss(fn, "weight", **more), (*PAIR, positive(4, 6))
        yield f"{name} expanded weight", loss(expanded(fn), "weight", **more), (*PAIR, positive(6))


def expanded(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, y, weight, **more: fn(x, y, weight=weight.expand(4, 6), **more)


def classes() -> Iterator[Loss]:
    weight = positive(8)
    shapes: list[tuple[str, Spec, Any]] = [
        ("", normal(4, 8), [[3, None, 5, 0]]),
        ("images ", normal(2, 8, 3), [[1, None, 4], [7, 0, 0]]),
    ]
    for name, x, values in shapes:
        for ignored in (-100, 2):
            held = labels(values, ignored)
            target = held if name else ("input", lambda make=held[1]: make()[0])
            for smooth in (0.0, 0.2):
                title = f"cross_entropy {name}ignore {ignored} smooth {smooth}"
                more = {"ignore_index": ignored, "label_smoothing": smooth}
                yield title, loss(F.cross_entropy, **more), (x, target)
                yield f"{title} weight", loss(F.cross_entropy, "weight", **more), (x, target, weight)
            title = f"nll {name}ignore {ignored}"
            yield title, loss(F.nll_loss, ignore_index=ignored), (x, target)
            weighted = loss(F.nll_loss, "weight", ignore_index=ignored)
            yield f"{title} weight", weighted, (x, target, weight)
    yield "cross_entropy one row", loss(F.cross_entropy), (normal(8), given(5))
    yield "cross_entropy one row weight", loss(F.cross_entropy, "weight"), (normal(8), given(5), weight)
    yield "nll one row", loss(F.nll_loss), (normal(8), given(5))
    for smooth in (0.0, 0.1):
        more = {"label_smoothing": smooth}
        title, pair = f"cross_entropy probabilities smooth {smooth}", (normal(4, 8), between(0, 1, 4, 8))
        yield title, loss(F.cross_entropy, **more), pair
        yield f"{title} weight", loss(F.cross_entropy, "weight", **more), (*pair, weight)
        images = (normal(2, 8, 3), between(0, 1, 2, 8, 3))
        yield f"{title} images", loss(F.cross_entropy, **more), images


def probabilities() -> Iterator[Loss]:
    for log in (False, True):
        target = log_probabilities(4, 6) if log else UNIT
        yield f"kl_div log {log}", loss(F.kl_div, log_target=log), (log_probabilities(4, 6), target)
    bce, logits = F.binary_cross_entropy, F.binary_cross_entropy_with_logits
    yield "bce", loss(bce), (UNIT, UNIT)
    yield "bce logits", loss(logits), (normal(4, 6), UNIT)
    for name, weight in (("all", positive(4, 6)), ("columns", positive(6)), ("rows", positive(4, 1))):
        yield f"bce weight of {name}", loss(bce, "weight"), (UNIT, UNIT, weight)
        yield f"bce logits weight of {name}", loss(logits, "weight"), (normal(4, 6), UNIT, weight)
    yield "bce logits pos_weight", loss(logits, "pos_weight"), (normal(4, 6), UNIT, positive(6))
    both = (normal(4, 6), UNIT, positive(6), positive(4, 6))
    yield "bce logits both weights", loss(logits, "weight", "pos_weight"), both
    for log in (True, False):
        yield (
            f"poisson log {log}",
            loss(F.poisson_nll_loss, log_input=log),
            (between(0.5, 2, 4, 6), data(4, 6)),
        )
        full = loss(F.poisson_nll_loss, log_input=log, full=True)
        yield f"poisson log {log} full", full, (between(0.5, 2, 4, 6), positive(4, 6))


def margins() -> Iterator[Loss]:
    rows = given([1.0, -1.0, -1.0, 1.0])
    for margin in (0.0, 0.7):
        yield f"hinge {margin}", loss(F.hinge_embedding_loss, margin=margin), (normal(4, 6), SIGNS)
        yield f"cosine {margin}", loss(F.cosine_embedding_loss, margin=margin), (*PAIR, rows)
        yield f"ranking {margin}", loss(F.margin_ranking_loss, margin=margin), (*PAIR, SIGNS)
    yield "soft_margin", loss(F.soft_margin_loss), (normal(4, 6), SIGNS)
    three = (*PAIR, normal(4, 6))
    for p in (1, 2):
        yield f"multi_margin {p}", loss(F.multi_margin_loss, p=p, margin=0.7), (normal(4, 6), ints(6, 4))
        for swap in (False, True):
            yield f"triplet {p} swap {swap}", loss(F.triplet_margin_loss, margin=0.7, p=p, swap=swap), three
    with_distance = loss(F.triplet_margin_with_distance_loss, distance_function=largest)
    yield "triplet with a distance", with_distance, three
    weighted = loss(F.multi_margin_loss, "weight")
    yield "multi_margin weight", weighted, (normal(4, 6), ints(6, 4), positive(6))
    yield (
        "multilabel_margin",
        loss(F.multilabel_margin_loss),
        (normal(4, 6), given([[3, 0, -1, 1, 2, 2]] * 4)),
    )
    yield "multilabel_soft_margin", loss(F.multilabel_soft_margin_loss), (normal(4, 6), MANY)
    weighted = loss(F.multilabel_soft_margin_loss, "weight")
    yield "multilabel_soft_margin weight", weighted, (normal(4, 6), MANY, positive(6))


def largest(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).abs().amax(-1)


def refused() -> Iterator[tuple[str, Loss]]:
    """What `torch.export` cannot capture, or captures wrongly: the code that says so."""
    pair = (*PAIR, positive(4, 6))
    yield "SW0114", ("l1 weight", loss(F.l1_loss, "weight"), pair)
    yield "SW0107", ("gaussian", loss(F.gaussian_nll_loss), pair)


def with_reductions(losses: Iterator[Loss]) -> Iterator[Any]:
    for name, fn, operands in losses:
        for reduction in ("mean", "sum", "none", "batchmean")[: 4 if name.startswith("kl_div") else 3]:
            yield pytest.param(case(fn, operands, reduction), id=f"{name} {reduction}")


def case(fn: Callable[..., Tensor], operands: tuple[Spec, ...], reduction: str) -> Case:
    return Case("", frozenset(), lambda *args: fn(*args, reduction=reduction), operands, {})


LOSSES = [*distances(), *classes(), *probabilities(), *margins()]


@pytest.mark.slow
@pytest.mark.parametrize("case", with_reductions(iter(LOSSES)))
@pytest.mark.filterwarnings("ignore:reduction")
def test_every_loss_is_the_same_in_parts(case: Case) -> None:
    it = prepared(case)
    for plan in plans(it.graph):
        assert_equal(run(case, it, plan), it.expected, plan.text)


def plans(graph: Graph) -> Iterator[Plan]:
    """Each dim of each operator is split in one of them."""
    for number in range(max(len(dims(operator, 2)) for operator in graph.operators)):
        yield split_all(graph, number, 2)
    yield Plan.random(graph, 3, 0)


def dims(operator: Operator, parts: int) -> list[str]:
    return [name for name, size in operator.dims.items() if size >= parts]


def split_all(graph: Graph, number: int, parts: int) -> Plan:
    draft = Draft(graph, "split", parts)
    for operator in graph.operators:
        names = dims(operator, parts)
        draft.trans(operator, names[number % len(names)] if names else "replicate", parts)
        draft.place(operator, list(range(parts)))
    return draft.finish()


@pytest.mark.parametrize("code, loss", refused(), ids=lambda it: it if isinstance(it, str) else it[0])
def test_a_loss_that_cannot_be_captured_is_refused_by_name(code: str, loss: Loss) -> None:
    module = Whole(case(loss[1], loss[2], "mean"))
    with pytest.raises(CaptureError) as caught:
        capture(module, tuple(module.inputs))
    assert caught.value.code == code


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_that_reads_values_is_an_operator(reduction: str) -> None:
    lengths = {"input_lengths": (7, 6, 3), "target_lengths": (3, 2, 2)}
    targets = given([[1, 2, 3], [2, 2, 4], [3, 1, 1]])
    rows: Spec = ("param", lambda: torch.randn(7, 3, 6, dtype=torch.float64))
    ctc = case(loss(F.ctc_loss, **lengths), (rows, targets), reduction)
    it = prepared(ctc)
    assert next(op.target for op in it.graph.operators) == "shardwright.function.default"
    plan = Plan.random(it.graph, 3, 0)
    assert_equal(run(ctc, it, plan), it.expected, plan.text)
