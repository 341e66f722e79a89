"""Starts local processes, one for each rank, and lets none of them survive the others."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ...errors import RuntimeFault, ShardwrightError, with_article
from . import watch
from .devices import DeviceLike, number_here, one_each, prefer, take
from .places import Place

Result = TypeVar("Result")

# Starts processes that have nothing of this one.
FRESH: Any = multiprocessing.get_context("spawn")
# Beyond this a number is a mistake.
MOST_PROCESSES = 1 << 16
# How long to listen to the other ranks after the first has failed, to find who failed first.
GRACE = 2.0
# What a rank says when it fails because another has.
ECHOES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "error[SW0724]",
    "error[SW0783]",
    "error[SW0784]",
)


@dataclass(frozen=True)
class _Report:
    """What a rank says at its end."""

    rank: int
    time: float
    result: bytes | None = None
    trace: str = ""
    error: ShardwrightError | None = None


def launch(
    fn: Callable[..., Result],
    devices: int = 4,
    args: Sequence[Any] = (),
    backend: str | None = None,
    timeout: float | None = None,
    device: DeviceLike = None,
) -> Result:
    """Runs `fn(rank, *args)` in `devices` local processes with a process group; rank 0's result.

    They are on GPUs where there is one for each (with Gloo for tensors on the CPU), else on the CPU; `device`
    decides, "cpu" or "cuda". A `backend` is handed to `init_process_group` as it is.

    When a rank fails, all are ended, and its own error is raised if it is one of Shardwright's; else one
    that has its trace. `timeout` is in seconds.
    """
    _refuse_what_cannot_run(fn, devices)
    payload, context = _pickled(fn, tuple(args))
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes, pipes = [], []
    try:
        for rank in range(devices):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_body,
                args=(rank, devices, store.port, (backend, device), payload, theirs, os.getpid()),
                # A daemon may start no processes, and a rank has those of its `DataLoader`.
                daemon=False,
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        result: Result = _result(processes, pipes, timeout)
        return result
    finally:
        _end(processes)


def _refuse_what_cannot_run(fn: Any, devices: Any) -> None:
    if not callable(fn):
        raise RuntimeFault(
            "SW0830",
            f"`launch` is given {with_article(type(fn).__name__)}, not a function",
            why="each process calls it as fn(rank, *args)",
            fix="give the function itself: `sw.launch(train, devices=4)`",
        )
    if isinstance(devices, bool) or not isinstance(devices, int) or not 0 < devices <= MOST_PROCESSES:
        raise RuntimeFault(
            "SW0830",
            f"`launch` cannot start {devices!r} processes",
            why="`devices` is how many there are to be, one for each rank",
            fix=f"give a whole number from 1 to {MOST_PROCESSES}",
        )


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any]:
    """What to hand to the processes, and how to start them.

    A function of a notebook or of standard input cannot be imported again by a fresh process; there
    the process is forked instead, if that is safe.
    """
    here = getattr(fn, "__module__", "") == "__main__" and not _has_main_file()
    try:
        payload = pickle.dumps((fn, args))
        if not here:
            return payload, FRESH
        why = "it is defined in a notebook or on standard input"
    except Exception as error:
        why = str(error)
    if "fork" in multiprocessing.get_all_start_methods() and not torch.cuda.is_initialized():
        return (fn, args), multiprocessing.get_context("fork")
    raise RuntimeFault(
        "SW0713",
        f"{getattr(fn, '__name__', fn)!r} cannot be handed to other processes",
        why=why,
        fix="define it at the top level of a file, and import it; from a notebook, launch before anything"
        " uses the GPU",
    )


def _has_main_file() -> bool:
    import __main__

    return os.path.isfile(getattr(__main__, "__file__", ""))


def _body(
    rank: int,
    world: int,
    port: int,
    asked: tuple[str | None, DeviceLike],
    payload: Any,
    pipe: Connection,
    parent: int,
) -> None:
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    # What a rank starts, such as the processes of a `DataLoader`, starts as in a rank of torchrun.
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    try:
        _start(rank, world, port, *asked)
        fn, args = pickle.loads(payload) if isinstance(payload, bytes) else payload
        result = fn(rank, *args)
        _end_threads()
        report = _Report(rank, time.time(), pickle.dumps(result if rank == 0 else None))
        watch.finished()
        if dist.is_initialized():  # type: ignore[no-untyped-call]
            dist.barrier()  # nobody leaves while others still talk to it
    except BaseException as error:
        ours = error if isinstance(error, ShardwrightError) else None
        report = _Report(rank, time.time(), trace=traceback.format_exc(), error=ours)
    for child in multiprocessing.active_children():
        child.terminate()
    pipe.send(report)
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # What libraries have of the system, such as the lock of a progress bar, is given back.
    multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]
    # Taking a process group down can hang when others have died.
    os._exit(1 if report.trace else 0)


def _end_threads() -> None:
    """What still works for the rank, such as a save behind its training, ends before it does."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def threads_of(world: int) -> int:
    """Of each rank, where so many share the cores."""
    return max(1, (os.cpu_count() or 1) // world)


def _start(rank: int, world: int, port: int, backend: str | None, device: DeviceLike) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world)
    )
    if os.path.exists("/sys/class/net/lo"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(threads_of(world))
    prefer(device)
    backend, taken = _backend(Place(rank, world, rank, world), backend, device)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    with one_each():
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=world,
            device_id=taken if taken.type == "cuda" else None,
        )


