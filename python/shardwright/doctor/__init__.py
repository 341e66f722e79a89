"""`shardwright doctor`: what this environment can do, and what is wrong with it.

Each check is a function that gives findings; none may hang, and one that fails to run is a finding.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from ..cache import cache_folder, open_cache
from ..cli.style import paint
from ..report.memory import size_of
from ..schemas import answer
from . import gpus
from .finding import Finding

# The versions of torch that the tests run on.
OLDEST_TORCH, NEWEST_TORCH = (2, 11), (2, 15)
OLDEST_TRANSFORMERS = 5
# Seconds that one check may take.
LIMIT = 20.0
GLOO_LIMIT = 120.0
# As wide as a terminal that a person reads in.
WIDTH = 100
_GIB = 1 << 30
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def main(as_json: bool = False) -> int:
    findings = examine(_say)
    _say("")
    if as_json:
        print(answer("doctor", {"ok": not _failed(findings), "findings": [asdict(one) for one in findings]}))
    else:
        print(_verdict(findings))
        print("\n".join(["", *map(_line, findings)]))
    return 1 if _failed(findings) else 0


def examine(watch: Callable[[str], object] = lambda name: None) -> list[Finding]:
    """All findings, in the order of the checks; `watch` is told the name of each."""
    findings = []
    for check in CHECKS:
        watch(_name(check))
        findings += _within_limit(check)
    return findings


def _say(name: str) -> None:
    """What is checked, for who watches a terminal: without the packages that bars are drawn with."""
    if sys.stderr.isatty():
        print(f"\r{f'checking {name} ...' if name else '':30}\r", end="", file=sys.stderr, flush=True)


def _verdict(findings: list[Finding]) -> str:
    failed = [one.name for one in _failed(findings)]
    warned = [one.name for one in findings if one.status == "warn"]
    if failed:
        return f"To be mended: {', '.join(failed)}."
    return "Nothing stands in the way." + (f" Look at: {', '.join(warned)}." if warned else "")


def _failed(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.status == "fail"]


def _line(finding: Finding) -> str:
    status = paint(f"{finding.status:5}", _COLOURS[finding.status], sys.stdout)
    said = _wrapped(finding.what) + (_wrapped(finding.fix, "-> ") if finding.fix else [])
    return f"{status} {finding.name:13} " + f"\n{'':20}".join(said)


def _wrapped(text: str, start: str = "") -> list[str]:
    indent = " " * len(start)
    return textwrap.wrap(
        start + text, WIDTH - 20, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _within_limit(check: Callable[[], list[Finding]]) -> list[Finding]:
    """A name that is looked up in a network without an answer can take minutes: it is left behind."""
    findings: list[Finding] = []

    def work() -> None:
        try:
            findings.extend(check())
        except Exception as error:
            findings.append(Finding(_name(check), "fail", f"could not be checked: {error!r}"))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    limit = GLOO_LIMIT + LIMIT if check is check_gloo else LIMIT
    thread.join(limit)
    if thread.is_alive():
        return [Finding(_name(check), "fail", f"did not answer within {limit:.0f} s")]
    return findings


def _name(check: Callable[[], list[Finding]]) -> str:
    return check.__name__.removeprefix("check_")


def check_python() -> list[Finding]:
    words = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    good = sys.version_info >= (3, 10)
    return [Finding("python", "ok" if good else "fail", words, "" if good else "use Python 3.10 or newer")]


def check_torch() -> list[Finding]:
    version = _two_numbers(torch.__version__)
    oldest, newest = (".".join(map(str, one)) for one in (OLDEST_TORCH, NEWEST_TORCH))
    if version < OLDEST_TORCH:
        return [
            Finding("torch", "fail", f"{torch.__version__} is too old", f"install torch {oldest} or newer")
        ]
    if version > NEWEST_TORCH:
        return [
            Finding(
                "torch",
                "warn",
                f"{torch.__version__} is newer than what is tested ({oldest} to {newest})",
                f"if something is refused that should not be, try torch {newest}",
            )
        ]
    return [Finding("torch", "ok", f"{torch.__version__} (tested: {oldest} to {newest})")]


def check_extension() -> list[Finding]:
    from .._core import Graph, Plan, operators_table

    rules = sum(line.startswith("|") for line in operators_table().splitlines())
    text = 'shardwright-graph 1\nmodel "M"\ninput %x f32[4] 0\n'
    text += 'op %y f32[4] = aten.relu.default(%x) in "" at "m.py:1"\noutput %y\n'
    Plan.named(Graph(text), "replicate", 2)
    version = importlib.metadata.version("shardwright")
    return [Finding("extension", "ok", f"shardwright {version}, a table of {rules} lines of operators")]


def check_devices() -> list[Finding]:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
        return [Finding("devices", "ok", f"{len(names)} GPUs: {', '.join(sorted(set(names)))}")]
    if torch.version.cuda and shutil.which("nvidia-smi"):
        fix = "look at `nvidia-smi`: the driver may be too old for this torch, or the GPUs are hidden"
        return [Finding("devices", "warn", "torch is built for CUDA, but sees no GPU", fix)]
    return [Finding("devices", "ok", "no GPU: programs run on CPUs, with Gloo")]


def check_backends() -> list[Finding]:
    if not dist.is_available():  # type: ignore[no-untyped-call]
        fix = "install a torch with torch.distributed"
        return [Finding("backends", "fail", "torch.distributed is missing", fix)]
    available_backends = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    words = ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in available_backends.items())
    if torch.cuda.is_available() and not available_backends["nccl"]:
        fix = "install a torch with NCCL: several GPUs need it"
        return [Finding("backends", "fail", words, fix)]
    if not available_backends["gloo"]:
        fix = "install a torch with Gloo: CPUs and `sw.launch` need it"
        return [Finding("backends", "fail", words, fix)]
    return [Finding("backends", "ok", words)]


def check_loopback() -> list[Finding]:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5.0),
        ):
            return [Finding("loopback", "ok", "processes of this machine reach each other")]
    except OSError as error:
        fix = "processes of one machine talk over 127.0.0.1: allow it (firewall, container, sandbox)"
        return [Finding("loopback", "fail", f"127.0.0.1 cannot be reached: {error}", fix)]


_RANK = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
rank, port = int(sys.argv[1]), int(sys.argv[2])
limit = timedelta(seconds=60)
store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0, timeout=limit)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
x = torch.full((4,), float(rank + 1))
dist.all_reduce(x)
assert x.tolist() == [3.0] * 4, x
dist.destroy_process_group()
"""


