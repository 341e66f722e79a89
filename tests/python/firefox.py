"""A headless Firefox, driven by its Marionette protocol over a socket: no package is needed for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

FIREFOX = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)

STARTS = 120.0
FLAGS = ("--headless", "--no-remote", "--marionette", "--remote-allow-system-access")
# Any free port, which it writes into its folder; and nothing is fetched.
PREFERENCES = """
user_pref("marionette.port", 0);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("app.update.disabledForTesting", true);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
"""
# What a page's scripts did wrong, from the browser's own console.
ERRORS = """
return Services.console.getMessageArray()
    .filter((it) => it instanceof Ci.nsIScriptError && it.sourceName.startsWith(arguments[0]))
    .map((it) => it.errorMessage);
"""


class Firefox:
    """One page."""

    def __init__(self) -> None:
        assert FIREFOX is not None
        self._number = 0
        self._folder = Path(tempfile.mkdtemp())
        (self._folder / "user.js").write_text(PREFERENCES)
        self._process = subprocess.Popen(
            [FIREFOX, *FLAGS, "--profile", str(self._folder)],
            env={**os.environ, "HOME": str(self._folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._socket = socket.create_connection(("127.0.0.1", self._port()), STARTS)
            self._stream = self._socket.makefile("rb")
            self._read()
            self._call("WebDriver:NewSession", capabilities={})
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Firefox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._socket.close()
        self._end()

    def open(self, path: Path) -> None:
        self._call("WebDriver:Navigate", url=path.as_uri())

    def ask(self, script: str) -> Any:
        """What an expression gives, as plain data."""
        return self._run(f"return {script};")

    def errors(self, path: Path) -> list[str]:
        """Of the scripts of a page."""
        self._call("Marionette:SetContext", value="chrome")
        found: list[str] = self._run(ERRORS, path.as_uri())
        self._call("Marionette:SetContext", value="content")
        return found

    def _run(self, script: str, *arguments: str) -> Any:
        return self._call("WebDriver:ExecuteScript", script=script, args=list(arguments))["value"]

    def _call(self, command: str, **params: Any) -> Any:
        self._number += 1
        message = json.dumps([0, self._number, command, params]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self._read()
        if error is not None:
            raise AssertionError(f"{command}: {error}")
        return result

    def _read(self) -> Any:
        """A message, behind its length."""
        length = b""
        while (byte := self._stream.read(1)) != b":":
            if not byte:
                raise AssertionError("the browser ended")
            length += byte
        return json.loads(self._stream.read(int(length)))

    def _port(self) -> int:
        file, deadline = self._folder / "MarionetteActivePort", time.monotonic() + STARTS
        while not (file.exists() and file.read_text().strip()):
            assert self._process.poll() is None and time.monotonic() < deadline, "Firefox does not start"
            time.sleep(0.05)
        return int(file.read_text())

    def _end(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
