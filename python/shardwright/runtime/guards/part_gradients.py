"""Gradients of which a rank has a part: a norm or a sum of one is not the model's, and is refused.

The part is a tensor like any other, for all that treats each element by itself, and for optimizers, which get
it without this. What is computed from it element by element is a part as well. `as_subclass(torch.Tensor)`
is the way out for who knows what it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...errors import RuntimeFault

# Functions whose results are made of all elements.
_REDUCES = {
    "norm", "vector_norm", "linalg_norm", "linalg_vector_norm", "matrix_norm", "linalg_matrix_norm",
    "_foreach_norm", "_foreach_max", "sum", "nansum", "mean", "nanmean", "prod", "std", "var", "std_mean",
    "var_mean", "amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "median", "nanmedian",
    "quantile", "nanquantile", "logsumexp", "dist", "dot", "vdot", "inner", "count_nonzero", "trace",
    "einsum", "matmul", "mm", "mv", "__matmul__", "__rmatmul__", "cosine_similarity", "topk", "kthvalue",
    "linalg_svd", "svd", "linalg_svdvals", "linalg_qr", "qr",
}  # fmt: skip


class PartGradient(Tensor):
    """This rank's part of a gradient."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _REDUCES:
            raise refusal(f"`{name}` of a gradient")
        with torch._C.DisableTorchFunctionSubclass():
            results = func(*args, **(kwargs or {}))
        if func in _LEAVES_IT:
            return results
        return pytree.tree_map_only(Tensor, lambda result: _still_a_part(result, args), results)

    def __copy__(self) -> Tensor:
        return guarded(plain(self).detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            memo[id(self)] = guarded(plain(self).detach().clone())
        return memo[id(self)]  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeFault(
            "SW0800",
            "this rank's shard of a gradient is saved, or handed to another process",
            why="the plan shards the parameter; under the model's name the shard would be read as the whole",
            fix="save the training run with `sw.save(model, optimizer, path)`;"
            " `grad.as_subclass(torch.Tensor)` is the part as a plain tensor, for who knows what it is",
        )


_LEAVES_IT = {Tensor.as_subclass}


def guarded(grad: Tensor) -> Tensor:
    return grad if isinstance(grad, PartGradient) else grad.as_subclass(PartGradient)


def plain(grad: Tensor) -> Tensor:
    return grad.as_subclass(Tensor) if isinstance(grad, PartGradient) else grad


def lend(parameters: Iterable[Tensor]) -> None:
    """For an optimizer's step: it knows what it may do with parts."""
    for parameter in parameters:
        if isinstance(parameter.grad, PartGradient):
            parameter.grad = plain(parameter.grad)
            setattr(parameter, _LENT, True)


def take_back(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        if parameter.__dict__.pop(_LENT, False) and parameter.grad is not None:
            parameter.grad = guarded(parameter.grad)


_LENT = "_shardwright_lent"


def guard(parameters: Iterable[Tensor]) -> None:
    """The gradients of these are parts, from now until an optimizer steps."""
    for parameter in parameters:
        if parameter.grad is not None and _LENT not in parameter.__dict__:
            parameter.grad = guarded(parameter.grad)


def refusal(what: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0762",
        f"{what} of a parallelized model is taken on one rank alone",
        why="a rank holds shards of gradients, and a number computed from one shard is not the model's",
        fix="call `sw.clip_grad_norm_(model, max_norm)` on every rank, for the norm of all gradients"
        " (with `float('inf')` it clips nothing)",
    )


def _still_a_part(result: Tensor, given: Any) -> Tensor:
    """What a function has written to and returns stays what it was."""
    floating = result.is_floating_point() or result.is_complex()
    fresh = type(result) is Tensor and not any(result is leaf for leaf in pytree.tree_leaves(given))
    return result.as_subclass(PartGradient) if fresh and floating and result.numel() > 1 else result


def writable(grad: Tensor) -> Tensor:
    """Autograd may give zeros that have no memory, which nothing can be added to, and conjugates and
    negatives that are only noted, whose memory is another value."""
    return grad.clone() if grad._is_zerotensor() or grad.is_conj() or grad.is_neg() else grad
