"""What GPUs and the way between them need of a machine. Without GPUs there is nothing to say."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import torch

from ..report.memory import size_of
from .finding import Finding

_GIB, _MIB = 1 << 30, 1 << 20
# NCCL keeps buffers there for each pair of ranks of a machine, and loaders of data their batches.
SHARED_MEMORY = _GIB
# What InfiniBand registers must not be moved.
LOCKED_MEMORY = 64 * _MIB
NETWORKS, INFINIBAND = Path("/sys/class/net"), Path("/sys/class/infiniband")


def number() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_driver() -> list[Finding]:
    if not number() or not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, timeout=15, check=False)
    versions = sorted({line.strip() for line in said.stdout.splitlines() if line.strip()})
    words = f"driver {', '.join(versions) or 'unknown'}, CUDA {torch.version.cuda}"
    if said.returncode:
        return [Finding("driver", "warn", f"nvidia-smi ended with {said.returncode}", "look at `nvidia-smi`")]
    return [Finding("driver", "ok", words)]


def check_gpu_memory() -> list[Finding]:
    """What others have taken of it is not there for a program."""
    findings = []
    for at in range(number()):
        free, total = torch.cuda.mem_get_info(at)
        if free < 0.9 * total:
            taken = f"{size_of(total - free)} of {size_of(total)} of GPU {at} are taken"
            findings.append(
                Finding("gpu memory", "warn", taken, "another process runs there: see `nvidia-smi`")
            )
    return findings


def check_peers() -> list[Finding]:
    """GPUs that cannot read each other's memory talk by way of the host."""
    pairs = list(combinations(range(number()), 2))
    apart = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
    if not pairs:
        return []
    if apart:
        first, second = apart[0]
        fix = "see `nvidia-smi topo -m`; in a virtual machine or with ACS, peer access may be switched off"
        what = f"GPU {first} cannot read the memory of GPU {second} ({len(apart)} of {len(pairs)} pairs)"
        return [Finding("peers", "warn", what, fix)]
    return [Finding("peers", "ok", f"all {len(pairs)} pairs of GPUs read each other's memory")]


def check_nccl() -> list[Finding]:
    if not number() or not torch.distributed.is_nccl_available():
        return []
    version = ".".join(map(str, torch.cuda.nccl.version()))
    chosen = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    words = f"NCCL {version}" + "".join(f", {name}={value}" for name, value in sorted(chosen.items()))
    if chosen.get("NCCL_P2P_DISABLE") == "1":
        return [Finding("nccl", "warn", words, "unset NCCL_P2P_DISABLE: GPUs talk by way of the host")]
    return [Finding("nccl", "ok", words)]


def check_network() -> list[Finding]:
    """What several nodes would talk over."""
    if not number() or not NETWORKS.is_dir():
        return []
    up = [one.name for one in sorted(NETWORKS.iterdir()) if one.name != "lo" and _is_up(one)]
    adapters = sorted(one.name for one in INFINIBAND.iterdir()) if INFINIBAND.is_dir() else []
    words = f"interfaces: {', '.join(up) or 'none'}; InfiniBand or RoCE: {', '.join(adapters) or 'none'}"
    asked = os.environ.get("NCCL_SOCKET_IFNAME", "").lstrip("^=").split(",")[0]
    if asked and not any(name.startswith(asked) for name in [*up, "lo"]):
        fix = f"NCCL_SOCKET_IFNAME names {asked!r}, which is no interface here"
        return [Finding("network", "warn", words, fix)]
    return [Finding("network", "ok", words)]


def _is_up(interface: Path) -> bool:
    try:
        return (interface / "operstate").read_text().strip() in ("up", "unknown")
    except OSError:
        return False


def check_shared_memory() -> list[Finding]:
    """Containers have 64 MiB of it unless they are told otherwise."""
    place = Path("/dev/shm")
    if number() < 2 or not place.is_dir():
        return []
    free = shutil.disk_usage(place).free
    few = free < SHARED_MEMORY
    fix = "start the container with `--shm-size=8g` or `--ipc=host`: NCCL fails without room there"
    return [Finding("/dev/shm", "warn" if few else "ok", f"{size_of(free)} free", fix if few else "")]


def check_locked_memory() -> list[Finding]:
    if not number() or not INFINIBAND.is_dir() or not any(INFINIBAND.iterdir()):
        return []
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if most == resource.RLIM_INFINITY or most >= LOCKED_MEMORY:
        return [Finding("memlock", "ok", "unlimited" if most == resource.RLIM_INFINITY else size_of(most))]
    fix = "InfiniBand needs more: `ulimit -l unlimited`, or `--ulimit memlock=-1` of a container"
    return [Finding("memlock", "warn", f"{size_of(most)} may be locked", fix)]


def check_allocator() -> list[Finding]:
    if not number():
        return []
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    said = next((os.environ[name] for name in names if os.environ.get(name)), "")
    if "expandable_segments:True" in said:
        return [Finding("allocator", "ok", said)]
    if not said:
        return [Finding("allocator", "ok", "expandable_segments:True, which ranks set")]
    fix = "PYTORCH_ALLOC_CONF=expandable_segments:True loses less memory between blocks"
    return [Finding("allocator", "ok", said, fix)]


CHECKS: list[Callable[[], list[Finding]]] = [
    check_driver,
    check_gpu_memory,
    check_peers,
    check_nccl,
    check_network,
    check_shared_memory,
    check_locked_memory,
    check_allocator,
]
