"""Checkpoints: a run that is resumed, on the same or another plan, continues as if nothing had happened."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import models
import shardwright as sw
from equality import Result, assert_equal
from shardwright import Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture
from shardwright.cli import main
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import Bundle, sources

torch.set_num_threads(1)

BEFORE, AFTER = 2, 2
GROUPS = [{"params": ["*weight"], "weight_decay": 0.1}, {"params": ["*bias"], "weight_decay": 0.0}]


@functools.cache
def model(name: str, **options: Any) -> tuple[nn.Module, tuple[Any, ...], Captured, Graph]:
    module, args = getattr(models, name)(**options)
    captured = capture(module, args)
    return module, args, captured, Graph(captured.graph_text)


@functools.cache
def bundle(name: str, plan: str | int, devices: int, **options: Any) -> Bundle:
    """The program of a named plan, or of the random plan of a number."""
    graph, captured = model(name, **options)[3], model(name, **options)[2]
    made = Plan.random(graph, devices, plan) if isinstance(plan, int) else Plan.named(graph, plan, devices)
    compiled = compile(made)
    return Bundle(dict(compiled.files), compiled.digest, made.name, devices, captured, "", "")


def batches(args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Another batch for each step."""
    return [tuple(x.roll(step, 0) for x in args) for step in range(BEFORE + AFTER)]


def adamw(model: ParallelModule) -> torch.optim.Optimizer:
    return sw.optimizer(model, torch.optim.AdamW, GROUPS, lr=1e-2)


def plain_adamw(module: nn.Module) -> torch.optim.Optimizer:
    def named(ending: str) -> list[Tensor]:
        return [p for name, p in module.named_parameters() if name.endswith(ending)]

    made = [{**group, "params": named(group["params"][0][1:])} for group in GROUPS]
    return torch.optim.AdamW(made, lr=1e-2)


def steps(model: nn.Module, optimizer: Any, given: list[tuple[Any, ...]]) -> list[Tensor]:
    losses = []
    for batch in given:
        optimizer.zero_grad()
        outputs = model(*batch)
        loss = outputs[-1] if isinstance(outputs, tuple) else outputs
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


def world(made: Bundle, name: str, body: Callable[[ParallelModule], Any], **options: Any) -> list[Any]:
    """Runs `body` with each rank's module, in threads; values are as in a fresh model."""
    module = model(name, **options)[0]
    program = load_program(made.files, digest=made.digest, world=made.devices)

    def rank(rank: int, comm: Any) -> Any:
        values = sources(module, made.captured)
        return body(ParallelModule(program, comm, values, made.captured, seed=5))

    return run_local(made.devices, rank)


