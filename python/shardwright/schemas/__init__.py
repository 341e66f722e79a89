"""What commands print with `--json`: a JSON Schema for each answer, and its name, which it says first.

A schema is the file `NAME.json` in this folder. Its number is raised when a reader of the number before would
misread an answer: a key is gone, or means something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent

VERSIONS = {
    "cache": 1,
    "ckpt-info": 1,
    "clusters": 1,
    "compare": 1,
    "doctor": 1,
    "emit": 1,
    "manifest": 1,
    "manifest-trace": 1,
    "models": 1,
    "ops-coverage": 1,
    "ops-discover": 1,
    "ops-verify": 1,
    "plan": 1,
    "plan-diff": 1,
    "plan-explain": 1,
    "report": 1,
    "run": 1,
    "schedule": 1,
    "simulate": 1,
    "verify": 1,
}


def named(name: str) -> str:
    """What an answer of this kind says under `schema`."""
    return f"shardwright/{name}/{VERSIONS[name]}"


def answer(name: str, fields: Mapping[str, Any]) -> str:
    """The answer of a command as JSON."""
    return json.dumps({"schema": named(name), **fields})


def text_of(name: str) -> str:
    return (_FOLDER / f"{name}.json").read_text(encoding="utf-8")
