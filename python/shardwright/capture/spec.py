"""How a call's arguments become a flat list of tensors, and a flat list of results the result."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import CaptureError
from .state.memory import has_no_value
from .state.names import is_safe, odd_name
from .static_inputs.named import known_among, values_of
from .static_inputs.reading import Reading

_TENSOR = "*"
# A tensor that is known, of which only what is read matters.
_READ = f"{_TENSOR} as it is read"
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class CallSpec:
    """The structure of the captured call: tensors are inputs, every other leaf is baked in, and so is what
    the model reads of tensors that are known, or all that they hold.

    Arguments are bound to the names of ``forward``, so that a call may pass by position what the
    captured one passed by keyword; arguments that are given their default count as left out.
    """

    signature: inspect.Signature
    tree: pytree.TreeSpec
    leaves: tuple[str, ...]
    names: tuple[str, ...]
    reading: Reading | None = None

    @staticmethod
    def of_call(
        forward: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        known: Sequence[str] = (),
    ) -> CallSpec:
        """``known`` are names of arguments, or of their parts, whose tensors' values are known."""
        signature = inspect.signature(forward)
        named, tree = _flatten(bind(signature, args, kwargs))
        inputs = known_among(named, known)
        leaves = tuple(_encode(leaf, name in inputs) for name, leaf in named)
        return CallSpec(signature, tree, leaves, tuple(name for name, _ in named))

    @staticmethod
    def from_text(text: str, forward: Callable[..., Any]) -> CallSpec:
        """Reads the ``in_spec`` line of a graph, where the module was not captured."""
        data = json.loads(text)
        tree = pytree.treespec_loads(json.dumps(data["tree"]))
        leaves, names = tuple(data["leaves"]), tuple(data["names"])
        reading = Reading(tuple(data["reading"])) if "reading" in data else None
        return CallSpec(inspect.signature(forward), tree, leaves, names, reading)

    def read_by(self, reading: Reading) -> CallSpec:
        """For calls of which the model reads the same. Of known inputs it may read nothing."""
        read = {self.known_names[at] for at in reading.inputs}

        def encoded(name: str, leaf: str) -> str:
            return _READ if name in read else _TENSOR if _is_tensor(leaf) else leaf

        leaves = tuple(encoded(*one) for one in self._named)
        return replace(self, leaves=leaves, reading=reading.of_its_inputs() if read else None)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        return bind(self.signature, args, kwargs)

    def text(self) -> str:
        read = {} if self.reading is None else {"reading": list(self.reading.steps)}
        return _text(self.tree, leaves=list(self.leaves), names=list(self.names), **read)

    def input_names(self) -> list[str]:
        """What a person calls the tensors, such as ``batch['tokens']``; by position."""
        return [name for name, leaf in self._named if _is_tensor(leaf)]

    @cached_property
    def known_names(self) -> tuple[str, ...]:
        """The tensors whose values matter to the structure."""
        return tuple(name for name, leaf in self._named if _is_tensor(leaf) and leaf != _TENSOR)

    def known(self, bound: inspect.BoundArguments) -> list[Tensor]:
        """Those tensors, of a call."""
        return self._known_of(_flatten(bound)[0])

    def _known_of(self, named: list[tuple[str, Any]]) -> list[Tensor]:
        return [leaf for name, leaf in named if name in self.known_names and isinstance(leaf, Tensor)]

    @property
    def _named(self) -> tuple[tuple[str, str], ...]:
        return tuple(zip(self.names, self.leaves, strict=True))

    @property
    def structure(self) -> Hashable:
        """What a program is made for besides shapes: the arguments' structure, baked values, and what is read
        of others."""
        return str(self.tree), self._named, self.reading and (self.reading.name, self.reading.results)

    def describe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Hashable, list[Tensor]]:
        """The structure of any call, and its tensors."""
        named, tree = _flatten(bind(self.signature, args, kwargs))
        structure = tuple((name, self._encoded(name, leaf)) for name, leaf in named)
        tensors = [leaf for _, leaf in named if isinstance(leaf, Tensor)]
        read = self.reading and (self.reading.name, self._read_of(named))
        return (str(tree), structure, read), tensors

    def _read_of(self, named: list[tuple[str, Any]]) -> tuple[str, ...]:
        known = self._known_of(named)
        if self.reading is None or len(known) != len(self.known_names) or any(map(has_no_value, known)):
            return ()
        return self.reading.read(known)

    def _encoded(self, name: str, leaf: Any) -> str:
        known = name in self.known_names
        return _READ if known and self.reading and isinstance(leaf, Tensor) else _encode(leaf, known)

    @staticmethod
    def tensor_names(structure: Hashable) -> list[str]:
        """What a person calls the tensors of a structure, by position."""
        _, leaves, _ = cast("tuple[str, tuple[tuple[str, str], ...], Any]", structure)
        return [name for name, leaf in leaves if _is_tensor(leaf)]

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Tensor]:
        """The tensors of a call, by the positions of the graph's ``input`` lines."""
        named, tree = _flatten(bind(self.signature, args, kwargs or {}))
        self._compare_leaves(named)
        if tree != self.tree:
            raise _other_call(
                "the arguments have another structure than in the captured call",
                f"{tree} is not {self.tree}",
            )
        return [leaf for _, leaf in named if isinstance(leaf, Tensor)]

    def _compare_leaves(self, named: list[tuple[str, Any]]) -> None:
        ours, theirs = dict(zip(self.names, self.leaves, strict=False)), dict(named)
        for name, leaf in ours.items():
            if name not in theirs:
                raise _other_call(f"the argument `{name}` is missing in this call")
            given = self._encoded(name, theirs[name])
            if given != leaf:
                raise _other_call(
                    f"the argument `{name}` has another value than in the captured call",
                    f"it was {_readable(leaf)}, now it is {_readable(given)}",
                )
        for name in theirs:
            if name not in ours:
                raise _other_call(f"the argument `{name}` was not there in the captured call")
        self._compare_what_is_read(named)

    def _compare_what_is_read(self, named: list[tuple[str, Any]]) -> None:
        read = self._read_of(named)
        if self.reading is None or read == self.reading.results:
            return
        names, last = ", ".join(f"`{name}`" for name in self.known_names), max(len(read) - 1, 0)
        raise _other_call(
            f"the model reads other values of {names} than in the captured call",
            f"it was {self.reading.results[last]}, now it is {read[last] if read else 'not there'}",
        )


