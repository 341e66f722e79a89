"""A training loop, unchanged but for three lines. Run it on four processes of this machine:

torchrun --nproc-per-node 4 examples/train.py megatron
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return F.cross_entropy(self.head(x), labels)


def main(plan: str) -> None:
    torch.manual_seed(0)
    model = Model()
    x, labels = torch.randn(32, 64), torch.randint(0, 10, (32,))
    model = sw.parallelize(model, (x, labels), plan=plan)
    optimizer = sw.optimizer(model, torch.optim.AdamW, lr=1e-2)
    for step in range(10):
        loss = model.train_step((x, labels))
        sw.clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.6f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "data")
