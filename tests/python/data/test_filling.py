"""`lengths=`: filled batches give the loss and gradients of the batches as they were, or are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw
from shardwright.runtime import run_local

Batch = dict[str, Tensor]
LABELS = {"tokens": 0, "labels": -100}
MASKED = {"tokens": 0, "mask": 0, "labels": -100}
SIZE = 17


def tokens(length: int, rows: int = 4, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(100 * seed + length)
    drawn = torch.randint(1, SIZE, (rows, length), generator=generator)
    return {"tokens": drawn, "labels": drawn.roll(-1, 1)}


def masked(length: int, rows: int = 4) -> Batch:
    """Rows of different lengths, as a loader pads them."""
    made = tokens(length, rows)
    there = torch.arange(length) < torch.tensor([length, max(1, length - 2), 1, length])[:rows, None]
    return {**made, "mask": there.long(), "labels": made["labels"].masked_fill(~there, -100)}


class Model(nn.Module):
    """Something between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(SIZE, 8), nn.Linear(8, SIZE)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def loss(self, seen: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(seen).flatten(0, 1), labels.flatten())


class Sums(Model):
    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.embed(tokens).cumsum(1), labels)


class Causal(Model):
    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.loss(F.layer_norm(x + seen.transpose(1, 2).flatten(2), [8]), labels)


class Triangle(Model):
    """Attention by hand, and labels shifted inside."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x, length = self.embed(tokens), tokens.shape[1]
        hidden = torch.triu(torch.full((length, length), float("-inf"), dtype=x.dtype), diagonal=1)
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 8**0.5 + hidden
        logits = self.head(scores.softmax(-1) @ self.v(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Masked(Model):
    """Every position sees all that are there; the mean is over these."""

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        scores = scores.masked_fill(mask[:, None, :] == 0, float("-inf"))
        x = torch.relu(x + scores.softmax(-1) @ self.v(x))
        pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        rows = F.cross_entropy(self.head(x + pooled[:, None]).transpose(1, 2), labels, reduction="none")
        return (rows * mask).sum() / mask.sum()


class Weighted(Model):
    """Of `F.mse_loss` what a mask leaves, and positions from a table."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(64, 8)

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))
        gap = F.mse_loss(self.head(x), self.head(x.flip(-1)), reduction="none").mean(-1)
        return (gap * mask).sum() / mask.sum() + self.loss(x, labels)


class Pooled(Model):
    """The first position stands for all."""

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = self.q(x)[:, None], self.k(x)[:, None], self.v(x)[:, None]
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.bool()[:, None, None])
        first = (x + seen[:, 0])[:, 0]
        return F.cross_entropy(self.head(first), labels[:, 0])


def plain(module: nn.Module, batches: Sequence[Batch]) -> list[tuple[Tensor, dict[str, Tensor]]]:
    steps = []
    for batch in batches:
        module.zero_grad()
        result = module(**batch)
        loss = result if isinstance(result, Tensor) else result["loss"]
        loss.backward()
        grads = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
        steps.append((loss.detach(), grads))
    return steps


def filled(
    make: Callable[[], nn.Module],
    batches: Sequence[Batch],
    lengths: Any,
    forward: bool = False,
    **options: Any,
) -> tuple[list[tuple[Tensor, dict[str, Tensor]]], list[str]]:
    """The same on two ranks; every rank has the same numbers."""
    modules = [make(), make()]

    def rank(rank: int, comm: Any) -> Any:
        model = sw.parallelize(
            modules[rank],
            (),
            batches[0],
            plan="data",
            lengths=lengths,
            comm=comm,
            progress=False,
            cache=False,
            **options,
        )
        steps = []
        for batch in batches:
            model.zero_grad()
            if forward:
                result = model(**batch)
                loss = result if isinstance(result, Tensor) else result["loss"]
                loss.backward()
            else:
                loss = model.train_step(batch)
            grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            steps.append((loss.detach(), grads))
        return steps, model.programs

    (ours, programs), (theirs, _) = run_local(2, rank)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(ours, theirs, strict=True))
    return ours, programs


