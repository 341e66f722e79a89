"""How a `LightningModule` runs while it is parallel: its steps as programs, or its children."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer

from ...checkpoint.whole_optimizer import load_whole_optimizer_state, whole_optimizer_state
from ...errors import CaptureError, RuntimeFault
from ...runtime import ParallelModule
from ...runtime.execution import inputs as given_inputs
from ...runtime.optimizers.adopting import adopt
from ...runtime.shards.own_state import parts_are_known
from .step import CALLS, INSIDE, LOGGED, LOSS, RESULT, is_metric, replay


class Originals:
    """The module's own children, parameters and buffers, which come back when the run has ended.

    Meanwhile its parameters have no memory.
    """

    def __init__(self, module: nn.Module, names: Sequence[str] | None):
        """`names` are the children that are parallelized, `None` all of the module."""
        self._module = module
        self._all = names is None
        self.children = {
            name: child
            for name, child in module._modules.items()
            if (names is None and not is_metric(child)) or (names is not None and name in names)
        }
        self._parameters = dict(module._parameters) if self._all else {}
        self._buffers = dict(module._buffers) if self._all else {}
        self._shapes = {name: value.shape for name, value in module.state_dict().items()}
        self.order = list(self._shapes)

    def are_in(self, module: nn.Module) -> bool:
        """Whether a module has all of them, and its tensors have the shapes that they had."""
        shapes = {name: value.shape for name, value in module.state_dict().items()}
        mine = module is self._module and shapes == self._shapes
        return mine and all(module._modules.get(name) is child for name, child in self.children.items())

    def replace_by(self, parallel: Mapping[str, nn.Module | None], whole: ParallelModule | None) -> None:
        """Others are in their places from now on."""
        for tensor in self._tensors().values():
            if isinstance(tensor, nn.Parameter):
                tensor.data = tensor.data.new_empty(0)
        self._module._modules.update(parallel)
        if whole is not None:
            module: Any = self._module
            for name in list(module._parameters):
                module._parameters[name] = whole._parameters.get(name)
            for name in list(module._buffers):
                module._buffers[name] = whole._buffers.get(name)

    def bring_back(self, values: Mapping[str, Tensor]) -> None:
        held = self._tensors()
        self._module._modules.update(self.children)
        self._module._parameters.update(self._parameters)
        self._module._buffers.update(self._buffers)
        filled: set[int] = set()
        for name, value in values.items():
            tensor = held.get(name)
            if tensor is None or id(tensor) in filled:
                continue
            filled.add(id(tensor))
            with torch.no_grad():
                if isinstance(tensor, nn.Parameter):
                    tensor.data = value.detach().to(device="cpu", copy=True)
                    tensor.grad = None
                else:
                    tensor.copy_(value)

    def _tensors(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for child_name, child in self.children.items():
            for named in (child.named_parameters, child.named_buffers) if child is not None else ():
                for name, tensor in named(remove_duplicate=False):
                    tensors[f"{child_name}.{name}"] = tensor
        direct = {**self._parameters, **self._buffers}
        return {**tensors, **{name: tensor for name, tensor in direct.items() if tensor is not None}}


class Steps:
    """The steps are the programs of one parallel model."""

    def __init__(self, module: Any, model: ParallelModule, originals: Originals, micro_batches: bool):
        self.module, self.model, self.originals = module, model, originals
        self.models = [model]
        # Where backward is a part of the step: a pipeline, or a batch that is cut.
        self._whole_steps = micro_batches or model.program.blocks > 1
        self._gathers = model.program.blocks > 1 and not micro_batches
        self._waiting: list[Any] = []
        # Steps that are no programs, and run as they are.
        self._by_hand: set[str] = set()
        self.put_in()

    def put_in(self) -> None:
        """In the places of the module's own."""
        inside = {name: getattr(self.model, name) for name in self.originals.children}
        self.originals.replace_by(inside, self.model)

    @property
    def root(self) -> nn.Module:
        """Of whose state a checkpoint is."""
        return self.model

    def parts(self) -> list[Tensor]:
        """What this rank has of all parameters."""
        return [shard.data for shard in self.model.shards.held]

    def train(self, arguments: Sequence[Any], *, last: bool) -> Any:
        """`last` of the batches whose gradients come together."""
        call = self._call("training_step", arguments)
        if not self._whole_steps:
            return replay(self.module, self.model(*call))
        if self._gathers:
            self._waiting.append(call)
            if not last:
                return _Given.apply(_anchor(), torch.tensor(torch.nan), lambda g: None)
            batches, self._waiting = self._waiting, []
        else:
            batches = [call]
        return self._step(batches)

    def evaluate(self, method: str, arguments: Sequence[Any]) -> Any:
        """A step that does more than compute runs as it is, and calls programs of the modules inside."""
        if method not in self._by_hand:
            try:
                return replay(self.module, self.model(*self._call(method, arguments)))
            except CaptureError as error:
                if any(parameter is not None for parameter in self.module._parameters.values()):
                    raise
                rank_zero_info(f"Shardwright: `{method}` runs as it is on each rank, since {error.what}")
                self._by_hand.add(method)
        with self._called_inside():
            return getattr(self.module, method)(*arguments)

    @contextmanager
    def _called_inside(self) -> Iterator[None]:
        """The module's children, and the module itself, are called as programs."""
        module = self.module
        places = {name: module._modules[name] for name in self.originals.children}
        module._modules.update({name: _Inside(self.model, name, at) for name, at in places.items()})
        module.__dict__["forward"] = _Inside(self.model, "", module)
        try:
            yield
        finally:
            del module.__dict__["forward"]
            module._modules.update(places)

    def adopt(self, optimizer: Optimizer, names: Sequence[Sequence[str]]) -> None:
        adopt(self.model, optimizer, names)

    def _call(self, method: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The number of the batch is left out: there is one program for all."""
        if self.model.training != self.module.training:
            self.model._set_mode(self.module.training, "", True)
        batch, *rest = arguments
        return (method, batch, *([None, *rest[1:]] if rest else []))

    def _step(self, batches: list[Any]) -> Any:
        """Its gradients are kept until the loop asks for a backward: it clears those of before in between."""
        parameters = [shard.data for shard in self.model.shards.held if shard.tensor.kind == "param"]
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        loss = self.model.train_step(batches, None if len(batches) == 1 else 1.0)
        made = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        for parameter, grad in zip(parameters, before, strict=True):
            parameter.grad = grad

        def arrive(factor: Tensor) -> None:
            # On a GPU to look at it would cost more than to multiply by one.
            is_one = factor.device.type == "cpu" and factor.item() == 1
            for parameter, grad in made:
                grad = grad if is_one else grad.mul_(factor.to(grad.device))
                parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)

        assert loss is not None
        value = _Given.apply(_anchor(), loss, arrive)
        for batch in batches:
            replay(self.module, {**self._said(batch), RESULT: loss})
        return value

    def _said(self, call: tuple[Any, ...]) -> dict[str, Any]:
        """What a step gives besides tensors."""
        variants = self.model.variants
        variant = variants.first
        if self._gathers:
            variant = variants.select(given_inputs.read_by(variants, call, {}), only_loss=True)
        captured = variant.captured
        results = captured.unflatten([None] * len(captured.output_names()))
        calls = json.loads(results[CALLS])
        if results[LOGGED]:
            names = [
                call["name"] for call in calls if call["value"] != LOSS and isinstance(call["value"], str)
            ]
            raise RuntimeFault(
                "SW0872",
                f"`training_step` logs {', '.join(names)}, which leave no step of this plan",
                why="its batches are cut into micro-batches, or go through pipeline stages, and a step gives"
                " the loss alone",
                fix="log the loss itself there, and all else in `validation_step`; or take a plan"
                " without pipeline stages, and no `micro_batches`",
            )
        if not self._gathers:  # of a micro-batch
            calls = [{key: value for key, value in call.items() if key != "batch_size"} for call in calls]
        return {LOGGED: [], CALLS: json.dumps(calls)}


class _Inside(nn.Module):
    """A module of the parallel model that is called by itself: a program of the same plan."""

    def __init__(self, model: ParallelModule, path: str, place: nn.Module):
        super().__init__()
        self.__dict__.update(_model=model, _path=path, _place=place)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._model(INSIDE, self._path, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._place, name)
        if not isinstance(inner, nn.Module):
            return inner
        return _Inside(self._model, f"{self._path}.{name}", inner)

    def __getitem__(self, at: Any) -> Any:
        inner = self._place[at]  # type: ignore[index]
        name = next(name for name, child in self._place._modules.items() if child is inner)
        return _Inside(self._model, f"{self._path}.{name}", inner)


class Children:
    """Some children are parallel models, and the steps run as they are, on every rank alike."""

    def __init__(self, module: Any, models: Mapping[str, ParallelModule], originals: Originals):
        self.module, self.originals = module, originals
        self.models = list(models.values())
        originals.replace_by(models, None)

    @property
    def root(self) -> nn.Module:
        return self.module

    def parts(self) -> list[Tensor]:
        return [part for parts in own_names(self.module, self.models).values() for part in parts]

    def train(self, arguments: Sequence[Any], *, last: bool) -> Any:
        return self.module.training_step(*arguments)

    def evaluate(self, method: str, arguments: Sequence[Any]) -> Any:
        return getattr(self.module, method)(*arguments)

    def adopt(self, optimizer: Optimizer, names: Sequence[Sequence[str]]) -> None:
        """Parts of the parallel children, and the module's own parameters beside them."""
        held = own_names(self.module, self.models)
        for group, inside in zip(optimizer.param_groups, names, strict=True):
            group["params"] = [part for name in inside for part in held.get(name, ())]


def own_names(module: nn.Module, models: Sequence[ParallelModule]) -> dict[str, list[Tensor]]:
    """What this rank has of each parameter, by its name in the plain module."""
    held: dict[str, list[Tensor]] = {}
    prefixes = {id(child): f"{name}." for name, child in module._modules.items()}
    inside: set[int] = set()
    for model in models:
        for shard in model.shards.held:
            inside.add(id(shard.data))
            for name in model.names_of(shard.tensor):
                held.setdefault(prefixes.get(id(model), "") + name, []).append(shard.data)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) not in inside:
            held.setdefault(name, []).append(parameter)
    return held