def _backend(place: Place, backend: str | None, device: DeviceLike) -> tuple[str, torch.device]:
    """What the process group is made with, and for which device. The same on all ranks."""
    if backend is None and device is None and number_here() < place.world:
        device = "cpu"
    elif backend is not None and device is None:
        device = "cuda" if "nccl" in backend else "cpu"
    taken = take(device, place)
    return backend or ("cpu:gloo,cuda:nccl" if taken.type == "cuda" else "gloo"), taken


def _die_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _result(processes: Sequence[Any], pipes: Sequence[Connection], timeout: float | None) -> Any:
    deadline = None if timeout is None else time.monotonic() + timeout
    reports: dict[int, _Report] = {}
    failed_at: float | None = None
    while len(reports) < len(processes):
        limits = [end for end in (deadline, failed_at and failed_at + GRACE) if end is not None]
        left = min(limits) - time.monotonic() if limits else None
        if left is not None and left <= 0:
            break
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in reports]
        for pipe in wait(waiting, left):
            rank = next(rank for rank, other in enumerate(pipes) if other is pipe)
            reports[rank] = _received(rank, pipes[rank], processes[rank])
            if reports[rank].trace and failed_at is None:
                failed_at = time.monotonic()
    if failed_at is not None:
        raise _failure(list(reports.values()))
    if len(reports) < len(processes):
        silent = [str(rank) for rank in range(len(processes)) if rank not in reports]
        raise RuntimeFault(
            "SW0714",
            f"the ranks took longer than {timeout:g} seconds",
            why=f"ranks {', '.join(silent)} have not finished",
        )
    return pickle.loads(reports[0].result or b"")


def _received(rank: int, pipe: Connection, process: Any) -> _Report:
    try:
        report: _Report = pipe.recv()
        return report
    except EOFError:
        process.join(GRACE)
        code = process.exitcode
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        # It died without a word: nothing that others say comes before that.
        return _Report(rank, 0.0, trace=f"the process died ({how})")


def _failure(reports: list[_Report]) -> ShardwrightError:
    """The first rank's own error, with its trace as the cause; or one that has the trace."""
    failed = [report for report in reports if report.trace]
    first = min(failed, key=lambda report: (any(echo in report.trace for echo in ECHOES), report.time))
    others = [str(report.rank) for report in failed if report is not first]
    also = f"\n(then also failed: ranks {', '.join(others)})" if others else ""
    failure = RuntimeFault("SW0712", f"rank {first.rank} failed", why=first.trace.rstrip() + also)
    if first.error is None:
        return failure
    first.error.__cause__ = failure
    return first.error


def _end(processes: Sequence[Any]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + 3.0
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
