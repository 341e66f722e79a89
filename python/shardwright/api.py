"""The face: `parallelize` gives a module that looks like the model and is this rank's part of it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .compiling import Bundle, PlanLike, compile_model, sources
from .errors import RuntimeFault, ShardwrightError
from .runtime import Comm, LocalComm, ParallelModule, TorchComm, load_program
from .runtime.local import LocalWorld

KEY = "shardwright/program"


def parallelize(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    plan: PlanLike = "data",
    *,
    devices: int | None = None,
    inputs: str = "global",
    outputs: str = "loss",
    randomness: str = "keyed",
    seed: int = 0,
    save_to: str | Path | None = None,
) -> ParallelModule:
    """This rank's part of a model, for the process group it finds itself in.

    `args` and `kwargs` are what one forward of the training loop receives. Rank 0 captures, plans,
    compiles and proves; the others are handed the program. `plan` is a name (`data`, `megatron`,
    `data:2 x megatron:2`, `coshard:2`, `replicate`), the path of a plan file, a `Plan`, or a function
    `plan(graph, draft)`. `save_to` is a folder for the emitted program.
    """
    if inputs not in ("global", "local"):
        raise RuntimeFault("SW0721", f"inputs={inputs!r} is unknown", fix='use "global" or "local"')
    comm = _comm()
    world = comm.world
    if devices is not None and devices != world:
        raise RuntimeFault(
            "SW0722",
            f"the program is for {devices} devices, but {world} ranks are running",
            fix=f"start it with torchrun --nproc-per-node {devices}, or leave `devices` out",
        )
    example = tuple(args) if isinstance(args, (tuple, list)) else (args,)

    def compile_here() -> Bundle:
        bundle, _ = compile_model(module, example, kwargs, plan=plan, devices=world, outputs=outputs)
        if save_to is not None:
            save(bundle, save_to)
        return bundle

    bundle = _from_rank_0(comm, compile_here)
    program = load_program(bundle.files, digest=bundle.digest, world=world)
    return ParallelModule(
        program,
        comm,
        sources(module, bundle.captured),
        bundle.captured,
        inputs=inputs,
        randomness=randomness,
        seed=seed,
    )


def save(bundle: Bundle, folder: str | Path) -> Path:
    """Writes an emitted program and its graph, all files or none."""
    return write_files({**bundle.files, "graph.txt": bundle.graph_text}, folder)


def write_files(files: Mapping[str, str], folder: str | Path) -> Path:
    """Puts a folder with these files in the place of another program's, in one step."""
    target = Path(folder)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    try:
        for name, text in files.items():
            (fresh / name).write_text(text)
        _replace(target, fresh)
    finally:
        _remove(fresh)
    return target


def _replace(target: Path, fresh: Path) -> None:
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    if target.exists():
        if not (target / "program.json").exists() and any(target.iterdir()):
            raise RuntimeFault(
                "SW0723",
                f"{target} is not overwritten",
                why="it holds something else than an emitted program",
                fix="name a new or empty folder",
            )
        target.rename(old)
    fresh.rename(target)
    _remove(old)


def _remove(folder: Path) -> None:
    if folder.exists():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def _comm() -> Comm:
    if not dist.is_initialized() and "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("nccl")
        else:
            dist.init_process_group("gloo")
    return TorchComm() if dist.is_initialized() else LocalComm(LocalWorld(1), 0)


def _from_rank_0(comm: Comm, make: Any) -> Bundle:
    """Rank 0 makes it and hands it to the others through the store; an error reaches all of them."""
    if comm.world == 1:
        return make()
    store = dist.distributed_c10d._get_default_store()
    key = f"{KEY}/{_count()}"
    if comm.rank == 0:
        result: Bundle | ShardwrightError
        try:
            result = make()
        except ShardwrightError as error:
            result = error
        except BaseException:
            store.set(key, pickle.dumps(RuntimeFault("SW0724", "rank 0 failed while it compiled")))
            raise
        store.set(key, pickle.dumps(result))
    else:
        result = pickle.loads(store.get(key))
    if isinstance(result, ShardwrightError):
        raise result
    return result


_calls = 0


def _count() -> int:
    """All ranks parallelize their modules in the same order, so the number names the program."""
    global _calls
    _calls += 1
    return _calls
