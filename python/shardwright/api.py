"""The face: `parallelize` gives a module that looks like the model and is this rank's part of it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .cache import open_cache
from .capture.static_inputs.named import KnownInputs, asked_for
from .constraints import ConstraintsLike, constraints_of, nothing_to_choose
from .data.padding import LengthsLike, filling_of
from .errors import RuntimeFault
from .precision import Precision, precision_of
from .profiling.origin import require_from_here
from .report.memory import OPTIMIZER
from .report.progress import Progress, wanted
from .runtime import Comm, ParallelModule, load_program
from .runtime.agreement.alike import Words, kind_of, require_alike
from .runtime.agreement.together import each, from_rank_0
from .runtime.communication.devices import DeviceLike, require_same
from .runtime.communication.joining import joined, seconds_of
from .runtime.execution.inputs import arguments_of, plain
from .runtime.execution.local_code import LocalCode
from .runtime.execution.randomness import MODES
from .runtime.optimizers.step_guard import guard_originals
from .runtime.shards.hooks import carry_hooks
from .start.auto_plan import AUTO, Choice, cluster_here, cluster_of
from .start.compiling import Bundle, require_one_of
from .start.further_programs import compiler_of, skeleton_of
from .start.micro_batches import Cut, made, of_example, of_parts, proved, refuse_unchosen
from .start.outputs import Asked, require_outputs
from .start.planning import PlanLike
from .start.same_model import require_one_model
from .start.starter import ChosenNumber, Starter, units_of
from .weights import Weights, of_one_model, one_generator, values_of
from .weights.pretrained import save_pretrained


def parallelize(
    module: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    plan: PlanLike = AUTO,
    *,
    devices: int | None = None,
    cluster: str | None = None,
    constraints: ConstraintsLike | None = None,
    micro_batches: int | str = 1,
    lengths: LengthsLike | None = None,
    inputs: str = "global",
    outputs: Asked = "loss",
    randomness: str = "keyed",
    seed: int = 0,
    discover: bool = False,
    known_inputs: KnownInputs = None,
    weights: Weights | None = None,
    precision: str | Precision | None = None,
    memory: int | str | None = None,
    optimizer: str = OPTIMIZER,
    compile: bool = False,
    save_to: str | Path | None = None,
    cache: bool = True,
    progress: bool | None = None,
    device: DeviceLike = None,
    timeout: float | None = None,
    comm: Comm | None = None,
) -> ParallelModule:
    """This rank's part of a model, for the process group it finds itself in.

    `args` and `kwargs` are what one forward of the training loop receives: `args` alone may be a batch,
    as `train_step` takes it. With `inputs="local"` too they are those of a whole batch. Rank 0
    captures, plans, compiles and proves; the others are handed the program. `plan` is `"auto"`, the
    quickest that is found for a `cluster`: a name such as `dgx-h100:8x4`, or its file; without it what is
    known of the devices here. It respects `constraints`: their file, its text, the name of a plan, or
    `Constraints`. Or `plan` is a name (`data`, `megatron`, `data:2 x megatron:2`, `coshard:2`, `replicate`),
    the path of a plan file, a `Plan`, or a function `plan(graph, draft)`. With `devices` it is for a unit of
    so many, and all units together share the batch. With `micro_batches` the program is for one of so many
    equal parts of the batch, of which `train_step` makes the gradients and the loss of the batch; `"auto"` is
    as many as a step takes least with, as the model is chosen a plan for.
    With `lengths`, a `sw.Lengths` or several, calls are filled up to the next of them, and a model that would
    see anything of that is refused.
    `precision` is "bf16", "fp16", "fp32" or a `Precision`; without it the model is computed in the dtypes
    that it has. With `discover` rules are looked for, by trying, for what of the model runs as it is: what
    is found is used, and said. A program is for what the model reads in Python of its inputs,
    where it cannot be captured otherwise, and a call where that is something else gets its own; with
    `known_inputs`, names of arguments, for what it reads of these, `"*"` all, `()` none.
    `weights` are safetensors files, their folder, or tensors by name, for a module that may be on meta;
    each rank reads only its parts. `memory` is what each rank has, in bytes or
    as `"16GiB"`: a plan whose step needs more, with the state of an `optimizer`, is refused. With `compile`
    what is between communications is compiled by `torch.compile`, at the first call.
    `save_to` is a folder for the emitted program. What was compiled before is taken from a cache unless
    `cache` is false; `progress` says whether rank 0 tells what it does.

    `device` is that of this rank: "cpu", "cuda", "cuda:1" or a `torch.device`; without it a GPU if there is
    one, and if the process group, where there is one already, has a backend for it. `timeout` is how many
    seconds a communication may take, in groups that are made here. `comm` is how ranks talk, if not by
    torch.distributed.

    Of inputs that require a gradient each rank gets the gradient of what it is given. `outputs` says what
    else than the loss leaves: `"all"`, names such as `"logits"` or `"hidden_states.*"`, or a dict of them
    to `"whole"` or `"local"`, this rank's part.
    """
    if comm is None:
        comm = joined(device, seconds_of(timeout))
    else:
        require_same(device, comm.device)

    def asked() -> dict[str, Any]:
        require_one_of("inputs", inputs, ("global", "local"))
        if constraints is not None and plan != AUTO:
            raise nothing_to_choose(plan)
        require_outputs(outputs)
        require_one_of("randomness", randomness, MODES)
        return {
            "plan": plan,
            "devices": devices,
            "cluster": cluster,
            "constraints": constraints,
            "micro_batches": micro_batches,
            "lengths": lengths,
            "inputs": inputs,
            "outputs": outputs,
            "randomness": randomness,
            "seed": seed,
            "discover": discover,
            "known_inputs": known_inputs,
            "precision": precision_of(precision),
            "memory": memory,
            "optimizer": optimizer,
            "device": comm.device.type,
            **_kinds(args, kwargs),
        }

    require_alike(comm, "sw.parallelize", asked)
    unit, units = units_of(devices, comm.world)
    if kwargs is None:
        args, kwargs = arguments_of(args)
    example = (tuple(map(plain, args)), {name: plain(value) for name, value in kwargs.items()})
    filling = filling_of(lengths, module, inputs)
    if filling is not None:
        args, kwargs = filling.first(*example)
        example = (tuple(args), dict(kwargs))
    first = comm.leads
    says = Progress(first and wanted(progress))
    capturing = {
        "precision": precision_of(precision),
        "device": comm.device.type,
        "discover": discover,
        "known_inputs": asked_for(known_inputs, inputs),
    }
    choice = None
    if plan == AUTO:
        choice = each(comm, lambda: _choice(cluster, comm, unit, optimizer, memory, constraints, inputs))
    require_one_model(comm, module)
    number: Any = micro_batches
    if number == "auto":
        refuse_unchosen(choice is not None, inputs)
        assert choice is not None
        chosen = ChosenNumber(choice, unit, capturing, cache and first, says)
        number = from_rank_0(comm, lambda: chosen.of(module, example))
    one, two = of_example(example, number, inputs)
    capturing = of_parts(capturing, number)
    starter = Starter(
        plan,
        unit,
        units,
        {"inputs": inputs, "outputs": outputs, "memory": memory, "optimizer": optimizer},
        capturing,
        open_cache(cache and first),
        says,
        None if choice is None else replace(choice, batches=number),
        filling,
    )

    def compile_here() -> tuple[Bundle, Cut | None]:
        bundle = starter.first(module, *one, save_to)
        if save_to is not None:
            save_program(bundle, save_to)
        return bundle, None if two is None else proved(module, two, bundle.graph_text, capturing)

    bundle, cut = from_rank_0(comm, compile_here)
    program = each(
        comm,
        lambda: load_program(
            bundle.files, digest=bundle.digest, world=comm.world, graph=bundle.graph_text, told=bundle.memory
        ),
    )
    make = partial(values_of, module, bundle.captured.constants, weights, program)
    if randomness == "single-device":
        one_generator(comm, torch.default_generator)
    model = ParallelModule(
        program,
        comm,
        of_one_model(make, program, comm, says.say),
        bundle.captured,
        inputs=inputs,
        randomness=randomness,
        seed=seed,
        training=module.training,
        skeleton=skeleton_of(module, bundle.captured.fixed),
        compile=compiler_of(comm, starter),
        example=one,
        save_pretrained=save_pretrained,
        local=LocalCode(says) if compile else None,
        micro_batches=None if cut is None else made(cut, bundle.captured),
        fill=None if filling is None else filling.fill,
    )
    guard_originals(model, module)
    each(comm, lambda: carry_hooks(module, model.shards))
    return model


def _kinds(args: Any, kwargs: Mapping[str, Any] | None) -> dict[str, Words]:
    """By its place in the example what each value is; tensors may have other values on each rank."""
    given = arguments_of(args) if kwargs is None else (args, kwargs)
    leaves, _ = pytree.tree_flatten_with_path(given)
    return {f"example{pytree.keystr(path)}": kind_of(value) for path, value in leaves}


def _choice(
    cluster: str | None,
    comm: Comm,
    devices: int,
    optimizer: str,
    memory: int | str | None,
    constraints: ConstraintsLike | None,
    inputs: str,
) -> Choice:
    if cluster:
        name, text = cluster_of(cluster)
        require_from_here(name, text, comm.device)
    else:
        here = cluster_here(comm.device.type, devices)
        name, text = here.name, here.text
        memory = here.memory if memory is None else memory
    return Choice(name, text, 1, optimizer, memory, None, constraints_of(constraints), inputs)


def save_program(bundle: Bundle, folder: str | Path) -> Path:
    """Writes an emitted program and its graph, all files or none."""
    return write_files({**bundle.files, "graph.txt": bundle.graph_text}, folder)


def write_files(files: Mapping[str, str], folder: str | Path) -> Path:
    """Puts a folder with these files in the place of another program's, in one step."""
    target = Path(folder)
    try:
        _refuse_other_things(target)
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.absolute().parent) as beside:
            fresh = Path(beside, "new")
            fresh.mkdir()
            for name, text in files.items():
                (fresh / name).write_text(text, encoding="utf-8")
            _replace(target, fresh, Path(beside, "old"))
    except OSError as error:
        raise RuntimeFault(
            "SW0725",
            f"the program cannot be written to {target}",
            why=f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""),
            fix="name a folder on a disk that can be written and has room; what was there is as it was",
        ) from error
    return target


def _replace(target: Path, fresh: Path, old: Path) -> None:
    if target.exists():
        target.rename(old)
    try:
        fresh.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise


def _refuse_other_things(target: Path) -> None:
    """Only the files of a program may go: all others are somebody's work."""
    if not target.exists():
        return
    others = {file.name for file in target.iterdir()} - _program_files(target)
    if others:
        raise RuntimeFault(
            "SW0723",
            f"{target} is not overwritten",
            why=f"it holds something else than an emitted program: {', '.join(sorted(others)[:3])}",
            fix="name a new or empty folder",
        )


def _program_files(folder: Path) -> set[str]:
    try:
        tables = json.loads((folder / "program.json").read_text(encoding="utf-8"))
        return {"program.json", "graph.txt", "__pycache__", *(role["file"] for role in tables["roles"])}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
