"""`Trainer(strategy=ShardwrightStrategy(...))`: the trainer's loop, over a module that runs in parallel.

Each process is given the whole batch: the plan shards it. So a script for one device has the same losses
here, with the same `batch_size`. When a run has ended, the module is the plain one again, with new values.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.fabric.utilities.distributed import (
    _distributed_is_initialized,
    _get_default_process_group_backend_for_device,
    _init_dist_connection,
)
from lightning.pytorch.callbacks import ModelSummary
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.plugins.precision import (
    DoublePrecision,
    HalfPrecision,
    MixedPrecision,
    Precision,
)
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.pytorch.strategies.parallel import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_only
from torch.optim import Optimizer

from ...errors import RuntimeFault
from ...runtime.optimizers.clipping import clip_grad_norm_
from .examples import first_batch, random_kept, random_states, set_random_states, with_whole_batches
from .making import Made, Wanted, make
from .running import load_whole_optimizer, whole_optimizer, whole_state

# What a run depends on besides what Lightning keeps, among the entries of a checkpoint.
CLOCK = "shardwright"
_KINDS = {
    TrainerFn.FITTING: ("fit", "training_step"),
    TrainerFn.VALIDATING: ("validate", "validation_step"),
    TrainerFn.TESTING: ("test", "test_step"),
    TrainerFn.PREDICTING: ("predict", "predict_step"),
}


class ShardwrightStrategy(ParallelStrategy):
    """`plan`, `cluster`, `constraints` and `options` are those of `sw.parallelize`.

    `micro_batches` cuts each batch. `modules` are the children that are parallelized, if not the steps:
    names, or a dict of names to the arguments of a call. `example` is a batch as a step is given it, where
    the loader's first cannot be taken.
    """

    def __init__(
        self,
        plan: Any = "auto",
        *,
        cluster: str | None = None,
        constraints: Any = None,
        micro_batches: int | str = 1,
        modules: Sequence[str] | Mapping[str, Any] | None = None,
        example: Any = None,
        timeout: timedelta | None = default_pg_timeout,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Precision | None = None,
        **options: Any,
    ):
        super().__init__(accelerator, parallel_devices, cluster_environment, checkpoint_io, precision_plugin)
        _refuse_own_options(options)
        given = {"plan": plan, "cluster": cluster, "constraints": constraints, **options}
        self._wanted = Wanted(given, micro_batches, modules)
        self._example, self._timeout = example, timeout
        self.num_nodes = 1
        self._made: Made | None = None
        # By optimizer and group, the parameters' names.
        self._names: list[list[list[str]]] = []
        self._clock: dict[str, Any] | None = None
        self._failed = False

    # ---- processes -----------------------------------------------------------------------------------

    @property
    def is_distributed(self) -> bool:
        """For Lightning that means: give each process another part of each batch."""
        return False

    @property
    def root_device(self) -> torch.device:
        assert self.parallel_devices is not None
        return self.parallel_devices[self.local_rank]

    @property
    def num_processes(self) -> int:
        return len(self.parallel_devices or ())

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        if not self.cluster_environment.creates_processes_externally:
            self._launcher = _SubprocessScriptLauncher(
                self.cluster_environment, self.num_processes, self.num_nodes
            )

    def setup_environment(self) -> None:
        super().setup_environment()
        self.set_world_ranks()
        if self.world_size > 1 and not _distributed_is_initialized():
            device = self.root_device
            backend = _get_default_process_group_backend_for_device(device)
            known = {"device_id": device} if device.type == "cuda" else {}
            assert self.cluster_environment is not None
            _init_dist_connection(self.cluster_environment, backend, timeout=self._timeout, **known)
        # All draw the same batches, also of a script that seeds nothing.
        set_random_states(self.broadcast(random_states()))

    def set_world_ranks(self) -> None:
        if self.cluster_environment is not None:
            self.cluster_environment.set_global_rank(self.node_rank * self.num_processes + self.local_rank)
            self.cluster_environment.set_world_size(self.num_nodes * self.num_processes)
        rank_zero_only.rank = self.global_rank

    def barrier(self, name: str | None = None) -> None:
        if not _distributed_is_initialized():
            return
        if dist.get_backend() == "nccl":
            dist.barrier(device_ids=[self.root_device.index])
        else:
            dist.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if not _distributed_is_initialized():
            return obj
        held = [obj]
        dist.broadcast_object_list(held, src)
        return held[0]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Each rank has what is logged of the whole batch."""
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        if not _distributed_is_initialized():
            return decision
        vote = torch.tensor(int(decision), device=self.root_device)
        dist.all_reduce(vote, dist.ReduceOp.MIN if all else dist.ReduceOp.MAX)
        return bool(vote)

    # ---- precision -----------------------------------------------------------------------------------

    @property
    def precision_plugin(self) -> Precision:
        return self._precision_plugin or Precision()

    @precision_plugin.setter
    def precision_plugin(self, plugin: Precision | None) -> None:
        """None is one that the trainer is yet to choose."""
        if plugin is not None:
            _refuse_other_precisions(plugin)
            plugin.clip_grad_by_norm = self._clip_by_norm  # type: ignore[method-assign]
        self._precision_plugin = plugin

    def _clip_by_norm(self, optimizer: Any, clip_val: float) -> None:
        """Of the gradients of the optimizer's parameters, as Lightning does: others stand aside."""
        if clip_val <= 0:
            return
        running = self._running.running
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        aside = [p for p in running.parts() if id(p) not in stepped and p.grad is not None]
        kept = [p.grad for p in aside]
        for p in aside:
            p.grad = None
        clip_grad_norm_(running.root, clip_val)
        for p, grad in zip(aside, kept, strict=True):
            p.grad = grad

    # ---- setting up and taking down ------------------------------------------------------------------

    def model_to_device(self) -> None:
        """The parts are made where they belong."""

    def setup(self, trainer: Any) -> None:
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        self._failed = False
        # Each rank has what is logged of the whole batch: there is nothing to reduce.
        warnings.filterwarnings("ignore", ".*recommended to use `self.log.*sync_dist=True")
        module = self.lightning_module
        assert module is not None
        module = self.precision_plugin.convert_module(module)
        _metrics_of_the_whole(module)
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting:
            _summarize(trainer, module)
            self.setup_optimizers(trainer)
            self._names = [_names(module, optimizer) for optimizer in self.optimizers]
        kind, method = _KINDS[trainer.state.fn]
        if fitting or self._made is None or not self._made.goes_on(module):
            with random_kept(), self._context(method):
                given = self._example if fitting else None
                example = self._first(trainer, kind) if given is None else given
                self._made = make(self._wanted, module, method, example, self.root_device)
            rank_zero_info(self._running.said)
        module._device = self.root_device
        if self._clock is not None:
            self._running.set_clock(self._clock)
            self._clock = None
        if fitting:
            for optimizer, names in zip(self.optimizers, self._names, strict=True):
                self._take(optimizer, names)
        self.setup_precision_plugin()

    def _first(self, trainer: Any, kind: str) -> Any:
        """As the loop makes a batch ready for a step."""
        assert self.lightning_module is not None
        batch = self.precision_plugin.convert_input(first_batch(trainer, kind))
        return self.lightning_module._apply_batch_transfer_handler(batch, device=torch.device("cpu"))

    def _take(self, optimizer: Optimizer, names: list[list[str]]) -> None:
        running = self._running.running
        before = optimizer.state_dict() if optimizer.state else None
        optimizer.state.clear()
        running.adopt(optimizer, names)
        if before is not None:
            load_whole_optimizer(running, optimizer, names, before)

    @property
    def _running(self) -> Made:
        assert self._made is not None
        return self._made

    def on_exception(self, exception: BaseException) -> None:
        self._failed = True

    def teardown(self) -> None:
        """The module is the plain one again, with its new values, on every rank."""
        made = self._made
        if made is not None and not made.ended and not self._failed:
            made.running.originals.bring_back(whole_state(made.running, rank0_only=False))
            made.ended = True
        self.precision_plugin.teardown()
        assert self.accelerator is not None and self.cluster_environment is not None
        self.cluster_environment.teardown()
        self.accelerator.teardown()
        self.checkpoint_io.teardown()

    # ---- steps ---------------------------------------------------------------------------------------

    def _context(self, method: str) -> AbstractContextManager[Any]:
        plugin = self.precision_plugin
        kinds = {
            "training_step": plugin.train_step_context,
            "validation_step": plugin.val_step_context,
            "test_step": plugin.test_step_context,
            "predict_step": plugin.predict_step_context,
        }
        return kinds[method]()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        assert self.lightning_module is not None
        last = True
        if self.lightning_module.automatic_optimization:
            last = not self.lightning_module.trainer.fit_loop._should_accumulate()
        with self._context("training_step"):
            return self._running.running.train([*args, *kwargs.values()], last=last)

    def _evaluated(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with self._context(method):
            return self._running.running.evaluate(method, [*args, *kwargs.values()])

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluated("validation_step", args, kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluated("test_step", args, kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._evaluated("predict_step", args, kwargs)

    def process_dataloader(self, dataloader: Any) -> Any:
        return with_whole_batches(dataloader)

    # ---- checkpoints ---------------------------------------------------------------------------------

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """That of the plain module, on rank 0, which writes it."""
        made = self._made
        if made is None or made.ended:
            assert self.lightning_module is not None
            return self.lightning_module.state_dict()
        return whole_state(made.running, rank0_only=True)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        if isinstance(optimizer, LightningOptimizer):
            optimizer = optimizer.optimizer
        at = next(at for at, one in enumerate(self.optimizers) if one is optimizer)
        return whole_optimizer(self._running.running, optimizer, self._names[at])

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        states = checkpoint["optimizer_states"]
        for optimizer, names, state in zip(self.optimizers, self._names, states, strict=True):
            load_whole_optimizer(self._running.running, optimizer, names, state)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        if self._made is not None:
            checkpoint[CLOCK] = self._made.clock()
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)
        self._clock = checkpoint.get(CLOCK)
        return checkpoint


def _metrics_of_the_whole(module: torch.nn.Module) -> None:
    """Each rank's metrics see whole batches: what all have counted together would be too much."""
    metrics = sys.modules.get("torchmetrics")
    for part in module.modules() if metrics else ():
        if isinstance(part, metrics.Metric):  # type: ignore[union-attr]
            part.distributed_available_fn = _never


def _never() -> bool:
    return False


def _summarize(trainer: Any, module: Any) -> None:
    """Of the plain module: the callback would ask for hooks on what is parallel by then."""
    for callback in trainer.callbacks:
        if isinstance(callback, ModelSummary) and callback._max_depth:
            summary = ModelSummary._summary(callback, trainer, module)
            callback._summary = partial(_known, summary)  # type: ignore[method-assign]


def _known(summary: Any, *_: Any) -> Any:
    return summary


def _names(module: torch.nn.Module, optimizer: Optimizer) -> list[list[str]]:
    known = {id(parameter): name for name, parameter in module.named_parameters()}
    strange = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    if strange:
        raise RuntimeFault(
            "SW0875",
            f"an optimizer has {len(strange)} parameters that are not the module's",
            why="they would be trained by each rank for itself",
            fix="make them attributes of the `LightningModule`",
        )
    return [[known[id(p)] for p in group["params"]] for group in optimizer.param_groups]


def _refuse_own_options(options: Mapping[str, Any]) -> None:
    elsewhere = {
        "inputs": "each process is given the whole batch",
        "precision": "it is the trainer's: `Trainer(precision=...)`",
        "device": "it is the trainer's: `Trainer(accelerator=...)`",
        "weights": "they are the module's: `Trainer.fit(ckpt_path=...)`",
        "comm": "the processes are the trainer's",
        "program": "a program is made of the module's steps",
    }
    for name in options:
        if name in elsewhere:
            raise RuntimeFault(
                "SW0876",
                f"`ShardwrightStrategy` does not take `{name}`",
                why=elsewhere[name],
                fix="leave it out",
            )


def _refuse_other_precisions(plugin: Precision) -> None:
    kind = type(plugin)
    known = kind in (Precision, DoublePrecision)
    known |= kind is HalfPrecision and plugin.precision == "bf16-true"
    known |= kind is MixedPrecision and plugin.precision == "bf16-mixed"
    if not known:
        raise RuntimeFault(
            "SW0870",
            f"precision {plugin.precision!r} of Lightning ({kind.__name__}) does not go with this strategy",
            why="a plugin that scales the loss, or replaces layers, does so around a module on one device",
            fix='take "32-true", "bf16-mixed", "bf16-true" or "64-true"',
        )