def check_gloo() -> list[Finding]:
    """A real all-reduce of two processes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(rank), port],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip

    def kill() -> None:
        for rank in ranks:
            rank.kill()

    timer = threading.Timer(GLOO_LIMIT, kill)
    timer.start()
    try:
        said = [rank.communicate() for rank in ranks]
    finally:
        timer.cancel()
        kill()
    if all(rank.returncode == 0 for rank in ranks):
        return [Finding("gloo", "ok", "two processes have reduced a tensor")]
    lines = [line for _, err in said for line in err.splitlines() if line.strip()]
    why = lines[-1].strip()[:200] if lines else f"no answer within {GLOO_LIMIT:.0f} s"
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    fix = f"GLOO_SOCKET_IFNAME is {interface!r}: is that an interface here?" if interface else (
        "if the name of this machine has no address, set GLOO_SOCKET_IFNAME=lo (one machine)"
        " or to the network's interface (several)"
    )  # fmt: skip
    return [Finding("gloo", "fail", f"two processes could not reduce a tensor: {why}", fix)]


def check_rendezvous() -> list[Finding]:
    """Where `torchrun` on several nodes would meet; nothing to say without MASTER_ADDR."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "29500")
    if not host:
        return []
    where = f"MASTER_ADDR={host}, MASTER_PORT={port}"
    try:
        with socket.create_connection((host, int(port)), timeout=5.0):
            return [Finding("rendezvous", "ok", f"{where} answers")]
    except ConnectionRefusedError:
        return [Finding("rendezvous", "ok", f"{where} is a machine; nobody listens there yet")]
    except ValueError:
        return [Finding("rendezvous", "fail", f"{where}: the port is no number", "set MASTER_PORT to one")]
    except OSError as error:
        fix = "set MASTER_ADDR to a name or address of the first node that this one reaches, or unset it"
        return [Finding("rendezvous", "fail", f"{where} cannot be reached: {error}", fix)]


