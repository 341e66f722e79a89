"""Small models, each over a few operators that have been refused or wrong in parts, under named and random
plans beside the single device, float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equality
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile, verify
from shardwright.capture import capture
from shardwright.errors import CheckError

torch.set_num_threads(1)

SEEDS = 12
NAMED = ["data", "megatron", "replicate"]
Forward = Callable[[Any, Tensor], Any]


class Small(nn.Module):
    """A projection `w` from 5 to 8, a vector `v` of 8, a buffer `u` of 5, a norm, and a forward over them."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(numbers(5, 8)), nn.Parameter(numbers(8))
        self.register_buffer("u", numbers(5))
        self.norm = nn.BatchNorm1d(8).double()
        self.body = forward

    def forward(self, x: Tensor) -> Any:
        return self.body(self, x)


def numbers(*shape: int) -> Tensor:
    count = int(torch.tensor(shape).prod())
    return torch.arange(1, count + 1, dtype=torch.float64).mul(0.7).sin().reshape(shape)


def check(forward: Forward, batch: int = 4, seeds: int = SEEDS) -> None:
    module, args = Small(forward), (numbers(batch, 5),)
    captured = capture(module, args)
    graph = Graph(captured.graph_text)
    torch.manual_seed(11)
    expected = equality.reference(module, args)
    plans = [Plan.named(graph, name, 2) for name in NAMED if fits(graph, name)]
    plans += [Plan.random(graph, 2 + seed % 3, seed) for seed in range(seeds)]
    for plan in plans:
        compiled = compile(plan)
        files = dict(compiled.files)
        bundle = Bundle(files, compiled.digest, plan.name, plan.devices, captured, "", "")
        actual = equality.run(bundle, module, args, options=equality.single_device(11))
        equality.assert_equal(actual, expected, repr(plan))


def fits(graph: Graph, name: str) -> bool:
    """Whether the named plan finds something to split."""
    try:
        Plan.named(graph, name, 2)
    except Exception:
        return False
    return True


def loss(h: Tensor) -> Tensor:
    return h.square().mean()


