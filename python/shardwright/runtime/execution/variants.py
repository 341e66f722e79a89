"""The programs of one model: one for each mode, structure and shape of a call, over the same shards.

The first is there from the start, and its shards are the model's. Another is made when a call needs
it, by all ranks together. Where it reads a tensor in the same parts, it shares the memory; what it
reads in other parts is *borrowed*: brought from the model's shards before a forward, and its
gradients and new values brought back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ...errors import RuntimeFault, ShardwrightError
from ...precision import Precision
from ..agreement.together import each
from ..agreement.trained import Trained
from ..facade.facade import Facade
from ..guards.fixed_values import FixedValues
from ..programs.parts import asks_for_more
from ..programs.program import Program, kept_in
from ..shards.borrowing import Borrowed
from .inputs import Call, fits, refuse_other_dtypes
from .pieces import refuse_misfits
from .worker import Worker

# From here on a user should hear that every shape costs a compilation.
MANY = 8


class Captured(Protocol):
    """How the model is called: between its arguments and results, and lists of tensors."""

    @property
    def precision(self) -> Precision | None:
        """What gradients are reduced in, and whether the loss is scaled."""

    @property
    def kept(self) -> Mapping[str, torch.dtype]:
        """Dtypes of parameters, by name, that are not those of the program."""

    @property
    def device(self) -> str | None:
        """The type of the devices that the program is for, if it is not for all."""

    @property
    def fixed(self) -> Mapping[str, Any]:
        """Buffers for whose values alone the program is right, with these."""

    @property
    def for_backward(self) -> bool | None:
        """Whether each forward of the program has a backward, where that matters."""

    @property
    def known_names(self) -> Sequence[str]:
        """The inputs on whose values it depends."""

    @property
    def structure(self) -> Hashable:
        """All that the program depends on besides mode, shapes and dtypes."""

    def describe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Hashable, list[Tensor]]:
        """The structure of another call, and its tensors."""

    def is_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether another call has this structure."""

    def tensor_names(self, structure: Hashable) -> list[str]:
        """What a person calls the tensors of a structure, where that is known."""

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]: ...

    def unflatten(self, outputs: Sequence[Tensor | None]) -> Any: ...

    def output_names(self) -> list[str]:
        """Of all results, by their positions; empty where they have none."""


@dataclass(frozen=True)
class Made:
    """What a compilation gives."""

    program: Program
    captured: Captured
    constants: Mapping[str, Tensor]


# Of each module of the skeleton, the model itself first; of a model without one a single word.
Mode = bool | tuple[bool, ...]
# Compiles for a call in the mode of the skeleton's modules, perhaps only for the loss, and perhaps whatever
# the values of inputs are; all ranks ask together.
Compile = Callable[[nn.Module, Sequence[Any], Mapping[str, Any], bool, bool], Made]


@dataclass
class Variant:
    worker: Worker
    captured: Captured
    borrowed: Borrowed | None = None

    def is_of(self, call: Call) -> bool:
        """Whether it is the program for what the model reads of a call, also if that is more than the first
        program's model reads."""
        return self.captured.structure == call.structure or self.captured.is_of(call.args, call.kwargs)

    def suits(self, goes_back: bool) -> bool:
        """Whether it is the program for a forward that a backward follows, or for one without."""
        return self.captured.for_backward in (None, goes_back)

    def before(self) -> None:
        if self.borrowed:
            self.borrowed.refresh()

    def after(self, *, gradients: bool) -> None:
        if self.borrowed:
            self.borrowed.give_back(gradients=gradients)


