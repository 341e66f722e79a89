"""Every usual way to start uses the GPU, without being told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from finding import Finding, Setting
from ports import free_port

SCRIPT = Path(__file__).resolve().parent.parent / "starting.py"
# The ways by the name that `starting.py` knows, with the command before it.
WAYS = {
    "plain python": [sys.executable],
    "torchrun of 1": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"],
    "init_process_group()": [sys.executable],
    "cpu:gloo,cuda:nccl": [sys.executable],
    "sw.launch": [sys.executable],
    "Slurm": [sys.executable],
}


def run(setting: Setting, finding: Finding) -> None:
    table = finding.table("Devices that were found", ["started by", "computes on", "seconds"])
    planted = ["--planted"] if setting.planted else []
    processes = {}
    for way, command in WAYS.items():
        processes[way] = subprocess.Popen(
            [*command, str(SCRIPT), way, *planted],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(way),
        )
    for way, process in processes.items():
        with finding.trying(way):
            said, _ = process.communicate(timeout=80)
            lines = [line.split() for line in said.splitlines() if line.startswith("computed on")]
            device, seconds = (lines[-1][2], lines[-1][4]) if lines else ("nothing", "-")
            table.row(way, device, seconds)
            expected = setting.device.type
            finding.expect(device.startswith(expected), f"{way}: {device} and not {expected}: {said[-500:]}")


def _environment(way: str) -> dict[str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    if way == "Slurm":
        tasks = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}
        of_slurm = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "1"}
        environment.update(tasks, **of_slurm, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    return environment
