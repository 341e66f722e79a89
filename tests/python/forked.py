"""Runs scripts and commands in processes that have torch and shardwright already, which take longer to import
than most scripts run.

They are forked off a process that only imports. To a script its process is one like any other: it has
arguments, an environment, a folder, output, an end of the interpreter and an exit code of its own. Ranks that
it launches are forked off such a process, too.
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

import forking
import shardwright as sw

PYTHON = Path(sw.__file__).parents[1]
COMMAND = "-m shardwright"
# Of all ranks of a script, in seconds.
TIMEOUT = 400

# A line asks for a script on some ranks. Each has an environment, and files for its output.
SERVER = """
import importlib, json, os, runpy, sys, time
import torch, torch._dynamo, torch.distributed, torch.utils.data
import transformers.models.llama.modeling_llama
import shardwright.api, shardwright.capture, shardwright.runtime

sys.path.append(sys.argv[1])
import forking

for name in sys.argv[2:]:
    importlib.import_module(name)


def serve():
    for line in iter(sys.stdin.readline, ""):
        arguments, folder, ranks = json.loads(line)
        started = {}
        for rank, (environment, files) in enumerate(ranks):
            pid = os.fork()
            if not pid:
                return arguments, folder, environment, files
            started[pid] = rank
        ended = [None] * len(ranks)
        for _ in ranks:
            pid, status = os.wait()
            ended[started[pid]] = os.waitstatus_to_exitcode(status), time.time()
        print(json.dumps(ended), flush=True)
    os._exit(0)


def become(arguments, folder, environment, files):
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    forking.write_to(files)
    forking.use(os.environ[forking.SERVER])
    os.chdir(folder)
    sys.argv = arguments
    sys.path[0] = folder if arguments[0] == COMMAND else os.path.dirname(arguments[0])
    return arguments[0]


COMMAND = "-m shardwright"
__file__ = become(*serve())
if __file__ == COMMAND:
    del __file__
    runpy.run_module("shardwright", run_name="__main__", alter_sys=True)
else:
    exec(compile(open(__file__).read(), __file__, "exec"))
"""


@dataclass
class Ended:
    """How a rank's process ended, and when."""

    code: int
    out: str
    error: str
    time: float


def command(*words: str, folder: Path) -> Ended:
    """`python -m shardwright ...`, in the folder of now; its output is in files of the other folder."""
    return _one([COMMAND, *words], folder)


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
    asked = []
    for rank, own in enumerate(ranks):
        files = [str(folder / f"{rank}.{name}") for name in ("out", "error")]
        for file in files:
            Path(file).unlink(missing_ok=True)
        asked.append(({**os.environ, **_environment(files), **own}, files))
    ended = _asked([arguments, os.getcwd(), asked], modules)
    return [
        Ended(code, *(Path(file).read_text() for file in files), time)
        for (code, time), (_, files) in zip(ended, asked, strict=True)
    ]


def _asked(request: object, modules: tuple[str, ...]) -> list[tuple[int, float]]:
    server = _server(modules)
    assert server.stdin is not None and server.stdout is not None
    try:
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], TIMEOUT)[0]:
            raise TimeoutError(f"the ranks took longer than {TIMEOUT} seconds")
        found: list[tuple[int, float]] = json.loads(server.stdout.readline())
    except BaseException:
        # What was not waited for must not answer the next one.
        os.killpg(server.pid, signal.SIGKILL)
        _server.cache_clear()
        raise
    return found


@functools.cache
def _server(modules: tuple[str, ...]) -> subprocess.Popen[str]:
    """Ends with this process, whose end of the pipe is closed then."""
    return subprocess.Popen(
        [sys.executable, "-c", SERVER, str(Path(__file__).parent), *modules], env={**os.environ, **_own()},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def _environment(files: list[str]) -> dict[str, str]:
    return {**_own(), forking.SERVER: forking.address(), forking.OUTPUT: json.dumps(files)}


def _own() -> dict[str, str]:
    return {"PYTHONPATH": str(PYTHON), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
