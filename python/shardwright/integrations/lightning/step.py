"""A step of a `LightningModule` as a function of its batch: what is captured.

The module that is captured has the parameters, buffers and children of the user's, under the same names.
Its forward is one of the steps: `training_step`, `validation_step`, `test_step`, `predict_step`. What the
step logs leaves it as results. A step that does anything else than compute is refused, with what it did.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...capture import lines
from ...errors import CaptureError

# In place of what the step returned, by name in the result of the module that is captured.
RESULT, LOGGED, CALLS = "step", "logged", "calls"
# In place of a step: a module inside is called, which the next argument names.
INSIDE = "inside"
# Among the calls of `log`: the value is the loss itself.
LOSS = "loss"


@dataclass
class _Run:
    """One run of a step."""

    method: str
    calls: list[dict[str, Any]] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


_run: ContextVar[_Run | None] = ContextVar("a step that is captured", default=None)


def step_module(module: nn.Module) -> nn.Module:
    """Another module of the same parameters, buffers and children, whose call is `(method, *arguments)`."""
    kind = type(module)
    made: nn.Module = kind.__new__(type(kind.__name__, (_Captured, kind), {"__module__": kind.__module__}))
    attributes = dict(vars(module))
    for table in ("_modules", "_parameters", "_buffers"):
        attributes[table] = dict(attributes[table])
    attributes["_modules"] = {
        name: _Metric(name) if is_metric(child) else child for name, child in attributes["_modules"].items()
    }
    attributes |= {"_trainer": None, "_fabric": None}
    made.__dict__.update(attributes)
    return made


def is_metric(module: Any) -> bool:
    """Whether it counts in Python over batches. Who uses metrics has imported them."""
    metrics = sys.modules.get("torchmetrics")
    return metrics is not None and isinstance(module, (metrics.Metric, metrics.MetricCollection))


def replay(module: Any, results: Mapping[str, Any]) -> Any:
    """Logs what a step has logged, and gives what it returned."""
    result = results[RESULT]
    loss = loss_of(result)
    for call in json.loads(results[CALLS]):
        value = call.pop("value")
        if value == LOSS:
            value = loss
        elif isinstance(value, str):
            value = results[LOGGED][int(value)]
        if "reduce_fx" in call:
            call["reduce_fx"] = getattr(torch, call["reduce_fx"])
        module.log(value=value, **call)
    return result


def loss_of(result: Any) -> Any:
    return result.get("loss") if isinstance(result, Mapping) else result


class _Captured:
    """Before the class of the user's module."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        run = _run.get()
        if run is not None:  # the step calls its own module
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        method, batch, *rest = args
        if method == INSIDE:
            return self._inside(batch, *rest, **kwargs)
        run = _Run(method)
        before = _attributes(self)
        token = _run.set(run)
        try:
            result = getattr(self, method)(batch, *([_BatchIndex(), *rest[1:]] if rest else []))
        finally:
            _run.reset(token)
        _refuse_changes(method, before, _attributes(self))
        return _results(run, result)

    def _inside(self, path: str, *args: Any, **kwargs: Any) -> Any:
        token = _run.set(_Run(INSIDE))
        try:
            called: Any = self if not path else self.get_submodule(path)  # type: ignore[attr-defined]
            return called(*args, **kwargs)
        finally:
            _run.reset(token)

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        run = _run.get()
        if run is None:
            return
        if args:
            options |= dict(zip(_LOG_OPTIONS, args, strict=False))
        _note(run, name, value, options)

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        for name, value in dictionary.items():
            self.log(name, value, *args, **options)

    def __setattr__(self, name: str, value: Any) -> None:
        if _run.get() is not None:
            raise _impure(f"sets `self.{name}`")
        super().__setattr__(name, value)

    @property
    def trainer(self) -> Any:
        return _refuse("self.trainer")

    @property
    def fabric(self) -> Any:
        return _refuse("self.fabric")

    @property
    def current_epoch(self) -> Any:
        return _refuse("self.current_epoch")

    @property
    def global_step(self) -> Any:
        return _refuse("self.global_step")

    @property
    def global_rank(self) -> Any:
        return _refuse("self.global_rank")

    @property
    def local_rank(self) -> Any:
        return _refuse("self.local_rank")

    @property
    def logger(self) -> Any:
        return _refuse("self.logger")

    @property
    def loggers(self) -> Any:
        return _refuse("self.loggers")

    def optimizers(self, *args: Any, **kwargs: Any) -> Any:
        return _refuse("self.optimizers()")

    def lr_schedulers(self) -> Any:
        return _refuse("self.lr_schedulers()")

    def manual_backward(self, *args: Any, **kwargs: Any) -> Any:
        return _refuse("self.manual_backward()")

    def print(self, *args: Any, **kwargs: Any) -> Any:
        return _refuse("self.print()")

    def all_gather(self, *args: Any, **kwargs: Any) -> Any:
        return _refuse("self.all_gather()")


