"""Emitted functions give each value its own name; here a name is deleted after its last use.

Without this every intermediate value would live until its function returns, and in a loop until the next
turn, and a step would need far more memory than the same code with reused names. Line numbers stay.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

KEPT = {"p", "rank", "run"}
# They may read names later.
INNER = (ast.Lambda, ast.FunctionDef, ast.GeneratorExp)
# What these fields hold has no names in it.
NAMELESS = {"arg", "attr", "ctx", "id", "kind", "name", "op", "ops", "type_comment"}
# The others, by the kind of a node.
_fields: dict[type[ast.AST], tuple[str, ...]] = {}


def free_early(tree: ast.Module) -> ast.Module:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names = _Names()
            kept = KEPT | names.captured(node)
            bound = {arg.arg for arg in node.args.args} - kept
            node.body = list(_with_deletions(node.body, bound, set(), kept, names))
    return tree


def _with_deletions(
    body: Sequence[ast.stmt], bound: set[str], needed: set[str], kept: set[str], names: _Names
) -> Iterator[ast.stmt]:
    """`bound` are the names that have a value, kept up to date; `needed` those that are read afterwards."""
    after = _needed_after(body, needed, names)
    for statement, still in zip(body, after, strict=True):
        if isinstance(statement, ast.For):
            # What a turn starts with, the one before must leave; what none reads is freed behind the loop.
            start = _before(statement, still, names)
            each, between = _iteration(statement)
            if between and bound - start:
                # The loop surely binds what is read behind it.
                yield _deletion(sorted(bound - start), statement)
                bound &= start
            inside = bound & start
            bound -= inside
            needed = _after_iteration(between, start, still, names)
            statement.body = [*_with_deletions(each, inside, needed, kept, names), *between]
            for condition in between:
                done = sorted((inside | _bound_by(condition, names)) - kept - start)
                if done:
                    condition.body.append(_deletion(done, condition))
            bound |= inside
        else:
            bound |= names.stored(statement) - kept
        yield statement
        if isinstance(statement, ast.Return):
            return
        done = sorted(bound - still)
        bound.difference_update(done)
        if done:
            yield _deletion(done, statement)


def _needed_after(body: Sequence[ast.stmt], needed: set[str], names: _Names) -> list[set[str]]:
    """For each statement the names that are read after it."""
    after = []
    for statement in reversed(body):
        after.append(needed)
        needed = _before(statement, needed, names)
    return after[::-1]


def _before(statement: ast.stmt, needed: set[str], names: _Names) -> set[str]:
    """The names that are read from this statement on, if those are needed after it."""
    if not isinstance(statement, ast.For):
        return (needed - names.stored(statement)) | names.read(statement)
    each, between = _iteration(statement)
    # Without a condition on the counter it may be that there is no iteration.
    known: set[str] = set() if between else needed
    while True:
        start = _after_iteration(between, known, needed, names)
        for inner in reversed(each):
            start = _before(inner, start, names)
        start = start | known | names.read(statement.iter)
        if start == known:
            return start
        known = start


def _iteration(loop: ast.For) -> tuple[list[ast.stmt], list[ast.If]]:
    """What each iteration does, and what stands between two: below `if n < 3:`, at the end."""
    *each, last = loop.body
    return (each, [last]) if isinstance(last, ast.If) and _goes_on(loop, last.test) else (loop.body, [])


def _goes_on(loop: ast.For, condition: ast.expr) -> bool:
    """Whether a condition holds in all iterations of a loop but the last."""
    bounds = re.fullmatch(r"(reversed\()?range\((?:(\d+), )?(\d+)\)\)?", ast.unparse(loop.iter))
    if bounds is None:
        return False
    falls, low, high = bounds.groups()
    counter = ast.unparse(loop.target)
    last = f"{counter} > {int(low or 0)}" if falls else f"{counter} < {int(high) - 1}"
    return ast.unparse(condition) == last


def _after_iteration(between: list[ast.If], start: set[str], behind: set[str], names: _Names) -> set[str]:
    """The names that are read after an iteration, if each starts with these, and those are read after all.

    What stands between two iterations binds names for the next one; after the last there is none.
    """
    for condition in between:
        start = (start - _bound_by(condition, names)) | names.read(condition)
    return start | behind


def _bound_by(condition: ast.If, names: _Names) -> set[str]:
    return {name for inner in condition.body for name in names.stored(inner)}


def _deletion(names: Sequence[str], statement: ast.stmt) -> ast.Delete:
    place: dict[str, Any] = {
        "lineno": statement.lineno,
        "col_offset": statement.col_offset,
        "end_lineno": statement.end_lineno,
        "end_col_offset": statement.end_col_offset,
    }
    return ast.Delete([ast.Name(name, ast.Del(), **place) for name in names], **place)


class _Names:
    """What is read and bound in a function, of which each statement is walked once."""

    def __init__(self) -> None:
        self._read: dict[ast.AST, set[str]] = {}
        self._stored: dict[ast.stmt, set[str]] = {}
        self._captured: set[str] = set()

    def captured(self, function: ast.FunctionDef) -> set[str]:
        """Names that inner functions may read later."""
        pending = _parts(function)
        while pending:
            node = pending.pop()
            if isinstance(node, ast.For):
                pending += _parts(node)
            else:
                self.read(node)
        return self._captured

    def read(self, node: ast.AST) -> set[str]:
        if node not in self._read:
            self._read[node] = self._walked(node)
        return self._read[node]

    def _walked(self, root: ast.AST) -> set[str]:
        read = set()
        pending = [root]
        while pending:
            node = pending.pop()
            if isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    read.add(node.id)
            elif not isinstance(node, ast.Constant):
                if isinstance(node, INNER):
                    self._captured.update(name.id for name in _names(node))
                pending += _parts(node)
        return read

    def stored(self, statement: ast.stmt) -> set[str]:
        """Names that this statement surely binds."""
        if statement not in self._stored:
            self._stored[statement] = set(self._bound(statement))
        return self._stored[statement]

    def _bound(self, statement: ast.stmt) -> Iterator[str]:
        if isinstance(statement, (ast.With, ast.For)):
            for inner in statement.body:
                yield from self.stored(inner)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from (name.id for name in _names(target) if isinstance(name.ctx, ast.Store))


def _names(root: ast.AST) -> Iterator[ast.Name]:
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name):
            yield node
        else:
            pending += _parts(node)


def _parts(node: ast.AST) -> list[ast.AST]:
    """Those that may have names. Programs have many: `ast.iter_child_nodes` takes several times as long."""
    parts: list[ast.AST] = []
    kind = type(node)
    if kind not in _fields:
        _fields[kind] = tuple(field for field in kind._fields if field not in NAMELESS)
    for field in _fields[kind]:
        value = getattr(node, field, None)
        if isinstance(value, list):
            parts += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            parts.append(value)
    return parts
