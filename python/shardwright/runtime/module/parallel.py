"""A rank's end of a parallel model: an `nn.Module` like the model, with this rank's shards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...errors import RuntimeFault
from ..agreement.agreement import Agreement
from ..agreement.together import each
from ..agreement.trained import Trained
from ..communication.comm import Comm
from ..execution.local_code import LocalCode
from ..execution.micro_batches import MicroBatches
from ..execution.pieces import Pieces
from ..execution.run import Issued
from ..execution.scaling import LossScaling
from ..execution.steady import Steady
from ..execution.variants import Captured, Compile, Variant, Variants
from ..execution.worker import Worker, refuse_another_world
from ..facade.passing import passed_on
from ..facade.places import build, hold, set_attribute, stand_in
from ..guards.clip_guard import refuse_plain_clipping
from ..guards.collective_guard import refuse_mixing
from ..guards.file_guard import refuse_files_of_parts
from ..guards.overflow_guard import find_overflows_together
from ..guards.own_memory import watch
from ..guards.walks import exporting
from ..optimizers.said import Stepping
from ..optimizers.step_guard import guard_steps
from ..programs.program import Program, kept_in
from ..shards.held import alike_everywhere, in_parts
from ..shards.hooks import refuse_hooks_on_parts
from ..shards.own_state import keep_parameters_here, refusal
from ..shards.shards import AnySource, Shards, without_value
from .base import Fill, ProfileStep, SavePretrained
from .calls import Calls
from .positional import Positional
from .steps import Steps
from .values import Values


class ParallelModule(Calls, Steps, Values):
    """`source` gives the model's full tensors by name, one at a time; only parts of them are kept.

    With `inputs="global"` every rank is given the same batch and takes its part; with `"local"`
    each is given its part.
    """

    def __init__(
        self,
        program: Program,
        comm: Comm,
        source: AnySource,
        captured: Captured | None = None,
        *,
        inputs: str = "global",
        randomness: str = "keyed",
        seed: int = 0,
        generator: torch.Generator | None = None,
        training: bool = True,
        skeleton: nn.Module | None = None,
        compile: Compile | None = None,
        example: tuple[Sequence[Any], Mapping[str, Any]] | None = None,
        save_pretrained: SavePretrained | None = None,
        profile_step: ProfileStep | None = None,
        local: LocalCode | None = None,
        micro_batches: MicroBatches | None = None,
        fill: Fill | None = None,
    ):
        """`skeleton` is the model without values, and `compile` makes further programs of it, for calls
        such as `example`. `save_pretrained` writes the model as Transformers does, `profile_step` measures a
        step. `local` compiles what is between communications. `micro_batches` are those of a batch that is
        given to `train_step`. Calls are those that `fill` makes of them."""
        super().__init__()
        captured = captured or Positional()
        program = kept_in(program, captured.kept)
        refuse_another_world(program, comm)
        _refuse_another_device(captured, comm)
        self.shards = Shards.loaded(program, comm.rank, source, comm.device)
        precision = captured.precision
        # Of float16; its state belongs to that of a training run.
        self.loss_scaling = (
            LossScaling(precision, comm, self.shards) if precision and precision.scales else None
        )
        self.worker = Worker(
            program,
            comm,
            self.shards,
            seed=seed,
            randomness=randomness,
            generator=generator,
            reduce=precision.reduce if precision else None,
            scaling=self.loss_scaling,
            local=local,
            modules=skeleton and skeleton.get_submodule,
        )
        _refuse_other_inputs(program, inputs)
        self.inputs = inputs
        self._save_pretrained, self._profile_step = save_pretrained, profile_step
        self._micro_batches, self._fill = micro_batches, fill
        self._example = pytree.tree_map_only(Tensor, without_value, example)
        first = Variant(self.worker, captured)
        number = comm.count_model()
        self._assemble(Variants(first, training, skeleton, compile), f"model {number}" if number else "")
        if captured.fixed:
            each(comm, self.variants.fixed.require)

    def _assemble(self, variants: Variants, called: str) -> None:
        """All that follows from the shards; without a word to other ranks."""
        program, captured = self.program, variants.first.captured
        self.variants = variants
        names = captured.tensor_names(captured.structure)
        self.pieces: Pieces | None = Pieces(program, names) if self.inputs == "local" else None
        self._agreement = Agreement(self.comm, called, self.pieces)
        self._tensors = len(names)
        # Counts forwards of whole batches; part of the key of all random numbers.
        self.step = 0
        # What the latest step communicated.
        self.issued: list[Issued] = []
        # Where steps follow each other without a pause, what is under way between two of them.
        self._steady = Steady()
        self._copies = 0
        # Whether a forward has updated buffers as its backward would, which is yet to come.
        self._owed = False
        self._facade = variants.facade
        self.stepping = Stepping(program)
        self._facade.alike = alike_everywhere(program)
        build(self, self._facade, self._set_mode)
        self._places = hold(self, self.shards, self._facade, self._set_mode)
        shapes = {s.data: torch.Size(s.tensor.shape) for s in self.shards.held if s.tensor.kind == "param"}
        self._in_parts = in_parts(self.shards)
        self._facade.know(shapes, self._in_parts)
        self._facade.state_dict = self._state_below
        variants.trained = Trained(self.shards, stand_in(self.shards, self._facade))
        refuse_plain_clipping(self)
        if watch(self):
            refuse_mixing()
            refuse_files_of_parts()
        find_overflows_together(self)
        refuse_hooks_on_parts(self.shards)
        keep_parameters_here(self.shards)
        guard_steps(self)
        self._show_modes(variants.first_training)
        self._ready = True

    def __deepcopy__(self, memo: dict[int, Any]) -> ParallelModule:
        """Another model with the same values, under the same programs; each rank copies for itself."""
        self._require_finished("a copy of the model")
        made = ParallelModule.__new__(ParallelModule)
        nn.Module.__init__(made)
        made.shards = self.shards.copied()
        memo |= {id(a.data): b.data for a, b in zip(self.shards.held, made.shards.held, strict=True)}
        scaling = self.loss_scaling and self.loss_scaling.copied(made.shards)
        made.loss_scaling, made.worker = scaling, self.worker.copied(made.shards, scaling)
        made.inputs, made._example = self.inputs, self._example
        made._micro_batches, made._fill = self._micro_batches, self._fill
        self._copies += 1
        first = Variant(made.worker, self.variants.first.captured)
        made._assemble(
            self.variants.copied(first), f"copy {self._copies} of {self._agreement.model or 'model 0'}"
        )
        made.step = self.step
        made._show_modes(self.training)
        for name, value in self.__dict__.items():
            if name not in made.__dict__:
                made.__dict__[name] = copy.deepcopy(value, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise refusal("the model")

    def __prepare_scriptable__(self) -> NoReturn:
        """Asked for by `torch.jit.script`."""
        raise exporting()

    @property
    def programs(self) -> list[str]:
        """What has been compiled so far: a line for each mode and shape of the inputs."""
        return self.variants.programs()

    def __getattr__(self, name: str) -> Any:
        """Also what the model itself has under this name."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            facade = self.__dict__.get("_facade")
            if facade is not None and ("", name) in facade.elsewhere:
                return facade.elsewhere["", name]
            if facade is None or facade.skeleton is None:
                raise
        return passed_on(self, facade.skeleton, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_ready" not in self.__dict__ or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            set_attribute(self, self._facade, "", name, value)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """`to`, `cuda` and the like give the module new buffers: the shards follow."""
        _refuse_other_dtypes(self.shards, fn)
        self._require_finished("the model is moved")
        super()._apply(_but(self.shards.on_host(), fn), recurse)  # type: ignore[no-untyped-call]
        self.variants.forget()
        for shard, buffers, name in self._places:
            shard.data = buffers[name]
        self.shards.renew_copies()
        return self

    def extra_repr(self) -> str:
        program = self.program
        return f"{program.model}, plan {program.plan}, rank {self.comm.rank} of {program.world}"

    def _set_mode(self, mode: bool, path: str, alone: bool) -> None:
        self.variants.train(mode, path, alone)
        self._show_modes(mode, path)

    def _show_modes(self, mode: bool, path: str = "") -> None:
        """Modules show the modes that those of the model have."""
        self._other_modes = tuple(f"{path} in another mode" for path in self.variants.modes())
        for module in (
            self.get_submodule(path).modules() if self.variants.skeleton is None else self.modules()
        ):
            at = "" if module is self else module._path
            like = self._facade.at(at)  # type: ignore[arg-type]
            module.__dict__["training"] = mode if like is None else like.training


def _refuse_other_inputs(program: Program, given: str) -> None:
    """What is given of inputs decides what their gradients are."""
    if given != program.given and any(role.gradients for role in program.roles):
        raise RuntimeFault(
            "SW0731",
            f'the program is for inputs="{program.given}", not "{given}"',
            why="the gradient of an input is that of the whole, or that of the rank's part",
            fix=f'compile it with inputs="{given}"',
        )


def _but(staying: Sequence[Tensor], fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """What a function does with all tensors but these."""
    known = {id(x) for x in staying}
    return lambda x: x if id(x) in known else fn(x)


def _refuse_other_dtypes(shards: Shards, fn: Callable[[Tensor], Tensor]) -> None:
    """The program computes in the dtypes that it was proved for."""
    for dtype in dict.fromkeys(shard.data.dtype for shard in shards.held if shard.tensor.held):
        other = fn(torch.zeros((), dtype=dtype)).dtype
        if other != dtype:
            raise RuntimeFault(
                "SW0808",
                f"a parallelized model cannot be converted from {dtype} to {other}",
                why="its program computes in the dtypes that it was compiled and proved for",
                fix="convert the module before `parallelize`, or ask for a precision:"
                ' `sw.parallelize(..., precision="bf16")`',
            )


def _refuse_another_device(captured: Captured, comm: Comm) -> None:
    if captured.device not in (None, comm.device.type):
        raise RuntimeFault(
            "SW0767",
            f"the program is for devices of type {captured.device!r}, and runs on {comm.device.type!r}",
            why="the model uses autocast, which casts other operators on other devices",
            fix="cast explicitly (`x.to(torch.bfloat16)`), or ask for a precision when compiling",
        )
