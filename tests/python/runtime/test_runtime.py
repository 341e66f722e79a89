"""Programs written by hand, on threads and on processes, against the plain module."""

from __future__ import annotations

import gc
import json
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime_programs import again, batch, called, data, megatron, mlp, pipeline, stepping, zero
from shardwright.errors import RuntimeFault
from shardwright.runtime import (
    Comm,
    ParallelModule,
    TorchComm,
    clip_grad_norm_,
    launch,
    load_program,
    optimizer,
    run_local,
)
from shardwright.runtime.guards.part_gradients import plain

STATE = mlp().state_dict()
BATCHES = [batch(seed) for seed in (1, 2, 3)]

PROGRAMS: dict[str, tuple[int, dict[str, str]]] = {
    "megatron": (2, megatron()),
    "megatron, recomputed": (2, megatron(recompute=True)),
    "data on 1": (1, data(1)),
    "data on 2": (2, data(2)),
    "data on 3": (3, data(3)),
    "pipeline": (2, pipeline()),
    "zero": (2, zero()),
}


def parallel(files: dict[str, str], comm: Comm, **options: Any) -> ParallelModule:
    return ParallelModule(load_program(files, world=comm.world), comm, STATE, **options)


def train(files: dict[str, str], comm: Comm) -> dict[str, Any]:
    """Three steps, each of one or two micro-batches."""
    model = parallel(files, comm)
    adam = optimizer(model, torch.optim.AdamW, [{"params": ["*.bias"], "weight_decay": 0.0}], lr=0.1)
    losses, norms, grads = [], [], {}
    for micro_batches in (BATCHES[:1], BATCHES[:2], BATCHES[1:]):
        adam.zero_grad(set_to_none=len(micro_batches) == 1)
        losses.append(model.train_step(micro_batches))
        grads = {name: plain(p.grad).clone() for name, p in model.named_parameters() if p.grad is not None}
        norms.append(clip_grad_norm_(model, 0.5))
        adam.step()
    return {
        "losses": losses,
        "norms": norms,
        "grads": grads,
        "state": model.full_state_dict(),
        "issued": model.issued,
    }


def train_plain() -> dict[str, Any]:
    model = mlp()
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    adam = torch.optim.AdamW([{"params": biases, "weight_decay": 0.0}, {"params": others}], lr=0.1)
    losses, norms, grads = [], [], {}
    for micro_batches in (BATCHES[:1], BATCHES[:2], BATCHES[1:]):
        adam.zero_grad()
        step_losses = [model(*b) for b in micro_batches]
        for loss in step_losses:
            (loss / len(step_losses)).backward()
        losses.append(torch.stack(step_losses).mean().detach())
        grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        adam.step()
    return {"losses": losses, "norms": norms, "grads": grads, "state": model.state_dict()}


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-9, atol=1e-12)


def assert_same_training(results: list[dict[str, Any]]) -> None:
    plain = train_plain()
    for result in results:
        for key in ("losses", "norms"):
            for ours, theirs in zip(result[key], plain[key], strict=True):
                close(ours, theirs)
        assert list(result["state"]) == list(plain["state"])
        for name, value in plain["state"].items():
            close(result["state"][name], value)


@pytest.mark.parametrize("name", PROGRAMS)
def test_training_equals_the_plain_module(name: str) -> None:
    world, files = PROGRAMS[name]
    assert_same_training(run_local(world, lambda rank, comm: train(files, comm)))


def test_gradients_are_whole_on_their_shards() -> None:
    plain = train_plain()["grads"]
    ours = run_local(2, lambda rank, comm: train(zero(), comm))
    assert ours[1]["grads"]["up.weight"].shape == (6, 1)
    close(
        torch.cat([ours[0]["grads"]["up.weight"], ours[1]["grads"]["up.weight"]], 1),
        plain["up.weight"],
    )
    for name in ("up.bias", "down.weight", "down.bias"):
        close(ours[1]["grads"][name], plain[name])


def _train_on_gloo(rank: int, files: dict[str, str]) -> dict[str, Any]:
    return train(files, TorchComm())


@pytest.mark.processes
@pytest.mark.parametrize("name", ["megatron", "data on 3", "pipeline", "zero"])
def test_training_on_processes(name: str) -> None:
    world, files = PROGRAMS[name]
    assert_same_training([launch(_train_on_gloo, world, (files,), timeout=120)])


def test_what_is_issued_is_the_list_of_the_program() -> None:
    first, second = run_local(2, lambda rank, comm: train(zero(), comm))
    forward = [("all_gather", 0, 6 * 3 * 8), ("all_reduce", 0, 8), ("reduce_scatter", 0, 6 * 4 * 8)]
    # Gradients of two micro-batches are exchanged and reduced once.
    assert first["issued"] == forward + forward + [
        ("exchange_gradients", 0, 6 * 8),
        ("reduce_gradients", 0, (12 + 3) * 8),
        ("reduce_gradients", 0, 6 * 8),
    ]
    assert [issued[:2] for issued in second["issued"]] == [issued[:2] for issued in first["issued"]]


