"""A `python` that has torch and shardwright already: to import them takes longer than most scripts run.

`command()` is a file that starts like the interpreter, by whomever: a test, a shell, torchrun. It asks a
process that only imports to fork one off for it, with its arguments, environment, folder and open files.
Signals are handed on, and so is how the process ends. When one of the two is killed, so is the other. In the
same folder is a `torchrun` that starts with it.

What depends on what is imported, or on when, is tested with `sys.executable`.
"""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import forking
import shardwright as sw

PYTHON = Path(sw.__file__).parents[1]
TESTS = Path(__file__).parent
# What other scripts import is asked for by name: once for all that ask for the same.
IMPORTED = (
    "torch._dynamo",
    "torch.distributed.run",
    "torch.export._trace",
    "torch.utils.data",
    "transformers.models.llama.modeling_llama",
    "shardwright.api",
    "shardwright.capture",
    "shardwright.runtime",
)


@functools.cache
def command(modules: tuple[str, ...] = ()) -> str:
    """The file; what starts with it has imported these modules, too. The interpreter itself where processes
    cannot be forked off so."""
    if sys.platform != "linux":
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="py", dir="/tmp"))
    place = folder / "socket"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(place))
    listening.listen(64)
    mine, its = os.pipe()
    files = listening.fileno(), mine
    server = subprocess.Popen(
        [sys.executable, str(TESTS / "ready_server.py"), *map(str, files), *IMPORTED, *modules],
        env=environment(), stdin=subprocess.DEVNULL, start_new_session=True,
        pass_fds=files,
    )  # fmt: skip
    os.close(mine)
    atexit.register(_end, server, its, folder)
    python = folder / "python"
    words = [sys.executable, "-IS", str(TESTS / "ready_client.py"), str(place), str(python)]
    _write(python, words)
    _write(folder / "torchrun", [str(python), "-m", "torch.distributed.run"])
    return str(python)


def _write(file: Path, words: list[str]) -> None:
    file.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    file.chmod(0o700)


def _end(server: subprocess.Popen[bytes], its: int, folder: Path) -> None:
    os.close(its)
    server.wait()
    shutil.rmtree(folder, ignore_errors=True)


def environment(**more: str) -> dict[str, str]:
    """For what starts with it: ranks that it launches are forked off, too."""
    defaults = {"PYTHONPATH": str(PYTHON), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **defaults, forking.SERVER: forking.address(), **more}
