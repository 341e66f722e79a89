"""Whether functions do what the rules say that are registered for them."""

from __future__ import annotations

import warnings

from .._core import Graph
from .verifying import verify_rules, wrong_rule

_FUNCTION = "shardwright.function.default"


def compare_registered(graph: Graph) -> list[str]:
    """Refuses a rule that does not hold. What could not be compared is warned of, and returned."""
    verified = [
        one
        for one in verify_rules(graph, lambda target: target == _FUNCTION, smaller=True)
        if one.operator.rule is not None and one.registered is not None
    ]
    wrong = [one for one in verified if one.problem is not None]
    if wrong:
        raise wrong_rule(wrong, graph.model)
    said = [f"the rule of {one.named} was not compared: {one.skipped}" for one in verified if one.skipped]
    for text in dict.fromkeys(said):
        warnings.warn(f"{text}. It is not known whether its shards give the whole", stacklevel=4)
    return list(dict.fromkeys(said))
