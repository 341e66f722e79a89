"""The sequence over devices: what a layer communicates, beside what the papers' algorithms need; and the time
of a step on two ranks, beside torch's ring attention."""

from __future__ import annotations

import copy
import statistics
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from hf import sized_llama
from measure import assert_close, interleaved, pin, ratio, seconds
from tables import Table, ratio_of, size_of, time_of
from torch import Tensor, nn

import shardwright as sw
from shardwright import Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture

WORLD = 2
LAYERS, WIDTH, HEADS, WORDS, BATCH, LENGTH = 4, 384, 6, 4096, 1, 1024
PLANS = ["sequence", "zigzag", "ulysses"]

# Of the layer that is counted: a Llama's, with a third as many heads of keys as of queries.
COUNTED = {"width": 768, "heads": 12, "inner": 2048, "words": 512, "batch": 1, "length": 1024}
DEVICES = [2, 4]


def bench(quick: bool) -> Table:
    pairs = 4 if quick else 40
    pinned, results = sw.launch(measure_all, devices=WORLD, args=(pairs,), timeout=1200)
    table = Table(
        "sequence",
        "The sequence over devices",
        f"A GPT with {LAYERS} layers, width {WIDTH}, float32, batch {BATCH}, sequence {LENGTH}."
        f" Two processes on Gloo, one thread each, {'each pinned to its core' if pinned else 'NOT pinned'};"
        f" {pairs} interleaved pairs of steps; a step takes as long as on the slower rank."
        " The other side is torch's ring attention, balanced, on kernels for CPUs, under DDP.",
        ["", "emitted", "torch's ring", "ratio [95%]"],
    )
    for result in results:
        ours, theirs = result["ours"], result["theirs"]
        medians = time_of(statistics.median(ours)), time_of(statistics.median(theirs))
        table.add(f"`{result['plan']}`", *medians, ratio_of(ratio(ours, theirs)))
    counted = [counts(plan, devices) for devices in DEVICES for plan in PLANS]
    table.notes += [described(row) for row in counted]
    table.notes.append(
        f"Largest relative difference of the losses: {max(result['worst'] for result in results):.1e}."
        " `context_parallel` itself knows only kernels for GPUs: its functions for a ring were given those"
        " for CPUs."
    )
    table.values = {"results": results, "pinned": pinned, "counted": counted}
    return table


# ---- what a layer communicates --------------------------------------------------------------


def counts(plan: str, devices: int) -> dict[str, Any]:
    """Communications of a layer and bytes that a rank sends for it: what a second layer adds."""
    one, two = (compiled(plan, devices, layers) for layers in (1, 2))
    by_phase: dict[str, Any] = {"plan": plan, "devices": devices}
    for phase in ("forward", "backward"):
        kinds = sorted(
            kind for at, kind, path, _ in two.communications if at == phase and "layers.1." in path
        )
        sent = [max(handed_over(rank, phase, devices) for rank in made.bytes) for made in (two, one)]
        by_phase[phase] = {"kinds": kinds, "bytes": sent[0] - sent[1]}
    return by_phase | {"needs": needs(devices)}


def handed_over(rank: dict[str, int], phase: str, devices: int) -> float:
    """Bytes that a rank sends to others. Of an all-gather it is said to give what it has, of others all that
    it brings."""
    away = (devices - 1) / devices
    times = {"all_gather": devices - 1, "reduce_scatter": away, "all_to_all": away, "exchange": 1}
    return sum(times[kind] * rank.get(f"{phase} {kind}", 0) for kind in times)


def compiled(plan: str, devices: int, layers: int) -> Any:
    model, batch = sized_llama(layers, **COUNTED)
    return compile(Plan.named(Graph(capture(model, (), batch).graph_text), plan, devices))


def needs(devices: int) -> dict[str, float]:
    """Bytes that a rank sends forward for a layer: keys and values round a ring, or heads for tokens."""
    rows = COUNTED["batch"] * COUNTED["length"]
    queries, keys = COUNTED["width"], COUNTED["width"] // 3
    away = 4 * rows * (devices - 1) / devices
    return {"ring": 2 * keys * away, "all-to-all": (2 * queries + 2 * keys) * away / devices}


