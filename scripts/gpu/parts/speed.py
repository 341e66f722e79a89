"""A training step on one GPU: the emitted program beside the module that it was made from."""

from __future__ import annotations

import copy
import functools
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import models
import shardwright as sw
import timing
import traces
from finding import Finding, Setting, Table
from shardwright.runtime import Alone

PEAK = 989e12
"""Operations a second of an H100 or H200, dense, in 16 bits."""
# Aims: a step to that of the module, as it is and compiled, and its memory.
EAGER, COMPILED, MEMORY = 1.02, 1.05, 1.02
# No model is begun to be compiled later than this.
LATEST = 65.0
COLUMNS = [
    "model", "way", "plain ms", "emitted ms", "ratio", "plain MFU", "emitted MFU",
    "plain kernels", "emitted kernels", "plain peak GiB", "emitted peak GiB", "ratio",
    "plain first s", "emitted first s", "parallelize s",
]  # fmt: skip


class OnlyLoss(nn.Module):
    """Of what Transformers gives back only the loss is of use in a step."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, labels=labels).loss


@dataclass(frozen=True)
class Model:
    name: str
    make: Callable[[], tuple[nn.Module, models.Batch]]
    """How far the first losses may be apart, as a share; with dropout, masks differ."""
    apart: float

    instead: Callable[[], tuple[nn.Module, models.Batch]] | None = None
    """What is compared where this cannot be."""

    def on(self, device: torch.device, dtype: torch.dtype) -> tuple[nn.Module, models.Batch]:
        torch.manual_seed(0)
        with device:  # values are made there
            module, batch = self.make()
        here = {name: x.to(device) for name, x in batch.items()}
        return OnlyLoss(module).to(device, dtype).train(), here


def run(setting: Setting, finding: Finding) -> None:
    started = time.monotonic()
    small = setting.dry or setting.planted
    if small:
        torch.compile = functools.partial(_traced, torch.compile)
    table = finding.table("A training step with fused AdamW, on one device", COLUMNS)
    table.note(
        "Forward and backward that give only the loss, and the optimizer's step; medians of rounds in turns."
        " MFU is of 989 TFLOP/s. Peaks are of a step, with all that its side holds. `parallelize` captures,"
        " proves and compares, or has it from the cache of the row above."
    )
    _warm(setting.device)
    chosen = _models(small)
    for compiled in (False,) if setting.planted else (False, True):
        # To compile takes long on a CPU, also if it is only traced.
        for model in chosen[:1] if compiled and small else chosen:
            if compiled and not small and time.monotonic() - started > LATEST:
                table.note(f"{model.name} was not compiled: there was no time left.")
                continue
            if not _tried(setting, finding, table, model, compiled) and model.instead is not None:
                other = Model(f"{model.name}, without dropout", model.instead, model.apart)
                _tried(setting, finding, table, other, compiled)


def _tried(setting: Setting, finding: Finding, table: Table, model: Model, compiled: bool) -> bool:
    """Whether there is something to compare."""
    rows = len(table.content["rows"])
    with finding.trying(f"{model.name}, {'compiled' if compiled else 'eager'}"):
        _compare(setting, finding, table, model, compiled)
    _empty(setting.device)
    return len(table.content["rows"]) > rows


def _traced(compile: Callable[..., Any], function: Any, **options: Any) -> Any:
    """What is compiled is traced as ever, and run by PyTorch's own operators."""
    return compile(function, **{**options, "backend": "aot_eager"})


def _models(small: bool) -> list[Model]:
    if small:
        return [Model("Llama", models.small_llama, 2e-2), Model("GPT-2", models.small_gpt2, 5e-2)]
    return [
        Model("Llama, width 2048, 4 layers", functools.partial(models.llama, 4, 2048, 4, 2048), 2e-2),
        Model("GPT-2", functools.partial(models.gpt2, 8, 1024), 5e-2, _gpt2_without_dropout),
    ]