@dataclass(frozen=True)
class ResultSpec:
    """The structure of the result: tensors come from the program, the rest is baked in."""

    tree: pytree.TreeSpec
    leaves: tuple[str, ...]

    @staticmethod
    def of_leaves(tree: pytree.TreeSpec, leaves: Sequence[Any]) -> ResultSpec:
        return ResultSpec(tree, tuple(_encode(leaf) for leaf in leaves))

    @staticmethod
    def from_text(text: str) -> ResultSpec:
        data = json.loads(text)
        tree = pytree.treespec_loads(json.dumps(data["tree"]))
        return ResultSpec(tree, tuple(data["leaves"]))

    def text(self) -> str:
        return _text(self.tree, leaves=list(self.leaves))

    def names(self) -> list[str]:
        """What a person calls the leaves: ``logits``, ``hidden_states.0``; ``output`` if it is the result."""
        return [".".join(path) or "output" for path in _paths(self.tree)]

    def unflatten(self, outputs: Sequence[Tensor | None]) -> Any:
        """``outputs`` has one entry for each ``output`` line of the graph, in order."""
        leaves = [
            output if leaf == _TENSOR else json.loads(leaf)
            for output, leaf in zip(outputs, self.leaves, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self.tree)

    def ordered(
        self, outputs: Sequence[Tensor | None], structure: pytree.TreeSpec | None
    ) -> Sequence[Tensor | None]:
        """``outputs`` in the order of another structure with the same paths. A container that is made anew
        may order its keys otherwise than the model does (Transformers' outputs what is set later)."""
        given_paths, wanted = _paths(self.tree), [] if structure is None else _paths(structure)
        if given_paths == wanted or sorted(given_paths) != sorted(wanted):
            return outputs
        by_path = dict(zip(given_paths, outputs, strict=True))
        return [by_path[path] for path in wanted]


def _paths(tree: pytree.TreeSpec) -> list[tuple[str, ...]]:
    """The keys, fields and positions that lead to each leaf."""
    if tree.is_leaf():
        return [()]
    children = list(tree.children() if hasattr(tree, "children") else tree.children_specs)
    keys: Any = getattr(tree.context, "_fields", tree.context)
    named = isinstance(keys, (list, tuple)) and len(keys) == len(children)
    steps = [str(key) for key in keys] if named else [str(at) for at in range(len(children))]
    return [(step, *path) for step, child in zip(steps, children, strict=True) for path in _paths(child)]


def bind(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise _other_call("the arguments do not fit `forward`", str(error)) from None
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and name in bound.arguments:
            bound.arguments[name] = dict(sorted(bound.arguments[name].items()))
    return bound


def _flatten(bound: inspect.BoundArguments) -> tuple[list[tuple[str, Any]], pytree.TreeSpec]:
    parameters = bound.signature.parameters
    given = {n: v for n, v in bound.arguments.items() if not _is_default(parameters[n], v)}
    leaves, tree = pytree.tree_flatten_with_path(given)
    for key in (str(step.key) for path, _ in leaves for step in path if isinstance(step, pytree.MappingKey)):
        if not is_safe(key) or "'" in key:
            raise odd_name("an input", key)
    return [(_readable_path(path), leaf) for path, leaf in leaves], tree


def _is_default(parameter: inspect.Parameter, value: Any) -> bool:
    plain = isinstance(value, _PLAIN) and type(value) is type(parameter.default)
    return plain and bool(value == parameter.default)


def _readable_path(path: Sequence[Any]) -> str:
    return str(path[0].key) + pytree.keystr(tuple(path[1:]))


def _encode(leaf: Any, known: bool = False) -> str:
    if isinstance(leaf, Tensor):
        return f"{_TENSOR} {values_of(leaf)}" if known else _TENSOR
    if isinstance(leaf, _PLAIN):
        return json.dumps(leaf)
    if isinstance(leaf, (torch.dtype, torch.device)):
        return json.dumps({"torch": str(leaf)})
    return json.dumps({"repr": repr(leaf)})


def _is_tensor(leaf: str) -> bool:
    return leaf.startswith(_TENSOR)


def _readable(leaf: str) -> str:
    return "a tensor" if leaf == _TENSOR else f"`{leaf.removeprefix(_TENSOR).strip()}`"


def _text(tree: pytree.TreeSpec, **rest: list[Any]) -> str:
    try:
        data: Any = json.loads(pytree.treespec_dumps(tree))
    except (NotImplementedError, TypeError) as error:
        raise CaptureError(
            "SW0108",
            "the structure of the arguments or of the result cannot be written down",
            why=str(error),
            fix="register the type with `torch.utils._pytree.register_pytree_node`, giving it a"
            " `serialized_type_name`, or use tuples, lists and dicts",
        ) from None
    return json.dumps({"tree": data, **rest}, separators=(",", ":"))


def _other_call(what: str, why: str | None = None) -> CaptureError:
    return CaptureError(
        "SW0105",
        what,
        why=why,
        fix="call the model as it was captured, or capture it again with these arguments:"
        " whatever is not a tensor is a constant of the program",
    )
