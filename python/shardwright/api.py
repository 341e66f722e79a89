"""The face: `parallelize` gives a module that looks like the model and is this rank's part of it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .cache import open_cache
from .capture.static_inputs.named import KnownInputs
from .constraints import ConstraintsLike
from .data.padding import LengthsLike, Padding, padding_of
from .errors import RuntimeFault
from .precision import Precision
from .report.memory import OPTIMIZER
from .report.profile_step import profile_step
from .report.progress import Progress, wanted
from .runtime import Comm, ParallelModule, load_program
from .runtime.agreement.alike import Words, kind_of, require_alike
from .runtime.agreement.together import each, from_rank_0
from .runtime.communication.devices import DeviceLike, require_same
from .runtime.communication.joining import joined, seconds_of
from .runtime.execution.inputs import Arguments, arguments_of, plain
from .runtime.execution.local_code import LocalCode
from .runtime.execution.randomness import MODES
from .runtime.optimizers.step_guard import guard_originals
from .runtime.programs.program import GRAPH, TABLES
from .runtime.shards.hooks import carry_hooks
from .start.auto_plan import AUTO
from .start.compiling import Bundle, require_one_of
from .start.edited_program import MADE_OF, PLAN, Edited, EditedStarter, refuse_with_program
from .start.further_programs import compiler_of, skeleton_of
from .start.micro_batches import Cut, made, of_example, of_parts, proved, refuse_unchosen
from .start.options import CallOptions, PlanOptions, plain_options
from .start.outputs import Asked
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
    batches: int = 1,
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
    program: str | Path | None = None,
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
    as many as a step takes least with, as the model is chosen a plan for. `batches` is how many batches like
    the example a step will be given, as a list: a plan that is chosen is the quickest for so many.
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
    `program` is the folder of an emitted program, which may have been edited. It runs in the place of one
    that a plan gives, after it was proved equal to the model; `plan`, `devices`, `cluster`, `constraints` and
    `save_to` do not go with it.
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
    plans = PlanOptions(plan, devices, cluster, constraints, memory, optimizer, batches)
    calls = CallOptions(inputs, outputs, micro_batches, lengths, known_inputs, discover, precision)

    of_a_plan = {
        "plan": None if plan == AUTO else plan,
        "devices": devices,
        "cluster": cluster,
        "constraints": constraints,
        "save_to": save_to,
        "micro_batches": micro_batches,
    }

    def asked() -> dict[str, Any]:
        calls.require()
        if program is not None:
            refuse_with_program(of_a_plan)
        plans.require()
        require_one_of("randomness", randomness, MODES)
        more = {"randomness": randomness, "seed": seed, "program": program, "device": comm.device.type}
        return plain_options(plans, calls, {**more, **_kinds(args, kwargs)})

    require_alike(comm, "sw.parallelize", asked)
    leads = comm.leads
    started = _start(
        module,
        (args, kwargs),
        plans,
        calls,
        comm,
        _Places(program, save_to, cache and leads, leads and wanted(progress)),
    )
    bundle = started.bundle
    loaded = each(
        comm,
        lambda: load_program(
            bundle.files,
            digest=bundle.digest,
            world=comm.world,
            graph=bundle.graph_text,
            memory=bundle.memory,
        ),
    )
    make = partial(values_of, module, bundle.captured.constants, weights, loaded)
    if randomness == "single-device":
        one_generator(comm, torch.default_generator)
    model = ParallelModule(
        loaded,
        comm,
        of_one_model(make, loaded, comm, started.progress.say),
        bundle.captured,
        inputs=inputs,
        randomness=randomness,
        seed=seed,
        training=module.training,
        skeleton=skeleton_of(module, bundle.captured.fixed),
        compile=compiler_of(comm, started.starter),
        example=started.example,
        save_pretrained=save_pretrained,
        profile_step=profile_step,
        local=LocalCode(started.progress) if compile else None,
        micro_batches=None if started.cut is None else made(started.cut, bundle.captured),
        fill=None if started.padding is None else started.padding.fill,
    )
    guard_originals(model, module)
    each(comm, lambda: carry_hooks(module, model.shards))
    return model


@dataclass(frozen=True)
class _Places:
    """Where a program is taken from and written to, and whether that is said."""

    program: str | Path | None
    save_to: str | Path | None
    cache: bool
    progress: bool


@dataclass(frozen=True)
class _Started:
    """What rank 0 has compiled, as each rank has it."""

    starter: Starter
    bundle: Bundle
    cut: Cut | None
    """The batch in micro-batches."""
    example: Arguments
    """Of the program: of one micro-batch."""
    padding: Padding | None
    progress: Progress


def _start(
    module: nn.Module,
    given: tuple[Any, Mapping[str, Any] | None],
    plans: PlanOptions,
    calls: CallOptions,
    comm: Comm,
    places: _Places,
) -> _Started:
    unit, units = units_of(plans.devices, comm.world)
    first, named = given
    args, kwargs = arguments_of(first) if named is None else (first, named)
    example: Arguments = (tuple(map(plain, args)), {name: plain(value) for name, value in kwargs.items()})
    padding = padding_of(calls.lengths, module, calls.inputs)
    if padding is not None:
        args, kwargs = padding.first(*example)
        example = (tuple(args), dict(kwargs))
    says = Progress(places.progress)
    capturing = calls.capturing(comm.device.type)
    choice = None
    edited = None
    if places.program is not None:
        folder = places.program
        edited = from_rank_0(comm, lambda: Edited.read(folder, comm.world))
    elif plans.is_chosen:
        choice = each(comm, lambda: plans.choice(comm, unit, calls.inputs))
    require_one_model(comm, module)
    number: Any = calls.micro_batches
    if number == "auto":
        refuse_unchosen(choice is not None, calls.inputs)
        assert choice is not None
        chosen = ChosenNumber(choice, unit, capturing, places.cache, says)
        number = from_rank_0(comm, lambda: chosen.choose(module, example))
    one, two = of_example(example, number, calls.inputs)
    capturing = of_parts(capturing, number)
    options = {
        "inputs": calls.inputs,
        "outputs": calls.outputs,
        "memory": plans.memory,
        "optimizer": plans.optimizer,
    }
    chosen_for = None if choice is None else replace(choice, batches=number * plans.batches)
    rest = (options, capturing, open_cache(places.cache), says, chosen_for, padding)
    starter = Starter(plans.plan, unit, units, *rest) if edited is None else EditedStarter(edited, *rest)

    def compile_here() -> tuple[Bundle, Cut | None]:
        bundle = starter.first(module, *one, places.save_to)
        if places.save_to is not None:
            save_program(bundle, places.save_to, starter.plan_text)
        return bundle, None if two is None else proved(module, two, bundle.graph_text, capturing)

    bundle, cut = from_rank_0(comm, compile_here)
    return _Started(starter, bundle, cut, one, padding, says)


def _kinds(args: Any, kwargs: Mapping[str, Any] | None) -> dict[str, Words]:
    """By its place in the example what each value is; tensors may have other values on each rank."""
    given = arguments_of(args) if kwargs is None else (args, kwargs)
    leaves, _ = pytree.tree_flatten_with_path(given)
    return {f"example{pytree.keystr(path)}": kind_of(value) for path, value in leaves}


def save_program(bundle: Bundle, folder: str | Path, plan_text: str | None = None) -> Path:
    """Writes an emitted program, its graph and its plan, all files or none."""
    plan = {} if plan_text is None else {PLAN: plan_text}
    return write_files({**bundle.files, GRAPH: bundle.graph_text, **plan}, folder)


def write_files(files: Mapping[str, str], folder: str | Path) -> Path:
    """Puts a folder with these files in the place of another program's, in one step."""
    target = Path(folder)
    try:
        _refuse_other_things(target)
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.absolute().parent) as scratch:
            fresh = Path(scratch, "new")
            fresh.mkdir()
            for name, text in files.items():
                (fresh / name).write_text(text, encoding="utf-8")
            _replace(target, fresh, Path(scratch, "old"))
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
        tables = json.loads((folder / TABLES).read_text(encoding="utf-8"))
        return {TABLES, GRAPH, PLAN, MADE_OF, "__pycache__", *(role["file"] for role in tables["roles"])}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
