"""Shardwright: a PyTorch model for one device becomes a program for many, proved equal.

Everything is imported at its first use: the console command answers without waiting for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core import Compiled, Draft, Graph, Operator, Part, Plan
    from .api import parallelize, save_program
    from .as_python import opaque, register_op
    from .checkpoint import load, save
    from .comparing import Comparison, verify
    from .constraints import Constraints
    from .data.lengths import pad_to
    from .data.padding import Lengths
    from .data.sampling import sampler
    from .errors import (
        CaptureError,
        CheckError,
        ClusterError,
        CompileError,
        PlanError,
        RuntimeFault,
        ShardwrightError,
    )
    from .mixtures import experts
    from .precision import Precision
    from .report.recording import Recorded, record
    from .report.step_profile import StepProfile
    from .runtime import ParallelModule, clip_grad_norm_
    from .runtime.communication.launch import launch
    from .runtime.optimizers.optimizer import optimizer
    from .start.compiling import Bundle, compile_model
    from .start.planning import make_plan
    from .weights import deferred
    from .weights.writing import save_safetensors

    __version__: str

__all__ = [
    "Bundle",
    "CaptureError",
    "CheckError",
    "ClusterError",
    "Comparison",
    "CompileError",
    "Compiled",
    "Constraints",
    "Draft",
    "Graph",
    "Lengths",
    "Operator",
    "ParallelModule",
    "Part",
    "Plan",
    "PlanError",
    "Precision",
    "Recorded",
    "RuntimeFault",
    "ShardwrightError",
    "StepProfile",
    "clip_grad_norm_",
    "compile_model",
    "deferred",
    "experts",
    "launch",
    "load",
    "make_plan",
    "opaque",
    "optimizer",
    "pad_to",
    "parallelize",
    "record",
    "register_op",
    "sampler",
    "save",
    "save_program",
    "save_safetensors",
    "verify",
]

# Where each public name is; the imports above, which only type checkers read, say the same.
_HOMES = {
    name: home
    for home, names in {
        "_core": "Compiled Draft Graph Operator Part Plan",
        "api": "parallelize save_program",
        "as_python": "opaque register_op",
        "checkpoint": "load save",
        "comparing": "Comparison verify",
        "start.compiling": "Bundle compile_model",
        "constraints": "Constraints",
        "errors": "CaptureError CheckError ClusterError CompileError PlanError RuntimeFault ShardwrightError",
        "data.padding": "Lengths",
        "data.lengths": "pad_to",
        "mixtures": "experts",
        "start.planning": "make_plan",
        "precision": "Precision",
        "report.recording": "Recorded record",
        "report.step_profile": "StepProfile",
        "runtime": "ParallelModule clip_grad_norm_",
        "runtime.communication.launch": "launch",
        "runtime.optimizers.optimizer": "optimizer",
        "data.sampling": "sampler",
        "weights": "deferred",
        "weights.writing": "save_safetensors",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version(__name__)
    elif name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
