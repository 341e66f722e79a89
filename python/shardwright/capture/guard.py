"""What must not happen while a forward is traced, because the graph would silently lose it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NoReturn
from unittest import mock

import torch
from torch.autograd.function import FunctionMeta
from torch.fx.experimental import proxy_tensor

from ..as_python import is_inside
from ..errors import CaptureError
from . import lines
from .autocast import CAST, DEVICE, DEVICES, NOTE, Autocast, Casts, ambient
from .checkpointed_regions import Checkpoints
from .fx_nodes import ASSIGNS, NO_GRAD
from .opaque.functions import Functions

# How a model may set the state that its random numbers come from.
_SEEDS = tuple(
    (home, name)
    for home in (torch, torch.random, torch.cuda)
    for name in ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "fork_rng")
    if hasattr(home, name)
)


@contextmanager
def guarded(device: str | None, module: torch.nn.Module) -> Iterator[None]:
    """Refuses backward passes in forward; makes an operator of each custom Function; notes on nodes what they
    stand under.

    `device` is the type of that which the model, `module`, will run on, if that is known.

    The first refusal is raised at the end too, in case the model's code swallowed it.
    """
    refused: list[CaptureError] = []
    functions = Functions(partial(_refuse, refused))
    autocasts, checkpoints = _Autocasts(device, refused), Checkpoints()
    assigned = _Assigned(module, refused)
    create_node = _with_notes(torch.fx.Graph.create_node, autocasts, checkpoints, functions, assigned)
    casting = partial(autocasts.casts.call, proxy_tensor.proxy_call)
    with (
        mock.patch.object(proxy_tensor, "proxy_call", casting),
        mock.patch.object(FunctionMeta, "__getattribute__", _of_class(functions), create=True),
        checkpoints.noted(),
        autocasts.noted(),
        mock.patch.object(torch.autograd, "_engine_run_backward", _refuse_backward(refused)),
        mock.patch.object(torch.Tensor, "data", _data(assigned), create=True),
        _no_seeds(refused),
        mock.patch.object(torch.nn.Module, "register_buffer", _register_buffer),
        mock.patch.object(torch.fx.Graph, "create_node", create_node),
    ):
        try:
            yield
        except Exception:
            if refused:
                raise refused[0] from None
            raise
    if refused:
        raise refused[0]


def _refuse(refused: list[CaptureError], error: CaptureError) -> NoReturn:
    """Noted too: the model's code may swallow it."""
    refused.append(error)
    raise error


def _of_class(functions: Functions) -> Callable[[type, str], Any]:
    """A method of a class is a function."""
    return lambda kind, name: functions.watch(kind, name)


def _refuse_backward(refused: list[CaptureError]) -> Callable[..., Any]:
    plain = getattr(torch.autograd, "_engine_run_backward")  # noqa: B009

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_inside():
            return plain(*args, **kwargs)
        error = CaptureError(
            "SW0104",
            "the model takes gradients inside its forward",
            place=lines.with_source(lines.trace_of_caller(sys._getframe(1))),
            why="the graph would hold that backward as plain operators, cut from the outer gradient",
            fix="move the call into a module of its own, which then runs as it is, or out of the model; or"
            " write the derivative with operators",
        )
        _refuse(refused, error)

    return run


def _data(assigned: _Assigned) -> property:
    """To the model, the data of a tensor is the tensor without gradient: the graph has no other way past
    autograd, and tracing one ends the process."""
    plain: Any = torch.Tensor.data

    def read(tensor: Any) -> Any:
        return tensor.detach() if lines.is_the_models(sys._getframe(1)) else plain.__get__(tensor)

    def write(tensor: Any, value: Any) -> None:
        if lines.is_the_models(sys._getframe(1)):
            assigned.assign(tensor, value, lines.trace_of_caller(sys._getframe(1)))
        else:
            plain.__set__(tensor, value)

    return property(read, write)


class _Assigned:
    """Data that the model gives to its own parameters and buffers: these are written where they lie."""

    def __init__(self, module: torch.nn.Module, refused: list[CaptureError]):
        self._module, self._refused = module, refused
        self.now = False

    def assign(self, tensor: Any, value: Any, trace: str) -> None:
        held = (*self._module.parameters(), *self._module.buffers())
        alike = isinstance(value, torch.Tensor) and (value.shape, value.dtype) == (tensor.shape, tensor.dtype)
        if not alike or not any(tensor is held_tensor for held_tensor in held):
            error = CaptureError(
                "SW0133",
                "the model gives a tensor other data in its forward",
                place=lines.with_source(trace),
                why="the graph follows this for parameters and buffers of unchanged shape and dtype only",
                fix="compute a new tensor, or keep the value in a buffer and change that with `copy_`",
            )
            _refuse(self._refused, error)
        target, value = tensor.detach(), value.detach()
        self.now = True
        try:
            target.copy_(value)
        finally:
            self.now = False


def _register_buffer(module: torch.nn.Module, name: str, tensor: Any, persistent: bool = True) -> None:
    """What a forward registers is what it computes: kept as an attribute, it is an operator of the graph."""
    if tensor is not None and lines.is_the_models(sys._getframe(1)):
        vars(module)[name] = tensor
    else:
        _REGISTER(module, name, tensor, persistent)


