"""Hosts of one network, as namespaces of this machine: each has a name, an address, and reaches the others.

Each host is a namespace with a link to a switch, which is a namespace too, so nothing of it is seen outside.
As on many machines a host's own name leads to 127.0.1.1. What runs on a host sees that through files and a
name of its own (`unshare`). That takes root's rights: `missing` says what is not there.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import shardwright as sw

LINK = "eth0"
PYTHON = Path(sw.__file__).parents[1]
# In the process's own view of the machine: names of hosts, and its own name.
ENTER = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


@functools.cache
def missing() -> str:
    """Why there can be no such hosts here; empty where there can."""
    if sys.platform != "linux":
        return "namespaces of networks are Linux's"
    for command in ("ip", "unshare"):
        if shutil.which(command) is None:
            return f"`{command}` is not installed"
    try:
        with Hosts(1, Path(os.environ.get("TMPDIR", "/tmp"))) as hosts:
            tried = hosts.start(0, ["true"], stdout=subprocess.DEVNULL)
            return "" if tried.wait(30) == 0 else "`unshare` may not be used here"
    except subprocess.CalledProcessError as error:
        return f"`ip netns` may not be used here: {error.stderr.strip()}"


class Hosts:
    """`host1`, `host2`, ...; what still runs on them ends with the block, and the network with it."""

    def __init__(self, count: int, folder: Path):
        self.names = [f"host{number}" for number in range(1, count + 1)]
        self._spaces = [f"sw-{os.getpid()}-{name}" for name in self.names]
        self._switch = f"sw-{os.getpid()}-switch"
        self._folder = folder

    def __enter__(self) -> Hosts:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def start(
        self,
        host: int,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdout: int | IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Runs a command on a host, by the interpreter of this process and with Shardwright."""
        own = {"PYTHONPATH": str(PYTHON), "OMP_NUM_THREADS": "1", **(env or {})}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        words = ["ip", "netns", "exec", self._spaces[host], "unshare", "--mount", "--uts", "sh", "-c", ENTER]
        words += ["sh", str(self._hosts_file(host)), self.names[host], *command]
        return subprocess.Popen(
            words, cwd=cwd, env={**os.environ, "PATH": path, **own}, stdout=stdout, stderr=subprocess.STDOUT
        )

    def cut_off(self, host: int) -> None:
        """Its power is gone: nobody hears of it again, and all that ran there has ended."""
        _ip("-n", self._spaces[host], "link", "set", LINK, "down")
        self._kill(self._spaces[host])

    def connect(self, host: int) -> None:
        """It is back."""
        _ip("-n", self._spaces[host], "link", "set", LINK, "up")

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for number, space in enumerate(self._spaces, 1):
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
            peer = f"to{number}"
            _ip("-n", self._switch, "link", "add", peer, "type", "veth", "peer", "name", LINK, "netns", space)
            _ip("-n", self._switch, "link", "set", peer, "master", "bridge", "up")
            _ip("-n", space, "addr", "add", f"{_address(number)}/24", "dev", LINK)
            _ip("-n", space, "link", "set", LINK, "up")

    def _hosts_file(self, host: int) -> Path:
        lines = ["127.0.0.1 localhost", f"127.0.1.1 {self.names[host]}"]
        others = enumerate(self.names, 1)
        lines += [f"{_address(number)} {name}" for number, name in others if number != host + 1]
        file = self._folder / f"hosts-{self.names[host]}"
        file.write_text("\n".join(lines) + "\n")
        return file

    def _remove(self) -> None:
        for space in (*self._spaces, self._switch):
            if Path("/run/netns", space).exists():
                self._kill(space)
                _ip("netns", "del", space)

    @staticmethod
    def _kill(space: str) -> None:
        """All that runs there, also what starts meanwhile."""
        while found := _ip("netns", "pids", space).split():
            for pid in map(int, found):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue


def _address(number: int) -> str:
    return f"10.77.0.{number}"


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30).stdout
