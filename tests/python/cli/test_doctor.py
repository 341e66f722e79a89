"""`shardwright doctor` finds what is broken, and never hangs on it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from shardwright import doctor
from shardwright.cli import main
from shardwright.doctor import Finding


def statuses(findings: list[Finding]) -> list[str]:
    return [finding.status for finding in findings]


@pytest.mark.processes
def test_this_environment_is_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"]
    names = [finding["name"] for finding in said["findings"]]
    assert names[:3] == ["python", "torch", "extension"]
    assert {"gloo", "loopback", "cores", "cache", "safetensors"} < set(names)


@pytest.mark.processes
def test_gloo_on_an_interface_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nonsense0")
    monkeypatch.setattr(doctor, "CHECKS", [doctor.check_python, doctor.check_gloo])
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "fail  gloo          two processes could not reduce a tensor" in said
    assert "-> GLOO_SOCKET_IFNAME is 'nonsense0': is that an interface here?" in said
    assert said.startswith("To be mended: gloo.\n")


def test_a_check_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_stars() -> list[Finding]:
        time.sleep(60)
        return []

    monkeypatch.setattr(doctor, "CHECKS", [check_stars])
    monkeypatch.setattr(doctor, "LIMIT", 0.2)
    start = time.monotonic()
    assert doctor.examine() == [Finding("stars", "fail", "did not answer within 0 s")]
    assert time.monotonic() - start < 10


def test_a_check_that_fails_to_run_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_stars() -> list[Finding]:
        raise ValueError("clouds")

    monkeypatch.setattr(doctor, "CHECKS", [check_stars])
    assert doctor.examine() == [Finding("stars", "fail", "could not be checked: ValueError('clouds')")]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "file"))
    (finding,) = doctor.check_cache()
    assert (finding.status, "SHARDWRIGHT_CACHE" in finding.fix) == ("warn", True)
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "folder"))
    assert statuses(doctor.check_cache()) == ["ok"]
    monkeypatch.setenv("SHARDWRIGHT_CACHE", "off")
    assert doctor.check_cache()[0].what.startswith("off")


@pytest.mark.skipif(
    os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes anywhere"
)
def test_a_cache_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "cache"))
    assert statuses(doctor.check_cache()) == ["warn"]


@pytest.mark.parametrize(
    ("version", "status"),
    [("2.10.1", "fail"), ("2.11.0", "ok"), ("2.15.0+cu130", "ok"), ("2.16.0", "warn"), ("3.0", "warn")],
)
def test_versions_of_torch(version: str, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert statuses(doctor.check_torch()) == [status]


def test_where_nodes_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert doctor.check_rendezvous() == []
    monkeypatch.setenv("MASTER_ADDR", "no-such-host.invalid")
    assert statuses(doctor.check_rendezvous()) == ["fail"]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    assert "nobody listens there yet" in doctor.check_rendezvous()[0].what
    monkeypatch.setenv("MASTER_PORT", "one")
    assert statuses(doctor.check_rendezvous()) == ["fail"]


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "100000")
    assert statuses(doctor.check_cores()) == ["warn"]
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert statuses(doctor.check_cores()) == ["warn"]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert statuses(doctor.check_cores()) == ["ok"]


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata as metadata

    real = metadata.version

    def version(name: str) -> str:
        if name in ("safetensors", "transformers"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    assert [(f.name, f.status) for f in doctor.check_packages()] == [
        ("safetensors", "fail"), ("tqdm", "ok"), ("transformers", "ok"),
    ]  # fmt: skip


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert set(statuses(doctor.check_disk())) == {"warn"}


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_without_gpus_nothing_is_said_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    assert [finding for check in doctor.gpus.CHECKS for finding in check()] == []


def test_gpus_that_cannot_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 4)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: {a, b} != {1, 2})
    (finding,) = doctor.gpus.check_peers()
    assert (finding.status, finding.what) == (
        "warn", "GPU 1 cannot read the memory of GPU 2 (1 of 6 pairs)",
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: True)
    assert statuses(doctor.gpus.check_peers()) == ["ok"]


def test_a_gpu_of_which_others_have_taken_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda at: ((80 - 40 * at) << 30, 80 << 30))
    (finding,) = doctor.gpus.check_gpu_memory()
    assert finding.what == "40.0 GiB of 80.0 GiB of GPU 1 are taken"


def test_a_container_with_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=64 << 20))
    (finding,) = doctor.gpus.check_shared_memory()
    assert finding.status == "warn" and "--shm-size" in finding.fix


def test_an_interface_that_is_asked_for_and_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus(monkeypatch, 1)
    (tmp_path / "eth0").mkdir()
    (tmp_path / "eth0" / "operstate").write_text("up\n")
    monkeypatch.setattr(doctor.gpus, "NETWORKS", tmp_path)
    monkeypatch.setattr(doctor.gpus, "INFINIBAND", tmp_path / "none")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    (finding,) = doctor.gpus.check_network()
    assert (finding.status, finding.what) == ("warn", "interfaces: eth0; InfiniBand or RoCE: none")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth")
    assert statuses(doctor.gpus.check_network()) == ["ok"]


def test_little_memory_may_be_locked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus(monkeypatch, 1)
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr(doctor.gpus, "INFINIBAND", tmp_path)
    monkeypatch.setattr("resource.getrlimit", lambda which: (8 << 20, 8 << 20))
    (finding,) = doctor.gpus.check_locked_memory()
    assert finding.status == "warn" and "ulimit -l unlimited" in finding.fix
    monkeypatch.setattr("resource.getrlimit", lambda which: (-1, -1))
    assert statuses(doctor.gpus.check_locked_memory()) == ["ok"]
