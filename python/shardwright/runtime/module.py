"""A rank's end of a parallel model: an `nn.Module` like the model, with this rank's shards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys
from torch.utils import _pytree as pytree

from ..errors import RuntimeFault
from ..precision import Precision
from .agreement.agreement import Agreement
from .agreement.together import each
from .agreement.trained import Trained
from .communication.comm import Comm
from .communication.timed import Notes, recorder
from .communication.watch import inside
from .execution import inputs as given_inputs
from .execution.local_code import LocalCode
from .execution.micro_batches import MicroBatches
from .execution.outside import (
    after_this_backward,
    differentiable,
)
from .execution.pieces import Pieces
from .execution.reach import reach_of, used_anywhere
from .execution.run import Issued, Run, begin
from .execution.scaling import LossScaling
from .execution.shared import handed_round, in_steps_only, known_to_all
from .execution.steady import Steady
from .execution.steps import Step
from .execution.variants import Captured, Compile, Variant, Variants
from .execution.worker import Worker, refuse_another_world
from .facade.absent import marked
from .facade.passing import Whole, passed_on, program_runs
from .facade.places import build, hold, set_attribute, stand_in, walked
from .guards.clip_guard import refuse_plain_clipping
from .guards.collective_guard import refuse_mixing
from .guards.file_guard import refuse_files_of_parts
from .guards.out_of_memory import memory_explained
from .guards.overflow_guard import find_overflows_together
from .guards.own_memory import watch
from .guards.part_gradients import guard
from .guards.walks import exporting, refuse_tracing, refuse_walk
from .optimizers.said import Stepping
from .optimizers.step_guard import guard_steps
from .programs.parts import OutputPart, output_parts
from .programs.program import Program, TensorInfo, kept_in
from .shards import state
from .shards.held import alike_everywhere, in_parts
from .shards.hooks import has_hooks, refuse_hooks_on_parts
from .shards.own_state import keep_parameters_here, parts_are_known, parts_known, refusal, require_whole
from .shards.shards import AnySource, Shards, without_value

if TYPE_CHECKING:
    from ..report.step_profile import StepProfile

# A call with its tensors filled up to the lengths that there are programs for.
Fill = Callable[[Sequence[Any], Mapping[str, Any]], given_inputs.Arguments]
# By which method of the model's own class, and its arguments.
SavePretrained = Callable[["ParallelModule", str, tuple[Any, ...], Mapping[str, Any]], Any]
# Given batches, a cluster, an optimizer and how many steps.
ProfileStep = Callable[["ParallelModule", Any, "str | None", str, int], "StepProfile"]


class Positional:
    """Tensors in, tensors out."""

    structure: Hashable = None
    precision: Precision | None = None
    kept: Mapping[str, torch.dtype] = {}
    device: str | None = None
    fixed: Mapping[str, Any] = {}
    for_backward: bool | None = None
    known_names: Sequence[str] = ()

    def describe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Hashable, list[Tensor]]:
        return None, self.flatten(args, kwargs)

    def is_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        return True

    def tensor_names(self, structure: Hashable) -> list[str]:
        return []

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        return [*args, *kwargs.values()]

    def unflatten(self, outputs: Sequence[Tensor | None]) -> Any:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def output_names(self) -> list[str]:
        return []


class ParallelModule(nn.Module):
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
    def program(self) -> Program:
        return self.worker.program

    @property
    def comm(self) -> Comm:
        return self.worker.comm

    @property
    def programs(self) -> list[str]:
        """What has been compiled so far: a line for each mode and shape of the inputs."""
        return self.variants.programs()

    def train(self, mode: bool = True) -> ParallelModule:
        """The mode of all modules; those of the model that differ are set one by one."""
        self._set_mode(mode, "", False)
        return self

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """As of any module; refused where a wrapper or an exporter walks."""
        refuse_walk(self._facade.alike)
        return walked(self, memo, prefix, remove_duplicate)

    def named_children(self) -> Any:
        """As of any module; refused where a wrapper or an exporter walks."""
        refuse_walk(self._facade.alike)
        return super().named_children()

    def requires_grad_(self, requires_grad: bool = True) -> ParallelModule:
        """Also of parameters of which this rank holds nothing."""
        super().requires_grad_(requires_grad)
        for parameter in self._facade.below(""):
            parameter.requires_grad_(requires_grad)
        return self

    def apply(self, fn: Callable[[nn.Module], Any]) -> Any:
        with Whole("apply", self._facade.all_shapes):
            return super().apply(fn)

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

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs that leave, in the model's own structure; `loss.backward()` works on them."""
        refuse_tracing()
        # `torch.compile` would compile what the runtime does around the program, for minutes.
        return self._as_it_is(args, kwargs) if torch.compiler.is_compiling() else self._call(args, kwargs)

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if (watching := recorder.get()) is not None:
            watching.refuse_call()
        self._require_backward("another forward")
        self.issued = []
        with inside("forward"), program_runs(), memory_explained(self.program, self.comm, "a forward"):
            [call] = self._agreed("forward", lambda: [(args, kwargs)])
            variant = self.variants.select(call)
            several = variant.worker.program.blocks > 1
            saving = torch.is_grad_enabled() and variant.worker.code.trains and not several
            run, outputs = self._forward(variant, call.tensors, saving=saving)
            if several:
                run.worker.mail.clear()
                outputs = handed_round(variant.worker.program, self.comm, outputs)
                if torch.is_grad_enabled():
                    outputs = in_steps_only(variant.worker.program, outputs)
            self._count(variant)
            self._owed = bool(variant.captured.for_backward)
            if saving:
                outputs = differentiable(
                    run, call.tensors, self._parameters_here(), outputs, partial(self._through, run, variant)
                )
            names = variant.captured.output_names()
            return variant.captured.unflatten(marked(variant.worker.program, outputs, names))

    @torch._disable_dynamo  # type: ignore[attr-defined, untyped-decorator]
    def _as_it_is(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._call(args, kwargs)

    def train_step(self, batches: Any, scale: float | None = None) -> Tensor | None:
        """Forward and backward of each batch; gradients are reduced once, at the end.

        The same as `for b in batches: (model(b) * scale).backward()`, `scale` being one over their
        number unless given. `batches` is one batch (a tensor, a tuple of arguments, or a mapping of
        them) or a list of them; a list of tensors is one batch where the model takes several. Returns
        the mean loss, or `None` on a rank that has no loss. Under `2bw` gradients and loss are those of the
        batches of the call before, and of the first call there are none; `finish` has those of the last.
        """
        watching = recorder.get()
        if watching is None:
            return self._train_step(batches, scale)
        notes = watching.begin(self)
        loss = self._train_step(batches, scale, notes)
        notes.close()
        watching.end(notes)
        return loss

    def _train_step(self, batches: Any, scale: float | None, notes: Notes | None = None) -> Tensor | None:
        """`notes` are taken where it is recorded; then all ranks do so."""
        self.issued = [] if notes is None else notes
        self._require_backward("a step")
        self._refuse_hooks_of_calls()
        with inside("train_step"), program_runs(), memory_explained(self.program, self.comm, "a step"):
            micro = self._micro_batches

            def given() -> list[given_inputs.Arguments]:
                calls = given_inputs.batches_of(batches, self._tensors)
                return calls if micro is None else micro.cut([self._filled(batch) for batch in calls])

            kind = "train_step" if notes is None else "train_step, recorded"
            calls = self._agreed(kind, given, scale, says=has_hooks(self._parameters_here()))
            number = len(calls) if micro is None else len(micro.numbers)
            shares = [1.0] * number if micro is None else micro.shares(calls)
            # What counts nothing may have a loss that is no number.
            counted = [(call, share) for call, share in zip(calls, shares, strict=True) if share]
            calls, shares = [call for call, _ in counted], [share for _, share in counted]
            chosen = [self.variants.select(call, only_loss=True) for call in calls]
            step = Step(
                chosen,
                calls,
                shares,
                shards=self.shards,
                inputs=self.inputs,
                number=self.step,
                issued=self.issued,
                hooked=self._agreement.said,
                first=self._steady.first,
            )
            goes_on = chosen[-1].worker.program.goes_on
            # The losses are those of the step before: whoever waits for them waits for nothing of this one.
            before = self._loss_before() if goes_on else None
            with nullcontext() if notes is None else notes.of_step(chosen):
                if goes_on:
                    self._steady.run(step, 1 / number if scale is None else scale, number)
                else:
                    step.run(1 / number if scale is None else scale)
            guard(self._in_parts)
            self._agree_about_overflow({})
            self._count(chosen[-1])
            self._agreement.count_step()
            if goes_on:
                return before
            return known_to_all(chosen[-1].worker.program, self.comm, step.mean(number))

    def profile_step(
        self, batches: Any, cluster: str | None = None, *, optimizer: str = "adamw", steps: int = 5
    ) -> StepProfile:
        """Runs some `train_step`s and says where they take longer than predicted: `print` what this returns.

        The prediction is for a `cluster`, a name or its file, or for the devices here as far as they are
        known. Gradients, buffers and the count of steps are afterwards as they were. All ranks call this.
        """
        if self._profile_step is None:
            raise RuntimeFault(
                "SW0861",
                "this cannot be recorded",
                why="the program was loaded without what measures it",
                fix="make the model by `sw.parallelize`",
            )
        return self._profile_step(self, batches, cluster, optimizer, steps)

    def finish(self) -> Tensor | None:
        """The rest of the last `train_step`, where steps follow each other without a pause (`2bw`).

        Gradients of its batches are in `.grad` then. Returns their mean loss, or `None` if nothing is left.
        All ranks must call this.
        """
        if not self._steady.under_way:
            return None
        self.issued = []
        with self._together("finish"), program_runs():
            loss = self._loss_before()
            self._steady.finish(self.issued)
            guard(self._in_parts)
            return loss

    def _require_backward(self, what: str) -> None:
        """Refuses what sees buffers after a forward whose backward is yet to come."""
        if self._owed:
            raise RuntimeFault(
                "SW0868",
                f"{what}, and the forward before had no backward",
                why="the model updates buffers under `torch.utils.checkpoint`, in forward and again in"
                " backward, and its program has made both updates",
                fix="run each backward before the next forward, and forwards without one under"
                " `torch.no_grad()`; or load the values of before",
            )

    def _require_finished(self, what: str, *, loads: bool = False) -> None:
        """Refuses what would leave out the batch that is under way."""
        if loads:
            self._owed = False
        self._require_backward(what)
        if self._steady.under_way:
            raise RuntimeFault(
                "SW0813",
                f"{what}, while a batch is under way",
                why="the plan runs steps without a pipeline flush: its gradients are yet to come",
                fix="`model.finish()` on all ranks, and `optimizer.step()`, which that batch is yet to have",
            )

    def _loss_before(self) -> Tensor | None:
        """That of the step under way."""
        if not self._steady.under_way:
            return None
        return known_to_all(self._steady.program, self.comm, self._steady.loss())

    def output_regions(self, *args: Any, **kwargs: Any) -> dict[str, OutputPart | None]:
        """By name, which part of each output that leaves this rank gets: `part.of(whole)` takes it out.

        With arguments it is that of a call with these, else that of a call as in the example.
        """
        variant = self.variants.first
        if args or kwargs:
            [call] = self._agreed("output_regions", lambda: [(args, kwargs)])
            variant = self.variants.select(call)
        names = variant.captured.output_names()
        return output_parts(variant.worker.program, self.comm.rank, names)

    def rows_of(self, size: int) -> list[tuple[int, int]]:
        """The rows that each rank reads of a batch of `size`, with `inputs="local"`. All ranks call
        this: it may have to compile the program for that size."""
        assert self.pieces is not None
        variant = self.variants.first
        names = variant.captured.tensor_names(variant.captured.structure)
        if self._example is not None and self.pieces.batch is not None:
            call = given_inputs.call_of(variant.captured, *self._example, values=False)
            with inside("sampler"):
                variant = self.variants.select(self.pieces.resized(call, names, size))
        return self.pieces.rows(variant.worker.program, names, size)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """That of the single-device model, if the plan divides nothing; else it takes `full_state_dict`."""
        return self._state_below("", super().state_dict, args, kwargs)

    def _state_below(self, path: str, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Of a module inside, by all names that tensors have there."""
        self._require_finished("a state dict")
        if parts_known():  # also by whom it is asked for the modules inside
            return plain(*args, **kwargs)
        start = f"{path}." if path else ""
        names = {tensor.id: self.names_of(tensor) for tensor in self.program.saved_tensors()}
        names = {key: [n for n in known if n.startswith(start)] for key, known in names.items()}
        inside = [tensor for tensor in self.program.saved_tensors() if names[tensor.id]]
        require_whole(self.program, inside)
        with parts_are_known():
            state = plain(*args, **kwargs)
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        for shard in self.shards.held:
            for name in names.get(shard.tensor.id, ()):
                data = shard.data if kwargs.get("keep_vars") else shard.data.detach()
                state.setdefault(prefix + name.removeprefix(start), data)
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Takes this rank's parts out of the single-device model's state dict."""
        self._require_finished("values are loaded", loads=True)
        self.variants.fixed.require_whole(state_dict, self.names_of)
        missing, unknown = state.load_full_state_dict(self.shards, state_dict, self.names_of, strict=strict)
        return _IncompatibleKeys(missing, unknown)

    def full_state_dict(self, *, rank0_only: bool = False, cpu: bool = False) -> dict[str, Tensor]:
        """The state dict of the single-device model, on every rank or on rank 0 (`{}` on the others).

        All ranks must call this.
        """
        self._require_finished("a state dict")
        with self._together("full_state_dict"):
            return state.full_state_dict(
                self.shards, self.comm, self.names_of, rank0_only=rank0_only, cpu=cpu
            )

    def save_pretrained(self, folder: str | Path, *args: Any, **options: Any) -> Any:
        """What `save_pretrained` of the model's own class writes, with the values of all ranks.

        All ranks must call this. Of a model of Transformers, with no option but `max_shard_size`, no rank
        ever holds more than one file; else rank 0 has the whole model on its host meanwhile.
        """
        return self._saved("save_pretrained", (folder, *args), options)

    def push_to_hub(self, *args: Any, **options: Any) -> Any:
        """That of the model's own class, on rank 0, which has the whole model on its host meanwhile.

        All ranks must call this.
        """
        return self._saved("push_to_hub", args, options)

    def _saved(self, method: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if self._save_pretrained is None:
            raise TypeError(f"this model was made without `{method}`")
        self._require_finished("the model is saved")
        return self._save_pretrained(self, method, args, options)

    def load_full_state_dict(self, full: Mapping[str, Tensor]) -> None:
        """Takes this rank's parts out of a single-device state dict."""
        self._require_finished("values are loaded", loads=True)
        self.variants.fixed.require_whole(full, self.names_of)
        state.load_full_state_dict(self.shards, full, self.names_of)

    def names_of(self, tensor: TensorInfo) -> list[str]:
        """All names that a parameter or buffer has in the single-device model's state dict."""
        aliases: Mapping[str, str] = getattr(self.variants.first.captured, "buffer_aliases", {})
        return [*tensor.names, *(name for name, first in aliases.items() if first in tensor.names)]

    def clock(self) -> dict[str, Any]:
        """What the next step depends on, besides the program and the parameters: the key of its random
        numbers, and how its loss is scaled."""
        scaling = {"loss_scaling": self.loss_scaling.state_dict()} if self.loss_scaling else {}
        return {"step": self.step, "seed": self.worker.seed, **scaling}

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        self.step = clock["step"]
        if self.loss_scaling and "loss_scaling" in clock:
            self.loss_scaling.load_state_dict(clock["loss_scaling"])
        for worker in self.variants.workers():
            worker.seed = clock["seed"]

    def original_shape(self, parameter: str | Tensor) -> torch.Size:
        """The single-device shape of a parameter, by its name or by this rank's part of it."""
        parameters = dict(self.named_parameters())
        part = parameters.get(parameter) if isinstance(parameter, str) else parameter
        for shard in self.shards.held:
            if shard.data is part:
                return torch.Size(shard.tensor.shape)
        for tensor in self.program.parameters() if isinstance(parameter, str) else ():
            if parameter in tensor.names:
                return torch.Size(tensor.shape)
        raise RuntimeFault(
            "SW0764",
            f"the model has no parameter {parameter if isinstance(parameter, str) else 'like this tensor'!r}",
            fix="give a name of the single-device model, or one of this model's `parameters()`",
        )

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

    def _forward(
        self,
        variant: Variant,
        tensors: list[Tensor],
        *,
        saving: bool,
    ) -> tuple[Run, list[Any]]:
        """A call that stands alone is a step of its own: parameters may have changed since the last."""
        variant.before()
        worker = variant.worker
        if worker.code.begin is not None:
            begin(worker, self.issued, None)
        masks = worker.masks(self.step, 0)
        run = Run(worker, masks, self.issued, modules=worker.modules(self.step, 0), saving=saving)
        outputs = run.forward(given_inputs.parts(worker, tensors, self.inputs))
        variant.after(gradients=False)
        return run, outputs

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

    def _refuse_hooks_of_calls(self) -> None:
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            raise RuntimeFault(
                "SW0806",
                "the model's hooks would not run in `train_step`",
                why="they are hooks of its call",
                fix="`loss = model(...); loss.backward()`, which is the same step"
                if self.program.blocks == 1
                else "remove them, and do before and after `train_step` what they do",
            )

    def _filled(self, call: given_inputs.Arguments) -> given_inputs.Arguments:
        return call if self._fill is None else self._fill(*call)

    @contextmanager
    def _together(self, kind: str) -> Iterator[None]:
        """Around what all ranks do with the model besides calling it."""
        with inside(kind):
            self._agreement.meet(kind, list, names=lambda _: (), training=self.training)
            yield

    def _agreed(
        self,
        kind: str,
        given: Callable[[], Sequence[given_inputs.Arguments]],
        scale: float | None = None,
        says: bool = False,
    ) -> list[given_inputs.Call]:
        captured = self.variants.first.captured

        def make() -> list[given_inputs.Call]:
            self._facade.refuse_changes()
            self.variants.fixed.require()
            return [given_inputs.read_by(self.variants, *self._filled(call)) for call in given()]

        calls = self._agreement.meet(
            kind,
            make,
            names=lambda call: captured.tensor_names(call.structure),
            training=self.training,
            settings=(*self.variants.settings(), *self._other_modes, *self.stepping.settings()),
            scale=scale,
            says=says,
            news=self.variants.trained.has_news(),
        )
        if self._agreement.news:
            self.variants.trained.agree(self.comm)
        return calls

    def _through(
        self, run: Run, variant: Variant, seeds: Sequence[Tensor], used: Sequence[int]
    ) -> tuple[Mapping[int, Tensor], dict[int, Tensor]]:
        """A backward that the caller has started; autograd adds what it gives to parameters."""
        self._owed = False
        program = variant.worker.program
        reach = reach_of(program, used_anywhere(program, self.comm, used, variant.captured.output_names()))
        with (
            program_runs(),
            memory_explained(program, self.comm, "a backward"),
            self.shards.collecting() as arrived,
        ):
            gradients = run.backward(seeds)
            variant.after(gradients=True)
        reach.keep(gradients, arrived, self.shards)
        self._agree_about_overflow(arrived)
        self._agreement.count_step()
        after_this_backward(partial(guard, self._in_parts))
        return gradients, arrived

    def _parameters_here(self) -> list[Tensor]:
        return [shard.data for shard in self.shards.held if shard.tensor.kind == "param"]

    def _agree_about_overflow(self, arrived: Mapping[int, Tensor]) -> None:
        if self.loss_scaling:
            self.loss_scaling.after_backward(arrived)

    def _count(self, variant: Variant) -> None:
        """An evaluation between two steps must not change the masks of the second."""
        if self.training or variant.worker.program.random:
            self.step += 1


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
