"""The process group of a program that made none."""

from __future__ import annotations

import atexit
import os

import torch
import torch.distributed as dist

from . import watch
from .comm import Comm, TorchComm, let_go
from .local import LocalComm, LocalWorld


def is_started() -> bool:
    """Whether somebody, such as `torchrun`, has said which of the ranks this is."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def joined() -> Comm:
    """How this rank talks to the others: by the process group that is there, else by one that is made
    as `torchrun` says, else it is alone."""
    made = not dist.is_initialized() and is_started()
    if made:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("nccl")
        else:
            dist.init_process_group("gloo")
    if not dist.is_initialized():
        return LocalComm(LocalWorld(1), 0)
    atexit.register(_leave, made)
    return TorchComm()


def _leave(made: bool) -> None:
    """A thread of a group that lets go of its last tensor after the interpreter has gone would abort
    the process. After a failure nothing is waited for: what is under way may never end."""
    if watch.has_failed():
        return
    if made and dist.is_initialized():
        dist.destroy_process_group()
    let_go()
