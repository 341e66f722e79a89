"""Wrappers, exporters and collectives by hand over a parallel model are harmless, or refused at once."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors
from torch.distributed._composable import replicate
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.utils import _sync_params_and_buffers
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import SGD

import forked
import shardwright as sw
from a_loop import Net, assert_equal_training, on_ranks
from runtime_programs import mlp
from test_optimizer import BATCHES as GIVEN
from test_optimizer import PROGRAMS
from test_optimizer import on_ranks as on_programs

torch.set_num_threads(1)


MESHES: list[Any] = []


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    """Wrappers ask for one; what they would do in it, they would do in any."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    # Here, since ranks are threads: each would make groups of its own.
    MESHES[:] = [init_device_mesh("cpu", (1,))]
    yield
    dist.destroy_process_group()


def _walking(module: str) -> Callable[[Any], Any]:
    """Code of another package, which is not installed here."""
    space: dict[str, Any] = {"__name__": module}
    exec("def walk(model): return [p.data for _, p in model.named_parameters()]", space)
    return space["walk"]  # type: ignore[no-any-return]


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "FSDP": FullyShardedDataParallel,
    "`fully_shard` or `replicate`": fully_shard,
    "`fully_shard` or": lambda m: fully_shard(next(m.children())),
    "or `replicate`": replicate,
    "`parallelize_module`": lambda m: parallelize_module(m, MESHES[0], {"*": ColwiseParallel()}),
    "`ZeroRedundancyOptimizer`": lambda m: ZeroRedundancyOptimizer(m.parameters(), SGD, lr=0.1),
    "DeepSpeed": _walking("deepspeed.runtime.engine"),
    "Horovod": _walking("horovod.torch"),
}
DDP: dict[str, Callable[[Any], Any]] = {
    "DistributedDataParallel": DistributedDataParallel,
    "DistributedDataParallel is": lambda m: DistributedDataParallel(
        nn.ModuleDict({"inner": m, "own": nn.Linear(2, 2)})
    ),
}


def _all_refused(model: Any, code: str, uses: dict[str, Callable[[Any], Any]], *said: str) -> None:
    for name, use in uses.items():
        text = "nothing"
        try:
            use(model)
        except Exception as error:
            text = str(error)
        assert f"error[{code}]" in text and all(one in text for one in said), (name, text)


@pytest.mark.parametrize("name", PROGRAMS)
def test_wrappers_are_refused_where_they_are_put(name: str) -> None:
    def body(model: Any) -> None:
        wrappers = {**WRAPPERS, **({} if name == "data" else DDP)}
        for called, wrapper in wrappers.items():
            _all_refused(model, "SW0815", {called: wrapper}, called, "call the parallel model itself")

    on_programs(name, body)


def test_what_divides_nothing_may_be_put_around_a_model_that_all_ranks_hold_whole() -> None:
    plain = mlp()
    expected = _trained(plain, plain)

    def body(model: Any) -> Any:
        wrapped = copy.deepcopy(model)
        both = _trained(DistributedDataParallel(model), model), _trained(DataParallel(wrapped), wrapped)
        return [(losses, inner.full_state_dict()) for losses, inner in both]

    for of_rank in on_programs("data", body):
        for losses, state in of_rank:
            assert_equal_training((losses, state), (expected[0], expected[1].state_dict()))


def _trained(outer: Any, inner: Any) -> Any:
    optimizer, losses = SGD(outer.parameters(), lr=0.1), []
    for given in GIVEN:
        loss = outer(*given)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, inner


def _grads(model: Any) -> list[Tensor]:
    model.train_step(GIVEN[0])
    return [p.grad for p in model.parameters()]


BY_HAND: dict[str, Callable[[Any], Any]] = {
    "broadcast": lambda m: [dist.broadcast(p.data, 0) for p in m.parameters()],
    "of a view": lambda m: [dist.broadcast(p.detach().view(-1)[1:], 0) for p in m.parameters()],
    "all_reduce": lambda m: [dist.all_reduce(g) for g in _grads(m)],
    "reduce": lambda m: [dist.reduce(g, 0) for g in _grads(m)],
    "of plain tensors": lambda m: [dist.all_reduce(g.as_subclass(Tensor)) for g in _grads(m)],
    "in one": lambda m: dist.all_reduce(_flatten_dense_tensors(_grads(m))),
    "coalesced": lambda m: dist.all_reduce_coalesced([p.data for p in m.parameters()]),
    "as DistributedDataParallel does": lambda m: _sync_params_and_buffers(
        dist.group.WORLD, [p.detach() for p in m.parameters()], 1000, 0
    ),
    "into parameters": lambda m: [dist.all_gather([p.data], torch.zeros_like(p)) for p in m.parameters()],
}


@pytest.mark.parametrize("name", ["megatron", "zero", "pipeline"])
def test_collectives_over_parts_are_refused(name: str) -> None:
    on_programs(name, lambda m: _all_refused(m, "SW0816", BY_HAND, "leave it out: all ranks start with one"))


def test_collectives_over_what_all_ranks_hold_alike_and_of_others_work() -> None:
    def others(model: Any) -> None:
        for parameter in model.parameters():
            dist.all_gather([torch.zeros_like(parameter)], parameter.data)
        loss = model.train_step(GIVEN[0])
        dist.all_reduce(loss)
        dist.broadcast(nn.Linear(3, 3).weight.data, 0)

    on_programs("data", lambda model: [by_hand(model) for by_hand in BY_HAND.values()])
    on_programs("megatron", others)


