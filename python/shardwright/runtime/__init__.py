"""What a compiled program runs on: shards, communications, the step driver."""

from .communication.alone import Alone
from .communication.comm import Comm, TorchComm
from .communication.launch import launch
from .communication.local import LocalComm, run_local
from .module import ParallelModule
from .optimizers.clipping import clip_grad_norm_
from .optimizers.optimizer import optimizer
from .programs.program import Program, load_program

__all__ = [
    "Alone",
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