def test_loss_backward_accumulates_like_the_plain_module() -> None:
    plain = mlp()
    for b in BATCHES[:2]:
        (3 * plain(*b)).backward()

    def body(rank: int, comm: Comm) -> dict[str, Tensor]:
        model = parallel(zero(), comm)
        losses = [model(*b) for b in BATCHES[:2]]  # both forwards before the first backward
        for loss in losses:
            (3 * loss).backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    grads = run_local(2, body)[0]
    close(grads["down.weight"], plain.down.weight.grad)
    close(grads["up.bias"], plain.up.bias.grad)
    close(grads["up.weight"], plain.up.weight.grad[:, :3])


def test_forward_without_gradients_saves_nothing() -> None:
    expected = mlp()(*BATCHES[0])

    def body(rank: int, comm: Comm) -> tuple[Tensor, bool]:
        model = parallel(megatron(), comm)
        with torch.no_grad():
            loss = model(*BATCHES[0])
        return loss, loss.requires_grad

    for loss, requires_grad in run_local(2, body):
        close(loss, expected)
        assert not requires_grad


def test_backward_twice_is_refused() -> None:
    def body(rank: int, comm: Comm) -> None:
        loss = parallel(data(1), comm)(*BATCHES[0])
        loss.backward(retain_graph=True)
        loss.backward()

    with pytest.raises(RuntimeFault, match=r"SW0709.*a second time"):
        run_local(1, body)


def test_a_rank_holds_only_its_shards() -> None:
    def body(rank: int, comm: Comm) -> int:
        model = parallel(megatron(), comm)
        return sum(p.untyped_storage().nbytes() for p in model.parameters())

    assert run_local(2, body) == [8 * (12 + 3 + 9 + 3)] * 2


@pytest.mark.slow
def test_activations_live_only_as_long_as_autograd_needs_them() -> None:
    source = """
def grow(p, x):
    h = x + 1
    h_1 = h + 1
    note(h)
    return (h_1 * p.up.bias.sum()).sum()

def forward(run, p, rank, x, t):
    loss = run.call(grow, p, x)
    return (loss,)

def backward(run, p, rank, last, g_loss):
    run.grad(grow, g_loss)
"""
    files = data(1)
    tables = json.loads(files["program.json"])
    tables["roles"][0]["calls"] = called(source)
    files["program.json"] = json.dumps(tables)
    files["all.py"] = "seen = []\nimport weakref\ndef note(h): seen.append(weakref.ref(h))\n" + source

    def body(rank: int, comm: Comm) -> None:
        model = parallel(files, comm)
        loss = model(*BATCHES[0])
        gc.collect()
        seen = model.worker.code.blocks[0].forward.__globals__["seen"]
        assert seen[0]() is None
        loss.backward()

    run_local(1, body)


def test_a_failing_rank_stops_the_others() -> None:
    def body(rank: int, comm: Comm) -> None:
        if rank == 1:
            raise ValueError("rank 1 has had enough")
        train(data(3), comm)

    with pytest.raises(ValueError, match="had enough"):
        run_local(3, body)


def test_ranks_that_wait_for_ever_are_found() -> None:
    def body(rank: int, comm: Comm) -> None:
        if rank:
            comm.all_reduce(torch.ones(1), (0, 1), "sum")

    with pytest.raises(
        RuntimeFault, match=r"rank 1 waits in all_reduce 0 of ranks .0, 1.; rank 0 has finished"
    ):
        run_local(2, body)


def refusal(action: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeFault) as caught:
        action()
    return str(caught.value)


def test_a_state_dict_that_does_not_fit_is_named_in_full() -> None:
    wrong = dict(mlp().state_dict())
    wrong["up.weight"] = torch.zeros(2, 2)
    wrong["left.over"] = wrong.pop("down.bias")
    message = refusal(
        lambda: run_local(1, lambda rank, comm: parallel(data(1), comm).load_full_state_dict(wrong))
    )
    assert message == (
        "error[SW0710]: the state dict does not fit the model\n"
        "  why: missing: down.bias; unknown: left.over;"
        " of another shape: up.weight is (2, 2), the model has (6, 4)\n"
        "  help: load the state dict of the model that was compiled"
    )


def test_full_state_dict_goes_around() -> None:
    other = mlp(seed=5).state_dict()

    def body(rank: int, comm: Comm) -> tuple[Any, Any]:
        model = parallel(zero(), comm)
        model.load_full_state_dict(other)
        return model.full_state_dict(), {name: tuple(p.shape) for name, p in model.named_parameters()}

    for full, local in run_local(2, body):
        assert all(torch.equal(full[name], other[name]) for name in other)
        assert local["up.weight"] in ((6, 3), (6, 1))


