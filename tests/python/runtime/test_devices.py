"""On which device a rank is, whichever way it was started. Nothing here needs a GPU: what PyTorch says of
them is put in its place."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import shardwright as sw
from shardwright.errors import RuntimeFault
from shardwright.profiling.measuring import profile
from shardwright.runtime import LocalComm, TorchComm
from shardwright.runtime.communication import devices, gpu_settings, joining, launch, places
from shardwright.runtime.communication.places import Place

NCCL, GLOO, BOTH = "cuda:nccl", "cpu:gloo,cuda:gloo", "cpu:gloo,cuda:nccl"
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "11",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
    "SLURM_JOB_NODELIST": "gpu[003-006,9]-a,login1",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
}
Gpus = Callable[..., None]


@pytest.fixture(autouse=True)
def _started_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", *SLURM):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(devices, "_preferred", None)
    for name in (
        *gpu_settings.ALLOCATOR,
        *(name for names in gpu_settings.FLIGHT_RECORDER for name in names),
    ):
        monkeypatch.setenv(name, "")  # so that it is as it was afterwards
        monkeypatch.delenv(name)
    for name in gpu_settings._TELLS:
        monkeypatch.setattr(torch._C, name, lambda _: None, raising=False)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """A machine with so many, of which the process has chosen one."""

    def there(number: int, current: int = 0) -> None:
        chosen = [current]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: chosen[0])
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.__setitem__(0, device.index))

    return there


def backends(config: str | None, monkeypatch: pytest.MonkeyPatch) -> dict[str, str] | None:
    monkeypatch.setattr(dist, "get_backend_config", lambda: config)
    return None if config is None else devices.backends_here()


# ---- who it is ---------------------------------------------------------------------------------


def test_torchrun_says_who_it_is() -> None:
    env = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert places.place_of(env) == Place(5, 8, 1, 4)
    assert places.place_of(env | SLURM) == Place(5, 8, 1, 4)
    assert places.place_of({}) is None


def test_a_rank_that_is_set_by_hand_takes_its_number_on_the_node_from_slurm() -> None:
    env = {"RANK": "5", "WORLD_SIZE": "8", "SLURM_LOCALID": "3"}
    assert places.place_of(env) == Place(5, 8, 3, 4)


def test_slurm_says_who_it_is_and_where_the_first_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert places.place_of(SLURM) == Place(5, 11, 1, 4)
    assert places.place_of(SLURM | {"SLURM_NODEID": "2"}) == Place(5, 11, 1, 3)
    env = dict(SLURM)
    places._hand_on(Place(5, 11, 1, 4), env)
    given = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    assert [env[name] for name in given] == ["5", "11", "1", "4", "gpu003-a"]
    assert 20_000 <= int(env["MASTER_PORT"]) < 30_000
    environment = SLURM | {"MASTER_ADDR": "here", "MASTER_PORT": "7"}
    places._hand_on(Place(5, 11, 1, 4), environment)
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("here", "7")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("r[1-2]n[04,07-9],x", "r1n04"), ("a[7,9]", "a7"), ("a.b-c,d", "a.b-c")],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert places._first_node({"SLURM_JOB_NODELIST": nodes}) == first


def test_the_script_of_a_job_and_a_single_task_are_alone() -> None:
    job = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"}
    assert places.place_of(job) is None
    assert places.is_left_out(job)
    assert places.place_of(SLURM | {"SLURM_STEP_NUM_TASKS": "1"}) is None
    assert not places.is_left_out(SLURM)
    assert not places.is_left_out({})


@pytest.mark.parametrize(
    "env", [{"RANK": "one", "WORLD_SIZE": "2"}, SLURM | {"SLURM_LOCALID": ""}, SLURM | {"SLURM_PROCID": "-1"}]
)
def test_what_is_no_number_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(RuntimeFault, match="SW0836"):
        places.place_of(env)


def test_slurm_without_nodes_is_refused() -> None:
    with pytest.raises(RuntimeFault, match="MASTER_ADDR"):
        places._hand_on(Place(0, 2, 0, 2), {})


# ---- which device it takes ---------------------------------------------------------------------


@pytest.mark.parametrize("config", [None, NCCL, BOTH, "cpu:gloo,cuda:another"])
def test_gpus_that_are_there_are_used(config: str | None, gpus: Gpus, monkeypatch: Any) -> None:
    gpus(4)
    taken = devices.take(None, Place(5, 8, 1, 4), backends(config, monkeypatch))
    assert taken == torch.device("cuda", 1)
    assert torch.cuda.current_device() == 1


def test_a_group_without_a_backend_for_gpus_says_why_it_runs_on_the_cpu(gpus: Gpus, monkeypatch: Any) -> None:
    gpus(2)
    there = backends(GLOO, monkeypatch)
    with pytest.warns(UserWarning, match=r"runs on the CPU, though 2 GPUs are here: .*gloo for cuda"):
        assert devices.choose(None, Place(0, 2, 0, 2), there).type == "cpu"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert devices.choose(None, Place(1, 2, 1, 2), there).type == "cpu"
        assert devices.choose("cpu", Place(0, 2, 0, 2), there).type == "cpu"
        gpus(0)
        assert devices.choose(None, Place(0, 2, 0, 2), there).type == "cpu"


def test_a_device_that_is_asked_for_decides(gpus: Gpus, monkeypatch: Any) -> None:
    gpus(4, current=2)
    for config in (None, BOTH):
        there = backends(config, monkeypatch)
        assert devices.choose("cpu", None, there) == torch.device("cpu")
        assert devices.choose(torch.device("cpu", 0), None, there) == torch.device("cpu")
        assert devices.choose("cuda:1", None, there) == torch.device("cuda", 1)
        assert devices.choose(torch.device("cuda"), None, there) == torch.device("cuda", 2)
        assert devices.choose(None, Place(0, 4, 0, 4), there) == torch.device("cuda", 2)


def test_a_group_that_is_bound_to_a_gpu_is_on_that(gpus: Gpus, monkeypatch: Any) -> None:
    gpus(4)
    monkeypatch.setattr(
        dist, "group", SimpleNamespace(WORLD=SimpleNamespace(bound_device_id=torch.device("cuda:3")))
    )
    assert devices.choose(None, None, backends(NCCL, monkeypatch)) == torch.device("cuda", 3)


@pytest.mark.parametrize(
    ("asked", "number", "config", "why"),
    [
        ("cuda", 0, None, "without CUDA|sees no GPU"),
        ("cuda:4", 4, None, "are 4 GPUs here"),
        ("cuda", 2, GLOO, "nothing for it: gloo for cpu, gloo for cuda"),
        ("cpu", 2, NCCL, "nothing for it: nccl for cuda"),
        (None, 0, NCCL, "for others only"),
        ("mps", 2, None, "not a device for ranks"),
        ("gpu", 2, None, "not a device for ranks"),
        (3.5, 2, None, "not a device for ranks"),
    ],
)
def test_a_device_that_cannot_be_used_is_refused(
    asked: Any, number: int, config: str | None, why: str, gpus: Gpus, monkeypatch: Any
) -> None:
    gpus(number)
    with pytest.raises(RuntimeFault, match="SW0837") as refused:
        devices.choose(asked, None, backends(config, monkeypatch))
    assert refused.match(why)
    assert "help: " in str(refused.value)


def test_fewer_gpus_than_ranks_are_refused(gpus: Gpus, monkeypatch: Any) -> None:
    gpus(2)
    for local in (0, 1, 3):
        with pytest.raises(RuntimeFault, match="SW0836") as refused:
            devices.choose(None, Place(local, 4, local, 4))
        assert refused.match("4 ranks on this machine, and 2 GPUs")
    gpus(1)
    with pytest.raises(RuntimeFault, match="and 1 GPU"):
        devices.choose(None, Place(1, 4, 1, 4))
    # Slurm shows each task its own.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert devices.choose(None, Place(3, 4, 3, 4)) == torch.device("cuda", 0)


def test_two_ranks_on_one_gpu_are_told_so() -> None:
    with pytest.raises(RuntimeFault, match="SW0836"), devices.one_each():
        raise RuntimeError("NCCL error\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000")
    with pytest.raises(RuntimeError, match="another"), devices.one_each():
        raise RuntimeError("another")


# ---- by every way to start ---------------------------------------------------------------------


def test_a_script_alone_is_on_the_gpu(gpus: Gpus) -> None:
    gpus(1)
    comm = joining.joined()
    assert isinstance(comm, LocalComm)
    assert comm.device == torch.device("cuda", 0)
    assert joining.joined("cpu").device == torch.device("cpu")


def test_a_job_of_several_tasks_that_runs_as_one_says_so(gpus: Gpus, monkeypatch: Any) -> None:
    gpus(0)
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with pytest.warns(UserWarning, match="start it by `srun`"):
        assert joining.joined().world == 1


@pytest.mark.parametrize(
    ("number", "device", "backend"), [(4, None, "nccl"), (4, "cpu", "gloo"), (0, None, "gloo")]
)
def test_a_group_is_made_for_the_device(
    number: int, device: str | None, backend: str, gpus: Gpus, monkeypatch: Any
) -> None:
    gpus(number)
    made: list[Any] = []
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **options: made.append((args, options)))
    joining._start(Place(5, 8, 1, 4), device, timedelta(seconds=7))
    given_options = {} if backend == "gloo" else {"device_id": torch.device("cuda", 1)}
    assert made == [((backend,), given_options | {"timeout": timedelta(seconds=7)})]


@pytest.mark.parametrize(
    ("number", "backend", "device", "wanted"),
    [
        (2, None, None, (BOTH, "cuda")),
        (1, None, None, ("gloo", "cpu")),
        (0, None, None, ("gloo", "cpu")),
        (2, None, "cpu", ("gloo", "cpu")),
        (2, "gloo", None, ("gloo", "cpu")),
        (2, "nccl", None, ("nccl", "cuda")),
        (2, BOTH, "cpu", (BOTH, "cpu")),
    ],
)
def test_what_launch_starts(
    number: int, backend: str | None, device: str | None, wanted: tuple[str, str], gpus: Gpus
) -> None:
    gpus(number)
    chosen_backend, taken = launch._backend(Place(1, 2, 1, 2), backend, device)
    assert (chosen_backend, taken.type) == wanted
    assert taken.index == (1 if taken.type == "cuda" else None)


def test_launch_refuses_gpus_that_are_not_there(gpus: Gpus) -> None:
    gpus(1)
    with pytest.raises(RuntimeFault, match="SW0836"):
        launch._backend(Place(1, 2, 1, 2), None, "cuda")


def test_a_profile_is_of_gpus_or_says_why_not(gpus: Gpus, monkeypatch: Any) -> None:
    gpus(2)
    with pytest.raises(RuntimeFault, match="SW0836"):
        profile(4)
    asked: list[Any] = []

    def started(*given: Any, device: Any) -> None:
        asked.append(device)
        raise KeyboardInterrupt

    monkeypatch.setattr("shardwright.profiling.measuring.launch", started)
    for number, device in ((2, None), (4, "cpu")):
        with pytest.raises(KeyboardInterrupt):
            profile(number, device)
    assert asked == [None, "cpu"]


def test_parallelize_runs_on_the_device_that_it_is_given(gpus: Gpus) -> None:
    given = torch.nn.Linear(2, 2), torch.ones(4, 2)
    model = sw.parallelize(*given, plan="data", device="cpu", timeout=60)
    assert {x.device.type for x in model.parameters()} == {"cpu"}
    gpus(2)
    with pytest.raises(RuntimeFault, match="SW0837"):
        sw.parallelize(*given, plan="data", device="cuda:2")
    with pytest.raises(RuntimeFault, match="`comm` is given too"):
        sw.parallelize(*given, plan="data", device="cuda", comm=model.comm)
    with pytest.raises(RuntimeFault, match="SW0838"):
        sw.parallelize(*given, plan="data", timeout=-1)


# ---- what a group is, on real ones -------------------------------------------------------------


def _devices_of_groups(rank: int) -> list[Any]:
    return [devices.backends_here(), str(TorchComm(watch=False).device)]


@pytest.mark.processes
def test_a_group_is_asked_for_its_backends_by_device() -> None:
    assert sw.launch(_devices_of_groups, 1, backend="gloo", timeout=100) == [
        {"cpu": "gloo", "cuda": "gloo"},
        "cpu",
    ]
    assert sw.launch(_devices_of_groups, 1, backend="cpu:gloo", timeout=100) == [{"cpu": "gloo"}, "cpu"]


# ---- what PyTorch is told ----------------------------------------------------------------------


def settings() -> dict[str, str]:
    names = [*gpu_settings.ALLOCATOR, *(name for names in gpu_settings.FLIGHT_RECORDER for name in names)]
    return {name: os.environ[name] for name in names if name in os.environ}


RECORDER = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": os.path.join(tempfile.gettempdir(), "nccl_trace_rank_"),
}


def test_a_process_on_a_gpu_lets_segments_grow_and_notes_communications(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    monkeypatch.setattr(torch._C, gpu_settings._TELLS[0], messages.append, raising=False)
    devices.take("cpu")
    assert settings() == {} and not messages
    gpus(2)
    devices.take(None, Place(1, 2, 1, 2))
    assert settings() == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **RECORDER}
    assert messages == ["expandable_segments:True"]


def test_it_is_told_before_a_process_group_is_made(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(1)
    noted: list[dict[str, str]] = []
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: noted.append(settings()))
    joining._start(Place(0, 1, 0, 1), None, None)
    assert len(noted[0]) == 4


@pytest.mark.parametrize("name", gpu_settings.ALLOCATOR)
def test_what_the_user_has_said_of_the_allocator_stays(
    name: str, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(1)
    monkeypatch.setenv(name, "max_split_size_mb:64")
    devices.take()
    assert settings() == {name: "max_split_size_mb:64", **RECORDER}


def test_an_allocator_at_work_is_left_alone(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(1)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 2 << 20)
    devices.take()
    assert settings() == RECORDER


@pytest.mark.parametrize("names", gpu_settings.FLIGHT_RECORDER)
def test_what_the_user_has_said_of_the_recorder_stays(
    names: tuple[str, str], gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(1)
    for name in names:
        with monkeypatch.context() as patch:
            patch.setenv(name, "7")
            patch.setenv("PYTORCH_ALLOC_CONF", "")
            for other in set(RECORDER) - {name}:
                patch.delenv(other, raising=False)
            devices.take()
            assert {**settings(), name: ""} == {
                **{other: value for other, value in RECORDER.items() if other not in names},
                "PYTORCH_ALLOC_CONF": "",
                name: "",
            }