_REGISTER = torch.nn.Module.register_buffer


@contextmanager
def _no_seeds(refused: list[CaptureError]) -> Iterator[None]:
    """Refuses that the model sets the state of PyTorch's generators."""

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if lines.is_the_models(sys._getframe(1)):
                _refuse(refused, _seed_error(lines.trace_of_caller(sys._getframe(1))))
            return original(*args, **kwargs)

        return call

    before = torch.default_generator.initial_seed()
    with ExitStack() as stack:
        for home, name in _SEEDS:
            stack.enter_context(mock.patch.object(home, name, refusing(getattr(home, name))))
        yield
    if torch.default_generator.initial_seed() != before:
        raise _seed_error(None)


def _seed_error(trace: str | None) -> CaptureError:
    return CaptureError(
        "SW0134",
        "the model sets the seed of random numbers in its forward",
        place=lines.with_source(trace),
        why="random numbers are drawn by keys, so a seed has no effect on them",
        fix="set seeds before the forward, or give the random numbers as an input",
    )


class _Autocasts:
    """The autocast that each operator is traced under."""

    def __init__(self, device: str | None, refused: list[CaptureError]):
        self._device, self._refused = device, refused
        self._own = device or DEVICE
        around = dict(ambient())
        if not all(map(self._is_known, around)):
            self._refuse()
        # A region around the model ends after it.
        self._depth, self._regions = len(around), 0
        self._now: list[Autocast | None] = [None]
        if self._own in around:
            self._now = [Autocast(around[self._own], 0, torch.is_autocast_cache_enabled(), self._own)]
        self.casts = Casts(lambda: self.now)

    @property
    def now(self) -> Autocast | None:
        return self._now[-1]

    @contextmanager
    def noted(self) -> Iterator[None]:
        """By what the model asks for: where a device is missing, PyTorch switches it off itself."""
        original_init: Callable[..., None] = torch.autocast.__init__
        original_enter: Callable[..., Any] = torch.autocast.__enter__
        original_exit: Callable[..., Any] = torch.autocast.__exit__
        signature = inspect.signature(original_init)

        def init(autocast: Any, *args: Any, **kwargs: Any) -> None:
            original_init(autocast, *args, **kwargs)
            bound = signature.bind(autocast, *args, **kwargs)
            bound.apply_defaults()
            autocast._shardwright_asked = bool(bound.arguments["enabled"])
            autocast._shardwright_cached = bound.arguments["cache_enabled"] is not False

        def enter(autocast: Any) -> Any:
            asked = getattr(autocast, "_shardwright_asked", autocast._enabled)
            self._enter(autocast, asked, getattr(autocast, "_shardwright_cached", True))
            return original_enter(autocast)

        def leave(autocast: Any, *error: Any) -> Any:
            self._depth -= 1
            self._now.pop()
            return original_exit(autocast, *error)

        with (
            mock.patch.object(torch.autocast, "__init__", init),
            mock.patch.object(torch.autocast, "__enter__", enter),
            mock.patch.object(torch.autocast, "__exit__", leave),
        ):
            yield

    def _enter(self, autocast: Any, asked: bool, cached: bool) -> None:
        if asked and not self._is_known(autocast.device):
            self._refuse()
        self._regions += self._depth == 0
        self._depth += 1
        now = self.now
        if autocast.device == self._own:
            region = now.region if now else self._regions
            now = Autocast(autocast.fast_dtype, region, cached, self._own) if asked else None
        self._now.append(now)

    def _is_known(self, device: str) -> bool:
        """On the CPU what is asked of another device has no effect. On others, that of the CPU would have one
        where graph and module are compared."""
        return device == self._own in DEVICES or device != DEVICE == self._device

    def _refuse(self) -> NoReturn:
        error = CaptureError(
            "SW0106",
            "the model runs under the autocast of another device than it is captured for",
            place=lines.with_source(lines.trace_of_caller(sys._getframe(3))),
            why="what autocast casts depends on the device, and capture knows what it does on CPUs and GPUs",
            fix='name the device that it is captured for (`device="cuda"`), cast explicitly'
            " (`x.to(torch.bfloat16)`), or ask for a precision when compiling",
        )
        _refuse(self._refused, error)


def _with_notes(
    original: Callable[..., torch.fx.Node],
    autocasts: _Autocasts,
    checkpoints: Checkpoints,
    functions: Functions,
    assigned: _Assigned,
) -> Callable[..., torch.fx.Node]:
    """Notes the model's line, where PyTorch would note its own, what recomputes it, and whether gradients
    are on: PyTorch's regions lose that where they are nested. Its later passes copy all of it."""

    def create_node(graph: torch.fx.Graph, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = original(graph, *args, **kwargs)
        if node.op == "call_function":
            node.meta[NO_GRAD] = not functions.grad_enabled
            node.meta[NOTE] = autocasts.now
            if autocasts.casts.casting:
                node.meta["custom"] = {**(node.meta.get("custom") or {}), CAST: True}
            node.meta[ASSIGNS] = assigned.now
            checkpoints.note(node)
            node.stack_trace = lines.trace_of_caller(sys._getframe(1)) or None
        return node

    return create_node
