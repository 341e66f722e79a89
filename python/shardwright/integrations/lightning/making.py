"""From a `LightningModule` and a batch to what runs: its step, or else the children that the step calls."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...api import parallelize
from ...errors import CaptureError, RuntimeFault, ShardwrightError
from .running import Children, Originals, Running, Steps
from .step import step_module


@dataclass(frozen=True)
class Wanted:
    """What the strategy was asked for."""

    options: Mapping[str, Any]
    micro_batches: int | str
    modules: Sequence[str] | Mapping[str, Any] | None


@dataclass
class Made:
    running: Running
    said: str
    ended: bool = False

    def goes_on(self, module: Any) -> bool:
        """Whether it is the module of the run that has ended; then its programs run with the new values."""
        running = self.running
        if not self.ended or not isinstance(running, Steps) or not running.originals.are_in(module):
            return False
        running.model.load_full_state_dict(module.state_dict())
        running.put_in()
        self.ended = False
        return True

    def clock(self) -> dict[str, Any]:
        return {str(at): model.clock() for at, model in enumerate(self.running.models)}

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        for at, model in enumerate(self.running.models):
            if str(at) in clock:
                model.set_clock(clock[str(at)])


def make(wanted: Wanted, module: Any, method: str, batch: Any, device: torch.device) -> Made:
    """`method` is the step that `batch` is for."""
    if wanted.modules is not None:
        return _children(wanted, module, method, batch, device, None)
    if not module.automatic_optimization:
        raise _by_hand()
    originals = Originals(module, None)
    training = method == "training_step"
    micro_batches = wanted.micro_batches if training else 1
    try:
        with _mode(module, training and module.training):
            model = parallelize(
                step_module(module),
                (method, batch, None),
                plan=wanted.options["plan"],
                micro_batches=micro_batches,
                device=device,
                **{name: value for name, value in wanted.options.items() if name != "plan"},
            )
    except CaptureError as error:
        return _children(wanted, module, method, batch, device, error)
    running = Steps(module, model, originals, micro_batches != 1)
    return Made(
        running, f"Shardwright: `{method}` runs on {model.comm.world} ranks, plan {model.program.plan}"
    )


@contextmanager
def _mode(module: nn.Module, training: bool) -> Iterator[None]:
    """The step is captured in the mode that it will run in."""
    modes = {part: part.training for part in module.modules()}
    if not training:
        module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


def _children(
    wanted: Wanted,
    module: Any,
    method: str,
    batch: Any,
    device: torch.device,
    error: CaptureError | None,
) -> Made:
    if wanted.micro_batches != 1:
        raise _needs_step("`micro_batches` cut a batch of a whole step", error)
    asked = wanted.modules
    examples = dict(asked) if isinstance(asked, Mapping) else {}
    names = None if asked is None else list(asked)
    _require_children(module, names)
    if names is None or any(name not in examples for name in names):
        examples = {**_called(module, method, batch, names, error), **examples}
    names = list(examples) if names is None else names
    _require_examples(names, examples, error)
    originals = Originals(module, names)
    models = {}
    for name in names:
        args, kwargs = _arguments(examples[name])
        models[name] = parallelize(
            module._modules[name],
            args,
            kwargs,
            outputs="all",
            device=device,
            **wanted.options,
        )
        if models[name].program.blocks > 1:
            raise _needs_step("a pipeline stage needs the loss inside of the program", error)
    running = Children(module, models, originals)
    module.to(device)
    why = "" if error is None else f", since {error.what}"
    listed = ", ".join(f"`{name}`" for name in names)
    plan = models[names[0]].program.plan
    return Made(
        running, f"Shardwright: {listed} runs on {models[names[0]].comm.world} ranks, plan {plan}{why}"
    )


def _arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, _Call):
        return given.args, given.kwargs
    if isinstance(given, Mapping):
        return (), dict(given)
    return (given,) if isinstance(given, Tensor) else tuple(given), {}


@dataclass(frozen=True)
class _Call:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _called(
    module: Any, method: str, batch: Any, names: Sequence[str] | None, error: CaptureError | None
) -> dict[str, _Call]:
    """The children that a step calls, and with what. It runs once, on a copy."""
    trial = step_module(module)
    trial = copy.deepcopy(trial)
    calls: dict[str, _Call] = {}
    for name, child in trial.named_children():
        if any(True for _ in child.parameters()) and (names is None or name in names):
            child.register_forward_pre_hook(_noting(name, calls), with_kwargs=True)
    method_of = getattr(type(module), method)
    trial.__class__ = _trial_class(type(module))
    try:
        with torch.no_grad():
            method_of(trial, batch, *([0] if _takes_index(method_of) else []))
    except Exception as failure:
        if not calls:
            raise _not_found(method, failure, error) from failure
    return calls


def _trial_class(kind: type) -> type:
    """Nothing that it logs, and nothing of the trainer, is used."""
    silent = {name: lambda self, *_, **__: None for name in ("log", "log_dict", "print")}
    return type(kind.__name__, (kind,), {**silent, "__module__": kind.__module__})


def _takes_index(method: Any) -> bool:
    return method.__code__.co_argcount > 2


def _noting(name: str, calls: dict[str, _Call]) -> Any:
    def note(_: nn.Module, args: Any, kwargs: Any) -> None:
        plain = pytree.tree_map_only(Tensor, lambda x: x.detach().clone(), (args, kwargs))
        calls.setdefault(name, _Call(tuple(plain[0]), dict(plain[1])))

    return note


def _require_children(module: nn.Module, names: Sequence[str] | None) -> None:
    children = [name for name, _ in module.named_children()]
    for name in names or ():
        if name not in children:
            raise RuntimeFault(
                "SW0877",
                f"the `LightningModule` has no child {name!r}",
                why=f"its children are {', '.join(children) or 'none'}",
                fix='name attributes of it that are modules: `ShardwrightStrategy(modules=["model"])`',
            )


def _require_examples(names: Sequence[str], examples: Mapping[str, Any], error: Any) -> None:
    missing = [name for name in names if name not in examples]
    if missing or not names:
        raise RuntimeFault(
            "SW0878",
            f"the step does not call {', '.join(map(repr, missing)) or 'a child of the module'}",
            why="a child is compiled for what it is called with" + _since(error),
            fix='say it: `ShardwrightStrategy(modules={"model": (tensor,)})`',
        )


def _not_found(method: str, failure: Exception, error: CaptureError | None) -> ShardwrightError:
    if error is not None:
        return error
    return RuntimeFault(
        "SW0878",
        f"`{method}` cannot be run to see what it calls its children with",
        why=f"{type(failure).__name__}: {failure}",
        fix='say it: `ShardwrightStrategy(modules={"model": (tensor,)})`',
    )


def _needs_step(why: str, error: CaptureError | None) -> ShardwrightError:
    return RuntimeFault(
        "SW0879",
        "the plan needs the whole `training_step`, and children of the module are parallelized",
        why=why + _since(error),
        fix="take a plan without pipeline stages, and no `micro_batches`; or let the step be pure",
    )


def _since(error: CaptureError | None) -> str:
    return "" if error is None else f"; the step itself is not: {error.what} ({error.place or error.code})"


def _by_hand() -> RuntimeFault:
    return RuntimeFault(
        "SW0878",
        "a `LightningModule` with `automatic_optimization = False` cannot be captured as a whole",
        why="its `training_step` steps optimizers, which no program does",
        fix='name its children, with what they are called with: `modules={"generator": (noise,)}`',
    )