def check_cores() -> list[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, ranks = os.environ.get("OMP_NUM_THREADS"), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    words = f"{cores} cores, OMP_NUM_THREADS={threads or 'unset'}"
    if threads is not None and not threads.isdigit():
        return [Finding("cores", "warn", words, "set OMP_NUM_THREADS to a number")]
    if threads is not None and int(threads) * ranks > cores:
        share = max(1, cores // ranks)
        return [Finding("cores", "warn", words, f"{ranks} ranks here: OMP_NUM_THREADS={share} is enough")]
    if threads is None and cores > 1:
        fix = f"for k ranks on CPUs set OMP_NUM_THREADS to {cores} / k; torchrun sets 1"
        return [Finding("cores", "ok", words, fix)]
    return [Finding("cores", "ok", words)]


def check_cache() -> list[Finding]:
    folder, cache = cache_folder(), open_cache()
    if folder is None or cache is None:
        return [Finding("cache", "ok", "off: every start compiles")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        fix = "set SHARDWRIGHT_CACHE to a folder that can be written; without it every start compiles"
        return [Finding("cache", "warn", f"{folder} cannot be written: {error.strerror or error}", fix)]
    entries = cache.entries()
    size = size_of(sum(entry.bytes for entry in entries))
    return [Finding("cache", "ok", f"{folder}: {len(entries)} programs and graphs, {size}")]


def check_packages() -> list[Finding]:
    findings = []
    for name in ("safetensors", "tqdm", "transformers"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            needed = name != "transformers"
            fix = f"install {name}" if needed else ""
            what = "is missing" if needed else "is not installed; only its models need it"
            findings.append(Finding(name, "fail" if needed else "ok", what, fix))
            continue
        if name == "transformers" and _two_numbers(version) < (OLDEST_TRANSFORMERS, 0):
            fix = f"install transformers {OLDEST_TRANSFORMERS} or newer: older ones are not tested"
            findings.append(Finding(name, "warn", version, fix))
        else:
            findings.append(Finding(name, "ok", version))
    return findings


def check_disk() -> list[Finding]:
    folder = cache_folder()
    while folder is not None and not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    findings = []
    for name, place in (
        ("disk", Path.cwd()),
        ("temporary", Path(tempfile.gettempdir())),
        ("cache's disk", folder),
    ):
        if place is not None:
            free = shutil.disk_usage(place).free
            few = free < _GIB
            fix = "make room: programs and checkpoints are written all or not at all" if few else ""
            findings.append(Finding(name, "warn" if few else "ok", f"{size_of(free)} free in {place}", fix))
    return findings


def check_memory() -> list[Finding]:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return []
    match = re.search(r"MemAvailable:\s+(\d+) kB", text)
    if match is None:
        return []
    available = int(match[1]) * 1024
    few = available < 2 * _GIB
    fix = "a rank on a CPU holds its parameters, gradients and optimizer state here" if few else ""
    return [Finding("memory", "warn" if few else "ok", f"{size_of(available)} available", fix)]


CHECKS: list[Callable[[], list[Finding]]] = [
    check_python,
    check_torch,
    check_extension,
    check_packages,
    check_devices,
    check_backends,
    *gpus.CHECKS,
    check_loopback,
    check_gloo,
    check_rendezvous,
    check_cores,
    check_memory,
    check_disk,
    check_cache,
]


def _two_numbers(version: str) -> tuple[int, int]:
    numbers = [int(word) for word in re.findall(r"\d+", version)[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)
