"""A compiled program, read from its files: `program.json` and one Python file for each role."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import linecache
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from ..._core import verify
from ...errors import RuntimeFault
from ...support import syntax_trees
from .columns import Regions, groups_of, number_at, numbers_of
from .freeing import free_early
from .regions import Region, shape_of

FORMAT = 8
GRAPH = "graph.txt"
TABLES = "program.json"

# Ranks may be threads: one of them compiles.
_compiling = threading.Lock()

DTYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "bool": torch.bool, "c64": torch.complex64, "c128": torch.complex128,
}  # fmt: skip

# The forward of a block, and what it takes before tensors.
BLOCK = re.compile(r"forward(?:_(\d+))?")
GIVEN = ("run", "p", "rank")
# What a timetable says at its end, where parameters are kept for the next step.
STASH = "stash"
STEADY = re.compile(r"^def steady\(batches, scale\)", re.MULTILINE)
DEFINED = re.compile(r"^def forward_(\d+)\(run, p, rank", re.MULTILINE)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the single-device model."""

    id: int
    kind: str
    names: list[str]
    dtype: torch.dtype
    factors: list[list[int]]
    frozen: bool = False
    persistent: bool = True
    position: int = -1
    # Of an input: whether the caller gets its gradient, if there is one.
    grad: bool = False
    # What a forward reads of a parameter, where it is kept in another dtype.
    read_as: torch.dtype | None = None
    # Whether it lives on the host, and is brought for each use.
    on_host: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.factors)

    @property
    def trainable(self) -> bool:
        return self.steppable and not self.frozen

    @property
    def steppable(self) -> bool:
        """Whether an optimizer may have it, and leave it alone as long as it is frozen."""
        return self.kind == "param" and (self.dtype.is_floating_point or self.dtype.is_complex)

    @property
    def held(self) -> bool:
        """Whether it has a value between steps, that the program may change."""
        return self.kind in ("param", "buffer")

    @property
    def saved(self) -> bool:
        """Whether it belongs to the model's state dict."""
        return self.kind == "param" or (self.kind == "buffer" and self.persistent)


@dataclass(frozen=True)
class Output:
    tensor: int
    grad: bool


@dataclass(frozen=True)
class Needs:
    """Which arguments and results of a call need a gradient.

    Arguments are counted over the tensors among them that are not leaves.
    """

    arguments: list[int]
    results: list[int]
    split: bool = False
    """Whether its backward is: input gradients, then weight gradients."""


@dataclass(frozen=True)
class Role:
    """Ranks that run the same code."""

    file: str
    ranks: list[int]
    holes: list[str]
    inputs: list[int]
    leaves: list[tuple[int, int]]
    outputs: list[Output | None]
    # The inputs whose gradients `backward` returns.
    gradients: list[int]
    # By the name of a call its number, and that of the call that computes it again: the same if none does.
    calls: dict[str, tuple[int, int]]
    # By the call's number; a call that is not here needs what autograd says.
    grads: dict[int, Needs]
    # The entry of `program.json`.
    entry: Mapping[str, Any]


@dataclass(frozen=True)
class Gathered:
    """The parts of a group's ranks, joined along one factor; of these this rank holds
    one shard."""

    shard: int
    region: Region
    factor: int
    parts: int


@dataclass(frozen=True)
class Leaf:
    """Part of a shard, or of what is gathered."""

    shard: int
    copy: int | None
    region: Region


@dataclass(frozen=True)
class RankTable:
    """What one rank has of its own."""

    constants: list[int]
    shards: list[tuple[int, Region]]
    copies: list[Gathered]
    leaves: list[Leaf]
    inputs: list[Region]
    outputs: list[Region | None]
    random: dict[int, list[Region]]


