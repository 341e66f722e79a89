"""What the schema of an operator says of its operands and results."""

from __future__ import annotations

from torch import fx

from .simplify import is_getitem


def is_view(node: fx.Node) -> bool:
    """Whether a result may lie in the memory of an operand."""
    if is_getitem(node):
        return True
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(value.alias_info is not None for value in returns)


def mutated(node: fx.Node) -> list[fx.Node]:
    """What it writes."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return []
    named = {arg.name: value for arg, value in zip(schema.arguments, node.args, strict=False)} | node.kwargs
    written = [arg.name for arg in schema.arguments if arg.alias_info and arg.alias_info.is_write]
    return [value for name in written if isinstance(value := named.get(name), fx.Node)]