def finished(losses: list[Tensor], parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Result:
    result = Result({str(at): loss for at, loss in enumerate(losses)}, {}, parameters, buffers)
    return Result(*({name: x.clone() for name, x in kind.items()} for _, kind in result.kinds()))


def of_parallel(losses: list[Tensor], model: ParallelModule) -> Result:
    full = model.full_state_dict()
    buffers = {tensor.names[0] for tensor in model.program.saved_tensors() if tensor.kind == "buffer"}
    return finished(
        losses,
        {name: x for name, x in full.items() if name not in buffers},
        {name: x for name, x in full.items() if name in buffers},
    )


def of_plain(losses: list[Tensor], module: nn.Module) -> Result:
    parameters = {name: p.detach() for name, p in module.named_parameters(remove_duplicate=False)}
    buffers = {name: b for name, b in module.state_dict().items() if name not in parameters}
    return finished(losses, parameters, buffers)


def uninterrupted(name: str) -> Result:
    """The single device."""
    module, args, _, _ = model(name)
    module = copy.deepcopy(module)
    losses = steps(module, plain_adamw(module), batches(args))
    return of_plain(losses[BEFORE:], module)


def save_after(made: Bundle, name: str, path: Path, **options: Any) -> None:
    given = batches(model(name, **options)[1])

    def body(parallel: ParallelModule) -> None:
        optimizer = adamw(parallel)
        steps(parallel, optimizer, given[:BEFORE])
        sw.save(parallel, optimizer, path, {"at": BEFORE})

    world(made, name, body, **options)


def resume(made: Bundle, name: str, path: Path, **options: Any) -> Result:
    """From other values, so that a tensor that is not loaded shows."""
    given = batches(model(name, **options)[1])

    def body(parallel: ParallelModule) -> Result:
        with torch.no_grad():
            for shard in parallel.shards.held:
                if shard.tensor.saved:
                    shard.data.zero_()
        optimizer = adamw(parallel)
        extra = sw.load(parallel, optimizer, path)
        assert parallel.step == BEFORE
        return of_parallel(steps(parallel, optimizer, given[extra["at"] :]), parallel)

    return world(made, name, body, **options)[0]


MOVES = [
    (("data", 4), ("data", 2)),
    (("data:2 x megatron:2", 4), ("data", 4)),
    (("megatron", 4), ("data", 3)),
    (("data", 3), ("megatron", 2)),
    (("replicate", 2), ("coshard:2", 1)),
    (("coshard:2", 1), ("data:2 x megatron:2", 4)),
    ((11, 3), (12, 4)),
    ((13, 4), (14, 2)),
    (("zero3", 4), ("megatron", 2)),
    (("megatron", 2), ("zero1", 3)),
    (("zero3:2 x megatron:2", 4), ("data", 3)),
]


@pytest.mark.oldest
@pytest.mark.parametrize(("before", "after"), MOVES)
def test_a_resumed_run_is_the_uninterrupted_one(before: Any, after: Any, tmp_path: Path) -> None:
    save_after(bundle("gpt", *before), "gpt", tmp_path / "c")
    assert_equal(resume(bundle("gpt", *after), "gpt", tmp_path / "c"), uninterrupted("gpt"))


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(("data", 4), ("data", 2)), ((3, 3), (4, 4))])
def test_buffers_are_resumed(before: Any, after: Any, tmp_path: Path) -> None:
    save_after(bundle("resnet", *before), "resnet", tmp_path / "c")
    assert_equal(resume(bundle("resnet", *after), "resnet", tmp_path / "c"), uninterrupted("resnet"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 6])
def test_keyed_dropout_goes_on_where_it_was(seed: int, tmp_path: Path) -> None:
    """On the same plan; the seed is the checkpoint's, not that of the module that resumes."""
    made = bundle("gpt", "data:2 x megatron:2", 4, dropout=0.3)
    given = batches(model("gpt", dropout=0.3)[1])

    def whole(parallel: ParallelModule) -> Result:
        return of_parallel(steps(parallel, adamw(parallel), given)[BEFORE:], parallel)

    def rest(parallel: ParallelModule) -> Result:
        parallel.worker.seed = seed
        optimizer = adamw(parallel)
        sw.load(parallel, optimizer, tmp_path)
        return of_parallel(steps(parallel, optimizer, given[BEFORE:]), parallel)

    expected = world(made, "gpt", whole, dropout=0.3)[0]
    save_after(made, "gpt", tmp_path, dropout=0.3)
    assert_equal(world(made, "gpt", rest, dropout=0.3)[0], expected)


