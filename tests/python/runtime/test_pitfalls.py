"""Small programs that are easily run wrong: steps of a parallel model beside the single device, or refused
by a code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw
from shardwright._core import Plan
from shardwright.errors import ShardwrightError
from shardwright.runtime import run_local

torch.set_num_threads(1)
_DRAWN = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=_DRAWN)


W, V, E = numbers(5, 8), numbers(5, 8), numbers(4, 5, 8)
X = [(numbers(4, 5),) for _ in range(3)]
TOKENS = torch.tensor([[0, 1], [2, 3]])
Calls = list[tuple[Tensor, ...]]


class Small(nn.Module):
    """A parameter `w` from 5 to 8, what else is set up, and a forward over them."""

    def __init__(self, body: Callable[..., Any], setup: Callable[[Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(W.clone())
        setup(self)
        self.body = body

    def forward(self, *args: Tensor) -> Any:
        return self.body(self, *args)


class Pitfall:
    def __init__(
        self,
        body: Callable[..., Any],
        setup: Callable[[Any], Any] = lambda m: None,
        *,
        calls: Calls = X,
        plan: Any = "data",
        ranks: int = 2,
        before: Callable[[Any, int], Any] = lambda m, step: None,
    ) -> None:
        self.calls, self.plan, self.ranks, self.before = calls, plan, ranks, before
        self.model: Callable[[], nn.Module] = lambda: Small(body, setup).double()

    def losses(self, model: Any) -> list[float]:
        made = (
            sw.optimizer if isinstance(model, sw.ParallelModule) else lambda m, k, lr: k(m.parameters(), lr)
        )
        optimizer, losses = made(model, torch.optim.SGD, lr=0.1), []
        for step, args in enumerate(self.calls):
            self.before(model, step)
            result = model(*args)
            loss = result if isinstance(result, Tensor) else result[0]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def parallel(self) -> list[list[float]]:
        models = [self.model() for _ in range(self.ranks)]

        def rank(number: int, comm: Any) -> list[float]:
            options: dict[str, Any] = {"plan": self.plan, "comm": comm, "cache": False, "progress": False}
            return self.losses(sw.parallelize(models[number], self.calls[0], **options))

        return run_local(self.ranks, rank)


def random(seed: int) -> Any:
    return lambda graph, devices, number: Plan.random(graph, number, seed)


def mean(x: Tensor) -> Tensor:
    return x.square().mean()


def thaw(m: Any, step: int) -> None:
    if step == 1:
        for parameter in m.parameters():
            parameter.requires_grad_(True)


def normalized(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        v = F.normalize(m.w.t() @ m.u, dim=0)
        m.u.copy_(F.normalize(m.w @ v, dim=0))
    return mean(x @ (m.w / (m.u @ (m.w @ v))))


def lstm(m: Any, x: Tensor) -> Tensor:
    out, (h, _) = m.l(x)
    return mean(out) + h.sum() + 0 * m.w.sum()


def loss_of_tokens(m: Any, tokens: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(m.e(tokens).flatten(0, 1) @ m.w, labels.flatten())


def set_up(**made: Callable[[], Any]) -> Callable[[Any], None]:
    def setup(m: Any) -> None:
        for name, make in made.items():
            setattr(m, name, make())

    return setup


EQUAL: dict[str, Pitfall] = {
    "kl_div of logarithms": Pitfall(
        lambda m, x: F.kl_div(
            F.log_softmax(x @ m.w, -1), F.log_softmax(x @ V, -1), reduction="mean", log_target=True
        )
    ),
    "strides of a transposed tensor": Pitfall(
        lambda m, x: (x @ m.w).t().as_strided((8, 4), (4, 1)).cumsum(1).sin().sum()
    ),
    "a hook of a parameter": Pitfall(
        lambda m, x: mean(x @ m.w), lambda m: m.w.register_hook(lambda grad: grad * 0.1)
    ),
    "an attribute in a parameter's memory": Pitfall(
        lambda m, x: mean(x @ m.w) + (x @ m.a).sin().mean(), lambda m: setattr(m, "a", m.w.detach())
    ),
    "an attribute that the loop sets": Pitfall(
        lambda m, x: mean(x @ m.w) * m.tau,
        set_up(tau=lambda: 0.5),
        before=lambda m, step: setattr(m, "tau", 0.5 ** (step + 1)),
    ),
    "what the loop thaws": Pitfall(
        lambda m, x: mean(x @ m.w @ m.u),
        lambda m: (setattr(m, "u", nn.Parameter(torch.ones(8, 2))), m.w.requires_grad_(False)),
        before=thaw,
    ),
    "experts counted from the end": Pitfall(
        lambda m, x, i: mean(torch.bmm(x.unsqueeze(1), m.ex[i])) + 0 * m.w.sum(),
        set_up(ex=lambda: nn.Parameter(E.clone())),
        calls=[(*X[0], torch.tensor([0, 1, 2, 3])), (*X[1], torch.tensor([0, -1, 2, -4]))],
        plan="replicate",
    ),
    "a result that the loss does not need": Pitfall(lambda m, x: (mean(x @ m.w), (x @ m.w) @ (x @ m.w).t())),
    "torch.gradient": Pitfall(lambda m, x: torch.gradient(x @ m.w, dim=1)[0].square().sum()),
    "a sparse embedding": Pitfall(
        lambda m, t: mean(m.e(t)), set_up(e=lambda: nn.Embedding(9, 4, sparse=True)), calls=[(TOKENS,)]
    ),
    "the state of an LSTM": Pitfall(
        lstm, set_up(l=lambda: nn.LSTM(5, 6)), calls=[(numbers(4, 3, 5),)], plan=random(0)
    ),
    "a batch norm twice": Pitfall(
        lambda m, x: m.n(m.n(x @ m.w) * 2).sin().mean(),
        set_up(n=lambda: nn.BatchNorm1d(8)),
        plan=random(0),
    ),
    "a view without gradients": Pitfall(
        normalized, lambda m: m.register_buffer("u", torch.ones(5)), plan=random(0)
    ),
    "a group norm, a sample a rank": Pitfall(
        lambda m, x: F.group_norm(x @ m.w, 8).sum() + (x @ m.w).mean(), ranks=4
    ),
    "a weighted loss": Pitfall(
        lambda m, x: F.mse_loss(
            x @ m.w, torch.zeros_like(x @ m.w), weight=torch.ones(8, dtype=x.dtype).expand(4, 8)
        )
    ),
    "a sum over what is expanded": Pitfall(lambda m, x: (x @ m.w).mean() * m.w[0].expand(4, 8).sum()),
    "a parameter in a list": Pitfall(lambda m, x: mean(x @ m.ws[0]), lambda m: setattr(m, "ws", [m.w])),
    "the data of a parameter": Pitfall(lambda m, x: mean(x @ m.w) + m.w.data.sum()),
    "an instance norm with statistics": Pitfall(
        lambda m, x: m.n((x @ m.w).unsqueeze(1)).sin().mean(),
        set_up(n=lambda: nn.InstanceNorm1d(1, track_running_stats=True)),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal(name: str) -> None:
    pitfall = EQUAL[name]
    expected = torch.tensor(pitfall.losses(pitfall.model()), dtype=torch.float64)
    for actual in pitfall.parallel():
        torch.testing.assert_close(
            torch.tensor(actual, dtype=torch.float64), expected, rtol=1e-10, atol=1e-12
        )


def counts(m: Any, x: Tensor) -> Tensor:
    m.n += 1
    return mean(x @ m.w) * m.n


def remembers(m: Any, x: Tensor) -> Tensor:
    hidden = x @ m.w + (0 if m.h is None else m.h)
    m.h = hidden.detach()
    return mean(hidden)


def doubles(m: Any, x: Tensor) -> Tensor:
    m.d["t"] = m.d["t"] * 2
    return mean(x @ m.w) * m.d["t"]


class Viewed(Small):
    """`double` would give the view memory of its own."""

    def __init__(self) -> None:
        super().__init__(lambda m, x: (m.buf.add_(1), mean(x @ m.w) * m.v.sum())[1], lambda m: None)
        self.register_buffer("buf", torch.zeros(8, dtype=torch.float64))
        self.register_buffer("v", self.buf[:4])


REFUSED: dict[str, tuple[Pitfall, str]] = {
    "a number that counts": (Pitfall(counts, set_up(n=lambda: 0)), "SW0137"),
    "a tensor that is kept": (Pitfall(remembers, set_up(h=lambda: None)), "SW0137"),
    "an entry that is kept": (Pitfall(doubles, set_up(d=lambda: {"t": 1.0})), "SW0137"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    pitfall, code = REFUSED[name]
    with pytest.raises(ShardwrightError) as error:
        pitfall.parallel()
    assert error.value.code == code


def test_a_buffer_that_is_a_view_of_another_is_refused() -> None:
    pitfall = Pitfall(mean)
    pitfall.model = Viewed
    with pytest.raises(ShardwrightError) as error:
        pitfall.parallel()
    assert error.value.code == "SW0136"


def test_parameters_that_share_memory_are_refused() -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        return mean(m.a(x).tanh() * m.b(x)) + m.w.sum()

    pitfall = Pitfall(body)
    model = Small(body, set_up(a=lambda: nn.Linear(5, 8), b=lambda: nn.Linear(5, 8))).double()
    model.b.weight.data = model.a.weight.data
    pitfall.model = lambda: model
    with pytest.raises(ShardwrightError) as error:
        pitfall.parallel()
    assert error.value.code == "SW0136"


def test_a_label_that_is_none_is_an_error_as_on_one_device() -> None:
    bad = torch.tensor([[0, 40], [2, -7]])
    pitfall = Pitfall(
        loss_of_tokens,
        set_up(e=lambda: nn.Embedding(6, 5)),
        calls=[(TOKENS, TOKENS), (TOKENS, bad)],
        plan="megatron",
    )
    with pytest.raises(IndexError):
        pitfall.losses(pitfall.model())
    with pytest.raises(IndexError, match="out of bounds"):
        pitfall.parallel()


def test_dropout_in_place_under_a_random_plan() -> None:
    """Masks are drawn by keys, not as on one device: all ranks have one loss."""
    pitfall = Pitfall(lambda m, x: mean(F.dropout(x @ m.w, 0.3, inplace=True)), plan=random(1), ranks=3)
    of_ranks = pitfall.parallel()
    assert all(losses == of_ranks[0] for losses in of_ranks) and all(loss > 0 for loss in of_ranks[0])
