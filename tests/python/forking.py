"""For `launch`: ranks that are forked off a process that has torch and shardwright, and nothing of the tests.

To import them takes longer than most ranks run. A test of `test_runtime_launch.py` starts ranks as users do.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import time
from multiprocessing import forkserver, set_forkserver_preload
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from shardwright.runtime.communication import launch

# `torch.export._trace` is what the first capture imports.
IMPORTED = ["pytest", "torch", "torch._dynamo", "torch.distributed", "torch.export._trace"]
IMPORTED += ["shardwright.api", "shardwright.capture", "shardwright.runtime"]

# Of a rank that is forked off, the system shows the environment of the process that it is forked off. What is
# the value of this is its name.
NAME = "SHARDWRIGHT_TEST"
# The address of the process that ranks of this one are forked off, and the files of its output: for
# processes that did not start that process themselves.
SERVER, OUTPUT = "SHARDWRIGHT_TEST_SERVER", "SHARDWRIGHT_TEST_OUTPUT"
NAME_OF_PROCESS = 15  # of prctl


class _Rank(ForkServerProcess):
    """Has the environment and the output of now; those of the process that it is forked off are older."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._environment = dict(os.environ)

    def run(self) -> None:
        # Collections would look through what was imported, and copy it.
        gc.freeze()
        os.environ.clear()
        os.environ.update(self._environment)
        if name := os.environ.get(NAME):
            ctypes.CDLL(None).prctl(NAME_OF_PROCESS, name.encode())
        if files := os.environ.get(OUTPUT):
            write_to(json.loads(files))
        launch._die_with = _die_with
        super().run()


def _die_with(parent: int) -> None:
    """What asked for a rank is not its parent."""
    while True:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            os._exit(1)
        time.sleep(1.0)


def write_to(files: list[str]) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)


class Forking(ForkServerContext):
    Process = _Rank

    def __init__(self) -> None:
        super().__init__()
        set_forkserver_preload(IMPORTED)


def address() -> str:
    """Of the process that ranks are forked off; it is there from here on."""
    Forking()
    forkserver.ensure_running()
    server: str = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    return server


def use(address: str) -> None:
    """Ranks that this process starts are forked off that process of another."""
    server = forkserver._forkserver  # type: ignore[attr-defined]
    server._forkserver_address = address
    # It ends with the process that started it.
    server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)
    server.ensure_running = lambda: None
    launch.FRESH = Forking()
