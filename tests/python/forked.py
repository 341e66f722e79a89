"""Runs scripts and commands in processes that have torch and shardwright already, which take longer to import
than most scripts run.

To a script its process is one like any other: it has arguments, an environment, a folder, output, an end of
the interpreter and an exit code of its own. What it starts with `sys.executable` is forked off, too.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

import ready_python
from ready_python import PYTHON as PYTHON

# Of all ranks of a script, in seconds.
TIMEOUT = 400
# What a library says last of all that was imported before the process was forked off.
LEAKED = "nanobind: leaked"


@dataclass
class Ended:
    """How a rank's process ended, and when."""

    code: int
    out: str
    error: str
    time: float


def command(*words: str, folder: Path) -> Ended:
    """`python -m shardwright ...`, in the folder of now; its output is in files of the other folder."""
    return _one(["-m", "shardwright", *words], folder)


def script(path: Path, *options: str, folder: Path) -> Ended:
    """`python path ...`, likewise."""
    return _one([str(path), *options], folder)


def _one(arguments: list[str], folder: Path) -> Ended:
    [ended] = _run(arguments, [{}], folder)
    return ended


def run(script: Path, *options: str, world: int, folder: Path, modules: tuple[str, ...] = ()) -> list[Ended]:
    """Each rank by itself: nobody ends the others, as a launcher would. One process is no rank at all.

    `modules` are imported before, once for all scripts that ask for the same."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(world),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    ranks = [{**group, "RANK": str(rank)} if world > 1 else {} for rank in range(world)]
    return _run([str(script), *options], ranks, folder, modules)


def _run(
    arguments: list[str], ranks: list[dict[str, str]], folder: Path, modules: tuple[str, ...] = ()
) -> list[Ended]:
    started = []
    for rank, environment in enumerate(ranks):
        files = [folder / f"{rank}.{name}" for name in ("out", "error")]
        with files[0].open("w") as out, files[1].open("w") as error:
            process = subprocess.Popen(
                [ready_python.command(modules), *arguments], env=ready_python.environment(**environment),
                stdin=subprocess.DEVNULL, stdout=out, stderr=error,
            )  # fmt: skip
        started.append((process, files))
    ended = _ended([process for process, _ in started])
    return [
        Ended(process.returncode, out.read_text(), error.read_text().partition(LEAKED)[0], ended[process])
        for process, (out, error) in started
    ]


def _ended(processes: list[subprocess.Popen[bytes]]) -> dict[subprocess.Popen[bytes], float]:
    """When."""
    ended_at: dict[subprocess.Popen[bytes], float] = {}
    limit = time.monotonic() + TIMEOUT
    try:
        while len(ended_at) < len(processes):
            if time.monotonic() > limit:
                raise TimeoutError(f"the ranks took longer than {TIMEOUT} seconds")
            ended_at |= {it: time.time() for it in processes if it not in ended_at and it.poll() is not None}
            time.sleep(0.02)
    finally:
        for process in processes:
            process.kill()
    return ended_at
