"""Small programs written by hand, as the compiler would emit them, for the tests of the runtime."""

from __future__ import annotations

import json
import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEADER = """
import torch
import torch.nn.functional as F

from shardwright.runtime import ops

"""


class Mlp(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(4, 6), nn.Linear(6, 3), dropout
        self.double()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = F.dropout(torch.relu(self.up(x)), self.dropout, self.training)
        return F.mse_loss(self.down(h), t)


def mlp(seed: int = 0, dropout: float = 0.0) -> Mlp:
    torch.manual_seed(seed)
    return Mlp(dropout)


def batch(seed: int = 1, size: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(size, 4, generator=generator, dtype=torch.float64),
        torch.randn(size, 3, generator=generator, dtype=torch.float64),
    )


STEP = """

def step(batches, scale):
    for b in range(batches):
        yield forward, b
        yield backward, b, scale, b == batches - 1
"""


def stepping(source: str) -> str:
    """With the timetable of what is trained."""
    return source + STEP if "def backward" in source else source


class Tables:
    """Builds `program.json`: regions are given as lists of intervals and numbered here."""

    def __init__(self, world: int, **others: Any):
        self.regions: list[Any] = []
        # What each rank has, in their order.
        self.ranks: list[dict[str, Any]] = []
        self.json: dict[str, Any] = {
            "format": 8, "shardwright": "0.1.0", "model": "Mlp", "digest": "d1", "plan": "by hand",
            "world": world, "groups": [[list(range(world))]], "regions": self.regions,
            "tensors": [], "roles": [], "exchanges": [], "random": [], **others,
        }  # fmt: skip

    def region(self, *intervals: tuple[int, int]) -> int:
        region = [list(interval) for interval in intervals]
        if region not in self.regions:
            self.regions.append(region)
        return self.regions.index(region)

    def tensor(
        self,
        id: int,
        kind: str,
        names: str,
        factors: list[list[int]],
        dtype: str = "f64",
        **more: Any,
    ) -> None:
        more.setdefault("frozen", False) if kind == "param" else None
        self.json["tensors"].append(
            {
                "id": id,
                "kind": kind,
                "names": names.split(),
                "dtype": dtype,
                "factors": factors,
                **more,
            }
        )

    def role(
        self,
        file: str,
        ranks: list[int],
        leaves: list[int],
        inputs: list[int],
        outputs: list[Any],
        holes: Any = (),
    ) -> None:
        known = {tensor["id"] for tensor in self.json["tensors"]}
        for output in outputs:
            if output and output["tensor"] not in known:
                self.tensor(output["tensor"], "value", "loss", [])
        self.json["roles"].append({
            "file": file, "ranks": ranks, "holes": list(holes), "inputs": inputs,
            "outputs": [output and {**output, "region": self.region()} for output in outputs],
            "leaves": [
                {"tensor": tensor, "number": leaves[:at].count(tensor)}
                for at, tensor in enumerate(leaves)
            ],
        })  # fmt: skip

    def rank(
        self,
        shards: list[tuple[int, Any]],
        inputs: list[Any],
        leaves: list[tuple[int, Any]] | None = None,
        random: dict[str, list[Any]] | None = None,
        constants: Any = (),
    ) -> None:
        numbered = [[tensor, self.region(*region)] for tensor, region in shards]
        parts = [[at, region] for at, (_, region) in enumerate(numbered)]
        if leaves is not None:
            parts = [[shard, self.region(*region)] for shard, region in leaves]
        self.ranks.append({
            "constants": list(constants), "shards": numbered, "leaves": parts,
            "inputs": [self.region(*region) for region in inputs],
            "random": {
                op: [self.region(*region) for region in slots]
                for op, slots in (random or {}).items()
            },
        })  # fmt: skip

    def exchange(self, tensor: int, sources: Any, targets: Any, pieces: Any, op: str = "sum") -> None:
        self.json["exchanges"].append({
            "tensor": tensor,
            "op": op,
            "sources": [[rank, self.region(*region)] for rank, region in sources],
            "targets": [[rank, self.region(*region)] for rank, region in targets],
            "pieces": [[source, target, self.region(*region)] for source, target, region in pieces],
        })  # fmt: skip

    def column(self, numbers: list[Any]) -> Any:
        """A region of each rank of a role."""
        if all(number == numbers[0] for number in numbers):
            return numbers[0]
        self.regions.append({"of": numbers})
        return len(self.regions) - 1

    def complete(self, role: dict[str, Any]) -> dict[str, Any]:
        """A role with what its ranks have."""
        tables = [self.ranks[rank] for rank in role["ranks"]]

        def pairs(key: str) -> list[tuple[Any, Any]]:
            rows = zip(*(table[key] for table in tables), strict=True)
            return [(row[0][0], self.column([region for _, region in row])) for row in rows]

        inputs = [self.column(list(row)) for row in zip(*(table["inputs"] for table in tables), strict=True)]
        return {
            **role,
            "constants": [list(row) for row in zip(*(table["constants"] for table in tables), strict=True)],
            "shards": pairs("shards"),
            "copies": [],
            "leaves": [
                {**leaf, "shard": shard, "region": region}
                for leaf, (shard, region) in zip(role["leaves"], pairs("leaves"), strict=True)
            ],
            "inputs": list(zip(role["inputs"], inputs, strict=True)),
            "random": {
                op: [
                    self.column(list(row))
                    for row in zip(*(table["random"][op] for table in tables), strict=True)
                ]
                for op in tables[0]["random"]
            },
        }

    def files(self, **sources: str) -> dict[str, str]:
        roles = [
            {**self.complete(role), "calls": called(sources[role["file"].removesuffix(".py")])}
            for role in self.json["roles"]
        ]
        texts = {f"{name}.py": HEADER + stepping(text) for name, text in sources.items()}
        every = zip(*(role["outputs"] for role in roles), strict=True)
        leave = ["whole" if any(of_roles) else "none" for of_roles in every]
        return {"program.json": json.dumps({**self.json, "outputs": leave, "roles": roles}), **texts}


def called(source: str) -> list[str]:
    """What the calls of a program are called, in their order."""
    calls = re.findall(r"run\.call\((\w+)(?:.*\bat=(\d+))?", source)
    return [f"{function} {at}".rstrip() for function, at in calls]


def _mlp_tables(world: int, size: int) -> Tables:
    tables = Tables(world)
    tables.tensor(0, "input", "x", [[size], [4]], position=0)
    tables.tensor(1, "input", "t", [[size], [3]], position=1)
    tables.tensor(2, "param", "up.weight", [[6], [4]])
    tables.tensor(3, "param", "up.bias", [[6]])
    tables.tensor(4, "param", "down.weight", [[3], [6]])
    tables.tensor(5, "param", "down.bias", [[3]])
    tables.tensor(6, "value", "relu", [[size], [6]])
    tables.tensor(7, "value", "linear_1", [[size], [3]])
    return tables


LOSS = [{"tensor": 9, "grad": True}]

MEGATRON = """
def hidden(p, x):
    h = F.linear(x, p.up.weight, p.up.bias)
    h_1 = torch.relu(h)
    return F.linear(h_1, p.down.weight)


def error(p, y, t):
    z = y + p.down.bias
    return F.mse_loss(z, t)


def forward(run, p, rank, x, t):
    y = run.call(hidden, p, x)
    y_1 = run.all_reduce(y, 0)
    loss = run.call(error, p, y_1, t)
    return (loss,)


def backward(run, p, rank, last, g_loss):
    g_y = run.grad(error, g_loss)
    run.grad(hidden, g_y)
"""


def again(source: str, call: str, seed: str) -> str:
    """The same program with its first call computed again for backward."""
    function, args = call.split(", p, ")
    source = source.replace(f"run.call({call})", f"run.call({call}, recompute=True)")
    first = next(line for line in source.splitlines() if "recompute=True" in line)
    source = source.replace(first, f"    run.keep(0, {args})\n{first}")
    taken = f"    {args} = run.take(0)\n    run.call({call})\n    run.grad({function}, {seed})"
    return source.replace(f"    run.grad({function}, {seed})", taken)


def megatron(size: int = 5, recompute: bool = False) -> dict[str, str]:
    """The inner dim split over two ranks."""
    tables = _mlp_tables(2, size)
    tables.role("all.py", [0, 1], [2, 3, 4, 5], [0, 1], LOSS)
    for half in ((0, 3), (3, 6)):
        shards = [(2, [half, (0, 4)]), (3, [half]), (4, [(0, 3), half]), (5, [(0, 3)])]
        tables.rank(shards, [[(0, size), (0, 4)], [(0, size), (0, 3)]])
    source = again(MEGATRON, "hidden, p, x", "g_y") if recompute else MEGATRON
    return tables.files(all=source)


DATA = """
def error(p, x, t):
    h = F.linear(x, p.up.weight, p.up.bias)
    h_1 = torch.relu(h)
    DROP
    y = F.linear(h_1, p.down.weight, p.down.bias)
    d = (y - t) ** 2
    return ops.mean(d, [0, 1], False, COUNT, None)


def forward(run, p, rank, x, t):
    part = run.call(error, p, x, t)
    loss = run.all_reduce(part, 0)
    return (loss,)


def backward(run, p, rank, last, g_loss):
    run.grad(error, g_loss)
    if last:
        run.reduce_gradients(0, [p.down.weight, p.down.bias])
        run.reduce_gradients(0, [p.up.weight, p.up.bias])
"""


def data(world: int, size: int = 5, dropout: float = 0.0, recompute: bool = False) -> dict[str, str]:
    """The batch split, unevenly if need be."""
    tables = _mlp_tables(world, size)
    tables.json["random"] = [{"op": 17, "tensor": 6, "p": dropout}] if dropout else []
    tables.role("all.py", list(range(world)), [2, 3, 4, 5], [0, 1], LOSS)
    whole = [(2, [(0, 6), (0, 4)]), (3, [(0, 6)]), (4, [(0, 3), (0, 6)]), (5, [(0, 3)])]
    start = 0
    for rank in range(world):
        end = start + size // world + (rank < size % world)
        rows = (start, end)
        tables.rank(
            whole,
            [[rows, (0, 4)], [rows, (0, 3)]],
            random={"17": [[rows, (0, 6)]]} if dropout else None,
        )
        start = end
    drop = f"h_1 = ops.dropout(h_1, {dropout}, 17, 0)" if dropout else "pass"
    source = DATA.replace("DROP", drop).replace("COUNT", str(size * 3))
    return tables.files(all=again(source, "error, p, x, t", "g_loss") if recompute else source)


FIRST_STAGE = """
def hidden(p, x):
    h = F.linear(x, p.up.weight, p.up.bias)
    return torch.relu(h)


def forward(run, p, rank, x):
    h = run.call(hidden, p, x)
    run.exchange(0, h)
    loss = run.exchange(1)
    return (loss,)


def backward(run, p, rank, last):
    g_h = run.exchange(2)
    run.grad(hidden, g_h)
"""

SECOND_STAGE = """
def error(p, h, t):
    y = F.linear(h, p.down.weight, p.down.bias)
    return F.mse_loss(y, t)


def forward(run, p, rank, t):
    h = run.exchange(0)
    loss = run.call(error, p, h, t)
    run.exchange(1, loss)
    return (loss,)


def backward(run, p, rank, last, g_loss):
    g_h = run.grad(error, g_loss)
    run.exchange(2, g_h)
"""


def pipeline(size: int = 5) -> dict[str, str]:
    """Two stages; the loss is sent back."""
    tables = _mlp_tables(2, size)
    tables.tensor(9, "value", "mse_loss", [])
    tables.role("first.py", [0], [2, 3], [0], [{"tensor": 9, "grad": False}])
    tables.role("second.py", [1], [4, 5], [1], LOSS)
    tables.rank([(2, [(0, 6), (0, 4)]), (3, [(0, 6)])], [[(0, size), (0, 4)]])
    tables.rank([(4, [(0, 3), (0, 6)]), (5, [(0, 3)])], [[(0, size), (0, 3)]])
    h = [(0, size), (0, 6)]
    tables.exchange(6, [(0, h)], [(1, h)], [(0, 0, h)])
    tables.exchange(9, [(1, [])], [(0, [])], [(0, 0, [])])
    tables.exchange(6, [(1, h)], [(0, h)], [(0, 0, h)])
    return tables.files(first=FIRST_STAGE, second=SECOND_STAGE)


ZERO = """
def error(p, w, x, t):
    h = F.linear(x, w, p.up.bias)
    h_1 = torch.relu(h)
    first = F.linear(h_1[:, [0, 1, 3, 4]], p.down.weight)
    y = first + F.linear(h_1[:, [2, 5]], p.down.weight__1) + p.down.bias
    d = (y - t) ** 2
    return ops.mean(d, [0, 1], False, COUNT, None)


def gather(p):
    return p.up.weight


def forward(run, p, rank, x, t):
    own = run.call(gather, p)
    w = run.all_gather(own, 0, 1, [3, 1], [[6], [4]])
    part = run.call(error, p, w, x, t)
    loss = run.all_reduce(part, 0)
    return (loss,)


def backward(run, p, rank, last, g_loss):
    g_w = run.grad(error, g_loss)
    g_own = run.reduce_scatter(g_w, 0, 1, [3, 1], [[6], [4]])
    run.grad(gather, g_own)
    if last:
        run.exchange_gradients(0, [p.up.bias], [1])
        run.reduce_gradients(0, [p.down.weight, p.down.bias])
        run.reduce_gradients(0, [p.down.weight__1])
"""


def zero(size: int = 5) -> dict[str, str]:
    """Data parallel; `up.weight` is split unevenly and gathered, `down.weight` has two leaves.

    The first of these is not a view of its shard.
    """
    tables = _mlp_tables(2, size)
    tables.json["tensors"][4]["factors"] = [[3], [2, 3]]
    tables.role("all.py", [0, 1], [2, 3, 4, 4, 5], [0, 1], LOSS)
    bias, down = [(0, 6)], [(0, 3), (0, 2), (0, 3)]
    first, second = [(0, 3), (0, 2), (0, 2)], [(0, 3), (0, 2), (2, 3)]
    cut = size - size // 2
    for columns, rows in (((0, 3), (0, cut)), ((3, 4), (cut, size))):
        shards = [(2, [(0, 6), columns]), (3, bias), (4, down), (5, [(0, 3)])]
        leaves = [(0, [(0, 6), columns]), (1, bias), (2, first), (2, second), (3, [(0, 3)])]
        tables.rank(shards, [[rows, (0, 4)], [rows, (0, 3)]], leaves)
    both = [(0, bias), (1, bias)]
    pieces = [(0, 0, bias), (1, 0, bias), (0, 1, bias), (1, 1, bias)]
    tables.exchange(3, both, both, pieces)
    return tables.files(all=ZERO.replace("COUNT", str(size * 3)))
