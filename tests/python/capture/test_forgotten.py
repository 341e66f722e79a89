"""What a call does not keep of its arguments, and is given again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shardwright.runtime.execution.calls import call_giving, call_saving, match

torch.set_num_threads(1)


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def parts(x: Tensor) -> tuple[Tensor, ...]:
    """Of one memory, as those of a fused projection."""
    return tuple(part.unflatten(-1, (2, -1)).transpose(1, 2) for part in x.chunk(3, -1))


W = rand(5, 8)
Case = tuple[Callable[..., Any], tuple[Any, ...], int]
# A function, its arguments, and how many of them it saves.
CASES: dict[str, Case] = {
    "linear": (lambda x, w: F.linear(x, w), (rand(2, 3, 8), W), 1),
    "linear of a matrix that lies the other way": (lambda x, w: F.linear(x, w), (rand(8, 3).t(), W), 1),
    "matmul": (torch.matmul, (rand(2, 3, 4), rand(2, 4, 5)), 2),
    "matmul of a transpose": (torch.matmul, (rand(2, 3, 4), rand(2, 5, 4).transpose(1, 2)), 2),
    "matmul with itself": (lambda x: x @ x, (rand(4, 4),), 1),
    "attention": (F.scaled_dot_product_attention, parts(rand(2, 6, 24)), 3),
    "conv": (F.conv2d, (rand(2, 3, 5, 5), rand(4, 3, 2, 2)), 2),
    "expanded": (torch.matmul, (rand(2, 3, 4), rand(1, 4, 5).expand(2, 4, 5)), 1),
    "conjugate": (torch.matmul, (torch.randn(3, 3, dtype=torch.complex128).conj().requires_grad_(),) * 2, 0),
}


def grads(saving: Callable[..., Any], case: Case, again: Any = None) -> list[Tensor]:
    function, args, _ = case
    W.grad = None
    results, saved = saving(function, args, {id(W)}, None)
    edges, given = match(saved, [torch.ones_like(results)])
    if again is None:
        torch.autograd.backward(edges, given)
    else:
        with saved.forgotten.given(again):
            torch.autograd.backward(edges, given)
    gradients = [slot.take() for slot in saved.slots]
    return gradients + ([W.grad.clone()] if W.grad is not None else [])


@pytest.mark.parametrize("laid", [lambda x: x.clone(), lambda x: x.contiguous().clone()], ids=["so", "anew"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_same(name: str, laid: Callable[[Tensor], Tensor]) -> None:
    case = CASES[name]
    expected = grads(call_saving, case)
    again = [laid(x.detach()) for x in case[1] if x is not W]
    for gradient, wanted in zip(grads(call_giving, case, again), expected, strict=True):
        assert torch.equal(gradient, wanted)


@pytest.mark.parametrize("name", CASES)
def test_arguments_are_given_and_not_kept(name: str) -> None:
    """Other values than the call had give other gradients: they come from what is given."""
    case = CASES[name]
    expected = grads(call_saving, case)
    again = [2 * x.detach() for x in case[1] if x is not W]
    actual = grads(call_giving, case, again)
    changed = [not torch.allclose(a, b) for a, b in zip(actual, expected, strict=True)]
    assert any(changed) == (case[2] > 0)


def test_another_number_is_refused() -> None:
    with pytest.raises(ValueError, match="argument"):
        grads(call_giving, CASES["matmul"], [rand(2, 3, 4)])
