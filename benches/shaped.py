"""What is chosen for two machines whose network is slow, beside every other plan, measured.

Two network namespaces are the machines; the kernel limits the rate of what joins them. It takes root.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from measure import seconds
from predicted import MODELS, step_of
from tables import Table, time_of

from shardwright._core import Found, Graph
from shardwright.capture import capture
from shardwright.profiling.clock import low
from shardwright.profiling.measuring import profile_joined
from shardwright.runtime.communication.joining import joined
from shardwright.start.auto_plan import Choice

# And what passes at once after a pause: as little as the kernel can tell apart.
RATES = {"100mbit": "64kb", "1gbit": "640kb"}
NAMES = ["small", "wide", "many words"]
# Micro-batches of a step; so many plans are measured, none of which is said to take so many times the least.
BATCHES, PLANS, FARTHEST = 4, 6, 3.0
STEPS = 6
NODES = ["10.79.0.1", "10.79.0.2"]
LIMIT = 1500.0


@dataclass(frozen=True)
class Step:
    """Of a plan: seconds, told and measured."""

    model: str
    plan: str
    predicted: float
    measured: float


def bench(quick: bool) -> Table:
    if os.geteuid() != 0:
        raise RuntimeError("network namespaces take root: sudo .venv/bin/python benches/run.py --only shaped")
    names, rates = (NAMES[:1], list(RATES)[:1]) if quick else (NAMES, list(RATES))
    table = Table(
        "shaped",
        "Chosen for a slow network, and measured",
        "Two processes in network namespaces, joined by a link that `tc tbf` limits, where `shardwright"
        f" profile` has measured before. Steps of {BATCHES} micro-batches with AdamW, lower quartile of"
        f" {STEPS}, taking turns, of what `auto` chooses and of up to {PLANS - 1} others that are said to"
        f" take less than {FARTHEST:.0f} times as long. Aim: what is chosen is within 5% of the fastest.",
        ["link", "model", "plan", "predicted", "measured", "of the fastest"],
    )
    for rate in rates:
        steps = _over(rate, names)
        for name in names:
            _add(table, rate, [step for step in steps if step.model == name])
    return table


def _add(table: Table, rate: str, steps: list[Step]) -> None:
    """The first is what was chosen."""
    fastest = min(step.measured for step in steps)
    for at, step in enumerate(steps):
        chosen = " (chosen)" if at == 0 else ""
        times = time_of(step.predicted), time_of(step.measured), f"{step.measured / fastest:.2f}"
        table.add(rate, step.model, f"`{step.plan}`{chosen}", *times)
    table.values[f"{rate}, {steps[0].model}"] = {
        "chosen": steps[0].measured,
        "fastest": fastest,
        "predicted": steps[0].predicted,
    }


def _over(rate: str, names: list[str]) -> list[Step]:
    """What two ranks find on both sides of a link."""
    with _link(rate) as spaces, tempfile.TemporaryDirectory() as folder:
        ranks = [_started(rank, space, folder, names) for rank, space in enumerate(spaces)]
        try:
            for rank in ranks:
                if rank.wait(LIMIT) != 0:
                    raise RuntimeError(f"a rank over a link of {rate} ended with {rank.returncode}")
        finally:
            for rank in ranks:
                rank.kill()
        return [Step(**one) for one in json.loads(Path(folder, "steps.json").read_text())]


def _started(rank: int, space: str, folder: str, names: list[str]) -> subprocess.Popen[bytes]:
    given = {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(NODES)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": NODES[0],
        "MASTER_PORT": "29533",
        "GLOO_SOCKET_IFNAME": "sw0",
        "OMP_NUM_THREADS": "1",
        "SHARDWRIGHT_CACHE": "off",
    }
    command = ["ip", "netns", "exec", space, sys.executable, __file__, folder, *names]
    return subprocess.Popen(command, env={**os.environ, **given})


@contextmanager
def _link(rate: str) -> Iterator[list[str]]:
    """Two namespaces, and what joins them."""
    spaces = ["shardwright-0", "shardwright-1"]
    first, second = spaces
    _remove(spaces)
    try:
        for space in spaces:
            _ip("netns", "add", space)
        _ip("link", "add", "sw0", "netns", first, "type", "veth", "peer", "name", "sw0", "netns", second)
        for space, address in zip(spaces, NODES, strict=True):
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "sw0")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", "sw0", "up")
            # Room for all that is under way: what is dropped would be sent again much later.
            shape = ["root", "tbf", "rate", rate, "burst", RATES[rate], "limit", "64mb"]
            subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", "sw0", *shape], check=True)
        yield spaces
    finally:
        _remove(spaces)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _remove(spaces: list[str]) -> None:
    for space in spaces:
        with suppress(subprocess.CalledProcessError):
            subprocess.run(["ip", "netns", "del", space], check=True, stderr=subprocess.DEVNULL)


def rank_main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    comm = joined()
    text = profile_joined(comm)
    if text is not None:
        (folder / "here.toml").write_text(text)
    torch.distributed.barrier()
    steps = [step for name in names for step in _of_model(comm.rank == 0, name, folder)]
    if comm.rank == 0:
        (folder / "steps.json").write_text(json.dumps([asdict(step) for step in steps]))


def _of_model(first: bool, name: str, folder: Path) -> list[Step]:
    """Steps of all plans take turns, so that a slow minute hits all."""
    module, given = MODELS[name]()
    plans: list[tuple[str, str, float]] = _plans(module, given, folder) if first else []
    announced = [plans]
    torch.distributed.broadcast_object_list(announced)
    steps = []
    for at, (_, words, _) in enumerate(announced[0]):
        path = folder / f"{name}-{at}.plan"
        if first:
            path.write_text(words)
        steps.append(step_of(module, given, path, BATCHES))
        steps[-1]()
    times = [[_seconds(step) for step in steps] for _ in range(STEPS)]
    each = zip(announced[0], zip(*times, strict=True), strict=True)
    return [Step(name, plan, predicted, low(list(measured))) for (plan, _, predicted), measured in each]


def _plans(
    module: torch.nn.Module, given: tuple[torch.Tensor, ...], folder: Path
) -> list[tuple[str, str, float]]:
    """By name, text and predicted seconds: the quickest first, which is what `auto` is."""
    text = (folder / "here.toml").read_text()
    graph = Graph(capture(module, given).graph_text)
    search: Found = Choice("here.toml", text, BATCHES).search(graph, len(NODES), every=True)
    rows = [
        row for row in search.rows if row["fits"] and row["seconds"] <= FARTHEST * search.rows[0]["seconds"]
    ]
    return [(row["plan"], search.plan(at).text, row["seconds"]) for at, row in enumerate(rows[:PLANS])]


def _seconds(step: Callable[[], None]) -> float:
    """The longer of both ranks'."""
    torch.distributed.barrier()
    longest = torch.tensor([seconds(step)], dtype=torch.float64)
    torch.distributed.all_reduce(longest, torch.distributed.ReduceOp.MAX)
    return float(longest[0])


if __name__ == "__main__":
    rank_main(Path(sys.argv[1]), sys.argv[2:])
