"""The model's hierarchy on a rank: modules that have the model's names, attributes and modes, and no forward.

Shards hang in it under the model's own names. To `isinstance` a place is what the model has there, so that
loops find the modules that they look for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from torch import nn

from ...errors import RuntimeFault
from ..guards.walks import refuse_walk
from ..shards.shards import Shard, Shards
from .elsewhere import Elsewhere
from .facade import Facade, refusal
from .passing import Whole, passed_on

if TYPE_CHECKING:
    from typing_extensions import Self

# Of a batch norm: the same for each element of its buffers, and so exact on parts.
_EXACT = ("reset_running_stats",)
# Of the module at a path, and of all below it unless it is meant alone.
SetMode = Callable[[bool, str, bool], None]


class Placed(nn.Module):
    """A place of the hierarchy, or its root, which has no path: what is meant for all modules below it."""

    _facade: Facade
    _set_mode: SetMode

    def train(self, mode: bool = True) -> Self:
        """The mode of all modules; those of the model that differ are set one by one."""
        self._set_mode(mode, self._place(), False)
        return self

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """As of any module; refused where a wrapper or an exporter walks."""
        refuse_walk(self._facade.alike)
        return walked(self, memo, prefix, remove_duplicate)

    def named_children(self) -> Any:
        """As of any module; refused where a wrapper or an exporter walks."""
        refuse_walk(self._facade.alike)
        return super().named_children()

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Also of parameters of which this rank holds nothing."""
        super().requires_grad_(requires_grad)
        for parameter in self._facade.below(self._place()):
            parameter.requires_grad_(requires_grad)
        return self

    def apply(self, fn: Callable[[nn.Module], Any]) -> Any:
        with Whole("apply", self._facade.all_shapes):
            return super().apply(fn)

    def _place(self) -> str:
        # Not an attribute of the class: the model may have one of that name.
        path: str = self.__dict__.get("_path", "")
        return path


