"""A training script of a user, started in one of several ways; says where it computed."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import shardwright as sw
from ports import free_port


def train(rank: int = 0) -> str:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1), nn.Flatten(0))
    x = torch.randn(4, 8)
    model = sw.parallelize(_Loss(module), (x,), plan="data", progress=False, cache=False)
    optimizer = sw.optimizer(model, torch.optim.AdamW, lr=1e-3)
    for _ in range(2):
        loss = model.train_step((x,))
        optimizer.step()
        optimizer.zero_grad()
    assert loss is not None and bool(loss.isfinite())
    return str(next(iter(model.parameters())).device)


class _Loss(nn.Module):
    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x).square().mean()


def _alone(*backend: str) -> None:
    os.environ.update(
        RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())
    )
    dist.init_process_group(*backend)


def main() -> None:
    way, *planted = sys.argv[1:]
    if planted:
        torch.cuda.is_available = lambda: not setting_is_cuda
    started = time.monotonic()
    if way == "init_process_group()":
        _alone()
    elif way == "cpu:gloo,cuda:nccl":
        _alone(way if torch.cuda.is_available() else "gloo")
    device = sw.launch(train, 1) if way == "sw.launch" else train()
    print(f"computed on {device} after {time.monotonic() - started:.1f} s", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


setting_is_cuda = torch.cuda.is_available()

if __name__ == "__main__":
    main()