def check(make: Callable[[], nn.Module], batches: Sequence[Batch], lengths: Any, **options: Any) -> list[str]:
    ours, programs = filled(make, batches, lengths, **options)
    for (loss, grads), (other, theirs) in zip(ours, plain(make(), batches), strict=True):
        torch.testing.assert_close(loss, other, rtol=1e-11, atol=0)
        assert grads.keys() == theirs.keys()
        for name, grad in grads.items():
            torch.testing.assert_close(
                grad, theirs[name], rtol=1e-9, atol=1e-13, msg=lambda text, name=name: f"{name}: {text}"
            )
    return programs


def seeded(kind: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return kind().double()

    return make


@pytest.mark.parametrize(
    ("kind", "batch", "values"),
    [
        (Sums, tokens, LABELS),
        (Causal, tokens, LABELS),
        (Triangle, tokens, LABELS),
        (Masked, masked, MASKED),
        (Weighted, masked, MASKED),
        (Pooled, masked, MASKED),
    ],
)
@pytest.mark.parametrize("forward", [False, True])
def test_few_programs_give_the_losses_and_gradients_of_every_length(
    kind: Any, batch: Any, values: Any, forward: bool
) -> None:
    batches = [batch(length) for length in (5, 7, 8, 11, 16, 4)]
    programs = check(seeded(kind), batches, sw.Lengths([8, 16], values), forward=forward)
    assert [line.count("[4, 8]") + 10 * line.count("[4, 16]") for line in programs] == [
        len(values),
        10 * len(values),
    ]


class Mean(Model):
    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        pooled = self.embed(tokens).mean(1)
        return F.cross_entropy(self.head(pooled), labels[:, 0])


class Normed(Model):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens).transpose(1, 2)).transpose(1, 2)
        return self.loss(x, labels)


class Convolved(Model):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.conv(self.embed(tokens).transpose(1, 2)).transpose(1, 2), labels)


class Gap(Model):
    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(self.head(self.embed(tokens)).mean(-1), labels.double())


class Both(Model):
    """Attention that looks ahead, without a mask."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.loss(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)), labels)


class Shared(Model):
    """A softmax over all positions."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.loss(x * self.head(x).softmax(1)[..., :8], labels)


class Added(Model):
    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.embed(tokens) + self.embed(tokens).sum(1, keepdim=True), labels)


class Last(Model):
    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.embed(tokens).cumsum(1)[:, -1]), labels[:, 0])


