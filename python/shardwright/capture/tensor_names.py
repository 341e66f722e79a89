"""The model's own names for its tensors: `q, k, v = self.c_attn(x).split(n)` names three of them."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections.abc import Iterator, Sequence

from torch import fx

from . import lines


def assigned_names(nodes: Sequence[fx.Node]) -> dict[fx.Node, list[str]]:
    """For operators whose results a source line assigns to names: the names.

    Of the operators that one line runs in a row, the last makes what is assigned.
    """
    assigned = {}
    for place, group in itertools.groupby(nodes, key=lambda node: lines.position(node.stack_trace)):
        last = list(group)[-1]
        names = _targets(*place) if place else []
        if names:
            assigned[last] = names
    return assigned


def _targets(file: str, line: int) -> list[str]:
    return _assignments(file).get(line, [])


@functools.cache
def _assignments(file: str) -> dict[int, list[str]]:
    """For each line of a file inside an assignment to plain names: the names."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    by_line: dict[int, list[str]] = {}
    for statement in ast.walk(tree):
        if isinstance(statement, ast.stmt):
            names = _names(statement)
            covered = _own_lines(statement)
            by_line.update((line, names) for line in covered if names)
    return by_line


def _own_lines(statement: ast.stmt) -> Iterator[int]:
    return iter(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))


def _names(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=[ast.Tuple(elts=parts)]):
            names = [part.id for part in parts if isinstance(part, ast.Name)]
            return names if len(names) == len(parts) else []
    return []
