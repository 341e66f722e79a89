"""`transformers.Trainer` over a parallel model.

The Trainer keeps its plain model, which it configures, saves and loads; what it trains and evaluates is the
parallel one, which is made of it when the first batch is known. It is one process to the Trainer, whose batch
is that of all processes. An accumulated batch is one step of the program, in micro-batches.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from ...api import parallelize
from ...constraints import ConstraintsLike
from ...data.padding import Lengths
from ...runtime import ParallelModule, clip_grad_norm_
from ...start.auto_plan import AUTO
from ...start.planning import PlanLike
from .captured import captured_as
from .examples import as_before, first_batch, lengths_of
from .one_process import alone, of_one_process, one_process, ranks_as_gpus
from .refused import refuse_arguments, refuse_other_parallelism, refuse_plan
from .scores import arguments_in, open_heads
from .stepping import Names, over_the_shards, whole_state
from .weights import bring_back, hand_out

# Beside the optimizer's state: what the next step depends on besides.
CLOCK = "shardwright.json"


class ParallelTrainer:
    """Before a Trainer among the bases of a class, it trains by a plan.

    `plan`, `cluster`, `constraints` and `lengths` are those of `sw.parallelize`; lengths may be numbers.
    `parallelize_kwargs` are its other options, such as `{"micro_batches": 4, "memory": "80GiB"}`. Everything
    else is the Trainer's own.
    """

    def __init__(
        self: Any,
        *args: Any,
        plan: PlanLike = AUTO,
        cluster: str | None = None,
        constraints: ConstraintsLike | None = None,
        lengths: Any = None,
        parallelize_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._plan = {"plan": plan, "cluster": cluster, "constraints": constraints}
        self._lengths = [lengths] if isinstance(lengths, (int, Lengths)) else lengths
        self._options = dict(parallelize_kwargs or {})
        self._parallel: ParallelModule | None = None
        # The plain model that it was made of, whether for training, and with which results.
        self._made_of: tuple[nn.Module, bool, bool] | None = None
        # Whether the plain model has other values, here or on other ranks.
        self._behind = False
        self._group: list[dict[str, Any]] = []
        self._names: Names = []
        self._loader: Any = None
        self._needs_results = False
        super().__init__(*args, **kwargs)
        refuse_other_parallelism(self, self.args)
        refuse_arguments(self.args)
        self._train_batch_size = self.args.train_batch_size

    # What the Trainer knows of processes and devices.

    def create_accelerator_and_postprocess(self: Any) -> None:
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        self.args = one_process(self.args)
        of_one_process(self.accelerator)

    def _move_model_to_device(self: Any, model: nn.Module, device: torch.device) -> None:
        """Its parts go there."""

    def _get_dataloader(self: Any, *args: Any, **kwargs: Any) -> Any:
        with alone(self.args):
            return super()._get_dataloader(*args, **kwargs)  # type: ignore[misc]

    def _init_training_state(self: Any, *args: Any) -> Any:
        """A checkpoint says the global batch: a warning comes if that is another now."""
        with ranks_as_gpus(self.args):
            return super()._init_training_state(*args)  # type: ignore[misc]

    # The model and its optimizer.

    def _prepare_for_training(self: Any, max_steps: int, train_dataloader: Any, *args: Any) -> Any:
        self._loader, self._group = train_dataloader, []
        made = super()._prepare_for_training(max_steps, train_dataloader, *args)  # type: ignore[misc]
        self.callback_handler.model = self._parallel
        return made

    def evaluation_loop(self: Any, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        self._loader = dataloader
        only_loss = kwargs.get("prediction_loss_only", args[1] if len(args) > 1 else None)
        self._needs_results = not (self.args.prediction_loss_only if only_loss is None else only_loss)
        return super().evaluation_loop(dataloader, *args, **kwargs)  # type: ignore[misc]

    def _wrap_model(self: Any, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        """The parallel model in the place of the plain one."""
        results = self._computes_loss or self.compute_metrics is not None
        if not training:
            results = results or self._needs_results
        made = self._made_of
        fits = made is not None and made[0] is self.model and made[1] >= training and made[2] >= results
        if not fits:
            self._bring_back(everywhere=True)
            # What is trained stays: a model for results is one more, of its values.
            trains = made is not None and made[0] is self.model and made[1] and not training
            result = self._made(training, results)
            if trains:
                return result
            self._parallel, self._made_of = result, (self.model, training, results)
        if training and self.optimizer is not None:
            self._divide_optimizer()
        return self._parallel

    def _made(self: Any, training: bool, results: bool) -> ParallelModule:
        batch = self._with_count(self._prepare_inputs(first_batch(self._loader)))
        if self._computes_loss:
            self.model.train(training)
            open_heads(self.model)
            with as_before():
                batch = arguments_in(self, batch)
        main = getattr(self.model, "main_input_name", "input_ids")
        pad = getattr(self.processing_class, "pad_token_id", None)
        options = {
            "lengths": lengths_of(self._lengths, batch, main, pad),
            "outputs": "all" if results else "loss",
            "device": self.args.device,
            "compile": bool(self.args.torch_compile),
            "batches": self.args.gradient_accumulation_steps if training else 1,
            **self._plan,
            **self._options,
        }
        if self._computes_loss:
            self._divide_reference(batch, options)
        self.model.train(training)
        with as_before():
            result = parallelize(self._captured(), batch, **options)
        refuse_plan(result.program, self._computes_loss)
        return result

    def _divide_reference(self: Any, batch: dict[str, Any], options: Mapping[str, Any]) -> None:
        """What preferences are measured by (DPO): a frozen model of its own, or the base of adapters."""
        reference = getattr(self, "ref_model", self)
        if reference is self or isinstance(reference, ParallelModule):
            return
        base = nullcontext()
        if reference is None:
            reference, adapters = self.model, getattr(self.model, "peft_config", {})
            if not adapters or "ref" in adapters or getattr(self, "precompute_ref_logps", False):
                return
            base = self.model.disable_adapter()
        open_heads(reference)
        with as_before(), base, torch.no_grad():
            self.ref_model = parallelize(reference.eval(), batch, **{**options, "batches": 1})

    def _captured(self: Any) -> nn.Module:
        """The model, with the Trainer's casts and its loss."""
        own_loss = self.label_smoother is not None or self.compute_loss_func is not None
        return captured_as(
            self.model,
            autocast=torch.bfloat16 if self.args.bf16 else None,
            device=self.args.device.type,
            loss=self._loss_inside if own_loss and not self._computes_loss else None,
        )

    def _loss_inside(self: Any, model: nn.Module, inputs: dict[str, Any]) -> tuple[Any, Any]:
        inputs = dict(inputs)
        count = inputs.pop("num_items_in_batch", None)
        if "labels" not in inputs:
            return None, model(**inputs)
        return super().compute_loss(  # type: ignore[misc]
            model, inputs, return_outputs=True, num_items_in_batch=count
        )

    @property
    def _computes_loss(self: Any) -> bool:
        """Whether a class computes the loss in its own way: then all results leave the program."""
        kinds = (kind for kind in type(self).__mro__ if kind is not ParallelTrainer)
        return next(kind for kind in kinds if "compute_loss" in vars(kind)) is not transformers.Trainer

    def _stepped(self: Any) -> Any:
        return getattr(self.optimizer, "optimizer", self.optimizer)

    def _divide_optimizer(self: Any) -> None:
        """Once: it was made for the plain model."""
        plain = self._stepped()
        ours = {id(p) for p in self.model.parameters()}
        if not any(id(p) in ours for group in plain.param_groups for p in group["params"]):
            return
        self.optimizer, self._names = over_the_shards(self._parallel, self.model, plain)
        scheduler = self.lr_scheduler
        if scheduler is not None and getattr(scheduler, "optimizer", None) is plain:
            scheduler.optimizer = self.optimizer

    # A step.

    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        if self._computes_loss:
            self._behind = True
            self._follow_mode(True)
            return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        self._group.append(self._with_count(self._prepare_inputs(inputs), num_items_in_batch))
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.args.device)
        group, self._group = self._group, []
        number, self._behind = len(group), True
        scale = 1.0 if self._is_scaled(num_items_in_batch) else 1.0 / self.current_gradient_accumulation_steps
        return model.train_step(group, scale=scale).detach() * (number * scale)

    def _is_scaled(self: Any, count: Any) -> bool:
        """Whether the loss is already that of the whole group of batches; as the Trainer decides it."""
        said = getattr(self, "loss_is_scaled_for_ga", None)
        if said is not None:
            return bool(said)
        return (self.model_accepts_loss_kwargs and count is not None) or self.compute_loss_func is not None

    def _with_count(self: Any, inputs: Any, count: Any = None) -> dict[str, Any]:
        """With the number of labels of the whole group, where the loss is divided by it."""
        takes = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if self._computes_loss or not (takes or self.label_smoother is not None):
            return dict(inputs)
        if count is None:
            count = self._get_num_items_in_batch([inputs], self.args.device)
        return dict(inputs) if count is None else {**inputs, "num_items_in_batch": count}

    def compute_loss(
        self: Any, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if self._computes_loss or not isinstance(model, ParallelModule):
            self._follow_mode(model.training)
            return super().compute_loss(  # type: ignore[misc]
                model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
            )
        outputs = model(**self._with_count(inputs, num_items_in_batch))
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
        if not return_outputs:
            return loss
        return loss, self._as_long_as(inputs, outputs)

    def _follow_mode(self: Any, training: bool) -> None:
        """Some classes ask the plain model in which mode it is."""
        if self.model.training != training:
            self.model.train(training)

    def _as_long_as(self: Any, inputs: Any, outputs: Any) -> Any:
        """Results without what was filled up."""
        main = inputs.get(getattr(self.model, "main_input_name", "input_ids"))
        if self._lengths is None or not self._needs_results or main is None or main.dim() < 2:
            return outputs
        length = main.shape[1]
        known = [n for one in self._lengths for n in (one.lengths if isinstance(one, Lengths) else [one])]
        padded = min((n for n in known if n >= length), default=length)

        def cut(value: Any) -> Any:
            full = isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == padded
            return value[:, :length] if full else value

        if isinstance(outputs, dict):
            return {name: cut(value) for name, value in outputs.items()}
        return tuple(cut(value) for value in outputs)

    def _clip_grad_norm(self: Any, model: Any) -> Tensor:
        return clip_grad_norm_(model, self.args.max_grad_norm)

    def _get_grad_norm(self: Any, model: Any, grad_norm: Any = None) -> Any:
        return clip_grad_norm_(model, float("inf")) if grad_norm is None else grad_norm

    # Saving and loading.

    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        """After it, the plain model has the trained values on every rank."""
        result = super().train(*args, **kwargs)  # type: ignore[misc]
        self._bring_back(everywhere=True)
        return result

    def _bring_back(self: Any, *, everywhere: bool) -> None:
        if self._parallel is not None and self._behind:
            bring_back(self._parallel, self.model, everywhere=everywhere)
            self._behind = not everywhere

    def save_model(self: Any, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """While it is trained all ranks call this, after it any."""
        self._bring_back(everywhere=False)
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]
        if _internal_call:
            self._meet()

    def _save(self: Any, *args: Any, **kwargs: Any) -> None:
        """Saving notes things in configs, which the other ranks' models would not know."""
        configs = {
            id(c): c for m in self.model.modules() if hasattr(c := getattr(m, "config", None), "__dict__")
        }
        before = {number: dict(vars(config)) for number, config in configs.items()}
        try:
            super()._save(*args, **kwargs)  # type: ignore[misc]
        finally:
            for number, config in configs.items():
                vars(config).clear()
                vars(config).update(before[number])

    def _save_checkpoint(self: Any, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        self._meet()

    def _meet(self: Any) -> None:
        """Before anybody reads what the first rank has written."""
        if self._parallel is not None:
            self._parallel.comm.barrier()

    def _save_rng_state(self: Any, output_dir: str) -> None:
        if self.args.should_save:
            super()._save_rng_state(output_dir)  # type: ignore[misc]

    def _save_optimizer_and_scheduler(self: Any, output_dir: str) -> None:
        """As the Trainer of one device has them."""
        mine = self.optimizer
        self.optimizer = _Saved(whole_state(self._parallel, self._stepped(), self._names))
        try:
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
        finally:
            self.optimizer = mine
        if self.args.should_save:
            Path(output_dir, CLOCK).write_text(json.dumps(self._parallel.clock()), encoding="utf-8")

    def _load_optimizer_and_scheduler(self: Any, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
        file = Path(checkpoint or os.devnull, CLOCK)
        if checkpoint is not None and file.is_file():
            self._parallel.set_clock(json.loads(file.read_text(encoding="utf-8")))

    def _load_from_checkpoint(self: Any, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, self.model)  # type: ignore[misc]
        self._hand_out()

    def _load_best_model(self: Any) -> None:
        super()._load_best_model()  # type: ignore[misc]
        self._hand_out()

    def _hand_out(self: Any) -> None:
        if self._parallel is not None and self._made_of[0] is self.model:
            hand_out(self.model, self._parallel)
            self._behind = False


class _Saved:
    """Of an optimizer, its state."""

    def __init__(self, state: dict[str, Any] | None):
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        assert self._state is not None  # only the first rank saves
        return self._state


class Trainer(ParallelTrainer, transformers.Trainer):  # type: ignore[misc]
    """`transformers.Trainer` with `plan=`, on as many devices as there are processes."""
