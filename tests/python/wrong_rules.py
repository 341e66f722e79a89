"""Functions, each with the rule that it has and one that it has not: what `test_wrong_rules.py` registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def normal(x: Tensor) -> Tensor:
    return x / (4 + x.sum(-1, keepdim=True))


def softened(x: Tensor) -> Tensor:
    return x.softmax(-1)


def running(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def numbered(x: Tensor) -> Tensor:
    return x * torch.arange(x.shape[-1])


def late(x: Tensor) -> Tensor:
    return x + F.pad(x, (1, 0))[:, :-1]


def turned(x: Tensor) -> Tensor:
    return x.flip(1)


def transposed(x: Tensor) -> Tensor:
    return 2 * x.t()


def merged(x: Tensor) -> Tensor:
    return 2 * x.flatten(1)


def weighed(x: Tensor, heads: Tensor) -> Tensor:
    return (x.unflatten(-1, (heads.shape[0], -1)) * heads[:, None]).flatten(-2)


def in_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).softmax(-1).flatten(-2)


def largest(x: Tensor) -> Tensor:
    return x.amax(-1)


def average(x: Tensor) -> Tensor:
    return x.mean(-1)


def soft_largest(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


def exceeds(x: Tensor) -> Tensor:
    return (x > 1).any(-1)


def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def affine(x: Tensor, bias: Tensor) -> Tensor:
    return 2 * x + bias


def positive(x: Tensor) -> Tensor:
    return x.relu()


class Averaging(torch.autograd.Function):
    """Of a part the gradient of `w` is a mean over less."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad * w, (grad * x).mean(0)


class Mixing(torch.autograd.Function):
    """Its gradients are summed over rows, which a part has not all of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return 2 * grad.sum(0, keepdim=True).expand_as(grad)


class Summed(torch.autograd.Function):
    """As if the parts' gradients of `w` were not summed: each gives that of all of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        return x + w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, torch.full_like(grad[0], 5.0)


@dataclass(frozen=True)
class Wrong:
    what: str
    function: Any
    right: str
    wrong: str
    split: str
    """The first that differs."""
    shapes: tuple[tuple[int, ...], ...] = ((4, 6),)
    learns: bool = True
    ints: tuple[int, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    differs: str = r"it differs by [\d.]+e[+-]\d+ from the whole"

    @property
    def called(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self.function, "apply", self.function)
        return function

    @property
    def name(self) -> str:
        return f"wrong_rules:{self.function.__qualname__}"


FAILS = r"its parts fail \(RuntimeError: .*shape"
HEADS = {"sizes": {"h": "heads"}}
LINEAR = ((4, 6), (5, 6), (5,))
WRONG = [
    Wrong("a sum over all is forgotten", normal, "a b^ -> a b^", "a b -> a b", "b:2"),
    Wrong("a softmax is that of a part", softened, "a b^ -> a b^", "a b -> a b", "b:2"),
    Wrong(
        "parts are not summed",
        project,
        "a k+, n k+, !n -> a n",
        "a k<, n k<, !n -> a n",
        "k:2",
        LINEAR,
        False,
    ),
    Wrong("a running sum starts anew", running, "a b^ -> a b^", "a b -> a b", "b:2"),
    Wrong("a part does not know where it begins", numbered, "a b^ -> a b^", "a b -> a b", "b:2"),
    Wrong("a part looks back over its edge", late, "a b^ -> a b^", "a b -> a b", "b:2"),
    Wrong("parts are in another order", turned, "a b^ -> a b^", "a b -> a b", "b:2"),
    Wrong("a whole dim is split", turned, "a b^ -> a b^", "a^ b -> a^ b", "b:2"),
    Wrong("dims are exchanged", transposed, "a b -> b a", "a b -> a b", "a:2", ((4, 4),), differs=FAILS),
    Wrong("factors are exchanged", merged, "a b c -> a (b c)", "a b c -> a (c b)", "b:2", ((2, 4, 6),)),
    Wrong(
        "(d h) for (h d)", weighed, "a (h d), h -> a (h d)", "a (d h), h -> a (d h)", "d:2", ((3, 20), (4,))
    ),
    Wrong(
        "(d h) for (h d^), with a size",
        in_heads,
        "a (h d^) -> a (h d^)",
        "a (d^ h) -> a (d^ h)",
        "h:2",
        ((3, 20),),
        ints=(4,),
        options=HEADS,
    ),
    Wrong("a maximum is a sum", largest, "a b> -> a", "a b+ -> a", "b:2"),
    Wrong("a maximum is a minimum", largest, "a b> -> a", "a b< -> a", "b:2", learns=False),
    Wrong("a mean is a sum", average, "a b^ -> a", "a b+ -> a", "b:2"),
    Wrong("a mean is a maximum", average, "a b^ -> a", "a b> -> a", "b:2", learns=False),
    Wrong("a logarithm of a sum is a sum", soft_largest, "a b^ -> a", "a b+ -> a", "b:2"),
    Wrong("any is all", exceeds, "a b| -> a", "a b& -> a", "b:2", learns=False),
    Wrong("each part adds the bias", project, "a k+, n k+, !n -> a n", "a k+, n k+, n -> a n", "k:2", LINEAR),
    Wrong("a gradient is a mean", Averaging, "a^ b, b -> a^ b", "a b, b -> a b", "a:2", ((4, 6), (6,))),
    Wrong("a gradient is summed over parts", Mixing, "a^ b -> a^ b", "a b -> a b", "a:2"),
    Wrong(
        "a gradient is already that of all", Summed, "a^ b, b -> a^ b", "a b, b -> a b", "a:2", ((4, 6), (6,))
    ),
    Wrong(
        "linear jointly in factors",
        product,
        "a k+, k n -> a n ; linear 0 ; linear 1",
        "a k+, k n -> a n ; linear 0 1",
        "value:2 of 0,1",
        ((4, 6), (6, 5)),
    ),
    Wrong(
        "linear in one term",
        affine,
        "a b, b -> a b ; linear 0 1",
        "a b, b -> a b ; linear 0",
        "value:2 of 0",
        ((4, 6), (6,)),
    ),
    Wrong("linear, and not", positive, "a b -> a b", "a b -> a b ; linear 0", "value:2 of 0"),
]