def described(row: dict[str, Any]) -> str:
    def one(phase: str) -> str:
        kinds = row[phase]["kinds"]
        words = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        return f"{phase} {words} of {size_of(row[phase]['bytes'])}"

    needs = ", ".join(f"{name} {size_of(size)}" for name, size in row["needs"].items())
    return (
        f"A layer under `{row['plan']}` on {row['devices']}: {one('forward')}; {one('backward')}."
        f" What papers need forward: {needs}."
    )


# ---- how long a step takes ------------------------------------------------------------------


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor, places: Tensor, labels: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(places)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        q, k, v = (
            linear(y).unflatten(2, (HEADS, -1)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Ring(torch.autograd.Function):
    """torch's functions for a ring, on the kernels that CPUs have."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from torch.distributed.tensor.experimental._context_parallel import _attention as cp

        attended = cp._templated_ring_attention(dist.group.WORLD, 2, seen, q, k, v, is_causal=True)
        ctx.save_for_backward(q, k, v, *attended[:2])
        return attended[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        from torch.distributed.tensor.experimental._context_parallel import _attention as cp

        q, k, v, out, sums = ctx.saved_tensors
        group = dist.group.WORLD
        return cp._templated_ring_attention_backward(
            group, 2, seen_back, grad, "grad_out", q, k, v, out, sums, is_causal=True
        )[:3]


def seen(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Any:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal)


def seen_back(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    grad_out: Tensor,
) -> Any:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, 0.0, is_causal
    )


def measure_all(rank: int, pairs: int) -> tuple[bool, list[dict[str, Any]]]:
    torch.set_num_threads(1)
    pinned = pin(rank)
    torch.manual_seed(0)
    model = Gpt()
    numbers = torch.randint(WORDS, (BATCH, LENGTH + 1))
    batch = (numbers[:, :-1].contiguous(), torch.arange(LENGTH)[None], numbers[:, 1:].contiguous())
    return pinned, [compare(plan, model, batch, pairs, rank) for plan in PLANS]


def compare(plan: str, model: Gpt, batch: tuple[Tensor, ...], pairs: int, rank: int) -> dict[str, Any]:
    ours, theirs = emitted(plan, model, batch), ring(model, batch, rank)
    pin(rank)
    worst = assert_close(plan, *[[step().item() for _ in range(3)] for step in (ours, theirs)], 1e-4)
    times: tuple[list[float], list[float]] = ([], [])

    def timed(step: Any, times: list[float]) -> float:
        dist.barrier()
        times.append(seconds(step))
        return 0.0

    interleaved(lambda: timed(ours, times[0]), lambda: timed(theirs, times[1]), pairs)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return {"plan": plan, "ours": slowest[0].tolist(), "theirs": slowest[1].tolist(), "worst": worst}


def emitted(plan: str, model: Gpt, batch: tuple[Tensor, ...]) -> Any:
    made = sw.parallelize(copy.deepcopy(model), batch, plan=plan, progress=False, cache=False)
    adamw = sw.optimizer(made, torch.optim.AdamW, lr=1e-4)

    def step() -> Tensor:
        loss = made(*batch)
        loss.backward()
        adamw.step()
        adamw.zero_grad()
        return loss

    return step


def ring(model: Gpt, batch: tuple[Tensor, ...], rank: int) -> Any:
    """Each rank has a part from the front of the sequence and one from the back."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as cp

    cp._cp_options.enable_load_balance = True
    plain = copy.deepcopy(model)
    for layer in plain.layers:
        layer.attend = Ring.apply
    made = nn.parallel.DistributedDataParallel(plain, gradient_as_bucket_view=True)
    adamw = torch.optim.AdamW(made.parameters(), lr=1e-4)
    parts = [x.chunk(2 * WORLD, 1) for x in batch]
    shards = [torch.cat([part[rank], part[2 * WORLD - 1 - rank]], 1) for part in parts]

    def step() -> Tensor:
        loss = made(*shards)
        loss.backward()
        adamw.step()
        adamw.zero_grad()
        # Ours tells the loss of all tokens.
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        return loss / WORLD

    return step
