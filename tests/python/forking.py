"""For `launch`: ranks that are forked off a process that has torch and shardwright, and nothing of the tests.

To import them takes longer than most ranks run. `test_runtime_launch.py` starts ranks as users do.
"""

from __future__ import annotations

import os
from multiprocessing import set_forkserver_preload
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from shardwright.runtime.communication import launch

IMPORTED = ["pytest", "torch", "torch._dynamo", "torch.distributed"]
IMPORTED += ["shardwright.api", "shardwright.capture", "shardwright.runtime"]


class _Rank(ForkServerProcess):
    """Has the environment of now; that of the process that it is forked off is older."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._environment = dict(os.environ)

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        die_with = launch._die_with
        launch._die_with = lambda _: die_with(os.getppid())
        super().run()


class Forking(ForkServerContext):
    Process = _Rank

    def __init__(self) -> None:
        super().__init__()
        set_forkserver_preload(IMPORTED)
