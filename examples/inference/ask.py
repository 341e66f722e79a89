"""Asks a model for its next words, and evaluates it, on one device or on several:

torchrun --nproc-per-node 2 ask.py megatron
python ask.py
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import Logits, gpt

import shardwright as sw


def main(plan: str | None) -> None:
    model = Logits(gpt()).eval()
    ids = torch.randint(256, (4, 32))
    if plan is not None:
        model = sw.parallelize(model, (ids,), plan=plan, progress=False)
    with torch.no_grad():
        logits = model(ids)  # whole, on every rank
    losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"next words {logits[:, -1].argmax(-1).tolist()}")
        print(f"evaluation loss {losses.mean().item():.6f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
