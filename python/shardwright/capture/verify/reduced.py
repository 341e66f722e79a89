"""Less of a model than the whole of it, whose graph says the same: fewer rows of a batch, or fewer layers.

Less is captured by itself. Its graph stands for the whole one if both have the same operators, by texts: of
fewer rows each line is the same but for sizes that are in the same proportion, of fewer layers each line of
a layer that is left out is one of a layer that is there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

# One row is often a case of its own, and so is one layer.
FEWEST = 2
_SPECS = ("in_spec ", "out_spec ")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(r"(?<![\w.%-])\d+(?![\w.])")
_NAME = re.compile(r"%\w+")
_CONSTANT = re.compile(r'^(const %.*\] )".*"$')


# ---- fewer rows ------------------------------------------------------------------------------


def rows_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """How many rows most of a call's tensors have; none where there are no such tensors."""
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.dim()]
    counts = Counter(len(tensor) for tensor in tensors)
    return max(counts, key=lambda rows: counts[rows], default=0)


def with_rows(args: Any, kwargs: Any, rows: int, fewer: int) -> tuple[Any, Any]:
    """A call with the first few rows of each tensor that has all of them."""

    def cut(tensor: Tensor) -> Tensor:
        if not tensor.dim() or len(tensor) != rows:
            return tensor
        return tensor.detach()[:fewer].clone().requires_grad_(tensor.requires_grad)

    cut_call: tuple[Any, Any] = pytree.tree_map_only(Tensor, cut, (args, kwargs))
    return cut_call


def alike_in_rows(text: str, other: str, rows: int, fewer: int) -> bool:
    ours, theirs = _lines(text), _lines(other)
    return len(ours) == len(theirs) and all(
        _in_proportion(one, another, rows, fewer) for one, another in zip(ours, theirs, strict=True)
    )


def _in_proportion(line: str, other: str, rows: int, fewer: int) -> bool:
    if line == other:
        return True
    if _STRING.findall(line) != _STRING.findall(other):
        return False
    plain, plain_other = _STRING.sub('""', line), _STRING.sub('""', other)
    if _NUMBER.sub("0", plain) != _NUMBER.sub("0", plain_other):
        return False
    numbers = zip(map(int, _NUMBER.findall(plain)), map(int, _NUMBER.findall(plain_other)), strict=True)
    return all(n == m or n * fewer == m * rows for n, m in numbers)


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith(_SPECS)]


# ---- fewer layers ----------------------------------------------------------------------------


@contextmanager
def few_layers(module: nn.Module) -> Iterator[dict[str, tuple[int, int]]]:
    """For a while, lists of like layers are short: by path, how many there are and how many there were."""
    lists = dict(_long_lists(module))
    whole = {path: layers._modules for path, layers in lists.items()}
    needed = {path: (_needed(layers), len(layers)) for path, layers in lists.items()}
    try:
        for path, (few, _) in needed.items():
            lists[path]._modules = dict(list(whole[path].items())[:few])
        yield needed
    finally:
        for path, layers in lists.items():
            layers._modules = whole[path]


def _long_lists(module: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    """Those that may be shorter, and lie in no other such."""
    outer: list[str] = []
    for path, part in module.named_modules():
        inside = any(path.startswith(f"{other}.") for other in outer)
        if isinstance(part, nn.ModuleList) and not inside and _needed(part) < len(part):
            outer.append(path)
            yield path, part


def _needed(layers: nn.ModuleList) -> int:
    """So many that there is one of each kind."""
    kinds = [_kind(layer) for layer in layers]
    return max(FEWEST, *(kinds.index(kind) + 1 for kind in kinds)) if kinds else 0


def _kind(layer: nn.Module) -> str:
    tensors = (*layer.named_parameters(), *layer.named_buffers())
    held = [(name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for name, tensor in tensors]
    parts = [(name, type(part), _said_of(part)) for name, part in layer.named_modules()]
    return repr((held, parts))


def _said_of(part: nn.Module) -> list[tuple[str, Any]]:
    """What layers of a class may differ in; their numbers count them."""
    return [(name, value) for name, value in vars(part).items() if isinstance(value, (bool, str, float))]


def alike_in_layers(text: str, other: str, lists: Mapping[str, tuple[int, int]]) -> bool:
    return _kinds_of_lines(text, lists) == _kinds_of_lines(other, lists)


def _kinds_of_lines(text: str, lists: Mapping[str, tuple[int, int]]) -> set[str]:
    nameless = _NAME.sub("%", "\n".join(map(_nameless, text.splitlines())))
    for path in lists:
        nameless = re.sub(rf'(?<=["\\.]){re.escape(path)}\.\d+(?=["\\.])', f"{path}.*", nameless)
    return set(nameless.splitlines())


def _nameless(line: str) -> str:
    return _CONSTANT.sub(r"\1", line)
