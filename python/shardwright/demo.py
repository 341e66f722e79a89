"""A small GPT on a few local processes, beside the single-device run."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .api import parallelize
from .runtime import launch, optimizer

STEPS = 10
WORDS, LENGTH, WIDTH, HEADS, LAYERS, BATCH = 257, 32, 64, 4, 2, 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(batch, length, HEADS, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), Attention()
        self.ln_2, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, WORDS), targets.view(-1))


def build() -> nn.Module:
    torch.manual_seed(0)
    return Gpt().double()


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=generator)
    return [(words[:, :-1].contiguous(), words[:, 1:].contiguous())] * STEPS


def single() -> list[float]:
    """Plain PyTorch on one device."""
    model = build()
    adamw = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for batch in batches():
        loss = model(*batch)
        loss.backward()
        adamw.step()
        adamw.zero_grad()
        losses.append(loss.item())
    return losses


def parallel(rank: int, plan: str, folder: str) -> tuple[list[float], list[str]]:
    """One of the ranks: the same loop but for three lines."""
    data = batches()
    model = parallelize(build(), data[0], plan=plan, save_to=folder if rank == 0 else None)
    adamw = optimizer(model, torch.optim.AdamW, lr=3e-3)
    losses = []
    for batch in data:
        loss = model.train_step(batch)
        adamw.step()
        adamw.zero_grad()
        assert loss is not None
        losses.append(loss.item())
    return losses, [kind for kind, _, _ in model.issued]


def main(devices: int = 4, plan: str = "data:2 x megatron:2", folder: str | None = None) -> int:
    target = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="shardwright-")) / "program"
    print(f"A GPT with {LAYERS} layers, plan `{plan}`, {devices} processes on this machine, float64.\n")
    start = time.perf_counter()
    theirs = single()
    ours, issued = launch(parallel, devices=devices, args=(plan, str(target)), device="cpu")
    print("step   one device       parallel         difference")
    for step, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        print(f"{step:4}   {a:.12f}   {b:.12f}   {abs(a - b):.1e}")
    counts = ", ".join(f"{issued.count(kind)} {kind}" for kind in dict.fromkeys(issued))
    print(f"\nEach step, rank 0 communicates: {counts}.")
    worst = max(abs(a - b) / abs(a) for a, b in zip(theirs, ours, strict=True))
    equal = worst < 1e-9
    print(f"The losses are {'equal' if equal else 'NOT equal'} (relative difference {worst:.1e}).")
    files = sorted(target.glob("*.py"))
    print(f"The program was proved equal before it ran. It is in {target}:")
    print("".join(f"  {file.name}\n" for file in files), end="")
    print(f"\n{_function(files[0], 'attention')}\n... {time.perf_counter() - start:.1f} s in all.")
    return 0 if equal else 1


def _function(file: Path, name: str) -> str:
    """One function of an emitted file, whose name begins so."""
    lines = file.read_text().splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith(f"def {name}")), 0)
    end = next((at for at in range(start + 1, len(lines)) if lines[at].startswith("def ")), len(lines))
    return f"From {file.name}:\n\n" + "\n".join(lines[start:end]).rstrip()
