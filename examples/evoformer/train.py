"""The trunk of AlphaFold 2 on random sequences. Run it on four processes:

torchrun --nproc-per-node 4 examples/evoformer/train.py "stages:4 x kf1b"
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import shardwright as sw
from shardwright.shipped.evoformer import Config, Evoformer, batch


def main(plan: str) -> None:
    torch.manual_seed(0)
    config = Config()
    model, batches = Evoformer(config), [batch(config, 4) for _ in range(4)]
    model = sw.parallelize(model, batches[0], plan=plan)
    optimizer = sw.optimizer(model, torch.optim.AdamW, lr=1e-3)
    for step in range(10):
        loss = model.train_step(batches)
        sw.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.6f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
