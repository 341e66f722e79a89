"""Ways of writing a model that packages have: captured, run as they are, or refused in our own words."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shardwright.capture as capturing
from shardwright.capture import capture
from shardwright.errors import CaptureError


class Sizes(tuple[int, ...]):
    """A tuple that does not say how long it is."""

    def __len__(self) -> int:
        raise NotImplementedError


class Described(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.sizes = nn.Linear(4, 4), Sizes((1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).square().mean()


def test_an_attribute_that_does_not_say_its_length() -> None:
    assert capture(Described(), (torch.randn(2, 4),)).verified


class Pairs(nn.Module):
    """Complex numbers of channels that lay apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        pairs = self.conv(x).unflatten(1, (2, 2)).permute(0, 1, 3, 2)
        return torch.fft.irfft(torch.view_as_complex(pairs.contiguous())).square().mean()


def test_complex_numbers_of_what_lay_apart() -> None:
    assert capture(Pairs(), (torch.randn(2, 1, 6),)).verified


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.count = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + x.shape[0]
        return self.linear(x).square().mean()


class Derived(nn.Module):
    """A second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        u = self.net(x)
        [du] = torch.autograd.grad(u.sum(), x, create_graph=True)
        [ddu] = torch.autograd.grad(du.sum(), x, create_graph=True)
        return ddu + u.sin()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.derived = Derived()

    def forward(self, x: Tensor) -> Tensor:
        return self.derived(x).square().mean()


def refused(module: nn.Module, *args: Any) -> CaptureError:
    with pytest.raises(CaptureError) as error:
        capture(module, args)
    assert error.value.place, error.value
    return error.value


def test_an_attribute_that_counts_is_refused_by_its_line() -> None:
    error = refused(Counting(), torch.randn(2, 4))
    assert error.code == "SW0137" and "self.count = self.count" in str(error.place)


def test_derivatives_in_a_module_of_their_own_run_as_they_are() -> None:
    captured = capture(Residual(), (torch.randn(6, 1),))
    assert captured.verified and list(captured.as_python) == ["derived"]


def test_derivatives_of_the_model_itself_are_refused_and_told_what_to_do() -> None:
    error = refused(Derived(), torch.randn(6, 1))
    assert error.code == "SW0104" and "module of its own" in str(error.fix)


class Lazy(types.ModuleType):
    """What imports itself when it is asked for anything, and cannot."""

    def __getattr__(self, name: str) -> Any:
        raise ImportError(name)


class Reading(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.sum())


def test_modules_that_cannot_be_imported_are_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = Lazy("lazy_and_absent")
    del lazy.__dict__["__spec__"]
    monkeypatch.setitem(sys.modules, "lazy_and_absent", lazy)
    assert refused(Reading(), torch.randn(3)).code == "SW0102"


def test_no_error_leaves_in_the_words_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("a stride is not 1")

    monkeypatch.setattr(capturing, "refuse_shared", fail)
    with pytest.raises(CaptureError) as error:
        capture(Residual(), (torch.randn(6, 1),))
    assert error.value.code == "SW0101" and "a stride is not 1" in str(error.value.why)


def test_a_graph_that_does_not_run_is_told_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a layout would be that the graph has lost."""
    simplify = sys.modules["shardwright.capture.passes.simplify"]
    monkeypatch.setattr(simplify, "_lay_out", lambda _: None)
    error = refused(Pairs(), torch.randn(2, 1, 6))
    assert error.code == "SW0114" and "test_capture_others.py" in str(error.place)
