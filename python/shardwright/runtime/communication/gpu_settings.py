"""What PyTorch reads of the environment on GPUs, and should be told before it does, unless the user has."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

# The caching allocator's settings, by any of their names.
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE = "expandable_segments:True"
# How the allocator is told, in newer versions of PyTorch and in older ones.
_TELLS = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
# What NCCL's process group notes of communications, and writes where one takes too long. The second name is
# that of newer versions, which know the first one, too.
FLIGHT_RECORDER: Mapping[tuple[str, str], str] = {
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"): "2000",
    ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_ON_TIMEOUT"): "1",
    ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"): str(
        Path(tempfile.gettempdir(), "nccl_trace_rank_")
    ),
}


def settle(device: torch.device) -> None:
    """For the ranks of a process, once it is known where they are. Comes before anything lies on a GPU, and
    before a process group is made."""
    if device.type != "cuda":
        return
    _grow_segments()
    for names, value in FLIGHT_RECORDER.items():
        if not any(name in os.environ for name in names):
            os.environ[names[0]] = value


def _grow_segments() -> None:
    """Blocks of a step come and go in other sizes: memory between them is lost where segments cannot grow."""
    if any(name in os.environ for name in ALLOCATOR) or torch.cuda.memory_reserved():
        return
    # For processes that start from here, by the name that all versions read; this one may have read it.
    os.environ[ALLOCATOR[1]] = EXPANDABLE
    tell = next((getattr(torch._C, name) for name in _TELLS if hasattr(torch._C, name)), None)
    if tell is not None:
        tell(EXPANDABLE)