def _gpt2_without_dropout() -> tuple[nn.Module, models.Batch]:
    return models.gpt2(8, 1024, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


@dataclass
class Side:
    forward_backward: Callable[[], torch.Tensor]
    optimizer: torch.optim.Optimizer
    """Bytes that it holds between steps."""
    held: int = 0
    first: float = 0.0

    def step(self) -> torch.Tensor:
        loss = self.forward_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def begin(self, device: torch.device) -> float:
        """The first step, which compiles what is compiled, and the loss in it."""
        began = time.perf_counter()
        loss = float(self.step())
        timing.synchronize(device)
        self.first = time.perf_counter() - began
        self.step()
        return loss


def _compare(setting: Setting, finding: Finding, table: Table, model: Model, compiled: bool) -> None:
    device = setting.device
    at_first = _allocated(device)
    module, batch = model.on(device, torch.float32 if setting.dry else torch.bfloat16)
    with_module = _allocated(device)
    began = time.perf_counter()
    ours = sw.parallelize(
        copy.deepcopy(module),
        (),
        batch,
        plan="replicate",
        comm=Alone(0, 1, device),
        compile=compiled,
        progress=False,
    )
    took = time.perf_counter() - began
    if setting.planted:
        _change(ours)
    called = torch.compile(module) if compiled else module

    def plain() -> torch.Tensor:
        loss = called(**batch)
        loss.backward()
        return loss.detach()

    emitted = Side(lambda: ours.train_step(batch), sw.optimizer(ours, torch.optim.AdamW, lr=1e-5, fused=True))
    losses = [emitted.begin(device)]
    with_ours = _allocated(device)
    emitted.held = with_ours - with_module
    theirs = Side(plain, torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True))
    losses.append(theirs.begin(device))
    theirs.held = with_module - at_first + _allocated(device) - with_ours
    how = "compiled" if compiled else "eager"
    finding.expect(
        abs(losses[0] / losses[1] - 1) <= model.apart,
        f"{model.name}, {how}: the first loss is {losses[0]:.6g}, of the module itself {losses[1]:.6g}",
    )
    _measure(setting, finding, table, (model.name, how), (theirs, emitted), took, _operations(module, batch))


def _measure(
    setting: Setting,
    finding: Finding,
    table: Table,
    names: tuple[str, str],
    sides: tuple[Side, Side],
    took: float,
    operations: float,
) -> None:
    device, (theirs, ours) = setting.device, sides
    rounds = setting.sized(15, 2)
    seconds = timing.in_turns({"plain": theirs.step, "emitted": ours.step}, device, rounds)
    counts = [len(traces.kernels(traces.traced(side.step, device))) for side in sides]
    peaks = [_peak(side, device) for side in sides]
    ratio, more = seconds["emitted"] / seconds["plain"], peaks[1] / max(peaks[0], 1)
    shares = [operations / seconds[name] / PEAK for name in ("plain", "emitted")]
    table.row(
        *names, seconds["plain"] * 1e3, seconds["emitted"] * 1e3, f"{ratio:.3f}",
        *(f"{x:.1%}" for x in shares),
        *counts, *(peak / 2**30 for peak in peaks), f"{more:.3f}", theirs.first, ours.first, took,
    )  # fmt: skip
    finding.values[", ".join(names)] = {
        "seconds": seconds, "kernels": counts, "peaks": peaks, "held": [theirs.held, ours.held],
        "first": [theirs.first, ours.first], "parallelize": took,
    }  # fmt: skip
    if setting.dry or setting.planted:
        return
    name, most = ", ".join(names), EAGER if names[1] == "eager" else COMPILED
    finding.expect(ratio <= most, f"{name}: a step takes {ratio:.3f}x, more than {most}x")
    finding.expect(more <= MEMORY, f"{name}: the peak is {more:.3f}x, more than {MEMORY}x")


def _change(model: Any) -> None:
    """What is planted: other parameters than the module has."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 2.0)


def _operations(module: Any, batch: models.Batch) -> float:
    """Of a step: of each matrix that multiplies, and of attention, half of which is masked."""
    config = module.model.config
    tokens, length = batch["input_ids"].numel(), batch["input_ids"].shape[1]
    matrices = {id(p): p.numel() for p in module.parameters() if p.dim() > 1}
    looked_up = {id(m.weight): m.weight for m in module.modules() if isinstance(m, nn.Embedding)}
    head = module.model.get_output_embeddings().weight
    multiplied = sum(matrices.values()) - sum(w.numel() for w in looked_up.values() if w is not head)
    attention = 12 * config.num_hidden_layers * config.hidden_size * length / 2
    return tokens * (6 * multiplied + attention)


def _allocated(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    gc.collect()
    timing.synchronize(device)
    return torch.cuda.memory_allocated(device)


def _peak(side: Side, device: torch.device) -> int:
    if device.type != "cuda":
        side.step()
        return 0
    before = _allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    side.step()
    timing.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before + side.held


def _warm(device: torch.device) -> None:
    """What libraries keep belongs to no side."""
    x = torch.ones(64, 64, device=device, requires_grad=True)
    (x @ x).sum().backward()


def _empty(device: torch.device) -> None:
    torch.compiler.reset()
    timing.empty(device)
