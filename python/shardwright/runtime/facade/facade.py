"""The model as it was written, without values: what its modules are, and what a loop changes of them.

A program is made for attributes as they are. Who sets one that the model may read gets another program, for
plain values; all else is refused when it is set. What is no attribute of the model is the loop's own.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import RuntimeFault, with_article
from .contained import Contained
from .contained import refusal as refused_inside
from .elsewhere import Elsewhere
from .named import named_in

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype)
_NOTHING = object()


class Facade:
    """`skeleton` is nothing where a program came without its model; `fixed`: no other can be made."""

    def __init__(self, skeleton: nn.Module | None, fixed: bool):
        self.skeleton, self._fixed = skeleton, fixed
        # Of parameters here, by `id`, the single device's shapes: of those with which nobody computes
        # something of the model's, and of all.
        self.shapes: dict[int, torch.Size] = {}
        self.all_shapes: dict[int, torch.Size] = {}
        # Whether all ranks hold the same of the model.
        self.alike = False
        # What a module's own gives, made whole: for a path, the module's way to it, and its arguments.
        self.state_dict: Callable[[str, Callable[..., Any], Any, Any], Any] = _nothing_yet
        # By path and name the parameters of which this rank holds nothing.
        self.elsewhere: dict[tuple[str, str], Elsewhere] = {}
        # By path and name what was set, and what was there before.
        self._changes: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._contained = Contained(skeleton)

    def at(self, path: str) -> nn.Module | None:
        return None if self.skeleton is None else self.skeleton.get_submodule(path)

    def know(self, parameters: Mapping[Tensor, torch.Size], in_parts: Iterable[Tensor]) -> None:
        """`in_parts` are those with which nobody computes something of the model's."""
        self.all_shapes = {id(parameter): shape for parameter, shape in parameters.items()}
        self.shapes = {id(parameter): self.all_shapes[id(parameter)] for parameter in in_parts}

    def below(self, path: str) -> list[Elsewhere]:
        """The parameters of a module, and of those inside, of which this rank holds nothing."""
        inside = f"{path}." if path else ""
        return [it for (at, _), it in self.elsewhere.items() if at == path or at.startswith(inside)]

    def copied(self) -> Facade:
        """Another model that has been changed as this one. What its parameters are is not known yet."""
        facade = Facade(None, self._fixed)
        facade.skeleton, facade._contained = copy.deepcopy((self.skeleton, self._contained))
        facade._changes = dict(self._changes)
        return facade

    def reads(self, path: str, name: str) -> bool:
        """Whether the model may read an attribute of this name there."""
        module = self.at(path)
        if module is None:
            return False
        if name in vars(module) or inspect.getattr_static(type(module), name, _NOTHING) is not _NOTHING:
            return True
        held = (module._parameters, module._buffers, module._modules)
        return any(name in table for table in held) or name in named_in(module)

    def set(self, path: str, name: str, value: Any) -> None:
        module = self.at(path)
        assert module is not None
        said = f"{path}.{name}" if path else name
        if self._fixed:
            raise refusal(said, _NO_OTHER)
        if any(name in table for table in (module._parameters, module._buffers, module._modules)):
            raise refusal(
                said, "the parallel model has its own modules, with shards of parameters and buffers"
            )
        if not _is_plain(value):
            raise refusal(said, f"{with_article(type(value).__name__)} may change without being set again")
        _, before = self._changes.get((path, name), (None, vars(module).get(name, _NOTHING)))
        setattr(module, name, value)
        if type(before) is type(value) and repr(before) == repr(value):
            self._changes.pop((path, name), None)
        else:
            self._changes[path, name] = value, before

    @property
    def key(self) -> tuple[str, ...]:
        """By this a program is chosen, and the ranks compare it."""
        changes = [
            f"{path}.{name} = {value!r}".lstrip(".")
            for (path, name), (value, _) in sorted(self._changes.items())
        ]
        return *changes, *self._contained.changes()

    def refuse_changes(self) -> None:
        """Of what lies inside of attributes, for which no program can be made."""
        self._contained.refuse()
        for change in self._contained.changes() if self._fixed else ():
            raise refused_inside(change.partition(" ")[0], _NO_OTHER)


def _nothing_yet(path: str, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return plain(*args, **kwargs)


_NO_OTHER = "the program was loaded without its model, so no other program can be compiled"


def refusal(name: str, why: str) -> RuntimeFault:
    fix = (
        "set it before `parallelize`; keep what changes from step to step in a buffer or an argument;"
        " load values with `model.load_full_state_dict(...)`"
    )
    if name.rpartition(".")[2] == "forward":  # frameworks do that
        fix = (
            "give the framework the plain model: `shardwright.integrations.transformers` has a Trainer that"
            " parallelizes it, also for TRL; in a loop of your own set it before `parallelize`"
        )
    return RuntimeFault("SW0803", f"`{name}` of a parallelized model cannot be set", why=why, fix=fix)


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else isinstance(value, _PLAIN)