def test_other_inputs_are_refused() -> None:
    def body(rank: int, comm: Comm) -> None:
        parallel(data(1), comm).train_step(batch(size=4))

    assert refusal(lambda: run_local(1, body)) == (
        "error[SW0706]: input x is (4, 4) of torch.float64,"
        " the program is for (5, 4) of torch.float64\n"
        "  why: a program is made for the shapes and dtypes of its example inputs\n"
        "  help: give inputs of that shape, or compile another program for this one"
    )


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("format", 1, "error[SW0702]: the program's format is 1, needed is 8"),
        (
            "shardwright",
            "0.0.9",
            "error[SW0703]: the program's shardwright is '0.0.9', needed is '0.1.0'",
        ),
        ("digest", "d2", "error[SW0704]: the program's digest is 'd2', needed is 'd1'"),
        ("world", 7, "error[SW0705]: the program's world is 7, needed is 2"),
    ],
)
def test_programs_of_others_are_refused(key: str, value: Any, expected: str) -> None:
    files = megatron()
    files["program.json"] = json.dumps({**json.loads(files["program.json"]), key: value})
    message = refusal(lambda: load_program(files, world=2, digest="d1", version="0.1.0"))
    assert message.splitlines()[0] == expected


def test_a_traceback_shows_the_line_of_the_program() -> None:
    files = data(1)
    files["all.py"] = files["all.py"].replace("h_1 = torch.relu(h)", "h_1 = torch.relu(h, 1, 2)")
    with pytest.raises(TypeError) as caught:
        run_local(1, lambda rank, comm: train(files, comm))
    assert "h_1 = torch.relu(h, 1, 2)" in "".join(traceback.format_exception(caught.value))


NEEDS = """
def first(p, x):
    h = F.linear(x, p.up.weight, p.up.bias)
    statistic = h.mean(0)
    nothing = torch.zeros_like(h)
    return h, statistic, nothing


def second(p, h, nothing, t):
    y = F.linear(torch.relu(h + nothing), p.down.weight, p.down.bias)
    return F.mse_loss(y, t)


def forward(run, p, rank, x, t):
    h, statistic, nothing = run.call(first, p, x)
    loss = run.call(second, p, h, nothing, t)
    return loss


def backward(run, p, rank, last, g_loss):
    g_h, g_nothing = run.grad(second, g_loss)
    run.grad(first, g_h, g_nothing)
"""


def test_the_program_says_what_needs_a_gradient() -> None:
    """Not autograd, which differs where a result is not used, or is differentiable but constant."""
    files = data(1)
    tables = json.loads(files["program.json"])
    tables["roles"][0]["grads"] = {
        "0": {"arguments": [], "results": [0, 2]},
        "1": {"arguments": [0, 1], "results": [0]},
        "2": {"arguments": [], "results": [0, 2]},
    }
    start, _ = files["all.py"].split("def error")
    for source in (NEEDS, again(NEEDS, "first, p, x", "g_h, g_nothing")):
        tables["roles"][0]["calls"] = called(source)
        given = {"program.json": json.dumps(tables), "all.py": start + stepping(source)}
        assert_same_training(run_local(1, lambda rank, comm, given=given: train(given, comm)))


COUNTING = """
def error(p, x, t):
    h = F.linear(torch.relu(F.linear(x, p.up.weight, p.up.bias)), p.down.weight, p.down.bias)
    return F.mse_loss(h * p["odd count"], t), p["odd count"] + 1


def forward(run, p, rank, x, t):
    run.keep(0, x, t)
    loss, count = run.call(error, p, x, t, recompute=True)
    run.update(4, count)
    return loss, None


def backward(run, p, rank, last, g_loss):
    x, t = run.take(0)
    run.call(error, p, x, t)
    run.grad(error, g_loss)
"""


def test_a_buffer_has_its_new_value_in_the_next_micro_batch() -> None:
    """And the old one when backward computes the forward of its own micro-batch again."""
    files = data(1)
    tables = json.loads(files["program.json"])
    buffer = {"id": 8, "kind": "buffer", "names": ["odd count"], "dtype": "f64", "factors": []}
    tables["tensors"].append({**buffer, "persistent": True})
    tables["regions"].append([])
    number = len(tables["regions"]) - 1
    tables["roles"][0]["leaves"].append({"tensor": 8, "number": 0, "shard": 4, "region": number})
    tables["roles"][0]["outputs"].append(None)
    tables["roles"][0]["shards"].append([8, number])
    given = {"program.json": json.dumps(tables), "all.py": "import torch\n" + stepping(COUNTING)}
    given["all.py"] = "import torch.nn.functional as F\n" + given["all.py"]
    plain = mlp()
    for count, b in enumerate(BATCHES):
        h = plain.down(torch.relu(plain.up(b[0]))) * (count + 1)
        (torch.nn.functional.mse_loss(h, b[1]) / 3).backward()

    def body(rank: int, comm: Comm) -> ParallelModule:
        source = {**STATE, "odd count": torch.ones((), dtype=torch.float64)}
        model = ParallelModule(load_program(given), comm, source)
        model.train_step(BATCHES)
        return model

    model = run_local(1, body)[0]
    assert model.state_dict()["odd count"] == 4
    assert model.full_state_dict()["odd count"] == 4
    grads = {name: p.grad for name, p in model.named_parameters()}
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        close(grads[name], parameter.grad)  # type: ignore[arg-type]
    before = model.shards.held[4].data
    model._apply(torch.clone)
    assert model.shards.held[4].data is dict(model.named_buffers())["odd count"] is not before
