"""Emitted functions give each value its own name; here a name is deleted after its last use.

Without this every intermediate value would live until its function returns, and a step would need
far more memory than the same code with reused names. Line numbers stay as they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

KEPT = {"p", "rank", "run"}


def free_early(tree: ast.Module) -> ast.Module:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            node.body = list(_with_deletions(node))
    return ast.fix_missing_locations(tree)


def _with_deletions(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    kept = KEPT | _captured(function)
    bound = {arg.arg for arg in function.args.args} - kept
    last = {name: at for at, statement in enumerate(function.body) for name in _names(statement)}
    for at, statement in enumerate(function.body):
        yield statement
        if isinstance(statement, ast.Return):
            return
        bound |= _stored(statement) - kept
        done = sorted(name for name in bound if last.get(name, 0) <= at)
        bound.difference_update(done)
        if done:
            names: list[ast.expr] = [ast.Name(name, ast.Del()) for name in done]
            yield ast.copy_location(ast.Delete(names), statement)


def _names(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def _stored(statement: ast.stmt) -> set[str]:
    """Names that this statement surely binds."""
    if isinstance(statement, ast.With):
        return {name for inner in statement.body for name in _stored(inner)}
    if not isinstance(statement, ast.Assign):
        return set()
    targets = [child for target in statement.targets for child in ast.walk(target)]
    return {node.id for node in targets if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _captured(function: ast.FunctionDef) -> set[str]:
    """Names that inner functions may read later."""
    inner = (ast.Lambda, ast.FunctionDef, ast.GeneratorExp)
    nodes = [node for node in ast.walk(function) if isinstance(node, inner) and node is not function]
    return {name for node in nodes for name in _names(node)}