class Counted(Model):
    """A number that is made of the length, and no operator."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.embed(tokens).cumsum(1) / tokens.shape[1], labels)


class Decides(Model):
    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.loss(x.relu() if tokens.shape[1] > 4 else x.tanh(), labels)


class Rooted(Model):
    """The root of a sum that is zero where it is masked has no derivative there."""

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens) * mask[..., None]
        return self.loss(x.abs().sqrt() * mask[..., None], labels)


class Most(Model):
    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.embed(tokens).amax(1)), labels[:, 0])


REFUSED = [
    (Mean, "SW0170", "aten.mean.dim would mix in what fills up tokens", "the mean of all positions"),
    (Normed, "SW0170", "batch_norm.* of norm would mix in", "statistics are of all positions"),
    (Convolved, "SW0170", "aten.conv1d.default of conv would mix in", "reaches over the end"),
    (Gap, "SW0170", "aten.mse_loss.default would mix in", "taken of all elements"),
    (
        Both,
        "SW0170",
        "aten.scaled_dot_product_attention.default would",
        "no mask, and `is_causal` is not set",
    ),
    (Shared, "SW0170", "aten.softmax.int would mix in", "gets a share of it"),
    (Added, "SW0170", "aten.sum.dim_IntList would mix in", "is not zero where they are filled"),
    (Last, "SW0170", "aten.select.int would mix in", "for others are not"),
    (Most, "SW0170", "aten.amax.default would mix in", "chooses among all positions"),
    (Counted, "SW0171", "aten.div.Tensor depends on the length", "other numbers"),
    (Decides, "SW0171", "does something else for another length: aten.relu.default", "one of them shorter"),
    (Rooted, "SW0170", "gradients of aten.sqrt.default where", "zero times these is no number"),
]


@pytest.mark.parametrize(("kind", "code", "what", "why"), REFUSED)
def test_what_would_mix_in_is_refused_with_its_line(kind: Any, code: str, what: str, why: str) -> None:
    batch, values = (masked, MASKED) if kind is Rooted else (tokens, LABELS)
    with pytest.raises(sw.CaptureError, match=what) as refused:
        prove(kind, batch(8), sw.Lengths([8], values))
    assert refused.value.code == code and why in (refused.value.why or "")
    # The line of the model itself.
    where = f"{refused.value.place} {refused.value.what}"
    assert "test_filling.py:" in where or kind in (Normed, Convolved)
    assert "sw.pad_to" in (refused.value.fix or "")


def prove(kind: Callable[[], nn.Module], batch: Batch, lengths: sw.Lengths) -> None:
    """Compiles for one rank."""
    sw.parallelize(seeded(kind)(), (), batch, plan="replicate", lengths=lengths, progress=False, cache=False)


def test_batches_by_position_and_several_in_a_step() -> None:
    lengths = sw.Lengths([8], {"tokens": 0, 1: -100})
    first, second = tokens(5), tokens(7)
    module = seeded(Sums)()
    (module(**first) / 2).backward()
    (module(**second) / 2).backward()
    model = sw.parallelize(
        seeded(Sums)(), tuple(first.values()), lengths=lengths, plan="replicate", progress=False, cache=False
    )
    model.train_step([tuple(first.values()), second])
    for name, parameter in model.named_parameters():
        expected = module.get_parameter(name).grad
        assert (parameter.grad is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-13)
    assert len(model.programs) == 1


def test_two_lengths_of_one_batch_are_filled_up_each() -> None:
    class Both(Model):
        def forward(self, source: Tensor, tokens: Tensor, labels: Tensor) -> Tensor:
            pooled = (self.embed(source) * (source > 0)[..., None]).sum(1)
            return self.loss(self.embed(tokens).cumsum(1) + pooled[:, None], labels)

    def batch(source: int, target: int) -> Batch:
        return {"source": tokens(source, seed=1)["tokens"], **tokens(target)}

    lengths = [sw.Lengths([8, 16], {"source": 0}), sw.Lengths([8, 16], LABELS)]
    batches = [batch(5, 6), batch(12, 4), batch(8, 8), batch(3, 16)]
    assert len(check(seeded(Both), batches, lengths)) == 3
    # Nothing of one length may follow from the other.
    with pytest.raises(sw.CaptureError, match="different lengths along dim 1") as refused:
        prove(Both, batch(5, 6), sw.Lengths([8], {"source": 0} | LABELS))
    assert refused.value.code == "SW0172" and "source has 5, tokens has 6" in (refused.value.why or "")


def test_a_last_batch_of_fewer_rows_is_filled_up_too() -> None:
    class Rows(Model):
        def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self.head(F.gelu(self.embed(tokens)).sum(1)), labels)

    def batch(rows: int) -> Batch:
        filled_up = tokens(6, rows)
        return {"tokens": filled_up["tokens"], "labels": filled_up["labels"][:, 0]}

    assert len(check(seeded(Rows), [batch(8), batch(3), batch(5)], sw.Lengths(8, LABELS, dim=0))) == 1


def test_an_evaluation_without_labels_is_filled_up_and_proved() -> None:
    class Perhaps(Model):
        def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Any:
            logits = self.head(self.embed(tokens).cumsum(1))
            return logits if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    module = seeded(Perhaps)()
    model = sw.parallelize(
        seeded(Perhaps)(),
        (),
        tokens(5),
        plan="replicate",
        lengths=sw.Lengths([8], LABELS),
        outputs="all",
        progress=False,
        cache=False,
    )
    model.eval()
    with torch.no_grad():
        actual, expected = model(tokens(6)["tokens"]), module(tokens(6)["tokens"])
    # Results have the length that was filled up to.
    assert actual.shape == (4, 8, SIZE)
    torch.testing.assert_close(actual[:, :6], expected)


def test_micro_batches_are_cut_of_what_is_filled_up() -> None:
    batches = [tokens(5), tokens(7)]
    check(seeded(Sums), batches, sw.Lengths([8], LABELS), micro_batches=2)


def test_what_was_proved_is_in_the_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwright.data import padding

    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    captured = padding.capture
    calls: list[Any] = []
    monkeypatch.setattr(
        padding, "capture", lambda *args, **more: calls.append(args) or captured(*args, **more)
    )

    def start(lengths: Any, length: int = 5) -> None:
        sw.parallelize(seeded(Sums)(), (), tokens(length), plan="replicate", lengths=lengths, progress=False)

    start(sw.Lengths([8], LABELS))
    start(sw.Lengths([8], LABELS), 6)
    assert len(calls) == 1
    # Other values, and no proof at all, are other programs.
    start(sw.Lengths([8], LABELS | {"tokens": 1}))
    assert len(calls) == 2
    with pytest.raises(sw.CaptureError, match="those that are ignored"):
        start(sw.Lengths([8], {"tokens": 0, "labels": 0}))


@pytest.mark.parametrize(
    ("lengths", "batch", "code", "words"),
    [
        (sw.Lengths([4], LABELS), tokens(5), "SW0157", "the longest of the lengths is 4"),
        (sw.Lengths([8], {"tokens": 0, "label": -100}), tokens(5), "SW0156", "no tensor 'label'"),
        (sw.Lengths([8], {"tokens": 0, 5: -100}), tokens(5), "SW0156", "no tensor '5'"),
        (sw.Lengths([8], {"tokens": 0}), tokens(5), "SW0115", "fails on the example inputs"),
        (sw.Lengths([8], LABELS, dim=2), tokens(5), "SW0157", "along dim 2"),
    ],
)
def test_lengths_that_do_not_fit_the_batch(lengths: sw.Lengths, batch: Batch, code: str, words: str) -> None:
    with pytest.raises(sw.CaptureError, match=words) as refused:
        prove(Sums, batch, lengths)
    assert refused.value.code == code


def test_a_model_that_fails_for_short_batches_is_refused() -> None:
    class Long(Sums):
        def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
            if tokens.shape[1] < 5:
                raise ValueError("too short")
            return super().forward(tokens, labels)

    with pytest.raises(sw.CaptureError, match="not with a shorter one") as refused:
        prove(Long, tokens(5), sw.Lengths([8], LABELS))
    assert refused.value.code == "SW0172" and "too short" in (refused.value.why or "")


def test_a_number_that_is_made_of_the_length_is_refused() -> None:
    class Constant(Model):
        def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
            factor = torch.tensor(1.0 / tokens.shape[1], dtype=torch.float64)
            return self.loss(self.embed(tokens).cumsum(1) * factor, labels)

    with pytest.raises(sw.CaptureError, match="depends on the length") as refused:
        prove(Constant, tokens(5), sw.Lengths([8], LABELS))
    assert refused.value.code == "SW0171"


@pytest.mark.parametrize(
    "made", [lambda: sw.Lengths([], LABELS), lambda: sw.Lengths([8], {}), lambda: sw.Lengths(0, LABELS)]
)
def test_lengths_that_fill_up_nothing(made: Callable[[], sw.Lengths]) -> None:
    with pytest.raises(sw.CaptureError, match="pads nothing") as refused:
        made()
    assert refused.value.code == "SW0172"


def test_what_requires_a_gradient_is_not_filled_up() -> None:
    class Given(Model):
        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return self.loss(x.cumsum(1), labels)

    batch = {
        "x": torch.randn(4, 5, 8, dtype=torch.float64, requires_grad=True),
        "labels": tokens(5)["labels"],
    }
    with pytest.raises(sw.CaptureError, match="requires a gradient") as refused:
        prove(Given, batch, sw.Lengths([8], {"x": 0, "labels": -100}))
    assert refused.value.code == "SW0172"


def test_rows_of_parts_are_not_filled_up() -> None:
    with pytest.raises(sw.CaptureError, match='inputs="global" only') as refused:
        sw.parallelize(
            seeded(Sums)(),
            (),
            tokens(5),
            plan="replicate",
            lengths=sw.Lengths(8, LABELS, dim=0),
            inputs="local",
            progress=False,
            cache=False,
        )
    assert refused.value.code == "SW0172"


@pytest.mark.parametrize("additive", [False, True])
def test_attention_gives_zeros_to_a_query_that_sees_nothing(additive: bool) -> None:
    """The proof rests on it, for queries in what is filled."""
    q = torch.randn(2, 1, 5, 8, dtype=torch.float64, requires_grad=True)
    seen = (torch.arange(5) < 3)[:, None].expand(5, 5)
    mask = torch.zeros(5, 5, dtype=q.dtype).masked_fill(~seen, -torch.inf) if additive else seen
    attended = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert (attended[:, :, 3:] == 0).all()
    attended[:, :, :3].sum().backward()
    assert q.grad is not None and q.grad.isfinite().all()
