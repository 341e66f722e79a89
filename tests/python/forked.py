"""Runs scripts in processes that have torch and shardwright already, which take longer to import than most
scripts run.

They are forked off a process that only imports. To a script its process is one like any other: it has
arguments, an environment, output, an end of the interpreter and an exit code of its own.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

import shardwright as sw

PYTHON = Path(sw.__file__).parents[1]
# Of all ranks of a script, in seconds.
TIMEOUT = 400

# A line asks for a script on some ranks. Each has an environment, and files for its output.
SERVER = """
import importlib, json, os, sys, time
import torch, torch._dynamo, torch.distributed, torch.utils.data
import transformers.models.llama.modeling_llama
import shardwright.api, shardwright.capture, shardwright.runtime

for name in sys.argv[1:]:
    importlib.import_module(name)


def serve():
    for line in iter(sys.stdin.readline, ""):
        arguments, ranks = json.loads(line)
        started = {}
        for rank, (environment, files) in enumerate(ranks):
            pid = os.fork()
            if not pid:
                return arguments, environment, files
            started[pid] = rank
        ended = [None] * len(ranks)
        for _ in ranks:
            pid, status = os.wait()
            ended[started[pid]] = os.waitstatus_to_exitcode(status), time.time()
        print(json.dumps(ended), flush=True)
    os._exit(0)


def become(arguments, environment, files):
    os.environ.clear()
    os.environ.update(environment)
    for number, file in enumerate([os.devnull, *files]):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), number)
    sys.argv, sys.path[0] = arguments, os.path.dirname(arguments[0])
    return arguments[0]


__file__ = become(*serve())
exec(compile(open(__file__).read(), __file__, "exec"))
"""


@dataclass
class Ended:
    """How a rank's process ended, and when."""

    code: int
    out: str
    error: str
    time: float


def run(script: Path, *options: str, world: int, folder: Path, modules: tuple[str, ...] = ()) -> list[Ended]:
    """Each rank by itself: nobody ends the others, as a launcher would. One process is no rank at all.

    `modules` are imported before, once for all scripts that ask for the same."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(world),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    ranks = []
    for rank in range(world):
        own = {**group, "RANK": str(rank)} if world > 1 else {}
        files = [str(folder / f"{rank}.{name}") for name in ("out", "error")]
        ranks.append(({**os.environ, **_environment(), **own}, files))
    ended = _asked([[str(script), *options], ranks], modules)
    return [
        Ended(code, *(Path(file).read_text() for file in files), time)
        for (code, time), (_, files) in zip(ended, ranks, strict=True)
    ]


def _asked(request: object, modules: tuple[str, ...]) -> list[tuple[int, float]]:
    server = _server(modules)
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    if not select.select([server.stdout], [], [], TIMEOUT)[0]:
        os.killpg(server.pid, signal.SIGKILL)
        _server.cache_clear()
        raise TimeoutError(f"the ranks took longer than {TIMEOUT} seconds")
    found: list[tuple[int, float]] = json.loads(server.stdout.readline())
    return found


@functools.cache
def _server(modules: tuple[str, ...]) -> subprocess.Popen[str]:
    """Ends with this process, whose end of the pipe is closed then."""
    return subprocess.Popen(
        [sys.executable, "-c", SERVER, *modules], env={**os.environ, **_environment()},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": str(PYTHON), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
