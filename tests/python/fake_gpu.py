"""Steps of single ranks on a GPU that is not there: a process of its own, for `test_fake_gpu`.

Tensors have shapes and devices and no values, so what mixes devices is refused, and so is what reads a value:
`.item()`, `nonzero`, `.tolist()`, the truth of a tensor. A real device would be waited for there. Autograd is
PyTorch's own, and runs backwards on the thread of the device, as it does for CUDA.

The device is PyTorch's spare one, under another name. Autograd asks the driver about fake tensors of type
`cuda`, in a PyTorch that was built for CUDA and finds no GPU. Streams, which
CUDA alone has, are not tried.
"""

from __future__ import annotations

import json
import pickle
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from equality import scalars
from shardwright.runtime import Alone, ParallelModule, causal, clip_grad_norm_, load_program, optimizer
from shardwright.runtime.agreement import agreement
from shardwright.runtime.execution import randomness
from shardwright.runtime.facade import elsewhere
from shardwright.runtime.guards import part_gradients
from shardwright.runtime.programs.program import TensorInfo
from shardwright.runtime.programs.regions import Region, local_factors, shape_of
from shardwright.runtime.shards import copies
from shardwright.start.compiling import Bundle

DEVICE = "gpu"
Batch = tuple[tuple[Any, ...], dict[str, Any]]


class Empty:
    """Parts of tensors without values."""

    def parts(self, wanted: Sequence[tuple[TensorInfo, Region]], device: torch.device) -> list[Tensor]:
        return [self._part(tensor, region, device) for tensor, region in wanted]

    def _part(self, tensor: TensorInfo, region: Region, device: torch.device) -> Tensor:
        shape = shape_of(local_factors(region, tensor.factors))
        return torch.empty(shape, dtype=tensor.dtype, device="cpu" if tensor.on_host else device)


def steps(bundle: Bundle, batch: Batch, rank: int, micro_batches: int) -> None:
    """Two steps of a rank: as the timetable says, and, where that may be, with the caller's `backward`."""
    program = load_program(bundle.files, digest=bundle.digest, world=bundle.devices)
    with FakeTensorMode():
        model = ParallelModule(program, Alone(rank, bundle.devices, DEVICE), Empty(), bundle.captured)
        args, kwargs = pytree.tree_map_only(Tensor, without_value, batch)
        updating = optimizer(model, torch.optim.SGD, lr=0.1, momentum=0.9)
        one_loss = len(program.seeded) == 1
        for by_timetable in [True] * one_loss + [False] * (program.blocks == 1):
            updating.zero_grad()
            if by_timetable:
                model.train_step([kwargs or args for _ in range(micro_batches)])
            else:
                torch.stack(scalars(model(*args, **kwargs))).sum().backward()
            clip_grad_norm_(model, 1.0)
            updating.step()


def without_value(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=DEVICE).requires_grad_(x.requires_grad)


def stand_in() -> None:
    """For what a tensor without values does not have, and a step on a device does not need."""
    # In the first calls alone the ranks compare what they were given.
    agreement.digest = lambda values: 0
    randomness.torch = Numbers()  # type: ignore[assignment]
    # Their addresses are all the same.
    torch.UntypedStorage.data_ptr = lambda self: self._cdata  # type: ignore[method-assign]
    Tensor.data_ptr = address  # type: ignore[assignment,method-assign]
    # They cannot be of another class, which guards against what a user might do.
    copies.Tensor = Plain  # type: ignore[assignment,misc]
    causal.causal_lower_right = real(causal.causal_lower_right)
    part_gradients.guarded = lambda grad: grad
    standing_for = elsewhere.Elsewhere.standing_for
    elsewhere.Elsewhere.standing_for = staticmethod(real(standing_for))  # type: ignore[method-assign]


def address(x: Tensor) -> int:
    return x.untyped_storage()._cdata + int(x.storage_offset()) * x.element_size()


def real(make: Any) -> Any:
    def made(*args: Any) -> Any:
        with unset_fake_temporarily():
            return make(*args)

    return made


class Plain:
    @staticmethod
    def _make_subclass(kind: object, x: Tensor, grad: bool) -> Tensor:
        return x.detach().requires_grad_(grad)


class Numbers:
    """PyTorch, where every device has a generator."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def Generator(self, device: object) -> torch.Generator:  # noqa: N802
        return torch.Generator()


def outcome_of(file: str) -> str | None:
    """What went wrong, if anything did."""
    try:
        batch, bundle, micro_batches = pickle.loads(Path(file).read_bytes())
        for rank in range(bundle.devices):
            steps(bundle, batch, rank, micro_batches)
    except Exception:
        return traceback.format_exc()
    return None


def main() -> None:
    _setup_privateuseone_for_python_backend(DEVICE)
    torch.set_num_threads(1)
    stand_in()
    for line in sys.stdin:
        print(json.dumps(outcome_of(line.strip())), flush=True)


if __name__ == "__main__":
    main()
