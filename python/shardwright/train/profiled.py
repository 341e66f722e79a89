"""`--profile N`: a few steps, and a trace of them that Perfetto opens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from .config import CheckpointConfig, Config
from .loop import Training
from .stopping import Stopping

# What is compiled and allocated in the first steps is no part of a step.
WARM = 2


def profile(config: Config, folder: Path, steps: int) -> int:
    """Nothing is saved but the trace, one file a rank."""
    config = replace(config, steps=WARM + steps, epochs=None, checkpoints=CheckpointConfig(), resume="never")
    training = Training(replace(config, evaluation=None), folder)
    comm = training.model.comm
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if comm.device.type == "cuda" else [])]
    with Stopping(comm) as stopping:
        traced = torch.profiler.profile(activities=kinds)

        class Traced:
            def step(self, run: Training, measured: object) -> None:
                if run.step == WARM:
                    traced.start()

        training.hooks.add(Traced())
        status = training.run(stopping)
        traced.stop()
    target = folder / f"trace_{comm.rank}.json"
    traced.export_chrome_trace(str(target))
    if training.leads:
        print(f"{steps} steps are in {target}: https://ui.perfetto.dev opens it")
    return status