@pytest.mark.parametrize("after", [("data", 2), ("megatron", 4)])
def test_dropout_of_the_single_device_goes_on_under_any_plan(after: Any, tmp_path: Path) -> None:
    """Those masks come from a generator, whose state the checkpoint has."""
    name, options = "gpt", {"dropout": 0.3}
    module, args, _, _ = model(name, **options)
    given = batches(args)
    torch.manual_seed(21)
    single = copy.deepcopy(module)
    expected = of_plain(steps(single, plain_adamw(single), given)[BEFORE:], single)

    def run(made: Bundle, seed: int, body: Callable[[ParallelModule], Any]) -> Any:
        program = load_program(made.files, digest=made.digest, world=made.devices)

        def rank(rank: int, comm: Any) -> Any:
            generator = torch.Generator().manual_seed(seed)
            values = sources(module, made.captured)
            return body(
                ParallelModule(
                    program, comm, values, made.captured, randomness="single-device", generator=generator
                )
            )

        return run_local(made.devices, rank)[0]

    def first(parallel: ParallelModule) -> None:
        optimizer = adamw(parallel)
        steps(parallel, optimizer, given[:BEFORE])
        sw.save(parallel, optimizer, tmp_path)

    def second(parallel: ParallelModule) -> Result:
        optimizer = adamw(parallel)
        sw.load(parallel, optimizer, tmp_path)
        return of_parallel(steps(parallel, optimizer, given[BEFORE:]), parallel)

    run(bundle(name, "data:2 x megatron:2", 4, **options), 21, first)
    assert_equal(run(bundle(name, *after, **options), 0, second), expected)


def test_the_single_device_goes_on_with_the_checkpoint_of_many(tmp_path: Path) -> None:
    save_after(bundle("gpt", 11, 3), "gpt", tmp_path)
    module, args = models.gpt()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    optimizer = plain_adamw(module)
    assert sw.load(module, optimizer, tmp_path) == {"at": BEFORE}
    losses = steps(module, optimizer, batches(args)[BEFORE:])
    assert_equal(of_plain(losses, module), uninterrupted("gpt"))


def test_many_go_on_with_the_checkpoint_of_the_single_device(tmp_path: Path) -> None:
    module, args, _, _ = model("gpt")
    module = copy.deepcopy(module)
    optimizer = plain_adamw(module)
    steps(module, optimizer, batches(args)[:BEFORE])
    sw.save(module, optimizer, tmp_path)

    def body(parallel: ParallelModule) -> Result:
        optimizer = adamw(parallel)
        sw.load(parallel, optimizer, tmp_path)
        return of_parallel(steps(parallel, optimizer, batches(args)[BEFORE:]), parallel)

    assert_equal(world(bundle("gpt", 12, 4), "gpt", body)[0], uninterrupted("gpt"))


@pytest.mark.oldest
def test_pytorch_reads_a_checkpoint_without_shardwright(tmp_path: Path) -> None:
    save_after(bundle("gpt", "data:2 x megatron:2", 4), "gpt", tmp_path / "c")
    module, args = models.gpt()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    optimizer = plain_adamw(module)
    state: dict[str, Any] = {
        "model": module.state_dict(),
        "optimizer": get_optimizer_state_dict(module, optimizer),
    }
    dcp.load(state, checkpoint_id=tmp_path / "c", no_dist=True)
    module.load_state_dict(state["model"])
    set_optimizer_state_dict(module, optimizer, state["optimizer"])
    losses = steps(module, optimizer, batches(args)[BEFORE:])
    assert_equal(of_plain(losses, module), uninterrupted("gpt"))


@pytest.mark.oldest
def test_a_checkpoint_becomes_one_file_of_pytorch(tmp_path: Path) -> None:
    save_after(bundle("resnet", 3, 3), "resnet", tmp_path / "c")
    dcp_to_torch_save(tmp_path / "c", tmp_path / "one.pt")
    one = torch.load(tmp_path / "one.pt", weights_only=False)
    module, args, _, _ = model("resnet")
    module = copy.deepcopy(module)
    steps(module, plain_adamw(module), batches(args)[:BEFORE])
    expected = module.state_dict()
    assert one["model"].keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(one["model"][name], value, rtol=1e-9, atol=1e-12)
    assert one["extra"] == {"at": BEFORE}
    assert sorted(one) == ["extra", "model", "optimizer", "shardwright"]


def test_replicas_share_the_writing_and_every_element_is_written_once(tmp_path: Path) -> None:
    save_after(bundle("gpt", "data", 4), "gpt", tmp_path)
    sizes = sorted(file.stat().st_size for file in tmp_path.glob("*.distcp"))
    assert len(sizes) == 4
    assert sizes[-1] < 2 * sizes[0]


OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.Adagrad, {"lr": 0.1}),
    (torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0.5, "centered": True}),
    (torch.optim.Adamax, {"lr": 1e-2}),
    (torch.optim.NAdam, {"lr": 1e-2}),
    (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True, "foreach": True}),
    (torch.optim.AdamW, {"lr": 1e-2, "fused": True}),
]


@pytest.mark.parametrize(("cls", "options"), OPTIMIZERS)
def test_the_states_of_optimizers(cls: Any, options: dict[str, Any], tmp_path: Path) -> None:
    module, args, _, _ = model("mlp")
    single = copy.deepcopy(module)
    expected = of_plain(steps(single, cls(single.parameters(), **options), batches(args))[BEFORE:], single)

    def first(parallel: ParallelModule) -> None:
        optimizer = sw.optimizer(parallel, cls, **options)
        steps(parallel, optimizer, batches(args)[:BEFORE])
        sw.save(parallel, optimizer, tmp_path)

    def second(parallel: ParallelModule) -> Result:
        optimizer = sw.optimizer(parallel, cls, **{**options, "lr": 7.0})
        sw.load(parallel, optimizer, tmp_path)
        return of_parallel(steps(parallel, optimizer, batches(args)[BEFORE:]), parallel)

    world(bundle("mlp", 5, 3), "mlp", first)
    assert_equal(world(bundle("mlp", 6, 2), "mlp", second)[0], expected)


def test_schedulers_and_other_objects_are_saved_by_their_state(tmp_path: Path) -> None:
    made = bundle("mlp", "data", 2)
    given = batches(model("mlp")[1])

    def run(parallel: ParallelModule, resumed: bool) -> list[float]:
        optimizer = sw.optimizer(parallel, torch.optim.AdamW, lr=1e-2)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8)
        if resumed:
            scheduler.load_state_dict(sw.load(parallel, optimizer, tmp_path)["scheduler"])
        rates = []
        for batch in given:
            steps(parallel, optimizer, [batch])
            scheduler.step()
            rates.append(scheduler.get_last_lr()[0])
        if not resumed:
            sw.save(parallel, optimizer, tmp_path, {"scheduler": scheduler, "best": torch.tensor(2.5)})
        return rates

    first = world(made, "mlp", lambda parallel: run(parallel, False))[0]
    second = world(made, "mlp", lambda parallel: run(parallel, True))[0]
    schedule = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(schedule, max_lr=0.1, total_steps=8)
    expected = []
    for _ in range(8):
        schedule.step()
        scheduler.step()
        expected.append(scheduler.get_last_lr()[0])
    assert first + second == pytest.approx(expected)


def test_random_streams_go_on(tmp_path: Path) -> None:
    import random

    import numpy

    def draws() -> list[Any]:
        return [torch.rand(3).tolist(), random.random(), numpy.random.rand(2).tolist()]

    module = torch.nn.Linear(2, 2)
    sw.save(module, None, tmp_path)
    expected = draws()
    assert draws() != expected
    sw.load(module, None, tmp_path)
    assert draws() == expected


