"""Who walks over a parallel model to wrap, export or save it, which over parts would go wrong without a word.

`DistributedDataParallel` broadcasts rank 0's parameters, FSDP divides them, an exporter writes down what one
rank computes. They come in many shapes (a class, a function, an engine of another package; around the model,
a module inside of it, or a module that holds it), but each has to find the parameters, and PyTorch has one
way to do so: `parameters`, `buffers`, `modules`, their named forms and `children` ask `named_modules` or
`named_children` of each module that they meet. So it is asked here whose code walks. Nothing of PyTorch has
to be replaced for it, and a function that was imported long ago is no way around. `torch.nn.DataParallel`
over one device does not walk, and changes nothing; over several it walks when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ...errors import RuntimeFault
from ..shards.own_state import refusal as saving

# Through these others walk.
_PASSED = ("torch.nn.modules.", "shardwright.runtime.module", "shardwright.runtime.facade.")
_FSDP = "torch.distributed.fsdp"
# Where the code of wrappers is, and what users call it.
_WRAPPERS = {
    "torch.nn.parallel.distributed": "DistributedDataParallel",
    "torch.nn.parallel": "DataParallel",
    _FSDP: "FSDP",
    "torch.distributed._composable": "`fully_shard` or `replicate`",
    "torch.distributed.tensor": "`parallelize_module`",
    "torch.distributed.pipelining": "a pipeline of PyTorch",
    "torch.distributed.optim": "`ZeroRedundancyOptimizer`",
    "torch.distributed.algorithms": "an algorithm of torch.distributed",
    "deepspeed": "DeepSpeed",
    "horovod": "Horovod",
    "fairscale": "FairScale",
    "apex": "Apex",
    "colossalai": "Colossal-AI",
}
_EXPORTERS = ("torch.export", "torch._export", "torch.onnx", "torch.fx", "torch.jit")
_SAVING = ("torch.distributed.checkpoint",)
# What brings the same values to all ranks, and the mean of their gradients: no other, where these are the
# same on all ranks already.
_HARMLESS = ("torch.nn.parallel.distributed", *_SAVING)


def refuse_walk(alike: bool) -> None:
    """Called where a model is walked; `alike` says whether all ranks hold the same."""
    who = _who_walks(sys._getframe(2))
    caller = _among(who, (*_WRAPPERS, *_EXPORTERS, *_SAVING))
    if caller is not None and not (alike and caller in _HARMLESS):
        raise _refusals(caller)()


def refuse_tracing() -> None:
    """Of a call of the model, which would become what this rank computes, without the others."""
    if torch._C._is_tracing() or torch.compiler.is_exporting() or get_proxy_mode() is not None:
        raise exporting()


def _who_walks(frame: FrameType | None) -> str:
    """The module of the code. A checkpoint of PyTorch looks for modules of FSDP by FSDP's own code."""
    who, frame = _first_but(frame, _PASSED)
    if who.startswith(_FSDP):
        behind, _ = _first_but(frame, (*_PASSED, _FSDP))
        return behind if _among(behind, _SAVING) else who
    return who


def _first_but(frame: FrameType | None, passed: tuple[str, ...]) -> tuple[str, FrameType | None]:
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(passed):
            return name, frame
        frame = frame.f_back
    return "", None


def _among(who: str, names: Iterable[str]) -> str | None:
    return next((name for name in names if who == name or who.startswith(f"{name}.")), None)


def _refusals(caller: str) -> Callable[[], RuntimeFault]:
    if caller in _EXPORTERS:
        return exporting
    if caller in _SAVING:
        return lambda: saving("a state dict")
    return lambda: _wrapping(_WRAPPERS[caller])


def _wrapping(wrapper: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0815",
        f"{wrapper} is put around a parallel model, which runs on all ranks as it is",
        why="it would broadcast, shard or average what each rank has for itself: shards of parameters, and"
        " gradients that are reduced already",
        fix="leave it out, and call the parallel model itself: `loss = model(...); loss.backward()` reduces"
        " gradients as the plan says; with Accelerate prepare everything but the model",
    )


def exporting() -> RuntimeFault:
    return RuntimeFault(
        "SW0817",
        "a parallel model is traced or exported",
        why="the result would be this rank's part of the program, without what the other ranks send",
        fix="export the plain model: `plain.load_state_dict(model.full_state_dict())` on every rank, and"
        " `torch.export.export(plain, ...)` on one",
    )
