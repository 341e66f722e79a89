"""What the Trainer knows of processes: one, which has the batch of all.

A parallel model is given whole batches on every rank, and each rank has the loss of the whole batch. So the
Trainer shards no batch, adds up no loss and wraps no model. Who writes and logs is still the first rank.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType
from transformers import TrainingArguments
from transformers.training_args import ParallelMode


class _OneProcess:
    """Over a class of training arguments."""

    # Whether even the index is that of one process: it seeds workers of a loader, which must agree.
    _alone = False
    # Whether ranks are what GPUs of one process are: where the batch of a checkpoint is compared.
    _as_gpus = False

    @property
    def n_gpu(self) -> int:
        return self.ranks if self._as_gpus else int(super().n_gpu)  # type: ignore[misc]

    @property
    def ranks(self) -> int:
        """The processes that there are."""
        state = getattr(self, "distributed_state", None)
        return 1 if state is None else int(state.num_processes)

    @property
    def world_size(self) -> int:
        return 1

    @property
    def process_index(self) -> int:
        return 0 if self._alone else int(super().process_index)  # type: ignore[misc]

    @property
    def parallel_mode(self) -> ParallelMode:
        return ParallelMode.NOT_PARALLEL

    @property
    def train_batch_size(self) -> int:
        return self._of_all(self.per_device_train_batch_size)  # type: ignore[attr-defined]

    @property
    def eval_batch_size(self) -> int:
        return self._of_all(self.per_device_eval_batch_size)  # type: ignore[attr-defined]

    def _of_all(self, of_one: int) -> int:
        split = getattr(self.accelerator_config, "split_batches", False)  # type: ignore[attr-defined]
        return of_one if split else of_one * self.ranks

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as what the user gave."""
        return copyreg._reconstructor, (type(self).__bases__[1], object, None), self.__dict__  # type: ignore[attr-defined]


def one_process(args: TrainingArguments) -> Any:
    """The same arguments, seen by one process: a change of either is one of both."""
    if isinstance(args, _OneProcess):
        return args
    kind: Any = type(args)
    seen: Any = object.__new__(_class_over(kind))
    seen.__dict__ = args.__dict__
    return seen


@functools.cache
def _class_over(kind: Any) -> type:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (_OneProcess, kind), names)


@contextmanager
def alone(args: Any) -> Iterator[None]:
    """In here every process has the index of the first."""
    with _said(args, "_alone"):
        yield


@contextmanager
def ranks_as_gpus(args: Any) -> Iterator[None]:
    """In here the ranks share a batch as GPUs of one process do."""
    with _said(args, "_as_gpus"):
        yield


@contextmanager
def _said(args: Any, name: str) -> Iterator[None]:
    setattr(args, name, True)
    try:
        yield
    finally:
        delattr(args, name)


class OneProcessAccelerator(Accelerator):
    """Loaders give whole batches, and what a rank has is what all have."""

    def __init__(self) -> None:
        raise TypeError("it takes the place of an Accelerator that is there")

    @property
    def distributed_type(self) -> DistributedType:
        return DistributedType.NO

    @property
    def use_distributed(self) -> bool:
        return False

    @property
    def num_processes(self) -> int:
        return 1

    @property
    def process_index(self) -> int:
        return 0

    @property
    def dispatch_batches(self) -> bool:
        return False

    @property
    def split_batches(self) -> bool:
        return False

    def gather(self, tensor: Any) -> Any:
        return tensor

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        return tensor

    def pad_across_processes(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        """Its state is where the shards are."""
        return super().prepare_optimizer(optimizer, device_placement=False)


def of_one_process(accelerator: Accelerator) -> None:
    accelerator.__class__ = OneProcessAccelerator