class Tables(Sequence[RankTable]):
    """The tables of all ranks, each of which is made when it is asked for."""

    def __init__(self, roles: Sequence[Role], regions: Regions, world: int):
        self._regions, self._world = regions, world
        self._places = {rank: (role, at) for role in roles for at, rank in enumerate(role.ranks)}
        self._made: dict[int, RankTable] = {}

    def __len__(self) -> int:
        return self._world

    def __getitem__(self, rank: Any) -> Any:
        if not 0 <= rank < self._world:
            raise IndexError(rank)
        if rank not in self._made:
            role, at = self._places[rank]
            self._made[rank] = _rank(role.entry, at, self._regions)
        return self._made[rank]

    def role(self, rank: int) -> Role:
        return self._places[rank][0]


@dataclass(frozen=True)
class Exchange:
    tensor: int
    op: str
    sources: list[tuple[int, Region]]
    targets: list[tuple[int, Region]]
    pieces: list[tuple[int, int, Region]]
    grad: bool


@dataclass(frozen=True)
class Draw:
    """A random operator of the whole graph, for the masks of the single device."""

    op: int
    tensor: int
    p: float
    kind: str | None = None
    keys: int | None = None
    order: list[int] | None = None


class Numbered(NamedTuple):
    """A random operator, counted among them alone."""

    number: int
    draw: Draw


@dataclass(frozen=True)
class Block:
    """The functions of one block of the model, and which of the role's inputs its forward takes."""

    number: int
    forward: Callable[..., Any]
    backward: Callable[..., Any] | None
    inputs: slice
    # The two halves of a backward, if it has them.
    backward_inputs: Callable[..., Any] | None = None
    backward_weights: Callable[..., Any] | None = None

    @property
    def trains(self) -> bool:
        return self.backward is not None or self.backward_inputs is not None


@dataclass(frozen=True)
class Code:
    """The functions of a role."""

    # Once a step, if there is something to do: before all else, and after it.
    begin: Callable[..., Any] | None
    end: Callable[..., Any] | None
    # In the order in which a forward runs them.
    blocks: list[Block]
    # The timetable: yields the tasks of a step. Not there where there is no backward on any rank.
    # One whose steps follow each other without a pause is called `steady` in the file.
    step: Callable[[int, float], Iterator[Any]] | None

    @property
    def trains(self) -> bool:
        return any(block.trains for block in self.blocks)

    @functools.cached_property
    def stashes(self) -> bool:
        """Whether parameters are kept as they are for what is under way at the end of a step."""
        return self.step is not None and STASH in self.step(0, 1.0)

    @functools.cached_property
    def splits_backward(self) -> bool:
        """Whether the backward of some block is two functions."""
        return any(block.backward_inputs for block in self.blocks)


@dataclass(frozen=True)
class Program:
    model: str
    plan: str
    digest: str
    world: int
    # What each rank is given of the inputs, "global" or "local", and gets the gradient of.
    given: str
    # Of each output what leaves: "none", "whole" (of it, on each rank) or "local" (the rank's part).
    leaves: list[str]
    groups: list[list[list[int]]]
    tensors: dict[int, TensorInfo]
    roles: list[Role]
    ranks: Tables
    exchanges: list[Exchange]
    random: list[Draw]
    # Whether the sequence of the model is in slices, each of which draws for itself.
    in_slices: bool
    # Of parameters that ranks hold in parts, the one that computes the update of the whole.
    updates: dict[int, int]
    # Parameters of which the optimizer's state is on the host between steps.
    state_on_host: frozenset[int]
    files: Mapping[str, str]
    folder: Path | None = None
    # The text of the model's graph, if it is known.
    graph: str = ""
    # The memory that the compiler tells of a step, if that is known.
    memory: Mapping[str, Any] | None = None
    _codes: dict[str, Code] = field(default_factory=dict)
    _groups_of: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)

    @functools.cached_property
    def blocks(self) -> int:
        """How many blocks the model is cut into."""
        numbers = (name for text in self.files.values() for name in DEFINED.findall(text))
        return max((int(number) + 1 for number in numbers), default=1)

    @functools.cached_property
    def goes_on(self) -> bool:
        """Whether its steps follow each other without a pause."""
        return any(STEADY.search(text) for text in self.files.values())

    @functools.cached_property
    def draws(self) -> dict[int, Numbered]:
        """The random operators, by their numbers in the graph."""
        return {draw.op: Numbered(at, draw) for at, draw in enumerate(self.random)}

    @functools.cached_property
    def seeded(self) -> list[int]:
        """The positions of the outputs that need a gradient on any rank."""
        outputs = (enumerate(role.outputs) for role in self.roles)
        return sorted({at for all_ in outputs for at, output in all_ if output and output.grad})

    def role(self, rank: int) -> Role:
        return self.ranks.role(rank)

    def constants(self, rank: int, device: torch.device) -> SimpleNamespace:
        """What emitted code calls `rank`: the numbers of this one, and where it computes."""
        values = self.ranks[rank].constants
        return SimpleNamespace(device=device, **dict(zip(self.role(rank).holes, values, strict=True)))

    def code(self, rank: int) -> Code:
        file = self.role(rank).file
        with _compiling:
            if file not in self._codes:
                self._codes[file] = _compile(self, file)
        return self._codes[file]

    def group_of(self, grouping: int, rank: int) -> tuple[int, ...]:
        """Asked for by each communication: looked for once."""
        key = grouping, rank
        if key not in self._groups_of:
            self._groups_of[key] = self._group_of(grouping, rank)
        return self._groups_of[key]

    def _group_of(self, grouping: int, rank: int) -> tuple[int, ...]:
        for ranks in self.groups[grouping]:
            if rank in ranks:
                return tuple(ranks)
        raise RuntimeFault(
            "SW0701", f"rank {rank} has no group in grouping {grouping}", place=self.role(rank).file
        )

    def parameters(self) -> list[TensorInfo]:
        return [tensor for tensor in self.tensors.values() if tensor.kind == "param"]

    def saved_tensors(self) -> list[TensorInfo]:
        return [tensor for tensor in self.tensors.values() if tensor.saved]


def kept_in(program: Program, kept: Mapping[str, torch.dtype]) -> Program:
    """The program, over parameters that are kept in other dtypes, by name, than forwards read."""

    def keep(tensor: TensorInfo) -> TensorInfo:
        dtype = next((kept[name] for name in tensor.names if name in kept), tensor.dtype)
        return tensor if tensor.kind != "param" else replace(tensor, dtype=dtype, read_as=tensor.dtype)

    if not kept:
        return program
    return replace(program, tensors={number: keep(tensor) for number, tensor in program.tensors.items()})


def load_program(
    files: Mapping[str, str] | str | Path,
    *,
    world: int | None = None,
    digest: str | None = None,
    version: str | None = None,
    graph: str = "",
    memory: Mapping[str, Any] | None = None,
) -> Program:
    """Reads a program from `{file name: text}` or a folder; refuses what does not fit.

    Files may have been edited since they were proved. With their `graph.txt` they are proved again;
    `graph` is what it says where it is not among them. `memory` is the memory that a step takes.
    """
    folder = None if isinstance(files, Mapping) else Path(files)
    texts = files if isinstance(files, Mapping) else read_folder(Path(files))
    tables = _parse(texts, folder)
    _require(
        tables,
        "format",
        FORMAT,
        "SW0702",
        "compile the model again with this version of shardwright",
    )
    _require(tables, "shardwright", version or own_version(), "SW0703", "compile the model again")
    _require(tables, "digest", digest, "SW0704", "the model has changed since: compile it again")
    _require(
        tables,
        "world",
        world,
        "SW0705",
        "start as many ranks as the program is for, or compile it again",
    )
    try:
        program = _program(tables, texts, folder)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise _unreadable(f"{type(error).__name__}: {error}", folder) from error
    if GRAPH in texts:
        verify(texts[GRAPH], {name: text for name, text in texts.items() if name != GRAPH})
    return replace(program, graph=texts.get(GRAPH, graph), memory=memory)


def _unreadable(why: str, folder: Path | None) -> RuntimeFault:
    place = str(folder) if folder else None
    return RuntimeFault(
        "SW0701", "program.json cannot be read", place=place, why=why, fix="compile the model again"
    )


def read_folder(folder: Path) -> dict[str, str]:
    """`program.json` and what a program may consist of besides."""
    paths = [*sorted(folder.glob("*.py")), folder / TABLES, folder / GRAPH]
    try:
        return {path.name: path.read_text(encoding="utf-8") for path in paths if path.exists()}
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeFault(
            "SW0701",
            "a file of the program cannot be read",
            place=str(folder),
            why=str(error),
            fix="compile the model again",
        ) from error


def _parse(texts: Mapping[str, str], folder: Path | None) -> dict[str, Any]:
    place = str(folder) if folder else None
    if TABLES not in texts:
        listed = ", ".join(texts) or "nothing"
        raise RuntimeFault(
            "SW0701",
            "there is no program.json",
            place=place,
            why=f"found {listed}",
            fix="give the folder that a program was written to, with all its files",
        )
    try:
        tables = json.loads(texts[TABLES])
        missing = [role["file"] for role in tables["roles"] if role["file"] not in texts]
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(f"{type(error).__name__}: {error}", folder) from error
    if missing:
        raise RuntimeFault(
            "SW0701",
            f"files of the program are missing: {', '.join(missing)}",
            place=place,
            why="program.json names the file of every role",
            fix="keep the files of one program together, or compile the model again",
        )
    return dict(tables)


def _require(tables: dict[str, Any], key: str, expected: Any, code: str, fix: str) -> None:
    if expected is not None and tables.get(key) != expected:
        raise RuntimeFault(
            code,
            f"the program's {key} is {tables.get(key)!r}, needed is {expected!r}",
            place=TABLES,
            fix=fix,
        )


def own_version() -> str | None:
    import shardwright

    try:
        return getattr(shardwright, "__version__", None) or importlib.metadata.version("shardwright")
    except importlib.metadata.PackageNotFoundError:
        return None


def _program(tables: dict[str, Any], texts: Mapping[str, str], folder: Path | None) -> Program:
    regions = Regions(tables["regions"])
    on_host = frozenset(tables.get("held_on_host", ()))
    tensors = [_tensor(entry, on_host) for entry in tables["tensors"]]
    roles = [_role(entry) for entry in tables["roles"]]
    return Program(
        model=tables.get("model", ""),
        plan=tables.get("plan", ""),
        digest=tables["digest"],
        world=tables["world"],
        given=tables.get("inputs", "global"),
        leaves=tables["outputs"],
        groups=[groups_of(entry) for entry in tables["groups"]],
        tensors={tensor.id: tensor for tensor in tensors},
        roles=roles,
        ranks=Tables(roles, regions, tables["world"]),
        exchanges=[_exchange(entry, regions) for entry in tables["exchanges"]],
        random=[Draw(**entry) for entry in tables.get("random", [])],
        in_slices="slices" in tables,
        updates=dict(tables.get("updates", [])),
        state_on_host=frozenset(tables.get("state_on_host", ())),
        files=texts,
        folder=folder,
    )


def _tensor(entry: dict[str, Any], on_host: frozenset[int]) -> TensorInfo:
    return TensorInfo(**{**entry, "dtype": DTYPES[entry["dtype"]], "on_host": entry["id"] in on_host})


def _role(entry: dict[str, Any]) -> Role:
    return Role(
        file=entry["file"],
        ranks=numbers_of(entry["ranks"]),
        holes=entry["holes"],
        inputs=[tensor for tensor, _ in entry["inputs"]],
        leaves=[(leaf["tensor"], leaf["number"]) for leaf in entry["leaves"]],
        outputs=[output and Output(output["tensor"], output["grad"]) for output in entry["outputs"]],
        gradients=entry.get("gradients", []),
        calls=_calls(entry["calls"]),
        grads={
            int(number): Needs(needs["arguments"], needs["results"], needs.get("split", False))
            for number, needs in entry.get("grads", {}).items()
        },
        entry=entry,
    )


def name_of_call(function: Callable[..., Any], at: int | None) -> str:
    """As the tables have it."""
    return function.__name__ if at is None else f"{function.__name__} {at}"


def _calls(names: Sequence[str]) -> dict[str, tuple[int, int]]:
    numbers: dict[str, tuple[int, int]] = {}
    for number, name in enumerate(names):
        first, _ = numbers.get(name, (number, number))
        numbers[name] = first, number
    return numbers


def _rank(entry: Mapping[str, Any], at: int, regions: Regions) -> RankTable:
    return RankTable(
        constants=[number_at(constant, at) for constant in entry["constants"]],
        shards=[(tensor, regions.at(region, at)) for tensor, region in entry["shards"]],
        copies=[
            Gathered(shard, regions.at(region, at), factor, parts)
            for shard, region, factor, parts in entry["copies"]
        ],
        leaves=[_leaf(entry, leaf, regions.at(leaf["region"], at)) for leaf in entry["leaves"]],
        inputs=[regions.at(region, at) for _, region in entry["inputs"]],
        outputs=[output and regions.at(output["region"], at) for output in entry["outputs"]],
        random={
            int(op): [regions.at(slot, at) for slot in slots] for op, slots in entry.get("random", {}).items()
        },
    )


def _leaf(entry: Mapping[str, Any], leaf: Mapping[str, Any], region: Region) -> Leaf:
    copy = leaf.get("copy")
    return Leaf(leaf["shard"] if copy is None else entry["copies"][copy][0], copy, region)


def _exchange(entry: dict[str, Any], regions: Regions) -> Exchange:
    return Exchange(
        tensor=entry["tensor"],
        op=entry["op"],
        sources=[(rank, regions.one(region)) for rank, region in entry["sources"]],
        targets=[(rank, regions.one(region)) for rank, region in entry["targets"]],
        pieces=[(source, target, regions.one(region)) for source, target, region in entry["pieces"]],
        grad=entry.get("grad", True),
    )


def _compile(program: Program, file: str) -> Code:
    text = program.files[file]
    if program.folder:
        name = str(program.folder.resolve() / file)
    else:
        name = f"<shardwright {program.model} {program.digest[:12]}>/{file}"
        # No modification time: linecache keeps the entry.
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": f"shardwright_program.{Path(file).stem}", "__file__": name}
    try:
        tree = syntax_trees.module(text, name)
    except (SyntaxError, ValueError) as error:
        raise RuntimeFault(
            "SW0701",
            "the program is not Python",
            place=f"{file}:{getattr(error, 'lineno', None) or 1}",
            why=str(getattr(error, "msg", error)),
            fix="undo the edit, or compile the model again",
        ) from error
    exec(compile(free_early(tree), name, "exec"), names)
    if program.blocks == 1 and "forward" not in names:
        raise RuntimeFault(
            "SW0701",
            "the program has no function `forward`",
            place=file,
            why="a rank's forward is the function of this name",
            fix="undo the edit, or compile the model again",
        )
    step = names.get("step", names.get("steady"))
    return Code(names.get("begin"), names.get("end"), _blocks(names), step)


def _blocks(names: Mapping[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    codes = {code[1]: name for name in names if (code := BLOCK.fullmatch(name))}
    taken = 0
    for number in sorted(codes, key=lambda number: int(number or 0)):
        forward = names[codes[number]]
        count = forward.__code__.co_argcount - len(GIVEN)
        whole, first, second = (
            names.get(codes[number].replace("forward", other)) for other in ("backward", "inputs", "weights")
        )
        blocks.append(Block(int(number or 0), forward, whole, slice(taken, taken + count), first, second))
        taken += count
    return blocks