class Variants:
    """`skeleton` is the model without values; it knows the mode of each of its modules.

    Without a way to compile there is only the first program, for one mode.
    """

    def __init__(
        self,
        first: Variant,
        training: bool,
        skeleton: nn.Module | None = None,
        compile: Compile | None = None,
        facade: Facade | None = None,
    ):
        self.first = first
        self.facade = Facade(skeleton, fixed=compile is None) if facade is None else facade
        self.trained = Trained(first.worker.shards, {})
        self.fixed = FixedValues(first.worker.shards)
        self.fixed.know(first.captured.fixed)
        self._compile = compile
        self._more = asks_for_more(first.worker.program)
        self._mode = self._first_mode = self._modes(training)
        self.first_training = training
        self._known: dict[tuple[Mode, tuple[str, ...], Hashable, bool], list[Variant]] = {}
        self.forget()

    @property
    def skeleton(self) -> nn.Module | None:
        return self.facade.skeleton

    def copied(self, first: Variant) -> Variants:
        """The same for other shards. What was compiled besides is found in the cache."""
        facade = self.facade.copied()
        variants = Variants(first, self.first_training, compile=self._compile, facade=facade)
        variants._mode, variants._first_mode = self._mode, self._first_mode
        variants.forget()
        return variants

    def train(self, mode: bool, path: str = "", alone: bool = False) -> None:
        """The mode of a module and, unless it is meant alone, of all below it."""
        if self.skeleton is not None:
            module = self.skeleton.get_submodule(path)
            if alone:
                module.training = mode
            else:
                module.train(mode)
        if self.skeleton is not None or not path:
            self._mode = self._modes(mode)

    def describe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Hashable, list[Tensor]]:
        """The structure of a call, by what the first program reads of it, and its tensors."""
        return self.first.captured.describe(args, kwargs)

    def read(self, structure: Hashable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
        """What the programs that may be for a call read of it besides: where ranks read other values, they
        would not run the same program."""
        mode = self._mode, self.settings()
        readings = (
            one.captured
            for key, variants in self._known.items()
            for one in variants
            if key[:2] == mode and key[2] == structure != one.captured.structure and one.captured.known_names
        )
        return tuple(str(captured.describe(args, kwargs)[0]) for captured in readings)

    def settings(self) -> tuple[str, ...]:
        """What a loop has changed of the model since: attributes, and parameters that are trained now."""
        return *self.facade.key, *(f"{name} is trained" for name in self.trained.thawed)

    def modes(self) -> tuple[str, ...]:
        """The modules that are in another mode than the model."""
        if self.skeleton is None:
            return ()
        modules = self.skeleton.named_modules()
        return tuple(path for path, module in modules if module.training != self.skeleton.training)

    def select(self, call: Call, *, only_loss: bool = False) -> Variant:
        """The program for a call; a step of training needs `only_loss`. All ranks come here with the
        same call, and meet the same errors."""
        one_block = self.first.worker.program.blocks == 1
        goes_back = only_loss or (torch.is_grad_enabled() and one_block)
        try:
            return self._selected(call, only_loss and self._more, goes_back)
        except ShardwrightError as error:
            error.everywhere = True
            raise

    def workers(self) -> list[Worker]:
        return [self.first.worker, *(variant.worker for known in self._known.values() for variant in known)]

    def forget(self) -> None:
        """Drops all but the first program: the model's shards have got other memory."""
        self._known = {(self._first_mode, (), self.first.captured.structure, False): [self.first]}

    def programs(self) -> list[str]:
        """What each program is for: mode, and the inputs with their whole shapes."""
        return [
            _described(one, mode[0] if isinstance(mode, tuple) else mode, settings)
            for (mode, settings, _, _), variants in self._known.items()
            for one in variants
        ]

    def _selected(self, call: Call, only_loss: bool, goes_back: bool) -> Variant:
        if self._compile is None or self.skeleton is None:
            return self._only(call, goes_back)
        settings = self.settings()
        known = self._known.setdefault((self._mode, settings, call.structure, only_loss), [])
        fitting = (one for one in [*known, *self._that_read_nothing(settings, only_loss)] if one.is_of(call))
        fitting = (one for one in fitting if fits(one.worker, call))
        variant = next((one for one in fitting if one.suits(goes_back)), None)
        if variant is None:
            if call.structure == self.first.captured.structure:
                refuse_other_dtypes(self.first.worker, call.tensors)
            self._thaw()
            general = self._count_of_read() >= MANY - 1
            with torch.set_grad_enabled(goes_back):
                variant = self._made(self._compile(self.skeleton, *call.whole(), only_loss, general))
            known.append(variant)
            self._warn_of_many(settings, general and not variant.captured.known_names)
        refuse_misfits(variant.worker.program, call)
        return variant

    def _that_read_nothing(self, settings: tuple[str, ...], only_loss: bool) -> list[Variant]:
        """Programs that are for any values, also where the first is for what it reads."""
        kind = self._mode, settings, only_loss
        keys = [key for key in self._known if (key[0], key[1], key[3]) == kind]
        return [one for key in keys for one in self._known[key] if not one.captured.known_names]

    def _only(self, call: Call, goes_back: bool) -> Variant:
        if self._mode != self._first_mode:
            names = ("evaluation", "training")
            raise RuntimeFault(
                "SW0728",
                f"the program is for {names[self.first_training]},"
                f" the model is in {names[not self.first_training]} mode",
                why="dropout and batch norm differ between the modes",
                fix="parallelize the model with `sw.parallelize`, which compiles for every mode",
            )
        for name in self.trained.thawed:
            raise _frozen(
                name, "the program was loaded without its model, so no other program can be compiled"
            )
        if not self.first.suits(goes_back):
            raise RuntimeFault(
                "SW0868",
                f"the program is for forwards {'without' if goes_back else 'with'} a backward",
                why="the model updates buffers under `torch.utils.checkpoint`, and again in backward",
                fix="parallelize the model with `sw.parallelize`, which compiles for both",
            )
        self.first.captured.flatten(call.args, call.kwargs)
        return self.first

    def _made(self, made: Made) -> Variant:
        first = self.first.worker
        program = kept_in(made.program, made.captured.kept)
        if made.captured.fixed:
            self.fixed.know(made.captured.fixed)
            each(first.comm, self.fixed.require)
        borrowed = Borrowed(program, first.shards, first.comm, made.constants)
        worker = first.sharing(program, borrowed.shards)
        return Variant(worker, made.captured, borrowed if borrowed.tensors else None)

    def _thaw(self) -> None:
        """The model as it is compiled trains what is trained now."""
        assert self.skeleton is not None
        thawed = self.trained.thawed
        for tensor in self.first.worker.program.parameters():
            if tensor.frozen:
                self.skeleton.get_parameter(tensor.names[0]).requires_grad_(tensor.names[0] in thawed)

    def _count_of_read(self) -> int:
        """How many programs are for what they read."""
        compiled = (one for variants in self._known.values() for one in variants)
        return sum(bool(one.captured.known_names) for one in compiled)

    def _warn_of_many(self, settings: tuple[str, ...], general: bool) -> None:
        count = sum(map(len, self._known.values()))
        if count == MANY and self.first.worker.comm.rank == 0:
            each = "each new shape of an input is another; `sw.pad_to` pads to a few lengths"
            if names := self._read_names():
                each = f"each new shape is another, and whatever else is read of {', '.join(names)}"
            if general:
                each += "; from here on one that reads nothing is for all that is read, in which parts run"
                each += " as they are (`known_inputs=()` has only that one)"
            if settings:
                each = f"such as `{settings[0]}`; what changes often belongs in a buffer or an argument"
            message = f"the model has been compiled for {count} kinds of calls (`model.programs`): {each}"
            warnings.warn(message, stacklevel=4)

    def _read_names(self) -> list[str]:
        """The inputs of which some program reads values."""
        captured = (one.captured for variants in self._known.values() for one in variants)
        return list(dict.fromkeys(name for one in captured for name in one.known_names))

    def _modes(self, mode: bool) -> Mode:
        if self.skeleton is None:
            return mode
        return tuple(module.training for module in self.skeleton.modules())


def _frozen(name: str, why: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0804",
        f"{name!r} was frozen when the model was parallelized, and cannot be trained now",
        why=why,
        fix="let it require a gradient before `parallelize`, and freeze it afterwards:"
        " `requires_grad_(False)` on the parallel model's parameter",
    )


def _described(variant: Variant, training: bool, settings: tuple[str, ...]) -> str:
    if variant.captured.for_backward is False:
        settings = *settings, "without a backward"
    inputs = [tensor for tensor in variant.worker.program.tensors.values() if tensor.kind == "input"]
    shown = [f"{one.names[0]} {str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in inputs]
    mode = ", ".join(["training" if training else "evaluation", *settings])
    return f"{mode}: {', '.join(shown)}"