EXPORTS: dict[str, Callable[[Any], Any]] = {
    "trace": lambda m: torch.jit.trace(m, GIVEN[0]),
    "script": torch.jit.script,
    "export": lambda m: torch.export.export(m, GIVEN[0]),
    "strict export": lambda m: torch.export.export(m, GIVEN[0], strict=True),
    "fx": torch.fx.symbolic_trace,
    "make_fx": lambda m: make_fx(lambda *x: m(*x))(*GIVEN[0]),
}


@pytest.mark.parametrize("name", ["megatron", "data"])
def test_a_parallel_model_is_not_exported_as_one_ranks_part(name: str) -> None:
    # One rank alone: tracing is a state of the whole process.
    on_programs(name, lambda m: None if m.comm.rank else _all_refused(m, "SW0817", EXPORTS, "plain model"))


# ---- state dicts and files -------------------------------------------------------------------------


class Tied(Net):
    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.norm = nn.LayerNorm(8).double()  # type: ignore[union-attr, assignment]
        self.head.weight = self.blocks[1].extra = nn.Parameter(torch.eye(8, dtype=torch.float64))  # type: ignore[union-attr]

    def save(self, path: Any) -> None:
        torch.save({name: p.detach().clone() for name, p in self.named_parameters()}, path)

    def save_block(self, path: Any) -> None:
        torch.save(self.blocks[0].state_dict(), path)


IN_A_CHECKPOINT = ("PyTorch's checkpoint", "an optimizer in it")
FILES: dict[str, tuple[str, Callable[[Any, Path], Any]]] = {
    "a module inside": ("SW0800", lambda m, _: m.blocks[0].state_dict()),
    "by a method": ("SW0800", lambda m, _: m.save_block(io.BytesIO())),
    "parameters by a method": ("SW0809", lambda m, _: m.save(io.BytesIO())),
    "parameters": ("SW0800", lambda m, _: torch.save(dict(m.named_parameters()), io.BytesIO())),
    "an optimizer": ("SW0800", lambda m, _: torch.save(torch.optim.SGD(m.parameters()), io.BytesIO())),
    "safetensors": (
        "SW0800", lambda m, p: safetensors.torch.save_file(dict(m.named_parameters()), p / "x")
    ),
    "safetensors in memory": ("SW0800", lambda m, _: safetensors.torch.save(dict(m.named_parameters()))),
    "a model of safetensors": ("SW0800", lambda m, p: safetensors.torch.save_model(m, str(p / "x"))),
    "PyTorch's checkpoint": ("SW0800", lambda m, _: get_model_state_dict(m)),
    "an optimizer in it": (
        "SW0800", lambda m, _: get_optimizer_state_dict(m, sw.optimizer(m, torch.optim.AdamW))
    ),
}  # fmt: skip


@pytest.mark.parametrize("plan", ["megatron", "stages:2 x 1f1b"])
def test_parts_are_not_written_as_the_model(plan: str, tmp_path: Path) -> None:
    def body(model: Any, _: nn.Module) -> None:
        for name, (code, save) in FILES.items():
            with pytest.raises(sw.RuntimeFault) as error:
                save(model, tmp_path)
            assert error.value.code == code, (name, error.value)

    on_ranks(body, plan, Tied)
    assert not list(tmp_path.iterdir())


def test_what_all_ranks_hold_whole_is_written_as_on_one_device(tmp_path: Path) -> None:
    plain = Tied()

    def body(model: Any, _: nn.Module) -> None:
        for ours, theirs in ((model, plain), (model.blocks[1], plain.blocks[1]), (model.head, plain.head)):
            actual, expected = ours.state_dict(), theirs.state_dict()
            assert actual.keys() == expected.keys()
            assert all(torch.equal(actual[name], value) for name, value in expected.items())
        assert model.head.state_dict(prefix="a.", keep_vars=True)["a.weight"] is model.blocks[1].extra
        for at, (name, (code, save)) in enumerate(FILES.items()):
            folder = tmp_path / f"{model.comm.rank}, {at}"
            folder.mkdir()
            if code == "SW0800" and name not in IN_A_CHECKPOINT:
                save(model, folder)

    on_ranks(body, "data", Tied)


def test_pytorchs_checkpoints_have_what_all_ranks_hold_whole() -> None:
    plain = mlp().state_dict()

    def body(model: Any) -> None:
        saved = get_model_state_dict(model)
        assert saved.keys() == plain.keys()
        assert all(torch.equal(saved[name], value) for name, value in plain.items())
        state = get_optimizer_state_dict(model, sw.optimizer(model, torch.optim.AdamW))
        assert state["state"].keys() == plain.keys()

    on_programs("data", body)


SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import shardwright as sw
from a_loop import BATCHES, Net

def train(model, step):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in BATCHES:
        losses.append(model(*batch)["loss"])
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return [round(loss.item(), 9) for loss in losses]

dist.init_process_group("gloo")
expected = train(Net(), None)
found = {}
for plan in ("data", "megatron"):
    model = sw.parallelize(Net(), BATCHES[0], plan=plan, progress=False)
    try:
        found[plan] = train(DistributedDataParallel(model), None) == expected
    except sw.RuntimeFault as error:
        found[plan] = error.code
    found[plan, "as it is"] = train(model, None)
print(found["data"], found["megatron"], found["megatron", "as it is"] == expected)
dist.destroy_process_group()
"""


@pytest.mark.processes
def test_processes_with_distributed_data_parallel(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{SCRIPT}")
    ended = forked.run(script, world=2, folder=tmp_path)
    assert [(rank.code, rank.out) for rank in ended] == [(0, "True SW0815 True\n")] * 2, ended[0].error
