"""The function whose rule is looked for, and what it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import as_python
from ..as_python.registry import Registered, signature_of
from ..capture.graph_text import DTYPES
from ..capture.lines import said_by
from ..capture.opaque.calling import tensors_of
from ..capture.random.draws import Recording
from ..errors import CaptureError
from .reading import Counting
from .whole import Whole

# Between which floats are, and where nearly every function has finite values.
_RANGES = ((-2.0, 2.0), (0.1, 0.9), (1.1, 3.0))
# Elements of all tensors of an example: more of them say no more of a rule.
MOST = 2**20

# Calls of PyTorch's functions, in all that is tried of a model's.
_MOST_OPERATIONS = 500_000

CODE = "SW0142"
Shape = Sequence[int]


@dataclass
class Trial:
    """Tensors, and what the whole function gives for them."""

    tensors: list[Tensor]
    outputs: list[Tensor]
    weights: list[Tensor | None]
    """Gradients of those outputs that have one."""
    gradients: list[Tensor | None]
    """Of the tensors, and of what all parts have of a module."""
    held: int = 0
    """By which numbers the parameters of a module are others."""


@dataclass
class Subject:
    """A function with the call that is its example."""

    name: str
    function: Any
    text: str
    """The call's arguments, as `as_python` writes them: all ints that it is given are sizes."""
    arguments: list[str]
    """The names of these."""
    values: list[int]
    samples: list[Tensor]
    """The tensors of the example."""
    limits: tuple[float, float] = _RANGES[0]
    calls: int = field(default=0, init=False)
    module: Whole | None = None
    """What all parts have, of the function that a module's forward is."""
    thorough: bool = False
    """Whether it is of a model: what is found is used without anybody having read it."""
    by_rows: bool = False
    """Whether it takes no ints but rows of the example's, which may say how many there are of something."""
    operations: int = 0
    """Those of PyTorch in a call, where it is of a model."""

    @classmethod
    def from_call(
        cls,
        function: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        module: Whole | None = None,
        thorough: bool = False,
    ) -> Subject:
        """Refuses what cannot be tried."""
        owner = getattr(function, "__self__", None)
        if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            function = owner
        name = _named(function) if module is None else module.path
        names = _ints(function, args, kwargs)
        sized = Registered(function, name, "", {arg: arg for arg in names}, None, None, "")
        args, kwargs, sizes = sized.with_sizes(function, args, kwargs)
        try:
            text, tensors = as_python.written(args, kwargs)
        except as_python.NotPlain as error:
            why = f"{error} is among its arguments, which cannot be written into a graph"
            raise cannot(name, why, "let it take tensors and plain values") from None
        samples = [tensor.detach() if tensor.is_meta else tensor.detach().cpu() for tensor in tensors]
        subject = cls(name, function, text, names, list(sizes.values()), samples)
        subject.module, subject.thorough = module, thorough
        subject._check_example()
        subject.limits = subject._finite_limits()
        if thorough:
            with Counting() as counting, torch.no_grad():
                subject.run(subject.draw(subject.shapes, 1), subject.values)
            subject.operations = counting.count
        return subject

    @property
    def shapes(self) -> list[list[int]]:
        return [list(sample.shape) for sample in self.samples]

    def is_float(self, at: int) -> bool:
        return self.samples[at].dtype.is_floating_point

    @property
    def held(self) -> list[Tensor]:
        return [] if self.module is None else self.module.trained

    def settle(self, seed: int) -> None:
        """The parameters of a module as they are by these numbers."""
        if self.module is not None:
            self.module.settle(seed)

    def draw(self, shapes: Sequence[Shape], seed: int, scale: float = 1.0) -> list[Tensor]:
        """Floats between the limits, in double precision; others are among the example's."""
        generator = torch.Generator().manual_seed(seed)
        low, high = (scale * limit for limit in self.limits)
        tensors = []
        for sample, shape in zip(self.samples, shapes, strict=True):
            drawn = torch.rand(list(shape), dtype=torch.float64, generator=generator)
            if sample.dtype.is_floating_point:
                tensors.append(low + (high - low) * drawn)
            elif self.by_rows:
                tensors.append(_rows(sample, shape, seed))
            elif sample.dtype == torch.bool:
                tensors.append(drawn < (0.3, 0.5, 0.7)[seed % 3])
            else:
                known = sample.flatten() if sample.numel() else torch.zeros(1, dtype=sample.dtype)
                if self.thorough and seed % 2 and int(known.min()) >= 0:
                    # An example may have only ones where others have noughts.
                    known = torch.arange(int(known.max()) + 1).to(sample.dtype)
                tensors.append(known[(drawn * len(known)).long()])
        return tensors

    def require_time(self) -> None:
        """A model's function may be so long that trying it would take minutes: counted, as clocks differ."""
        if self.calls * self.operations > _MOST_OPERATIONS:
            why = f"a call of it has {self.operations:,} operations, which is too long to try it often enough"
            raise cannot(self.name, why, "state a rule for it")

    def run(self, tensors: Sequence[Tensor | None], values: Sequence[int]) -> list[Tensor]:
        self.calls += 1
        args, kwargs = as_python.read(self.text, tensors, values)
        # A module may take gradients inside of its forward.
        with torch.set_grad_enabled(self.thorough or torch.is_grad_enabled()):
            return tensors_of(as_python.called(self.function, args, kwargs))

    def learn(
        self, tensors: Sequence[Tensor | None], values: Sequence[int], weights: Sequence[Tensor | None] | None
    ) -> Trial:
        """Values and gradients; without weights, which the outputs' gradients are, random ones."""
        given = [
            tensor.clone().requires_grad_(tensor.dtype.is_floating_point) if tensor is not None else None
            for tensor in tensors
        ]
        with torch.enable_grad():
            outputs = self.run(given, values)
        if weights is None:
            generator = torch.Generator().manual_seed(len(outputs))
            weights = [
                torch.rand(output.shape, dtype=torch.float64, generator=generator).to(output.dtype)
                if output.requires_grad
                else None
                for output in outputs
            ]
        taught = [(output, w) for output, w in zip(outputs, weights, strict=True) if w is not None]
        learning = [tensor for tensor in given if tensor is not None and tensor.requires_grad] + self.held
        gradients_of_learning: Iterator[Tensor | None] = iter([None] * len(learning))
        if taught and learning:
            heads, cotangents = zip(*taught, strict=True)
            gradients_of_learning = iter(torch.autograd.grad(heads, learning, cotangents, allow_unused=True))
        gradients = [
            None
            if tensor is None or not tensor.requires_grad
            else _or_zeros(next(gradients_of_learning), tensor)
            for tensor in given
        ] + [_or_zeros(next(gradients_of_learning), tensor) for tensor in self.held]
        plain = [tensor.detach() for tensor in tensors if tensor is not None]
        return Trial(plain, [output.detach() for output in outputs], list(weights), gradients)

    def trial(self, shapes: Sequence[Shape], values: Sequence[int], seed: int, scale: float = 1.0) -> Trial:
        return self.trial_of(self.draw(shapes, seed, scale), values, seed)

    def trial_of(self, tensors: Sequence[Tensor], values: Sequence[int], seed: int) -> Trial:
        self.settle(seed)
        trial = self.learn(tensors, values, None)
        trial.held = seed
        return trial

    def _check_example(self) -> None:
        if not self.held and not any(map(self.is_float, range(len(self.samples)))):
            why = "none of its tensors is of real numbers, which a rule is tried on"
            raise cannot(self.name, why, "give an example with a tensor of floats")
        for sample in self.samples:
            if sample.dtype not in DTYPES or sample.dtype.is_complex:
                why = f"it is given a tensor of type {sample.dtype}"
                raise cannot(self.name, why, f"use one of {', '.join(DTYPES.values())}, without complex ones")
            if not sample.numel():
                why = "it is given a tensor without elements"
                raise cannot(self.name, why, "give an example of which every dim has some")
        elements = sum(sample.numel() for sample in self.samples)
        if elements > MOST or any(sample.is_meta for sample in self.samples):
            why = f"its example has {elements:,} elements" if elements > MOST else "its example has no values"
            raise cannot(self.name, why, f"give a smaller one, of at most {MOST:,} with values")
        wide = [x.double() if x.dtype.is_floating_point else x.clone() for x in self.samples]
        given = [x.clone().requires_grad_(x.dtype.is_floating_point) for x in wide]
        copies = [x.clone() for x in given]
        with torch.enable_grad(), Recording() as recording:
            outputs = _explained(self, lambda: self.run(copies, self.values))
        if not outputs or not all(output.numel() for output in outputs):
            raise cannot(self.name, "it gives no tensor, or one without elements", "let it return one")
        changed = [at for at, x in enumerate(copies) if x._version or not _same(x, given[at])]
        if changed:
            why = f"it changes a tensor that it is given, number {changed[0]}"
            raise cannot(self.name, why, "let it give a new one")
        first = _explained(self, lambda: self.learn(wide, self.values, None))
        second = _explained(self, lambda: self.learn(wide, self.values, first.weights))
        pairs = zip(first.outputs + first.gradients, second.outputs + second.gradients, strict=True)
        if self.module is not None and self.module.changed is not None:
            why = f"it updates its buffer `{self.module.changed}`, which each part would update by its own"
            raise cannot(self.name, why, "keep what it counts outside of it")
        if recording.draws or not all(_same(a, b) for a, b in pairs if a is not None and b is not None):
            why = "it draws random numbers" if recording.draws else "it gives something else each time"
            raise cannot(self.name, why, "give the numbers as a tensor")

    def _finite_limits(self) -> tuple[float, float]:
        floats = [x.double() for at, x in enumerate(self.samples) if self.is_float(at) and x.numel()]
        example_range = (
            [(float(min(x.min() for x in floats)), float(max(x.max() for x in floats)))] if floats else []
        )
        if not floats:
            return self.limits
        failed: Exception | None = None
        for self.limits in (*_RANGES, *example_range):
            try:
                trial = self.trial(self.shapes, self.values, 1)
            except Exception as error:  # a function of numbers in another range
                failed = failed or error
                continue
            if all(bool(x.isfinite().all()) for x in [*trial.outputs, *trial.gradients] if x is not None):
                return self.limits
        if self.thorough and not self.by_rows and len(floats) < len(self.samples):
            self.by_rows = True
            return self._finite_limits()
        why = "it has no finite values for random tensors"
        if failed is not None:
            why = f"it runs on its example, and not on random tensors ({said_by(failed)})"
        raise cannot(self.name, why, "let the example have the numbers that it may be given")