class Outer(nn.Module):
    """A parallelized module inside an ordinary one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.before.weight)
        self.inner = inner


def test_a_parallelized_module_inside_an_ordinary_one(tmp_path: Path) -> None:
    module = model("mlp")[0]
    first, second = bundle("mlp", 5, 3), bundle("mlp", "megatron", 2)

    def save(parallel: ParallelModule) -> None:
        sw.save(Outer(parallel), None, tmp_path)

    def load(parallel: ParallelModule) -> tuple[Tensor, dict[str, Tensor]]:
        outer = Outer(parallel)
        torch.nn.init.zeros_(outer.before.weight)
        with torch.no_grad():
            for shard in parallel.shards.held:
                shard.data.zero_()
        sw.load(outer, None, tmp_path)
        return outer.before.weight.detach(), parallel.full_state_dict()

    world(first, "mlp", save)
    outer, inner = world(second, "mlp", load)[0]
    expected = Outer(module).state_dict()
    assert torch.equal(outer, expected["before.weight"])
    assert all(torch.equal(inner[name], value) for name, value in module.state_dict().items())
    plain = Outer(copy.deepcopy(module))
    torch.nn.init.zeros_(plain.before.weight)
    sw.load(plain, None, tmp_path)
    assert all(torch.equal(value, expected[name]) for name, value in plain.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("to", ["folder", "one.safetensors"])
def test_the_console_merges_a_checkpoint(to: str, tmp_path: Path, capsys: Any) -> None:
    """Of tied names the files have one."""
    save_after(bundle("gpt", 11, 3), "gpt", tmp_path / "c")
    target = tmp_path / "out" / to
    assert main(["ckpt", "merge", str(tmp_path / "c"), "-o", str(target), "--max-shard-size", "40KB"]) == 0
    module, args = models.gpt()
    optimizer = plain_adamw(module)
    sw.load(module, optimizer, tmp_path / "c")
    expected = {name: value for name, value in module.state_dict().items() if name != "lm_head.weight"}
    files = [target] if target.is_file() else sorted(target.glob("*.safetensors"))
    merged = {name: value for file in files for name, value in load_file(file).items()}
    assert capsys.readouterr().out == f"{len(expected)} tensors are in {target}.\n"
    assert merged.keys() == expected.keys()
    assert all(torch.equal(merged[name], value) for name, value in expected.items())
    assert (len(files) > 2) == (to == "folder")
    again = sw.parallelize(module, args, plan="replicate", weights=target)
    assert torch.equal(again.full_state_dict()["lm_head.weight"], expected["wte.weight"])
    assert main(["ckpt", "merge", str(tmp_path), "-o", str(target)]) == 1
    assert "SW0742" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_masters_and_loss_scale_are_resumed(precision: str, tmp_path: Path) -> None:
    """Float32 masters, bit by bit, whatever the plan; the run goes on as that of the same plan."""
    module, args = models.gpt()
    module = module.float()
    given = batches(args)

    def started(comm: Any, plan: str) -> tuple[ParallelModule, torch.optim.Optimizer]:
        parallel = sw.parallelize(copy.deepcopy(module), args, plan=plan, precision=precision, comm=comm)
        return parallel, adamw(parallel)

    def trained(parallel: ParallelModule, optimizer: Any, some: list[tuple[Any, ...]]) -> list[float]:
        losses = []
        for batch in some:
            optimizer.zero_grad()
            losses.append(float(parallel.train_step(batch)))  # type: ignore[arg-type]
            optimizer.step()
        return losses

    def whole(rank: int, comm: Any) -> Any:
        parallel, optimizer = started(comm, "data")
        trained(parallel, optimizer, given[:BEFORE])
        sw.save(parallel, optimizer, tmp_path)
        saved = {name: x.clone() for name, x in parallel.full_state_dict().items()}
        return saved, parallel.clock(), trained(parallel, optimizer, given[BEFORE:])

    def rest(plan: str) -> Callable[[int, Any], Any]:
        def body(rank: int, comm: Any) -> Any:
            parallel, optimizer = started(comm, plan)
            sw.load(parallel, optimizer, tmp_path)
            return parallel.full_state_dict(), parallel.clock(), trained(parallel, optimizer, given[BEFORE:])

        return body

    saved, clock, losses = run_local(2, whole)[0]
    for plan in ("data", "megatron"):
        masters, resumed, after = run_local(2, rest(plan))[0]
        assert resumed == clock
        for name, value in saved.items():
            assert value.dtype == torch.float32
            assert torch.equal(masters[name], value), name
        assert after == losses if plan == "data" else after == pytest.approx(losses, rel=2e-2)
