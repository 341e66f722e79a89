"""Shardwright: a PyTorch model for one device becomes a program for many, proved equal."""

from importlib.metadata import version

from ._core import Compiled, Draft, Graph, Operator, Part, Plan
from .api import parallelize, save_program
from .checkpoint import load, save
from .compiling import Bundle, compile_model, make_plan
from .errors import (
    CaptureError,
    CheckError,
    CompileError,
    PlanError,
    RuntimeFault,
    ShardwrightError,
)
from .precision import Precision
from .runtime import ParallelModule, clip_grad_norm_, launch, optimizer
from .sampler import sampler
from .weights import deferred
from .weights.writing import save_safetensors

__version__ = version("shardwright")

__all__ = [
    "Bundle",
    "CaptureError",
    "CheckError",
    "CompileError",
    "Compiled",
    "Draft",
    "Graph",
    "Operator",
    "ParallelModule",
    "Part",
    "Plan",
    "PlanError",
    "Precision",
    "RuntimeFault",
    "ShardwrightError",
    "clip_grad_norm_",
    "compile_model",
    "deferred",
    "launch",
    "load",
    "make_plan",
    "optimizer",
    "parallelize",
    "sampler",
    "save",
    "save_program",
    "save_safetensors",
]