_LOG_OPTIONS = ("prog_bar", "logger", "on_step", "on_epoch")
_REDUCTIONS: dict[Any, str] = {
    **{function: function.__name__ for function in (torch.mean, torch.sum, torch.max, torch.min)},
    max: "max",
    min: "min",
    sum: "sum",
}


def _note(run: _Run, name: str, value: Any, options: Mapping[str, Any]) -> None:
    call: dict[str, Any] = {"name": name, **{k: v for k, v in options.items() if v is not None}}
    if "reduce_fx" in call and not isinstance(call["reduce_fx"], str):
        if call["reduce_fx"] not in _REDUCTIONS:
            raise _impure(f"logs {name!r} with a `reduce_fx` of its own")
        call["reduce_fx"] = _REDUCTIONS[call["reduce_fx"]]
    elif "reduce_fx" in call:
        call["reduce_fx"] = call["reduce_fx"].lower()
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise _impure(f"logs {name!r}, which has {value.numel()} elements")
        call["value"] = str(len(run.values))
        run.values.append(value)
    elif isinstance(value, (bool, int, float)):
        call["value"] = float(value)
    else:
        raise _impure(f"logs {name!r}, which is a {type(value).__name__}")
    try:
        json.dumps(call)
    except TypeError:
        raise _impure(f"logs {name!r} with options that are no plain data") from None
    run.calls.append(call)


def _results(run: _Run, result: Any) -> dict[str, Any]:
    loss = loss_of(result)
    if run.method == "training_step" and not isinstance(loss, Tensor):
        raise _impure("returns no loss")
    logged: list[Tensor] = []
    for call in run.calls:
        if isinstance(call["value"], str):
            value = run.values[int(call["value"])]
            if value is loss:
                call["value"] = LOSS
                continue
            call["value"] = str(len(logged))
            logged.append(value.detach().reshape(()))
    apart: Callable[[Tensor], Tensor] = lambda x: x if x is loss else x.detach()  # noqa: E731
    if run.method == "training_step":
        result = pytree.tree_map_only(Tensor, apart, result)
    return {RESULT: result, LOGGED: logged, CALLS: json.dumps(run.calls)}


class _Metric(nn.Module):
    """In place of a metric: what it counts is no result of one step."""

    def __init__(self, name: str):
        super().__init__()
        self._name = name

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        raise _impure(f"updates `self.{self._name}`, a metric")

    update = compute = reset = forward

    def __getitem__(self, _: Any) -> NoReturn:
        self.forward()


class _BatchIndex:
    """In place of `batch_idx`: the program is one for all batches."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise _impure("reads `batch_idx`")

    __int__ = __index__ = __float__ = __bool__ = __add__ = __radd__ = __sub__ = __rsub__ = _refuse
    __mul__ = __rmul__ = __mod__ = __floordiv__ = __truediv__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __eq__ = __ne__ = __hash__ = __str__ = __repr__ = __format__ = _refuse  # type: ignore[assignment]


def _attributes(module: Any) -> dict[str, Any]:
    """By name what the module's containers hold, and how often its metrics were updated."""
    kept: dict[str, Any] = {
        name: [id(x) for x in (value.values() if isinstance(value, dict) else value)]
        for name, value in vars(module).items()
        if isinstance(value, (list, dict, set)) and not name.startswith("_")
    }
    return kept


def _refuse_changes(method: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for name, value in after.items():
        if name not in before or before[name] != value:
            raise _impure(f"changes `self.{name}`", method)


def _refuse(what: str) -> Any:
    """`inspect` and copying look at properties too, outside of a run."""
    if _run.get() is None:
        return None
    raise _impure(f"reads `{what}`" if not what.endswith("()") else f"calls `{what}`")


def _impure(what: str, method: str | None = None) -> CaptureError:
    run = _run.get()
    return CaptureError(
        "SW0871",
        f"`{method or (run.method if run else 'the step')}` {what}",
        place=lines.with_source(lines.trace_of_caller(_models_frame())),
        why="the program is compiled once, of what the step computes of its batch and the module",
        fix="do that in a hook such as `on_train_batch_end`; or name the modules that the step calls,"
        ' `ShardwrightStrategy(modules=["model"])`: these are parallel, and the step runs as it is',
    )


def _models_frame() -> Any:
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame
