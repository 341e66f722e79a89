"""Before each call of a model the ranks make sure that they all make the same one.

One small sum over all ranks, on the host, compares fingerprints: of what is called, in which mode,
with tensors of which shapes. So a rank that was given another batch, or has gone on to something else,
is told apart before anybody waits for it inside of a program. In the first calls of a kind the
contents of the inputs are compared as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import torch
from torch import Tensor

from ...errors import RuntimeFault, ShardwrightError
from ..communication import watch
from ..communication.comm import Comm
from ..communication.messages import bytes_of
from ..communication.verdicts import left_the_loop, listed, other_batches
from ..execution.inputs import Call
from ..execution.pieces import Pieces, Split

# How often the contents of the inputs are compared for one kind of call.
FIRST = 3
# Sums over millions of ranks stay exact in 64 bits.
BITS = 40
# More bytes than this are first reduced to sums.
FEW = 1 << 20
ROW, BLOCK = 1024, 1 << 26


@dataclass(frozen=True)
class Record:
    """What a rank is about to do, in words; `steps` is how many it has done and is not compared."""

    model: str
    kind: str
    training: bool
    gradients: bool
    scale: str
    settings: tuple[str, ...]
    structures: tuple[str, ...]
    tensors: tuple[tuple[str, ...], ...]
    problem: str
    steps: int

    @property
    def deed(self) -> str:
        name = self.kind if self.kind != "forward" or self.training else "forward in evaluation mode"
        name += f" of {self.model}" if self.model else ""
        return name if self.gradients or self.kind != "forward" else f"{name} without gradients"


class Agreement:
    """One for each model; `model` says which of several."""

    def __init__(self, comm: Comm, model: str, pieces: Pieces | None):
        self.comm, self.model, self.pieces = comm, model, pieces
        self.steps = 0
        # Whether any rank said something with the last call, and whether it had news.
        self.said = self.news = False
        self._seen: Counter[int] = Counter()

    def count_step(self) -> None:
        self.steps += 1
        watch.count_step()

    def meet(
        self,
        kind: str,
        make: Callable[[], list[Call]],
        *,
        names: Callable[[Call], Sequence[str]],
        training: bool,
        settings: tuple[str, ...] = (),
        scale: float | None = None,
        says: bool = False,
        news: bool = False,
    ) -> list[Call]:
        """The calls that all ranks make now. An error of any rank is raised on all, and what one
        `says`, or that it has `news`, all know."""
        calls: list[Call] = []
        splits: list[list[Split]] = []
        sizes: list[list[int]] = []
        problem: Exception | None = None
        new = False
        self.said, self.news = says, news
        try:
            calls = make()
            if self.pieces:
                splits = [self.pieces.splits(call, names(call)) for call in calls]
                sizes = [self.pieces.sizes(call, s) for call, s in zip(calls, splits, strict=True)]
        except Exception as error:
            problem = error
        if self.comm.world > 1:
            record = self._record(kind, training, scale, settings, calls, splits, names, problem)
            new = self._compare(record, calls, problem)
        if problem is not None:
            raise _on_all(problem)
        if not self.pieces or not calls:
            return calls
        return self._together(calls, splits, sizes, new)

    def _record(
        self,
        kind: str,
        training: bool,
        scale: float | None,
        settings: tuple[str, ...],
        calls: Sequence[Call],
        splits: Sequence[Sequence[Split]],
        names: Callable[[Call], Sequence[str]],
        problem: Exception | None,
    ) -> Record:
        return Record(
            self.model,
            kind,
            training,
            torch.is_grad_enabled(),
            repr(scale),
            settings,
            tuple(" ".join((str(call.structure), *call.read)) for call in calls),
            tuple(
                _described(call, names(call), splits[at] if splits else []) for at, call in enumerate(calls)
            ),
            "" if problem is None else str(problem),
            self.steps,
        )

    def _compare(self, record: Record, calls: Sequence[Call], problem: Exception | None) -> bool:
        """Raises what is different; whether contents are to be compared."""
        fingerprint = number_of(repr(replace(record, steps=0)).encode())
        self._seen[fingerprint] += 1
        new = self._seen[fingerprint] <= FIRST and not problem
        content = digest(_given(calls)) if new and not self.pieces else 0
        *sums, saying, knowing = self.comm.tally(
            [fingerprint, content, self.said, self.news], "the agreement on a call"
        )
        self.said, self.news = saying > 0, knowing > 0
        if sums != [self.comm.world * fingerprint, self.comm.world * content]:
            everyone = self.comm.all_gather_objects((record, content))
            if problem is not None:
                raise _on_all(problem)
            raise _on_all(_difference([r for r, _ in everyone], [c for _, c in everyone]))
        return new

    def _together(
        self, calls: list[Call], splits: list[list[Split]], sizes: list[list[int]], new: bool
    ) -> list[Call]:
        """The calls with whole shapes, from what all ranks were given."""
        assert self.pieces is not None
        digests = [
            number
            for call, row in zip(calls, sizes, strict=True)
            for number in (digest(_given([call])) if new else 0, *row)
        ]
        everyone = self.comm.rows(digests, "the sizes of a batch")
        agreed, at = [], 0
        for call, split, row in zip(calls, splits, sizes, strict=True):
            rows = [theirs[at : at + 1 + len(row)] for theirs in everyone]
            whole = self.pieces.together(call, split, [lengths for _, *lengths in rows])
            agreed.append(replace(whole, contents=tuple(content for content, *_ in rows) if new else ()))
            at += 1 + len(row)
        return agreed


def _given(calls: Sequence[Call]) -> list[Tensor]:
    """What other layers have made is no batch of a loader, and may differ in the last bit."""
    return [x for call in calls for x in call.tensors if not x.requires_grad]


def digest(values: Sequence[Tensor]) -> int:
    """Another number for other contents, or the same in another order. Reads all of it."""
    hashed = blake2b(digest_size=8)
    for value in values:
        hashed.update(_bytes(value.detach()))
    return int.from_bytes(hashed.digest(), "little") % (1 << BITS)


def number_of(text: bytes) -> int:
    """Another number for another text."""
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") % (1 << BITS)


def _bytes(value: Tensor) -> bytes:
    """All bytes of a small tensor; of a large one, sums of words that are weighted by their place."""
    flat = value.contiguous().reshape(-1).view(torch.uint8)
    if flat.numel() <= FEW:
        return bytes_of(flat)
    weights = torch.arange(1, 2 * ROW, 2, device=flat.device) * 0x9E3779B97F4A7C1
    sums = []
    for block in flat.split(BLOCK):
        padded = block.new_zeros(-(-block.numel() // (8 * ROW)) * 8 * ROW)
        padded[: block.numel()] = block
        sums.append((padded.view(torch.int64).view(-1, ROW) * weights).sum(1))
    return _bytes(torch.cat(sums))


def _described(call: Call, names: Sequence[str], splits: Sequence[Split]) -> tuple[str, ...]:
    """One for each tensor; dims in pieces may differ from rank to rank."""
    cut = {(split.tensor, split.dim) for split in splits}
    described = []
    for at, (tensor, shape) in enumerate(zip(call.tensors, call.shapes, strict=True)):
        sizes = ", ".join("part" if (at, dim) in cut else str(size) for dim, size in enumerate(shape))
        name = names[at] if at < len(names) else f"input {at}"
        grad = " that requires a gradient" if tensor.requires_grad and torch.is_grad_enabled() else ""
        described.append(f"{name} is ({sizes}) of {str(tensor.dtype).removeprefix('torch.')}{grad}")
    return tuple(described)


def _on_all(error: Exception) -> Exception:
    if isinstance(error, ShardwrightError):
        error.everywhere = True
    return error


def _difference(records: Sequence[Record], contents: Sequence[int]) -> RuntimeFault:
    for rank, record in enumerate(records):
        if record.problem:
            return RuntimeFault(
                "SW0784",
                f"rank {rank} cannot take its batch",
                why=record.problem,
                fix="look at what that rank was given; all ranks take each step together",
            )
    deeds = [record.deed for record in records]
    if len(set(deeds)) > 1:
        return _left(records, deeds)
    for mode in (_mode, _grad_mode):
        if len(set(map(mode, records))) > 1:
            return _other_modes([mode(record) for record in records])
    if len({record.settings for record in records}) > 1:
        return _other_settings([record.settings for record in records])
    counts = [f"{len(record.tensors)} batches" for record in records]
    for what in (counts, [record.tensors for record in records], [record.structures for record in records]):
        if len(set(what)) > 1:
            return _other_inputs(what)
    if len({record.scale for record in records}) > 1:
        return _other_inputs([f"scale {record.scale}" for record in records])
    if len(set(contents)) == 1:
        # What is compared, and has no words above, is told as it is.
        return _other_inputs([repr(replace(record, steps=0)) for record in records])
    return other_batches(_others(contents), 'with inputs="global" every rank is given the whole batch')


def _mode(record: Record) -> str:
    return "training mode" if record.training else "evaluation mode"


def _grad_mode(record: Record) -> str:
    return "with gradients" if record.gradients else "without gradients"


def _other_modes(modes: Sequence[str]) -> RuntimeFault:
    ranks: dict[str, list[int]] = {}
    for rank, mode in enumerate(modes):
        ranks.setdefault(mode, []).append(rank)
    return RuntimeFault(
        "SW0781",
        "the ranks call the model in different modes",
        why=" | ".join(f"{listed(who)}: {mode}" for mode, who in ranks.items()),
        fix="let all ranks call `train()`, `eval()` and `torch.no_grad()` in the same way",
    )


def _left(records: Sequence[Record], deeds: Sequence[str]) -> RuntimeFault:
    """Of as many on each side, those have left that train no more."""
    away = _minority(deeds)
    if 2 * len(away) == len(deeds):
        idle = [rank for rank, record in enumerate(records) if not (record.training and record.gradients)]
        away = idle if 0 < len(idle) < len(records) else away
    stay = next(deed for rank, deed in enumerate(deeds) if rank not in away)
    return left_the_loop(away, records[away[0]].steps, f"it calls {deeds[away[0]]}, the others {stay}")


def _other_inputs(given: Sequence[object]) -> RuntimeFault:
    ranks: dict[object, list[int]] = {}
    for rank, what in enumerate(given):
        ranks.setdefault(what, []).append(rank)
    common = set.intersection(*({*map(str, _parts(what))} for what in ranks))
    said = [
        f"{listed(who)}: {'; '.join(str(part) for part in _parts(what) if str(part) not in common) or 'less'}"
        for what, who in ranks.items()
    ]
    return RuntimeFault(
        "SW0781",
        "the ranks were given different inputs",
        why=" | ".join(said),
        fix="let all ranks call the model with tensors of the same kinds and shapes, in the same order",
    )


def _other_settings(given: Sequence[tuple[str, ...]]) -> RuntimeFault:
    everywhere = set.intersection(*map(set, given))
    differing = [[said for said in settings if said not in everywhere] for settings in given]
    said = [f"rank {rank}: {', '.join(what) or 'none of these'}" for rank, what in enumerate(differing)]
    return RuntimeFault(
        "SW0781",
        "the ranks have changed the model differently",
        why=" | ".join(said),
        fix="set the same attributes, modes and `requires_grad` on all ranks",
    )


def _parts(what: object) -> list[object]:
    """The descriptions inside of tuples of tuples."""
    return [part for inner in what for part in _parts(inner)] if isinstance(what, tuple) else [what]


def _minority(values: Sequence[object]) -> list[int]:
    """The ranks that differ from what most have; from the first rank, if there is no most."""
    counts = Counter(values)
    usual = max(counts, key=lambda value: (counts[value], value == values[0]))
    return [rank for rank, value in enumerate(values) if value != usual]


def _others(contents: Sequence[int]) -> list[int]:
    """The ranks with another content than most; all of them, where no two have the same."""
    return _minority(contents) if max(Counter(contents).values()) > 1 else [*range(len(contents))]
