"""The process group of a program that made none."""

from __future__ import annotations

import atexit
import os

import torch
import torch.distributed as dist

from . import watch
from .comm import Comm, TorchComm
from .local import LocalComm, LocalWorld


def joined() -> Comm:
    """How this rank talks to the others: by the process group that is there, else by one that is made
    as `torchrun` says, else it is alone."""
    if not dist.is_initialized() and "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("nccl")
        else:
            dist.init_process_group("gloo")
        atexit.register(_leave)
    return TorchComm() if dist.is_initialized() else LocalComm(LocalWorld(1), 0)


def _leave() -> None:
    """A thread of the group that lets go of its last tensor after the interpreter has gone would abort
    the process. After a failure nothing is waited for: what is under way may never end."""
    if dist.is_initialized() and not watch.has_failed():
        dist.destroy_process_group()
