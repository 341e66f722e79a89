"""What `ready_python.command()` starts: stands for a process that is forked off, and ends as that does."""

import array
import contextlib
import json
import os
import signal
import socket
import sys

HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    server, *arguments = sys.argv[1:]
    files = [number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number)]
    link = socket.socket(socket.AF_UNIX)
    link.connect(server)
    for number in HANDED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: link.send(bytes([number])))
    asked = [arguments, os.getcwd(), dict(os.environ), files]
    request = json.dumps(asked).encode()
    sent = array.array("i", files)
    link.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
    link.sendall(request)
    # Whoever reads what the process writes reads to its end, which is not the end of this one.
    for number in files:
        os.close(number)
    ended = link.recv(4, socket.MSG_WAITALL)
    code = int.from_bytes(ended, "big", signed=True) if len(ended) == 4 else 1
    if code < 0:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


main()
