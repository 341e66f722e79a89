"""Parameters and buffers that a forward writes: momentum encoders, queues, constraints on weights."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import equality
import shardwright as sw
from shardwright import Graph, Plan
from shardwright.capture import Captured, capture
from shardwright.start.compiling import compile_plan, sources
from shardwright.start.further_programs import skeleton_of

torch.set_num_threads(1)

WIDTH, KEYS = 8, 12


def encoder(width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class Momentum(nn.Module):
    """An encoder, and one that follows it: its weights are written first, and read in the same forward."""

    def __init__(self, follow: Callable[[Tensor, Tensor], None], late: bool = False) -> None:
        super().__init__()
        self.query, self.key = encoder(), encoder().requires_grad_(False)
        self.follow, self.late = follow, late

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        if not self.late:
            self.write()
        with torch.no_grad():
            keys = F.normalize(self.key(other), dim=1)
        queries = F.normalize(self.query(x), dim=1)
        if self.late:
            self.write()
        return 2 - 2 * (queries * keys).sum(1).mean()

    def write(self) -> None:
        for query, key in zip(self.query.parameters(), self.key.parameters(), strict=True):
            self.follow(query, key)


def by_data(query: Tensor, key: Tensor) -> None:
    key.data.mul_(0.9).add_(query.data, alpha=0.1)


def by_assignment(query: Tensor, key: Tensor) -> None:
    key.data = key.data * 0.9 + query.data * 0.1


def by_copy(query: Tensor, key: Tensor) -> None:
    with torch.no_grad():
        key.copy_(key * 0.9 + query * 0.1)


def by_lerp(query: Tensor, key: Tensor) -> None:
    with torch.no_grad():
        key.lerp_(query, 0.1)


class Queue(nn.Module):
    """Keys of earlier batches, in a buffer that is written in slices."""

    def __init__(self) -> None:
        super().__init__()
        self.encoders = Momentum(by_data)
        self.register_buffer("queue", F.normalize(torch.randn(WIDTH, KEYS), dim=0))
        self.register_buffer("at", torch.zeros((), dtype=torch.int64))
        self.queue: Tensor
        self.at: Tensor

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        self.encoders.write()
        with torch.no_grad():
            keys = F.normalize(self.encoders.key(other), dim=1)
        queries = F.normalize(self.encoders.query(x), dim=1)
        scores = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ self.queue.clone()], 1)
        self.enqueue(keys)
        return F.cross_entropy(scores / 0.2, torch.zeros(len(x), dtype=torch.int64, device=x.device))

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        places = (self.at + torch.arange(len(keys), device=keys.device)) % KEYS
        self.queue[:, places] = keys.T
        self.at.copy_((self.at + len(keys)) % KEYS)


class Fixed(Queue):
    """The first of its keys, which are always written at the same places."""

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        self.queue[:, 4:] = self.queue[:, : KEYS - 4].clone()
        self.queue[:, :4] = keys[:4].T


class Bounded(nn.Module):
    """Trained weights that each forward brings back into their bounds before it reads them."""

    def __init__(self, bound: Callable[[nn.Linear], None]) -> None:
        super().__init__()
        self.body, self.bound = encoder(), bound

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        for part in (self.body[0], self.body[2]):
            assert isinstance(part, nn.Linear)
            self.bound(part)
        return F.mse_loss(self.body(x), other)


def clamped(part: nn.Linear) -> None:
    part.weight.data.clamp_(-0.2, 0.2)


def renormed(part: nn.Linear) -> None:
    part.weight.data = torch.renorm(part.weight.data, 2, 0, 0.4)


@torch.no_grad()
def normalized(part: nn.Linear) -> None:
    part.weight.copy_(F.normalize(part.weight, dim=1))


@torch.no_grad()
def in_part(part: nn.Linear) -> None:
    part.weight[:, :2] = 0.0
    part.bias[1] *= 0.5


class Codebook(nn.Module):
    """The codes of a VQ-VAE, which are means of what was nearest to them."""

    def __init__(self, codes: int = 6) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.codes = nn.Parameter(torch.randn(codes, WIDTH), requires_grad=False)
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.codes.detach().clone())
        self.counts: Tensor
        self.sums: Tensor

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        found = self.encode(x)
        nearest = torch.cdist(found, self.codes).argmin(1)
        taken = F.embedding(nearest, self.codes)
        with torch.no_grad():
            ones = F.one_hot(nearest, len(self.codes)).to(x.dtype)
            self.counts.mul_(0.9).add_(ones.sum(0), alpha=0.1)
            self.sums.mul_(0.9).add_(ones.T @ found, alpha=0.1)
            self.codes.copy_(self.sums / (self.counts + 1e-5).unsqueeze(1))
        through = found + (taken - found).detach()
        return F.mse_loss(self.decode(through), other) + 0.2 * F.mse_loss(found, taken.detach())


class Spectral(nn.Module):
    """Buffers that a parametrization writes under `no_grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = encoder()
        for part in (self.body[0], self.body[2]):
            parametrizations.spectral_norm(part)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return F.mse_loss(self.body(x), other)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "by data": lambda: Momentum(by_data),
    "by assignment": lambda: Momentum(by_assignment),
    "by copy": lambda: Momentum(by_copy),
    "by lerp, late": lambda: Momentum(by_lerp, late=True),
    "queue": Queue,
    "queue in slices": Fixed,
    "clamped": lambda: Bounded(clamped),
    "renormed": lambda: Bounded(renormed),
    "normalized": lambda: Bounded(normalized),
    "in part": lambda: Bounded(in_part),
    "codebook": Codebook,
    "spectral": Spectral,
}
WRITES = [name for name in MODELS if name != "spectral"]
PLANS = [
    ("replicate", 1),
    ("data", 2),
    ("zero3", 2),
    ("megatron", 2),
    ("data:2 x megatron:2", 4),
    ("zero3 x offload:parameters", 2),
]
# What they split is not between two contractions.
NOT_MEGATRON = {"renormed", "normalized", "in part", "codebook", "spectral"}


@functools.cache
def known(name: str) -> tuple[nn.Module, tuple[Tensor, ...], Captured]:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    args = tuple(torch.randn(6, WIDTH, dtype=torch.float64) for _ in range(2))
    return model, args, capture(model, args)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_capture_is_compared_and_leaves_the_module_as_it_was(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    captured = capture(model, known(name)[1])
    assert captured.verified
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    on_meta = capture(MODELS[name]().double().to("meta"), tuple(x.to("meta") for x in known(name)[1]))
    assert on_meta.graph_text == captured.graph_text


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_is_an_update(name: str) -> None:
    _, _, captured = known(name)
    params = {
        re.split(r'"', line)[1] for line in captured.graph_text.splitlines() if line.startswith("param")
    }
    updated = {
        re.split(r'"', line)[1] for line in captured.graph_text.splitlines() if line.startswith("update")
    }
    assert params & updated


@pytest.mark.parametrize(("plan", "devices"), PLANS)
@pytest.mark.parametrize("name", MODELS)
def test_named_plans_equal_the_single_device(name: str, plan: str, devices: int) -> None:
    if "megatron" in plan and name in NOT_MEGATRON:
        pytest.skip("it finds nothing to split between two contractions")
    model, args, captured = known(name)
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), plan, devices))
    equality.assert_equal(equality.run(bundle, model, args), equality.reference(model, args), plan)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_computed_again_updates_nothing_twice(name: str) -> None:
    model, args, captured = known(name)
    graph = Graph(captured.graph_text)
    ops = " ".join(re.findall(r"^op (%\w+) ", captured.graph_text, re.MULTILINE))
    plan = Plan.parse(graph, f"{Plan.named(graph, 'data', 2).text}recompute {ops}\n")
    bundle, _ = compile_plan(captured, plan)
    equality.assert_equal(equality.run(bundle, model, args), equality.reference(model, args))


@pytest.mark.parametrize("plan", ["stages:2", "stages:2 x gpipe", "stages:2 x zb-h1"])
@pytest.mark.parametrize("name", MODELS)
def test_pipelines_equal_the_single_device(name: str, plan: str) -> None:
    model, args, captured = known(name)
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), plan, 2))
    batches = equality.micro_batches(args, 4)
    actual = equality.run_steps(bundle, model, batches)
    equality.assert_equal(actual, equality.steps_reference(model, batches), plan)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", MODELS)
def test_random_plans_equal_the_single_device(name: str, seed: int) -> None:
    model, args, captured = known(name)
    bundle, _ = compile_plan(captured, Plan.random(Graph(captured.graph_text), 3, seed))
    equality.assert_equal(equality.run(bundle, model, args), equality.reference(model, args), str(seed))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["by data", "queue", "clamped", "codebook"])
def test_random_cuts_equal_the_single_device(name: str, seed: int) -> None:
    model, args, captured = known(name)
    graph, draw = Graph(captured.graph_text), random.Random(seed)
    text = Plan.random(graph, 2 + seed % 2, seed).text
    ops = re.findall(r"^op (%\S+):", text, re.MULTILINE)
    at = draw.randint(1, len(ops) - 1)
    blocks = f"block {ops[0]}..{ops[at - 1]}\nblock {ops[at]}..{ops[-1]}\n"
    plan = Plan.parse(graph, f"{text}{blocks}schedule {draw.choice(['1f1b', 'gpipe'])}\n")
    batches = equality.micro_batches(args, 3)
    actual = equality.run_steps(compile_plan(captured, plan)[0], model, batches)
    equality.assert_equal(actual, equality.steps_reference(model, batches), str(seed))


def test_a_parameter_stays_the_one_that_the_optimizer_knows() -> None:
    model, args, captured = known("clamped")
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "replicate", 1))

    def rank(_: int, comm: Any) -> None:
        parallel = sw.runtime.ParallelModule(
            sw.runtime.load_program(bundle.files, digest=bundle.digest, world=1),
            comm,
            sources(model, captured),
            captured,
        )
        before = dict(parallel.named_parameters())
        parallel(*args).backward()
        after = dict(parallel.named_parameters())
        assert all(after[name] is one for name, one in before.items())
        assert float(after["body.0.weight"].detach().abs().max()) <= 0.2
        assert after["body.0.weight"].grad is not None

    sw.runtime.run_local(1, rank)


class Pointed(nn.Module):
    """A queue that reads in Python where it writes next: it runs as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", F.normalize(torch.randn(WIDTH, KEYS), dim=0))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))
        self.queue: Tensor
        self.at: Tensor

    def forward(self, keys: Tensor) -> Tensor:
        before, at = self.queue.clone(), int(self.at)
        self.queue[:, at : at + len(keys)] = keys.T
        self.at[0] = (at + len(keys)) % KEYS
        return before


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoders, self.pointed = Momentum(by_data), Pointed()

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        self.encoders.write()
        with torch.no_grad():
            keys = F.normalize(self.encoders.key(other), dim=1)
            queue = self.pointed(keys)
        queries = F.normalize(self.encoders.query(x), dim=1)
        scores = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ queue], 1)
        return F.cross_entropy(scores / 0.2, torch.zeros(len(x), dtype=torch.int64, device=x.device))


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["data", "zero3", "megatron"])
def test_a_queue_that_reads_its_place_runs_as_it_is(plan: str) -> None:
    torch.manual_seed(0)
    model, args = Reading().double(), known("queue")[1]
    captured = capture(model, args)
    assert 'shardwright.module.default("pointed"' in captured.graph_text
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), plan, 2))
    options = lambda: {"skeleton": skeleton_of(model)}  # noqa: E731
    equality.assert_equal(
        equality.run(bundle, model, args, options=options), equality.reference(model, args), plan
    )


# ---- what is refused ---------------------------------------------------------------------------


def _model(write: Callable[[Any, Tensor], Tensor], trained: bool = True) -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.last.requires_grad_(trained)
            self.register_buffer("kept", torch.zeros(WIDTH, WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return write(self, self.first(x)).square().mean()

    return Model().double()


def _after_a_gradient(self: Any, x: Tensor) -> Tensor:
    y = self.last(x)
    self.last.weight.data.mul_(0.5)
    return y


def _by_a_view_before(self: Any, x: Tensor) -> Tensor:
    turned = self.last.weight.t()
    self.last.weight.data.mul_(0.5)
    return x @ turned


def _through_a_view(self: Any, x: Tensor) -> Tensor:
    row = self.last.weight[0]
    row.data.zero_()
    with torch.no_grad():
        row.add_(1.0)
    return self.last(x)


def _shares(self: Any, x: Tensor) -> Tensor:
    self.last.weight.data = self.first.weight.data
    return self.last(x)


def _of_another_shape(self: Any, x: Tensor) -> Tensor:
    self.last.weight.data = self.last.weight.data[:4]
    return self.last(x)


def _old_name(self: Any, x: Tensor) -> Tensor:
    old = self.last.weight.data
    self.last.weight.data = old * 0.5
    return self.last(x) + old.sum()


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("write", "code", "why"),
    [
        (_after_a_gradient, "SW0144", "after an operator that needs the old value"),
        (_by_a_view_before, "SW0144", "by a view that it made before"),
        (_through_a_view, "SW0144", "by a view that has its gradient"),
        (_shares, "SW0133", "has another name"),
        (_old_name, "SW0133", "has another name"),
        (_of_another_shape, "SW0133", "unchanged shape"),
    ],
)
def test_what_one_device_would_do_otherwise_is_refused(
    write: Callable[[Any, Tensor], Tensor], code: str, why: str, device: str
) -> None:
    with pytest.raises(sw.CaptureError) as caught:
        capture(_model(write).to(device), (torch.randn(4, WIDTH, dtype=torch.float64, device=device),))
    said = str(caught.value)
    assert caught.value.code == code and why in said and "test_written.py:" in said


def test_a_precision_with_other_masters_is_refused() -> None:
    with pytest.raises(sw.CaptureError, match=r"SW0145[\s\S]*`key.0.weight`[\s\S]*another dtype"):
        capture(Momentum(by_data), (torch.randn(6, WIDTH),) * 2, precision=sw.Precision(param=torch.bfloat16))


def test_steps_without_a_pause_are_refused() -> None:
    _, _, captured = known("by data")
    with pytest.raises(sw.ShardwrightError, match=r"SW0423[\s\S]*`key.0.weight`"):
        compile_plan(captured, Plan.named(Graph(captured.graph_text), "stages:2 x 2bw", 2))


def test_to_divide_it_by_name_is_refused() -> None:
    _, _, captured = known("by data")
    graph = Graph(captured.graph_text)
    with pytest.raises(sw.ShardwrightError, match=r"SW0143[\s\S]*`key.0.weight` cannot be divided"):
        Plan.parse(graph, Plan.named(graph, "data", 2).text + 'param "key.0.weight": over 2\n')
    plan = Plan.parse(graph, Plan.named(graph, "data", 2).text + 'param "*": over 2\n')
    assert 'param "query' in plan.text and 'param "key' not in plan.text