Running = Steps | Children


def whole_state(running: Running, *, rank0_only: bool) -> dict[str, Tensor]:
    """The state dict of the plain module, on rank 0 or on all. All ranks must call this."""
    if isinstance(running, Steps):
        state = running.model.full_state_dict(rank0_only=rank0_only, cpu=True)
    else:
        with parts_are_known():
            state = dict(running.module.state_dict())
        for name, child in running.module.named_children():
            if any(child is model for model in running.models):
                inside = child.full_state_dict(rank0_only=rank0_only, cpu=True)
                state = {key: value for key, value in state.items() if not key.startswith(f"{name}.")}
                state |= {f"{name}.{key}": value for key, value in inside.items()}
        if rank0_only and running.models[0].comm.rank != 0:
            return {}
    order = {key: at for at, key in enumerate(running.originals.order)}
    return dict(sorted(state.items(), key=lambda item: order.get(item[0], len(order))))


def whole_optimizer(running: Running, optimizer: Optimizer, names: Sequence[Sequence[str]]) -> dict[str, Any]:
    return whole_optimizer_state(running.root, optimizer, names)


def load_whole_optimizer(
    running: Running, optimizer: Optimizer, names: Sequence[Sequence[str]], given: Mapping[str, Any]
) -> None:
    load_whole_optimizer_state(running.root, optimizer, names, given)


class _Given(torch.autograd.Function):
    """A loss whose gradients are there already: they arrive where a backward would bring them."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, loss: Tensor, arrive: Callable[[Tensor], None]) -> Any:
        ctx.arrive = arrive
        return loss.detach().clone()

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> Any:  # type: ignore[override]
        ctx.arrive(factor)
        return None, None, None


def _anchor() -> Tensor:
    return torch.zeros((), requires_grad=True)
