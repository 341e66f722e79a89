"""In which module of the model an error arose."""

from __future__ import annotations

from typing import TypeVar

from torch import fx

E = TypeVar("E", bound=BaseException)
_WHERE = "shardwright_module"


def said_in(path: str | None, error: E) -> E:
    """An error with that module; none is the model itself."""
    setattr(error, _WHERE, path)
    return error


def place_in(error: BaseException) -> str | None:
    return getattr(error, _WHERE, None)


def is_placed(error: BaseException) -> bool:
    """Whether it is known where an error arose, be it in the model itself."""
    return hasattr(error, _WHERE)


def module_of(node: fx.Node) -> str | None:
    """The innermost one that a node stands in, if it is not the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    return next((path for path, _ in reversed(stack.values())), None) or None
