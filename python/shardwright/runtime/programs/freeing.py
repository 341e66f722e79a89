"""Emitted functions give each value its own name; here a name is deleted after its last use.

Without this every intermediate value would live until its function returns, and in a loop until the next
turn, and a step would need far more memory than the same code with reused names. Line numbers stay.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

KEPT = {"p", "rank", "run"}


def free_early(tree: ast.Module) -> ast.Module:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            kept = KEPT | _captured(node)
            bound = {arg.arg for arg in node.args.args} - kept
            node.body = list(_with_deletions(node.body, bound, set(), kept))
    return ast.fix_missing_locations(tree)


def _with_deletions(
    body: Sequence[ast.stmt], bound: set[str], needed: set[str], kept: set[str]
) -> Iterator[ast.stmt]:
    """`bound` are the names that have a value, kept up to date; `needed` those that are read afterwards."""
    after = _needed_after(body, needed)
    for statement, still in zip(body, after, strict=True):
        if isinstance(statement, ast.For):
            # What a turn starts with, the one before must leave; what none reads is freed behind the loop.
            start = _before(statement, still)
            inside = bound & start
            bound -= inside
            statement.body = list(_with_deletions(statement.body, inside, start, kept))
            bound |= inside
        else:
            bound |= _stored(statement) - kept
        yield statement
        if isinstance(statement, ast.Return):
            return
        done = sorted(bound - still)
        bound.difference_update(done)
        if done:
            names: list[ast.expr] = [ast.Name(name, ast.Del()) for name in done]
            yield ast.copy_location(ast.Delete(names), statement)


def _needed_after(body: Sequence[ast.stmt], needed: set[str]) -> list[set[str]]:
    """For each statement the names that are read after it."""
    found = []
    for statement in reversed(body):
        found.append(needed)
        needed = _before(statement, needed)
    return found[::-1]


def _before(statement: ast.stmt, needed: set[str]) -> set[str]:
    """The names that are read from this statement on, if those are needed after it."""
    if not isinstance(statement, ast.For):
        return (needed - _stored(statement)) | _read(statement)
    while True:
        start = needed
        for inner in reversed(statement.body):
            start = _before(inner, start)
        start = start | needed | _read(statement.iter)
        if start == needed:
            return start
        needed = start


def _read(node: ast.AST) -> set[str]:
    names = (child for child in ast.walk(node) if isinstance(child, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def _stored(statement: ast.stmt) -> set[str]:
    """Names that this statement surely binds."""
    if isinstance(statement, (ast.With, ast.For)):
        return {name for inner in statement.body for name in _stored(inner)}
    if not isinstance(statement, ast.Assign):
        return set()
    targets = [child for target in statement.targets for child in ast.walk(target)]
    return {node.id for node in targets if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _captured(function: ast.FunctionDef) -> set[str]:
    """Names that inner functions may read later."""
    inner = (ast.Lambda, ast.FunctionDef, ast.GeneratorExp)
    nodes = [node for node in ast.walk(function) if isinstance(node, inner) and node is not function]
    return {child.id for node in nodes for child in ast.walk(node) if isinstance(child, ast.Name)}
