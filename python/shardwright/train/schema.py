"""The JSON schema of a run's file, by which editors complete and check it."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def schema_of(kind: type) -> dict[str, Any]:
    made = _of(kind)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def choices_of(kind: Any) -> tuple[Any, ...]:
    """What a field may be: the members of a union, or itself."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _of(kind: Any) -> dict[str, Any]:
    if is_dataclass(kind):
        return _of_class(kind)  # type: ignore[arg-type]
    choices = choices_of(kind)
    if len(choices) > 1:
        return {"anyOf": [_of(choice) for choice in choices]}
    if kind in _NAMES:
        return {"type": _NAMES[kind]}
    if kind is type(None):
        return {"type": "null"}
    if get_origin(kind) is list:
        return {"type": "array", "items": _of(get_args(kind)[0])}
    return {"type": "object"} if get_origin(kind) is dict else {}


def _of_class(kind: type) -> dict[str, Any]:
    hints, given = get_type_hints(kind), fields(kind)  # type: ignore[arg-type]
    properties: dict[str, Mapping[str, Any]] = {
        one.name: {**_of(hints[one.name]), "description": one.metadata["text"]} for one in given
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": [one.name for one in given if one.default is MISSING and one.default_factory is MISSING],
    }
