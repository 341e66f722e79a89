"""The rows of the last `shardwright compare` of a model, which other commands take as `--plan row:3`.

They are kept in the cache's folder, as plan files. A plan is only what somebody asks for: it is read for the
graph of the model, compiled and proved like any other.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import PlanError

_NUMBER = re.compile(r"row:(\d+)")
_FILE = "rows.json"


@dataclass(frozen=True)
class Candidate:
    plan: str
    """Its name, as the table has it."""
    micro_batches: int
    cut: bool
    """Whether the batch is cut into these; else each is as large as the example."""
    text: str


def keep(arguments: argparse.Namespace, candidates: Sequence[Candidate]) -> bool:
    """Whether the rows can be asked for afterwards."""
    from ..support.folder_store import open_store

    store = open_store()
    if store is None:
        return False
    key = _key(arguments)
    name = f"{arguments.model}, the rows of `compare`"
    info = {"summary": {"model": name}, "plan": "", "devices": 0}
    files = {"info.json": info, _FILE: [asdict(one) for one in candidates]}
    with contextlib.suppress(OSError):
        store.drop(key)
        store.keep(key, {name: json.dumps(what, indent=1).encode() for name, what in files.items()})
        return True
    return False


def candidate_of(arguments: argparse.Namespace) -> Candidate | None:
    """The row that `--plan` names, by its number or as the table names it."""
    named = str(arguments.plan)
    number = _NUMBER.fullmatch(named)
    # Names of plans have no comma; those that were chosen do.
    if number is None and (", " not in named or "/" in named):
        return None
    candidates = _kept(arguments)
    if number is not None:
        chosen = candidates[int(number[1]) - 1 : int(number[1])] if int(number[1]) else []
    else:
        chosen = [one for one in candidates if one.plan == named]
    if chosen:
        return chosen[0]
    raise PlanError(
        "SW0375",
        f"`{named}` is no row of a comparison",
        why=f"the last `shardwright compare` of this model has {len(candidates)} rows"
        if candidates
        else "no `shardwright compare` of this model is kept",
        fix="run `shardwright compare` with this model and these sizes, then name a row: `--plan row:1`",
    )


def _kept(arguments: argparse.Namespace) -> list[Candidate]:
    from ..support.folder_store import open_store

    store = open_store()
    files = None if store is None else store.files(_key(arguments))
    return [] if files is None else [Candidate(**one) for one in json.loads(files[_FILE])]


def _key(arguments: argparse.Namespace) -> str:
    """Of the model as it is named, from wherever, and its sizes."""
    path, colon, name = arguments.model.rpartition(":")
    file = Path(path if colon else name)
    model = f"{file.resolve()}{colon}{name}" if file.is_file() else arguments.model
    asked = json.dumps(["compare", model, arguments.batch, arguments.sequence])
    return hashlib.sha256(asked.encode()).hexdigest()
