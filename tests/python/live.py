"""The most bytes that live at once while a program runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from shardwright._core import Compiled
from shardwright.capture import Captured
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import sources


class Live(TorchDispatchMode):
    """Counts the bytes of what operators make, until it is freed: what an allocator would say."""

    def __init__(self, others: Callable[[], int] = lambda: 0) -> None:
        """`others` are bytes of storages that are made beforehand, and longer or shorter meanwhile."""
        super().__init__()
        self.bytes = self.peak = 0
        self._known: set[int] = set()
        self._others = others

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(storage) for x in pytree.tree_leaves((args, kwargs)) for storage in _storages(x)}
        made = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(made):
            for storage in _storages(leaf):
                self._add(storage, given)
        self.peak = max(self.peak, self.bytes + self._others())
        return made

    def _add(self, storage: Any, given: set[int]) -> None:
        key = id(storage)
        if key in self._known or key in given:
            return
        self._known.add(key)
        self.bytes += storage.nbytes()
        weakref.finalize(storage, self._free, key, storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size


def _storages(x: Any) -> list[Any]:
    """The memory of a tensor, or of the two that a sparse one is made of."""
    if not isinstance(x, Tensor):
        return []
    parts = [x._indices(), x._values()] if x.is_sparse else [x]
    return [part.untyped_storage() for part in parts]


def peak(
    compiled: Compiled, module: nn.Module, captured: Captured, step: Callable[[ParallelModule], Any]
) -> int:
    """Of all ranks the most in a training step, besides parameters, inputs and gradients."""
    world = len(compiled.held)
    program = load_program(dict(compiled.files), digest=compiled.digest, world=world)
    values = sources(module, captured)

    def rank(_: int, comm: Any) -> int:
        parallel = ParallelModule(program, comm, values, captured)
        step(parallel)  # gradients are there from here on
        live = Live()
        with live:
            step(parallel)
        return live.peak

    return max(run_local(world, rank))


class Quiet:
    """How ranks talk, with what threads need for it left out: a process group has no copies of its own, and
    holds what it sends until somebody waits for that."""

    def __init__(self, comm: Any):
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._comm, name)
        return self.uncounted(attribute) if callable(attribute) else attribute

    @staticmethod
    def uncounted(method: Callable[..., Any]) -> Callable[..., Any]:
        def quiet(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                work = method(*args, **kwargs)
            return OnItsWay(work, args) if hasattr(work, "wait") else work

        return quiet


class OnItsWay:
    def __init__(self, work: Any, message: Any):
        self._work, self._message = work, message

    def wait(self) -> None:
        self._work.wait()
        self._message = None

    def is_completed(self) -> bool:
        return self._message is None


def of_steps(
    compiled: Compiled, module: nn.Module, captured: Captured, batch: Any, count: int = 1
) -> list[int]:
    """Of each rank the most that lives at once in a step of training with AdamW that is not the first, all
    included: what is held between steps, and the most that a step makes besides. Inputs are left out, and
    the host's memory, and messages between blocks."""
    world = len(compiled.held)
    program = load_program(dict(compiled.files), digest=compiled.digest, world=world)
    values = sources(module, captured)

    def rank(_: int, comm: Any) -> int:
        model = ParallelModule(program, Quiet(comm), values, captured)
        host = model.variants.first.worker.host
        host.room = Quiet.uncounted(host.room)  # type: ignore[method-assign]
        mail = model.variants.first.worker.mail
        mail.send = Quiet.uncounted(mail.send)  # type: ignore[method-assign]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model.train_step([batch] * count)
        optimizer.step()
        optimizer.zero_grad()
        there = {id(shard.data) for shard in model.shards.held if shard.tensor.on_host}
        states = [x for p, state in optimizer.state.items() if id(p) not in there for x in state.values()]
        messages = model.variants.first.worker.kept.values()
        here = [x for x in states if not host.has(x)]
        shards = (shard.data for shard in model.shards.held if not shard.tensor.on_host)
        held = stored([*shards, *here, *messages])
        gathered = [leaf for copy in model.shards.copies for leaf in copy.leaves]
        live = Live(lambda: stored(gathered))
        with live:
            model.train_step([batch] * count)
        # The step of the optimizer has all of its state.
        return held + max(live.peak, live.bytes + stored(gathered) + stored(states) - stored(here))

    return run_local(world, rank)


def of_steps_without_a_pause(
    compiled: Compiled, module: nn.Module, captured: Captured, batch: Any, count: int = 6
) -> list[int]:
    """The same, where between two steps there is more than is held: all is counted from the first on."""
    world = len(compiled.held)
    program = load_program(dict(compiled.files), digest=compiled.digest, world=world)
    values = sources(module, captured)

    def rank(_: int, comm: Any) -> int:
        model = ParallelModule(program, Quiet(comm), values, captured)
        mail = model.variants.first.worker.mail
        mail.send = Quiet.uncounted(mail.send)  # type: ignore[method-assign]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        held = stored([shard.data for shard in model.shards.held])
        live = Live()
        with live:
            for _ in range(4):
                model.train_step([batch] * count)
                with _disable_current_modes():
                    optimizer.step()
                optimizer.zero_grad()
        states = [x for state in optimizer.state.values() for x in state.values()]
        return held + live.peak + stored(states)

    return run_local(world, rank)


def stored(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory behind tensors; what is shared counts once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