UNUSED: dict[str, Forward] = {
    "a product of a hidden state with itself": lambda m, x: (loss(x @ m.w), (x @ m.w) @ (x @ m.w).t()),
    "a softmax of logits": lambda m, x: {"loss": loss(x @ m.w), "probs": (x @ m.w).softmax(-1)},
    "what shares a hidden state": lambda m, x: (lambda h: (loss(h), h @ h.t()))(x @ m.w),
    "what alone reads a parameter": lambda m, x: (loss(x @ m.w), x @ m.w * m.v),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", UNUSED)
def test_what_no_output_needs_is_not_in_the_program(name: str) -> None:
    check(UNUSED[name])


def test_an_output_that_nobody_asks_for_costs_nothing() -> None:
    both, alone = Small(lambda m, x: (loss(x @ m.w), x @ m.v[:5])), Small(lambda m, x: loss(x @ m.w))
    lines = []
    for module in (both, alone):
        graph = Graph(capture(module, (numbers(4, 5),)).graph_text)
        files = dict(compile(Plan.named(graph, "data", 2)).files)
        lines.append(sum(text.count(" = ") for name, text in files.items() if name.endswith(".py")))
    assert lines[0] == lines[1]


def weighted(h: Tensor) -> Tensor:
    return F.mse_loss(h, torch.zeros(4, 8, dtype=h.dtype), weight=torch.ones(8, dtype=h.dtype).expand(4, 8))


SAME_EVERYWHERE: dict[str, Forward] = {
    "a mean over a row that is repeated": lambda m, x: (x @ m.w).mean() * m.w[0].expand(4, 8).mean(),
    "a sum over ones that are repeated": lambda m, x: (
        loss(x @ m.w) * torch.ones(8).double().expand(4, 8).sum()
    ),
    "weights of a loss that are repeated": lambda m, x: weighted(x @ m.w),
    "a function of what is repeated": lambda m, x: loss(x @ m.w) * m.v.expand(4, 8).sin().sum(),
    "what is repeated twice": lambda m, x: loss(x @ m.w) + m.v[:1].expand(6, 1).expand(6, 4).exp().sum(),
    "one use that is the same everywhere, one that is not": lambda m, x: (
        lambda e: (x @ m.w * e).mean() + e.sum().sin()
    )(m.v.expand(4, 8)),
    "random numbers for what is repeated": lambda m, x: (
        loss(F.dropout(m.v.expand(4, 8), 0.3)) + loss(x @ m.w)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME_EVERYWHERE)
def test_parts_of_what_is_the_same_everywhere_are_summed(name: str) -> None:
    check(SAME_EVERYWHERE[name])


@pytest.mark.parametrize("length", [1, 3, 4])
def test_parts_that_are_too_short_or_too_long_together_are_refused(length: int) -> None:
    graph = Graph(
        capture(Small(SAME_EVERYWHERE["weights of a loss that are repeated"]), (numbers(4, 5),)).graph_text
    )
    compiled = compile(Plan.named(graph, "data", 2))
    assert verify(graph.text, dict(compiled.files))
    edited = {
        name: text.replace("expand(2, 8)", f"expand({length}, 8)") for name, text in compiled.files.items()
    }
    assert edited != dict(compiled.files)
    with pytest.raises(CheckError):
        verify(graph.text, edited)


DRAWN: dict[str, Forward] = {
    "dropout in place": lambda m, x: loss(F.dropout(x @ m.w, 0.3, inplace=True)),
    "dropout in place of what is read again": lambda m, x: (
        lambda h: loss(F.dropout(h, 0.3, inplace=True) + h)
    )(x @ m.w),
    "alpha dropout": lambda m, x: loss(F.alpha_dropout(x @ m.w, 0.3, training=True)),
    "dropout of channels": lambda m, x: loss(F.dropout1d((x @ m.w).view(4, 2, 4), 0.3, training=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_masks_drawn_for_a_tensor_whose_shape_alone_is_read(name: str) -> None:
    check(DRAWN[name])


def transposed(m: Any, x: Tensor) -> Tensor:
    h = (x @ m.w).t() * 1.0
    assert not h.is_contiguous()
    return h


DRAWN_AS_IT_LIES: dict[str, Forward] = {
    "dropout in place": lambda m, x: loss(F.dropout(transposed(m, x), 0.3, inplace=True)),
    "alpha dropout": lambda m, x: loss(F.alpha_dropout(transposed(m, x), 0.3, training=True)),
    "in place": lambda m, x: loss(transposed(m, x) * (transposed(m, x).detach() * 1.0).bernoulli_(0.3)),
    "in place of what is fresh": lambda m, x: (
        lambda h: loss(h * torch.empty_like(h.detach()).bernoulli_(0.3))
    )(transposed(m, x)),
    "out of place": lambda m, x: (lambda h: loss(h * torch.bernoulli(h.detach(), 0.3)))(transposed(m, x)),
    "out of place of what is fresh": lambda m, x: (
        lambda h: loss(h * torch.bernoulli(torch.empty_like(h.detach()), 0.3))
    )(transposed(m, x)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN_AS_IT_LIES)
def test_masks_are_drawn_as_a_tensor_lies(name: str) -> None:
    check(DRAWN_AS_IT_LIES[name])


EMPTY: dict[str, Forward] = {
    "no rows joined to some": lambda m, x: loss(torch.cat([x @ m.w, torch.zeros(0, 8).double()], 0).sin()),
    "a sum of no rows": lambda m, x: loss(x @ m.w) + (x @ m.w)[:0].sum(),
    "no columns joined to some": lambda m, x: loss(torch.cat([(x @ m.w)[:, :0], x @ m.w], 1)),
    "a piece without elements": lambda m, x: (lambda a, b: loss(a.sin()) + b.sum())(
        *torch.split(x @ m.w, [8, 0], 1)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements(name: str) -> None:
    check(EMPTY[name])


def power_iteration(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        v = F.normalize(m.w.t() @ m.u, dim=0)
        m.u.copy_(F.normalize(m.w @ v, dim=0))
    return loss(x @ (m.w / (m.u @ (m.w @ v))))


def view_of_a_hidden_state(m: Any, x: Tensor) -> Tensor:
    h = x @ m.w
    with torch.no_grad():
        a, b = h[:, :4], h.view(4, 2, 4)
    return loss(h[:, :4] * a) + (b * h.view(4, 2, 4)).sum()


def statistics(m: Any, x: Tensor) -> Tensor:
    h = x @ m.w
    with torch.no_grad():
        deviation = h.view(4, 8).t().std(0)
    return loss((h / deviation[:, None]).sin())


STOPPED: dict[str, Forward] = {
    "a power iteration": power_iteration,
    "a view of a hidden state": view_of_a_hidden_state,
    "statistics of a hidden state": statistics,
    "a detached branch": lambda m, x: (lambda h: loss(h.detach() @ m.w.t()) + loss(h.tanh()))(x @ m.w),
    "a batch norm that is used twice": lambda m, x: m.norm(m.norm(x @ m.w) * 2).sin().mean(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STOPPED)
def test_where_no_gradient_flows_none_is_asked_for(name: str) -> None:
    check(STOPPED[name])


LISTS: dict[str, Forward] = {
    "a difference": lambda m, x: loss(torch.diff(x @ m.w, dim=1)),
    "a second difference with what follows": lambda m, x: loss(
        torch.diff(x @ m.w, n=2, dim=1, append=x[:, :1])
    ),
    "a gradient along one dim": lambda m, x: loss(torch.gradient(x @ m.w, dim=1)[0]),
    "a gradient along all dims": lambda m, x: sum(loss(part) for part in torch.gradient(x @ m.w)),
    "a split into one": lambda m, x: loss(torch.split(x @ m.w, 8, 1)[0]),
    "a meshgrid of one": lambda m, x: loss(x @ m.w + torch.meshgrid(m.v, indexing="ij")[0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
def test_operators_that_give_a_list(name: str) -> None:
    check(LISTS[name])


def halves(m: Any, x: Tensor) -> Tensor:
    h = x @ m.w
    z = torch.empty(4, 8, dtype=x.dtype)
    z[:2], z[2:] = h[:2] * 2, h[2:]
    return loss(z.sin())


CONSTANTS: dict[str, Forward] = {
    "a slice of ones": lambda m, x: loss(x @ m.w * torch.ones(6, 8).double()[1:5]),
    "a mask of ones": lambda m, x: loss((x @ m.w).masked_fill(torch.ones(4, 8).bool().tril(), 0.5)),
    "an empty tensor that is filled": halves,
    "a slice of zeros": lambda m, x: loss(
        (x @ m.w).view(2, 2, 8) + torch.zeros(2, 4, 8, dtype=x.dtype)[:, 1:3]
    ),
    "pieces of other lengths": lambda m, x: loss(torch.cat([x @ m.w, x, (x @ m.w)[:, :3]], 1).sin()),
    "several uses": lambda m, x: (lambda h: loss(h + h + h * h + h.sin() + 2 * h))(x @ m.w),
    "other types": lambda m, x: loss((x @ m.w).float().double() + (x @ m.w)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_made_in_the_model_and_pieces(name: str) -> None:
    check(CONSTANTS[name])