class Place(Placed):
    def __init__(self, path: str, facade: Facade, set_mode: SetMode):
        super().__init__()
        attributes = {"_path": path, "_facade": facade, "_set_mode": set_mode, "_ready": True}
        self.__dict__.update(attributes)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        facade = self.__dict__.get("_facade")
        module = facade.at(self._path) if facade is not None else None
        return Place if module is None else type(module)

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeFault(
            "SW0805",
            f"`{self._path}` of a parallelized model is called by itself",
            why="a rank has shards of its parameters, and the program computes the whole model",
            fix="call the model; or parallelize this module by itself, and leave the rest an ordinary model",
        )

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._facade.state_dict(self._path, super().state_dict, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            facade = self.__dict__.get("_facade")
            if facade is not None and (self._path, name) in facade.elsewhere:
                return facade.elsewhere[self._path, name]
            module = facade.at(self._path) if facade is not None else None
            if module is None:
                raise
        if name in _EXACT:
            return getattr(type(module), name).__get__(self)
        return passed_on(self, module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_ready" not in self.__dict__:
            super().__setattr__(name, value)
        elif name == "training":
            self._set_mode(bool(value), self._path, True)
        else:
            set_attribute(self, self._facade, self._path, name, value)

    def __getitem__(self, at: Any) -> Any:
        module = self._facade.at(self._path)
        if not hasattr(type(module), "__getitem__"):
            raise TypeError(f"{self._get_name()!r} object is not subscriptable")
        if isinstance(module, nn.ModuleDict):
            return self._modules[at]
        return list(self._modules.values())[at]

    def __iter__(self) -> Iterator[Any]:
        module = self._facade.at(self._path)
        if not hasattr(type(module), "__iter__"):
            raise TypeError(f"{self._get_name()!r} object is not iterable")
        return iter(self._modules if isinstance(module, nn.ModuleDict) else self._modules.values())

    def __len__(self) -> int:
        module = self._facade.at(self._path)
        if not hasattr(type(module), "__len__"):
            raise TypeError(f"object of type {self._get_name()!r} has no len()")
        return len(self._modules)

    def __bool__(self) -> bool:
        return True

    def _hooked(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeFault(
            "SW0806",
            f"a hook on `{self._path}` of a parallelized model would never run",
            why="the program computes what the module computes, and does not call it",
            fix="register it before `parallelize`, where it becomes a part of the program; or return what it"
            " should see from the model, and ask for it with `outputs=`",
        )

    register_forward_hook = _hooked
    register_forward_pre_hook = _hooked
    register_backward_hook = _hooked
    register_full_backward_hook = _hooked
    register_full_backward_pre_hook = _hooked


def walked(
    root: nn.Module, memo: set[nn.Module] | None, prefix: str, remove_duplicate: bool
) -> Iterator[tuple[str, nn.Module]]:
    """As `nn.Module.named_modules`. Who walks is asked once, not at each place of a deep hierarchy."""
    memo = set() if memo is None else memo
    rest = [(prefix, root)]
    while rest:
        path, module = rest.pop()
        if module in memo:
            continue
        if remove_duplicate:
            memo.add(module)
        yield path, module
        inner = [(f"{path}.{name}" if path else name, it) for name, it in module._modules.items()]
        rest += [(name, it) for name, it in reversed(inner) if it is not None]


def set_attribute(place: nn.Module, facade: Facade, path: str, name: str, value: Any) -> None:
    """On a place of the hierarchy, or on its root."""
    module = facade.at(path)
    setter = getattr(getattr(type(module), name, None), "fset", None)
    if setter is not None:
        setter(place, value)
    elif facade.reads(path, name):
        facade.set(path, name, value)
    elif isinstance(value, (nn.Module, nn.Parameter)):
        raise refusal(f"{path}.{name}".lstrip("."), "no program would compute with it")
    else:
        nn.Module.__setattr__(place, name, value)


def build(root: nn.Module, facade: Facade, set_mode: SetMode) -> None:
    """A place for each module of the model, by all its names."""
    made: dict[int, nn.Module] = {}
    skeleton = facade.skeleton
    for path, module in skeleton.named_modules(remove_duplicate=False) if skeleton is not None else ():
        place = made.get(id(module)) or (Place(path, facade, set_mode) if path else root)
        made[id(module)] = place
        if path:
            owner, _, last = path.rpartition(".")
            root.get_submodule(owner)._modules[last] = place


def hold(
    root: nn.Module, shards: Shards, facade: Facade, set_mode: SetMode
) -> list[tuple[Shard, dict[str, Any], str]]:
    """Registers parameters and buffers; a second shard of `up.bias` is `up.__1.bias`.

    So the last part of a name, by which optimizers are often grouped, is the model's. Returns where the
    buffers went.
    """
    places: list[tuple[Shard, dict[str, Any], str]] = []
    count: dict[int, int] = {}
    for shard in shards.held:
        if not shard.tensor.held:
            continue  # a constant's name is no place of the model
        number = count.get(shard.tensor.id, 0)
        count[shard.tensor.id] = number + 1
        *owner, last = shard.tensor.names[0].split(".")
        place = root
        for depth, name in enumerate([*owner, f"__{number}"] if number else owner):
            if name not in place._modules:
                place._modules[name] = Place(".".join(owner[: depth + 1]), facade, set_mode)
            place = place._modules[name]  # type: ignore[assignment]
        # Not `register_parameter`: it refuses names that are attributes of nn.Module.
        if isinstance(shard.data, nn.Parameter):
            place._parameters[last] = shard.data
        elif shard.tensor.kind == "buffer":
            place._buffers[last] = shard.data
            places.append((shard, place._buffers, last))
            if not shard.tensor.persistent:
                place._non_persistent_buffers_set.add(last)
    return places


def stand_in(shards: Shards, facade: Facade) -> dict[int, Elsewhere]:
    """Puts something in the places of the parameters that this rank has nothing of; by their numbers."""
    held = {shard.tensor.id for shard in shards.held}
    absent = [tensor for tensor in shards.program.parameters() if tensor.id not in held]
    stand_ins = {tensor.id: Elsewhere.standing_for(tensor) for tensor in absent}
    facade.elsewhere = {
        (name.rpartition(".")[0], name.rpartition(".")[2]): stand_ins[tensor.id]
        for tensor in absent
        for name in tensor.names
    }
    return stand_ins
