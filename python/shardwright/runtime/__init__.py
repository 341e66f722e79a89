"""What a compiled program runs on: shards, communications, the step driver."""

from .clipping import clip_grad_norm_
from .comm import Comm, TorchComm
from .launch import launch
from .local import LocalComm, run_local
from .module import ParallelModule
from .optimizer import optimizer
from .program import Program, load_program

__all__ = [
    "Comm",
    "LocalComm",
    "ParallelModule",
    "Program",
    "TorchComm",
    "clip_grad_norm_",
    "launch",
    "load_program",
    "optimizer",
    "run_local",
]
