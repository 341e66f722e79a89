"""Operators that are another one by another name, as NumPy or `torch.special` has it: rules know one name.

Conjugates and negatives that PyTorch only notes are such: a value that goes to another rank, or is kept,
comes back without the note, so in a graph they are computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_ATEN = torch.ops.aten
_NAMES = """
    concat: cat, concatenate: cat, multiply: mul, divide: div, true_divide: div, subtract: sub, negative: neg,
    absolute: abs, greater: gt, greater_equal: ge, less: lt, less_equal: le, not_equal: ne, clip: clamp,
    fix: trunc, arccos: acos, arcsin: asin, arctan: atan, arctan2: atan2, arccosh: acosh, arcsinh: asinh,
    arctanh: atanh, moveaxis: movedim, linalg_matmul: matmul, special_expit: sigmoid, special_erf: erf,
    special_erfc: erfc, special_exp2: exp2, special_expm1: expm1, special_log1p: log1p,
    special_logsumexp: logsumexp, special_gammaln: lgamma, special_digamma: digamma, special_psi: digamma,
    special_logit: logit, _conj: _conj_physical, conj_physical: _conj_physical, _neg_view: neg
"""


def rename(node: fx.Node) -> None:
    """Gives an operator the name that rules know."""
    if node.target is _ATEN.linalg_norm.default:
        _rename_norm(node)
    else:
        node.target = KNOWN.get(node.target, node.target)


def _rename_norm(node: fx.Node) -> None:
    """Over one dim it is that of vectors; of matrices it stays, and so does what casts."""
    given = dict(zip(("self", "ord", "dim", "keepdim"), node.args, strict=False)) | node.kwargs
    order, dim = given.get("ord"), given.get("dim")
    if isinstance(order, str) or not isinstance(dim, (list, tuple)) or len(dim) != 1 or "dtype" in given:
        return
    node.target = _ATEN.linalg_vector_norm.default
    node.args = (given["self"], 2 if order is None else order, list(dim), given.get("keepdim", False))
    node.kwargs = {}


def _known() -> dict[Any, Any]:
    """By overload. One that takes other arguments than its namesake is none."""
    aliases = {}
    for pair in _NAMES.replace("\n", " ").split(","):
        name, plain = (getattr(_ATEN, word.strip()) for word in pair.split(":"))
        for overload in set(name.overloads()) & set(plain.overloads()):
            one, other = getattr(name, overload), getattr(plain, overload)
            if _arguments(one) == _arguments(other):
                aliases[one] = other
    return aliases


def _arguments(target: Any) -> list[tuple[Any, ...]]:
    return [(str(one.type), one.kwarg_only, one.default_value) for one in target._schema.arguments]


KNOWN = _known()
