"""A random model as data, and as the text of a `torch.nn.Module`.

A `Leaf` is what the model holds or is given, a `Step` one line of its forward. The text of a step has the
names of what it reads in braces, `torch.cat([{v1}, {p0}], 1)`, so that steps can be dropped and renamed.
"""

from __future__ import annotations

import itertools
import linecache
import re
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

READ = re.compile(r"\{(\w+)\}")
_number = itertools.count()


@dataclass(frozen=True)
class Leaf:
    """`kind` is param, input, buffer, module or tied; the `text` makes its value, or names the other one."""

    name: str
    kind: str
    text: str
    grad: bool = True
    """Whether a parameter is trained; whether an input requires a gradient."""


@dataclass(frozen=True)
class Step:
    """`targets` get the results of the text; with none, it is a statement."""

    targets: tuple[str, ...]
    text: str
    quiet: bool = False
    """Under `torch.no_grad()`."""

    @property
    def reads(self) -> list[str]:
        return READ.findall(self.text)


@dataclass(frozen=True)
class Program:
    seed: str
    leaves: tuple[Leaf, ...] = ()
    steps: tuple[Step, ...] = ()
    losses: tuple[str, ...] = ()
    """Names of scalars that are summed to the loss."""
    results: tuple[str, ...] = ()
    """Names of further results."""
    coarse: bool = False
    """Whether float32 is computed with, whose rounding shows."""
    random: bool = False
    outside: bool = False
    """Whether a part of the loss is computed outside, from the results, where they leave."""
    operators: tuple[str, ...] = ()
    """What the fuzzer calls them, for counting."""
    pasted: str = ""
    """A text that is given instead of leaves and steps."""

    def source(self) -> str:
        """A class `Model` and a function `inputs`, which can be pasted behind `HEADER`."""
        return self.pasted or "\n".join(_lines(self)) + "\n"

    def pruned(self) -> Program:
        """Without leaves that nothing reads."""
        read = {name for step in self.steps for name in step.reads} | {*self.losses, *self.results}
        names = read | {leaf.text for leaf in self.leaves if leaf.kind == "tied" and leaf.name in read}
        return replace(self, leaves=tuple(leaf for leaf in self.leaves if leaf.name in names))

    def without_dead(self) -> Program:
        """Without steps whose results nothing reads."""
        needed = {*self.losses, *self.results}
        kept: list[Step] = []
        for step in reversed(self.steps):
            if not step.targets or needed.intersection(step.targets):
                needed.update(step.reads)
                kept.append(step)
        return replace(self, steps=tuple(reversed(kept))).pruned()


def build(source: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module and its inputs. Messages show its lines."""
    name = f"<fuzz {next(_number)}>"
    text = HEADER + source
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": "fuzzed"}
    exec(compile(text, name, "exec"), scope)
    return scope["Model"](), scope["inputs"]()


HEADER = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

D = torch.float64


def normal(*shape, dtype=D):
    return torch.randn(shape, dtype=dtype)


def between(low, high, *shape, dtype=D):
    return low + (high - low) * torch.rand(shape, dtype=dtype)


def small(*shape, dtype=torch.float32):
    return torch.randint(-3, 4, shape).to(dtype)


def noisy(module):
    module = module.double()
    for p in module.parameters():
        p.data.add_(0.1 * torch.randn_like(p))
    return module


"""


def _lines(program: Program) -> list[str]:
    lines = ["class Model(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += ["        torch.manual_seed(1)"]
    lines += [f"        {_held(leaf)}" for leaf in program.leaves if leaf.kind != "input"]
    inputs = [leaf for leaf in program.leaves if leaf.kind == "input"]
    lines += ["", f"    def forward(self{''.join(', ' + leaf.name for leaf in inputs)}):"]
    held = [leaf.name for leaf in program.leaves if leaf.kind != "input"]
    lines += [f"        {name} = self.{name}" for name in held]
    quiet = False
    for step in program.steps:
        if step.quiet and not quiet:
            lines.append("        with torch.no_grad():")
        quiet = step.quiet
        lines.append(("            " if quiet else "        ") + _line(step))
    lines += [f"        return {_returned(program)}", "", "", "def inputs():", "    torch.manual_seed(2)"]
    made = [f"{leaf.text}{'.requires_grad_()' if leaf.grad else ''}" for leaf in inputs]
    lines += [f"    return ({''.join(text + ', ' for text in made)})"]
    return lines


def _held(leaf: Leaf) -> str:
    if leaf.kind == "buffer":
        return f'self.register_buffer("{leaf.name}", {leaf.text})'
    if leaf.kind == "tied":
        return f"self.{leaf.name} = self.{leaf.text}"
    if leaf.kind == "module":
        return f"self.{leaf.name} = noisy({leaf.text})"
    frozen = "" if leaf.grad else ", requires_grad=False"
    return f"self.{leaf.name} = nn.Parameter({leaf.text}{frozen})"


def _line(step: Step) -> str:
    text = READ.sub(r"\1", step.text)
    return f"{', '.join(step.targets)} = {text}" if step.targets else text


def _returned(program: Program) -> str:
    terms = [name if at == 0 else f"{1 + 0.5 * at} * {name}" for at, name in enumerate(program.losses)]
    results = "".join(f', "{name}": {name}' for name in program.results)
    return f'{{"loss": {" + ".join(terms)}{results}}}'
