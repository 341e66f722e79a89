"""What a random model has computed so far: real tensors, from which operators choose what they read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .programs import HEADER, READ, Leaf, Step

D = torch.float64
LARGEST = 4096
"""Elements of a tensor."""
HIGHEST = 300.0
"""Absolute value of an element: larger ones lose the digits that are compared."""


class Unfit(Exception):
    """There is nothing that this operator could read, or its result is of no use."""


class Spoiled(Exception):
    """A tensor was changed to values of no use: the model cannot be continued."""


class Value(NamedTuple):
    """A name with its tensor; in a text it is the name in braces."""

    name: str
    t: Tensor

    def __str__(self) -> str:
        return "{" + self.name + "}"

    def __format__(self, spec: str) -> str:
        return str(self)


class Pool:
    def __init__(self, rng: random.Random, zero: bool = False, single: bool = False, steps: bool = False):
        """`zero`: some sizes are; `single`: some floats are float32; `steps`: inputs have no gradient."""
        self.rng, self.zero, self.single, self.for_steps = rng, zero, single, steps
        self.sizes = rng.sample([1, 2, 2, 3, 3, 4, 4, 5, 6, 6, 7, 8], 4)
        self.leaves: list[Leaf] = []
        self.steps: list[Step] = []
        self.values: dict[str, Tensor] = {}
        self.made: list[str] = []
        """The names of results, in order; all others are leaves."""
        self.scope: dict[str, Any] = {}
        self.random = False
        exec(HEADER, self.scope)

    # ---- choosing what is there --------------------------------------------------------------

    def any(self, fits: Callable[[Tensor], bool] = lambda t: True) -> Value:
        """A tensor of any kind; later ones more often."""
        names = [name for name, t in self.values.items() if isinstance(t, Tensor) and fits(t)]
        if not names:
            raise Unfit
        late = [name for name in names[-4:] if name in self.made]
        return self.value(self.rng.choice(late if late and self.rng.random() < 0.6 else names))

    def float(self, least: int = 0, most: int = 5, fits: Callable[[Tensor], bool] = lambda t: True) -> Value:
        """A float64 tensor with so many dims, made if there is none."""

        def right(t: Tensor) -> bool:
            return t.dtype == D and least <= t.dim() <= most and fits(t)

        if self.rng.random() < 0.85:
            try:
                return self.any(right)
            except Unfit:
                pass
        new = self.leaf(self.shape(self.rng.randint(least, min(most, max(least, 3)))))
        if not right(new.t):
            raise Unfit
        return new

    def value(self, name: str) -> Value:
        return Value(name, self.values[name])

    def operand(self, *shape: int, values: str = "normal") -> Value:
        """A float64 tensor of this very shape."""
        if values == "normal" and self.rng.random() < 0.6:
            try:
                return self.any(lambda t: t.dtype == D and tuple(t.shape) == shape)
            except Unfit:
                pass
        return self.leaf(shape, values)

    def beside(self, shape: tuple[int, ...], values: str = "normal") -> Value:
        """A float64 tensor that broadcasts with a shape."""
        if values == "normal" and self.rng.random() < 0.5:
            try:
                return self.any(lambda t: t.dtype == D and _broadcasts(tuple(t.shape), shape))
            except Unfit:
                pass
        return self.leaf(self.narrowed(shape), values)

    def narrowed(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to this one."""
        kept = [1 if self.rng.random() < 0.2 else size for size in shape]
        return tuple(kept[self.rng.choice([0, 0, 0, *range(len(kept) + 1)]) :])

    def shape(self, dims: int) -> tuple[int, ...]:
        def size() -> int:
            if self.zero and self.rng.random() < 0.2:
                return 0
            return 1 if self.rng.random() < 0.08 else self.rng.choice(self.sizes)

        return tuple(size() for _ in range(dims))

    def dim(self, t: Tensor) -> int:
        if t.dim() == 0:
            raise Unfit
        return self.rng.randrange(t.dim()) - (t.dim() if self.rng.random() < 0.3 else 0)

    # ---- new leaves --------------------------------------------------------------------------

    def leaf(self, shape: tuple[int, ...], values: str = "normal", kind: str = "") -> Value:
        """A new float64 tensor: mostly a parameter, else an input, a buffer, a constant or a tied one."""
        text = f"{_MAKES[values]}{', '.join(map(str, shape))})"
        kind = kind or self.rng.choice(
            ["param"] * 6 + ["input"] * 3 + ["buffer", "tied", "frozen", "constant"]
        )
        if kind == "constant":
            return self.step(self.constant(shape, values))
        if kind == "tied":
            others = [
                x for x in self.leaves if x.kind == "param" and x.grad and self.values[x.name].shape == shape
            ]
            if others and values == "normal":
                return self._add("p", "tied", self.rng.choice(others).name, True)
            kind = "param"
        if kind == "frozen":
            return self._add("p", "param", text, False)
        grad = kind == "param" or (kind == "input" and not self.for_steps and self.rng.random() < 0.4)
        return self._add({"param": "p", "input": "x", "buffer": "b"}[kind], kind, text, grad)

    def constant(self, shape: tuple[int, ...], values: str = "normal") -> str:
        """Made inside of the model."""
        size = ", ".join(map(str, shape))
        if values == "normal" and self.rng.random() < 0.3 and shape:
            count = int(torch.Size(shape).numel())
            return f"torch.arange({count}, dtype=D).sin().reshape({size})"
        fill = (
            self.rng.choice(["0.5", "0.25"]) if values != "normal" else self.rng.choice(["0.5", "1.0", "0.0"])
        )
        return {"1.0": f"torch.ones(({size}{',' * (len(shape) == 1)}), dtype=D)"}.get(
            fill, f"torch.full(({size}{',' * (len(shape) == 1)}), {fill}, dtype=D)"
        )

    def data(self, text: str) -> Value:
        """An input without a gradient, sometimes a buffer."""
        kind = "buffer" if self.rng.random() < 0.2 else "input"
        return self._add({"input": "x", "buffer": "b"}[kind], kind, text, False)

    def ints(self, bound: int, *shape: int) -> Value:
        if bound < 1:
            raise Unfit
        return self.data(f"torch.randint({bound}, ({''.join(f'{s}, ' for s in shape)}))")

    def bools(self, *shape: int) -> Value:
        if self.rng.random() < 0.3:
            try:
                return self.any(lambda t: t.dtype == torch.bool and tuple(t.shape) == shape)
            except Unfit:
                pass
        return self.data(f"torch.rand({''.join(f'{s}, ' for s in shape) or '()'}) < 0.6")

    def module(self, text: str) -> str:
        """A sub-module, by its name in braces."""
        name = f"m{len(self.leaves)}"
        torch.manual_seed(len(self.leaves))
        self.values[name] = self.scope["noisy"](eval(text, self.scope))  # type: ignore[assignment]
        self.leaves.append(Leaf(name, "module", text))
        return "{" + name + "}"

    def _add(self, prefix: str, kind: str, text: str, grad: bool) -> Value:
        name = f"{prefix}{len(self.leaves)}"
        torch.manual_seed(len(self.leaves))
        made = self.values[text] if kind == "tied" else eval(text, self.scope)
        self.values[name] = made.requires_grad_() if grad and made.is_leaf else made
        self.leaves.append(Leaf(name, kind, text, grad))
        return self.value(name)

    # ---- new steps ---------------------------------------------------------------------------

    def step(self, text: str, *, quiet: bool = False, count: int = 1) -> Value:
        """Runs a line; its (first) result."""
        return self.several(text, quiet=quiet, count=count)[0]

    def several(self, text: str, *, quiet: bool = False, count: int | None = None) -> list[Value]:
        """A line with one or several results; of several, `count` says how many the line names."""
        value = self._run(text, quiet)
        results = [value] if isinstance(value, Tensor) else list(value)
        if count is not None and len(results) != count:
            raise Unfit
        for x in results:
            _require_useful(x)
        names = [f"v{len(self.made) + at}" for at in range(len(results))]
        if len(names) == 1 and not isinstance(value, Tensor):
            text += "[0]"
        self.steps.append(Step(tuple(names), text, quiet))
        for name, x in zip(names, results, strict=True):
            self.values[name] = x
            self.made.append(name)
        return [self.value(name) for name in names]

    def statement(self, text: str, changed: Value, *, quiet: bool = False) -> None:
        """A line without a result, which changes a tensor."""
        with torch.set_grad_enabled(not quiet):
            exec(READ.sub(r"\1", text), {**self.scope, **self.values})
        try:
            _require_useful(changed.t)
        except Unfit:
            raise Spoiled from None
        self.steps.append(Step((), text, quiet))

    def mark(self) -> tuple[int, int, int]:
        """A place to come back to when an operator does not fit."""
        return len(self.leaves), len(self.steps), len(self.made)

    def back(self, mark: tuple[int, int, int]) -> None:
        leaves, steps, made = mark
        for name in [*(leaf.name for leaf in self.leaves[leaves:]), *self.made[made:]]:
            del self.values[name]
        del self.leaves[leaves:], self.steps[steps:], self.made[made:]

    def _run(self, text: str, quiet: bool) -> Any:
        with torch.set_grad_enabled(not quiet):
            return eval(READ.sub(r"\1", text), {**self.scope, **self.values})


_MAKES = {
    "normal": "normal(",
    "unit": "between(0.1, 0.9, ",
    "positive": "between(0.5, 2.0, ",
    "small": "small(",
}


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1], strict=False))


def _require_useful(x: Any) -> None:
    if not isinstance(x, Tensor) or x.numel() > LARGEST or x.is_complex() or x.dim() > 6:
        raise Unfit
    if x.is_floating_point() and x.numel() and not float(x.detach().abs().max()) < HIGHEST:
        raise Unfit
