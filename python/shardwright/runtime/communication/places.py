"""Which of the processes that were started together this is, as `torchrun` or Slurm says."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from ...errors import RuntimeFault

# Ports of jobs, by the job's number.
FIRST_PORT, PORTS = 20_000, 10_000


@dataclass(frozen=True)
class Place:
    rank: int
    world: int
    local_rank: int
    """Among the processes of its machine."""
    local_world: int


def place_of(env: Mapping[str, str] | None = None) -> Place | None:
    """Of this process; `None` if nobody has said that there are others."""
    env = os.environ if env is None else env
    if "RANK" in env and "WORLD_SIZE" in env:
        return _of_torchrun(env)
    return _of_slurm(env)


def place_for_group() -> Place | None:
    """The same, once the environment says all that `init_process_group` reads."""
    place = place_of()
    if place is not None and "RANK" not in os.environ:
        _hand_on(place, os.environ)
    return place


def is_left_out(env: Mapping[str, str] | None = None) -> bool:
    """Whether Slurm has several tasks for a job, and this process is none of them."""
    env = os.environ if env is None else env
    alone = not {"RANK", "SLURM_STEP_NUM_TASKS"} & set(env)
    return alone and env.get("SLURM_NTASKS", "1") not in ("", "0", "1")


def _of_torchrun(env: Mapping[str, str]) -> Place:
    world = _number(env, "WORLD_SIZE")
    name = "LOCAL_RANK" if "LOCAL_RANK" in env else "SLURM_LOCALID"
    local = _number(env, name) if name in env else 0
    there = _number(env, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in env else local + 1
    return Place(_number(env, "RANK"), world, local, there)


def _of_slurm(env: Mapping[str, str]) -> Place | None:
    """`srun` alone counts the tasks of a step: in the script of a job, and in a shell, there is one process,
    whatever the job has tasks for."""
    if "SLURM_STEP_NUM_TASKS" not in env or "SLURM_PROCID" not in env:
        return None
    world = _number(env, "SLURM_STEP_NUM_TASKS")
    if world == 1:
        return None
    local = _number(env, "SLURM_LOCALID")
    return Place(_number(env, "SLURM_PROCID"), world, local, tasks_here(env) or world)


def tasks_here(env: Mapping[str, str]) -> int | None:
    """Of `4(x2),3`, which Slurm says of 4, 4 and 3 tasks on three nodes, that of this one."""
    said = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE", "")
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", said):
        counts += [int(count)] * int(times or 1)
    node = _number(env, "SLURM_NODEID") if "SLURM_NODEID" in env else 0
    return counts[node] if node < len(counts) else None


def _hand_on(place: Place, env: MutableMapping[str, str]) -> None:
    for name, value in {
        "RANK": place.rank,
        "WORLD_SIZE": place.world,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_world,
        "MASTER_PORT": _port(env),
    }.items():
        env.setdefault(name, str(value))
    if "MASTER_ADDR" not in env:
        env["MASTER_ADDR"] = _first_node(env)


def _port(env: Mapping[str, str]) -> int:
    """One for each job and step."""
    job, step = (int(re.sub(r"\D", "", env.get(name, "")) or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return FIRST_PORT + (job * 7 + step) % PORTS


def _first_node(env: Mapping[str, str]) -> str:
    """Of `gpu[003-006,9]-a,login1`: gpu003-a. Rank 0 is there."""
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")
    match = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    if match is None:
        raise RuntimeFault(
            "SW0836",
            "it is not known where rank 0 is",
            why="Slurm names no nodes (SLURM_JOB_NODELIST), and MASTER_ADDR is not set",
            fix="set MASTER_ADDR to the name of the node that has rank 0",
        )
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", match[0])


def _number(env: Mapping[str, str], name: str) -> int:
    value = env.get(name, "")
    if not value.isdecimal():
        raise RuntimeFault(
            "SW0836",
            f"{name} is {value!r}, not a number",
            why="it says which of the processes this is, or how many there are",
            fix="start them by `torchrun` or `srun`, which set it",
        )
    return int(value)
