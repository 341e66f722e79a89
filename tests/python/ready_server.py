"""Imports, and forks off what `ready_client.py` asks for; see `ready_python.py`."""

import array
import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import warnings
import weakref

# Called last, as what a script registers before it imports anything would be.
LAST = []
# What all have is not taken down at each end: object by object, in memory that is copied for that, this takes
# longer than most scripts run. A script about its end sets this, and ends as one that imports for itself.
WHOLE_END = False
# By name.
SHARED = {}


def end():
    for call in LAST:
        call()
    if not WHOLE_END:
        leave_shared()


atexit.register(end)

# Beyond the numbers of all files that a process is given.
HIGH = 512


def serve(listening, living):
    """Returns in the process that is to become what was asked for."""
    kept = set()
    while True:
        ready, _, _ = select.select([listening, living], [], [])
        kept -= {pid for pid in kept if os.waitpid(pid, os.WNOHANG)[0]}
        if living in ready:
            os._exit(0)
        link, _ = listening.accept()
        pid = os.fork()
        if not pid:
            listening.close()
            os.close(living)
            return keep(link)
        kept.add(pid)
        link.close()


def keep(link):
    """One process stays between the two, and tells each how the other does."""
    length, files = received(link)
    if length is None:
        os._exit(1)
    request = b""
    while len(request) < length:
        request += link.recv(length - len(request))
    pid = os.fork()
    if not pid:
        link.close()
        return json.loads(request), files
    for number in (0, 1, 2, *files):
        os.close(number)
    ended = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([ended, link], [], [])
        if ended in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(OSError):
                link.send(code.to_bytes(4, "big", signed=True))
            os._exit(0)
        order = link.recv(1)
        os.kill(pid, order[0] if order else signal.SIGKILL)
        if not order:
            os._exit(0)


def received(link):
    files = array.array("i")
    head, data_read, _, _ = link.recvmsg(8, socket.CMSG_SPACE(HIGH * files.itemsize))
    for _, _, data in data_read:
        files.frombytes(data[: len(data) - len(data) % files.itemsize])
    return (int.from_bytes(head, "big"), list(files)) if len(head) == 8 else (None, [])


def become(request, files):
    """Its code, and what it is called."""
    (executable, *arguments), folder, environment, numbers = request
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, HIGH) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(high, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    os.setpgid(0, 0)
    sys.executable = executable
    if name := environment.get(forking.NAME):
        ctypes.CDLL(None).prctl(forking.NAME_OF_PROCESS, name.encode())
    if address := environment.get(forking.SERVER):
        outputs = [f"/proc/{os.getpid()}/fd/{number}" for number in (1, 2)]
        os.environ[forking.OUTPUT] = json.dumps(outputs)
        forking.use(address)
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or os.cpu_count()))
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path.append(sys.path.pop(0))
    sys.path[0:0] = [path for path in paths if path not in sys.path]
    return code_of(arguments, folder)


def code_of(words, folder):
    """Sets the arguments; returns what is to run, and of which file, or which module."""
    while words[0] in ("-u", "-W"):
        if words[0] == "-W":
            warnings.simplefilter(words[1])
            words = words[1:]
        else:
            sys.stdout.reconfigure(write_through=True)
        words = words[1:]
    kind, *rest = words
    if kind == "-m":
        sys.path.insert(0, folder)
        sys.argv = rest
        return None, rest[0]
    if kind in ("-c", "-"):
        sys.path.insert(0, "")
        source = rest.pop(0) if kind == "-c" else sys.stdin.read()
        sys.argv = [kind, *rest]
        return compile(source, "<string>" if kind == "-c" else "<stdin>", "exec"), None
    sys.path.insert(0, os.path.dirname(kind))
    sys.argv = words
    with open(kind, "rb") as file:
        return compile(file.read(), kind, "exec"), kind


def share():
    """Called in the process that imports, when it has."""
    SHARED.update(sys.modules)
    for name in ("__main__", "builtins", "sys"):
        del SHARED[name]
    for call in list(weakref.finalize._registry):
        call.atexit = False


def leave_shared():
    # A reference that nobody gives back.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(SHARED))
    for name, module in SHARED.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    # When the interpreter has ended, in this order: not the libraries' own ends, which are registered before.
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)


listening, living, *modules = sys.argv[1:]
for name in modules:
    # What is not installed no script needs.
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(name)
torch, forking = importlib.import_module("torch"), importlib.import_module("forking")

# What all have is neither looked through nor copied, by collections or at an end.
gc.freeze()
share()
code, __file__ = become(*serve(socket.socket(fileno=int(listening)), int(living)))
if code is None:
    name = __file__
    del __file__
    runpy.run_module(name, run_name="__main__", alter_sys=True)
else:
    if __file__ is None:
        del __file__
    exec(code)
