"""Trains a small GPT on letters: accumulation, clipping, a cosine schedule, evaluation, checkpoints.

    torchrun --nproc-per-node 4 examples/nanogpt/train.py --plan megatron
    python examples/nanogpt/train.py --plain        the same loop without shardwright

The loop is that of one device but for five lines, which say so.
"""

from __future__ import annotations

import argparse
import math
import os
import random
from pathlib import Path
from typing import Any

import torch
from model import Config, Gpt
from torch import Tensor

import shardwright as sw  # one of the five

BATCH, MICRO_BATCHES, CONTEXT = 8, 2, 32
RATE, LEAST_RATE, WARM_UP = 1e-2, 1e-3, 5
DECAY, CLIP = 0.1, 1.0
EVALUATIONS = 3


def main() -> None:
    args = arguments()
    torch.set_default_dtype(getattr(torch, args.dtype))
    torch.manual_seed(args.seed)
    letters, data = text()
    model: Any = Gpt(Config(vocabulary=len(letters), context=CONTEXT, dropout=args.dropout))
    if not args.plain:
        example = batch(data["train"], 0)
        model = sw.parallelize(  # another
            model, example, plan=args.plan, compile=args.compile, progress=False
        )
    optimizer = make_optimizer(model)
    first = 0
    if args.resume:
        first = sw.load(model, optimizer, args.out)["step"]  # instead of torch.load and load_state_dict

    for step in range(first, args.stop or args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, args.steps)
        if step % args.evaluate_every == 0:
            for name, part in data.items():
                say(f"step {step}: {name} {evaluate(model, part)!r}")
        total = 0.0
        for micro in range(MICRO_BATCHES):
            loss = model(*batch(data["train"], step * MICRO_BATCHES + micro)) / MICRO_BATCHES
            loss.backward()
            total += loss.item()
        sw.clip_grad_norm_(model, CLIP)  # instead of torch.nn.utils.clip_grad_norm_
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        say(f"step {step}: loss {total!r}")
        if args.save_every and (step + 1) % args.save_every == 0:
            sw.save(model, optimizer, args.out, {"step": step + 1})  # instead of torch.save


def make_optimizer(model: Any) -> torch.optim.Optimizer:
    """Weights decay, biases and norms do not."""
    named = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in named if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in named if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))


def rate(step: int, steps: int) -> float:
    """Linear at first, then half a cosine."""
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return LEAST_RATE + 0.5 * (1 + math.cos(math.pi * done)) * (RATE - LEAST_RATE)


@torch.no_grad()
def evaluate(model: Any, data: Tensor) -> float:
    model.eval()
    losses = [model(*batch(data, -1 - at)).item() for at in range(EVALUATIONS)]
    model.train()
    return sum(losses) / len(losses)


def text() -> tuple[str, dict[str, Tensor]]:
    """Small sums in words, to learn from: the first nine tenths, and the rest to test on."""
    chance = random.Random(7)
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    lines = []
    for _ in range(2000):
        a, b = chance.randrange(10), chance.randrange(10)
        lines.append(f"{names[a]} and {names[b]} is {a + b}.\n")
    written = "".join(lines)
    letters = "".join(sorted(set(written)))
    ids = torch.tensor([letters.index(letter) for letter in written])
    cut = len(ids) * 9 // 10
    return letters, {"train": ids[:cut], "held out": ids[cut:]}


def batch(data: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The same batch for the same number, on every rank and after a restart."""
    generator = torch.Generator()
    generator.manual_seed(number % 2**31)
    starts = torch.randint(len(data) - CONTEXT, (BATCH,), generator=generator).tolist()
    ids = torch.stack([data[start : start + CONTEXT] for start in starts])
    targets = torch.stack([data[start + 1 : start + CONTEXT + 1] for start in starts])
    return ids, targets


def say(line: str) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        print(line, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", default="data", help="a name such as data or megatron, or a plan file")
    parser.add_argument("--plain", action="store_true", help="one device, without shardwright")
    parser.add_argument("--compile", action="store_true", help="by torch.compile, between communications")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stop", type=int, help="ends before this step, as an interruption would")
    parser.add_argument("--evaluate-every", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=0, help="steps between checkpoints, 0 for none")
    parser.add_argument("--resume", action="store_true", help="goes on from --out")
    parser.add_argument("--out", type=Path, default=Path("nanogpt-checkpoint"))
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