def _rows(sample: Tensor, shape: Shape, seed: int) -> Tensor:
    """Rows of a tensor, the same ones of all that have as many, and as often as there is room for them."""
    if not sample.dim():
        return sample.clone()
    drawn = torch.rand(len(sample), generator=torch.Generator().manual_seed(seed))
    # Each row at least once, so that parts differ.
    order = drawn.argsort().repeat(shape[0] // len(sample) + 1)[: shape[0]]
    return sample[order].expand(list(shape)).clone()


def cannot(name: str, why: str, fix: str, place: str | None = None) -> CaptureError:
    what = f"no rule can be looked for, for `{name}`"
    return CaptureError(CODE, what, place=place, why=why, fix=fix)


def _explained(subject: Subject, run: Any) -> Any:
    from ..capture.lines import place_of_error

    try:
        return run()
    except Exception as error:
        why = f"it does not run on its example, in double precision ({said_by(error)})"
        raise cannot(subject.name, why, "call it with the example first", place_of_error(error)) from error


def _named(function: Any) -> str:
    if isinstance(function, torch._ops.OpOverload):
        return str(function)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return f"{module}:{name}" if module and name else str(getattr(function, "__name__", function))


def _ints(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The arguments that are ints, and may be sizes."""
    try:
        bound = signature_of(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # of builtins nothing is known
        return []
    bound.apply_defaults()
    return [name for name, value in bound.arguments.items() if type(value) is int]


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))


def _or_zeros(gradient: Tensor | None, tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if gradient is None else gradient.detach()
