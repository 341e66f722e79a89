"""From a YAML file to a `Config`: every refusal names the file, the line and the column."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ..errors import RuntimeFault, ShardwrightError
from ..support.suggestions import did_you_mean
from .config import Config
from .schema import choices_of

Kind = TypeVar("Kind")

# `${NAME}`, or `${NAME:what it is where it is not set}`.
_VARIABLE = re.compile(r"\$\{(\w+)(?::([^}]*))?\}")
_CALLED = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


def read(file: str | Path, overrides: Sequence[str] = ()) -> Config:
    """`overrides` are `optimizer.lr=1e-4`, each in the place of what the file says."""
    import yaml

    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RuntimeFault(
            "SW0850", f"{file} cannot be read", why=why, fix="name a YAML file of a training run"
        ) from None
    try:
        root = yaml.compose(text)
        for override in overrides:
            root = _overridden(root, override)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise RuntimeFault(
            "SW0850", "this is no YAML", place=place, why=str(error.problem), fix="mend the file there"
        ) from None
    if root is None:
        raise _refusal(f"{file}:1:1", "the file is empty", "a run needs a model and data at least")
    return _Reader(str(file)).read(root, Config, "")


class _Reader:
    def __init__(self, file: str):
        self._file = file

    def read(self, node: Any, kind: Any, path: str) -> Any:
        for choice in choices_of(kind):
            if self._fits(node, choice):
                return self._as(node, choice, path)
        wanted = " or ".join(_described(choice) for choice in choices_of(kind) if choice is not type(None))
        value = f"{node.value!r}" if self._is_scalar(node) else _NODES.get(node.id, "something else")
        raise _refusal(self._place(node), f"`{path}` is {value}", f"it is {wanted}")

    def _as(self, node: Any, kind: Any, path: str) -> Any:
        if is_dataclass(kind):
            return self._class(node, kind, path)  # type: ignore[arg-type]
        if get_origin(kind) is list:
            item = get_args(kind)[0]
            nodes = node.value if node.id == "sequence" else [node]
            return [self.read(one, item, f"{path}[{at}]") for at, one in enumerate(nodes)]
        if get_origin(kind) is dict:
            return self._plain(node)
        value = self._scalar(node)
        return float(value) if kind is float else str(value) if kind is str else value

    def _class(self, node: Any, kind: type[Kind], path: str) -> Kind:
        hints = get_type_hints(kind)
        given: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            inner = f"{path}.{name}".lstrip(".")
            if name not in hints:
                fix = did_you_mean(name, list(hints)) or f"it may have {', '.join(hints)}"
                raise _refusal(self._place(key), f"`{inner}` is unknown", "no option has this name", fix)
            if name in given:
                raise _refusal(self._place(key), f"`{inner}` is said twice", "only one of them could hold")
            given[name] = self.read(value, hints[name], inner)
            self._require_known(value, given[name], inner, kind.__dataclass_fields__[name])  # type: ignore[attr-defined]
        for one in fields(kind):  # type: ignore[arg-type]
            if one.default is MISSING and one.default_factory is MISSING and one.name not in given:
                inner = f"{path}.{one.name}".lstrip(".")
                raise _refusal(self._place(node), f"`{inner}` is missing", f"it says: {one.metadata['text']}")
        return kind(**given)

    def _require_known(self, node: Any, value: Any, path: str, field: Field[Any]) -> None:
        """Refuses a name of nothing where it stands, not where it is used first."""
        known = field.metadata.get("known")
        if known is None or value is None:
            return
        try:
            known(value)
        except ShardwrightError as error:
            why = f"{error.what}: {error.why}" if error.why else error.what
            raise _refusal(self._place(node), f"`{path}` is {value!r}", why, error.fix) from None

    def _fits(self, node: Any, kind: Any) -> bool:
        if is_dataclass(kind) or get_origin(kind) is dict:
            return bool(node.id == "mapping")
        if get_origin(kind) is list:
            return node.id == "sequence" or (self._is_scalar(node) and get_args(kind)[0] is str)
        if not self._is_scalar(node):
            return False
        value = self._scalar(node)
        if kind is type(None):
            return value is None
        if kind is float:
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        if kind is int:
            return isinstance(value, int) and not isinstance(value, bool)
        return isinstance(value, kind)

    def _scalar(self, node: Any) -> Any:
        import yaml

        def replaced(match: re.Match[str]) -> str:
            value = os.environ.get(match[1], match[2])
            if value is None:
                raise _refusal(
                    self._place(node),
                    f"`${{{match[1]}}}` is not set",
                    "no variable of the environment has this name",
                    f"set it, or write what it is otherwise: `${{{match[1]}:...}}`",
                )
            return value

        text = _VARIABLE.sub(replaced, node.value)
        if node.style in ("'", '"', "|", ">"):
            return text
        value = yaml.safe_load(text) if text else None
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            return float(value)  # YAML takes `1e-4` for a text
        return value if isinstance(value, (str, bool, int, float, type(None))) else text

    def _plain(self, node: Any) -> Any:
        if node.id == "mapping":
            return {str(self._scalar(key)): self._plain(value) for key, value in node.value}
        if node.id == "sequence":
            return [self._plain(one) for one in node.value]
        return self._scalar(node)

    @staticmethod
    def _is_scalar(node: Any) -> bool:
        return bool(node.id == "scalar")

    def _place(self, node: Any) -> str:
        mark = node.start_mark
        file = mark.name if mark.name.startswith("--set") else self._file
        return f"{file}:{mark.line + 1}:{mark.column + 1}"


_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_NODES = {"mapping": "a mapping", "sequence": "a list"}


def _described(kind: Any) -> str:
    if get_origin(kind) is list:
        return f"a list of {_described(get_args(kind)[0]).removeprefix('a ')}s"
    return _CALLED.get(kind, "a mapping")


def _overridden(root: Any, override: str) -> Any:
    """The file's nodes, with another at a path."""
    import yaml

    path, equals, text = override.partition("=")
    if not equals or not all(path.split(".")):
        raise _refusal("--set", f"`{override}` sets nothing", "it is not of the form `optimizer.lr=1e-4`")
    node = yaml.compose(text) or yaml.ScalarNode("tag:yaml.org,2002:null", "")
    node.start_mark = yaml.Mark(f"--set {override}", 0, 0, len(path) + 1, None, None)
    root = root or yaml.MappingNode("tag:yaml.org,2002:map", [], node.start_mark)
    into = root
    *owners, last = path.split(".")
    for name in owners:
        inner = next((value for key, value in into.value if key.value == name), None)
        if inner is None or inner.id != "mapping":
            inner = yaml.MappingNode("tag:yaml.org,2002:map", [], node.start_mark)
            _put(into, name, inner)
        into = inner
    _put(into, last, node)
    return root


def _put(mapping: Any, name: str, node: Any) -> None:
    import yaml

    key = yaml.ScalarNode("tag:yaml.org,2002:str", name, node.start_mark)
    mapping.value = [(k, v) for k, v in mapping.value if k.value != name] + [(key, node)]


def _refusal(place: str, what: str, why: str, fix: str | None = None) -> RuntimeFault:
    return RuntimeFault(
        "SW0851",
        what,
        place=place,
        why=why,
        fix=fix or "`shardwright train --schema` has all that may be said",
    )
