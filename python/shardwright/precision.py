"""Which dtypes a model is computed, communicated and kept in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .errors import RuntimeFault

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Precision:
    """`compute` is the dtype of floating inputs, and so of the model's operators.

    `param` is what a forward reads of a parameter, and `master` what a rank keeps of it, which the
    optimizer steps; gradients are summed over micro-batches in `master` and over ranks in `reduce`.
    With float16 the loss is scaled: by `loss_scale` at first, by twice as much after
    `growth_interval` steps without an overflow, by half as much after one.
    """

    compute: torch.dtype = torch.float32
    param: torch.dtype = None  # type: ignore[assignment]
    reduce: torch.dtype = None  # type: ignore[assignment]
    master: torch.dtype = None  # type: ignore[assignment]
    loss_scale: float = 2.0**15
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        wide = torch.promote_types(self.compute, torch.float32)
        for name, default in (("param", self.compute), ("reduce", wide), ("master", wide)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        for name in ("compute", "param", "reduce", "master"):
            if getattr(self, name) not in DTYPES:
                raise _unknown(f"the {name} dtype {getattr(self, name)}")
        if not (0 < self.loss_scale < float("inf") and self.growth_interval > 0):
            raise _unknown("a loss scale or growth interval that is not positive")

    def plain(self) -> dict[str, Any]:
        dtypes = {name: getattr(self, name) for name in ("compute", "param", "reduce", "master")}
        names = {name: dtype_name(dtype) for name, dtype in dtypes.items()}
        return {**names, "loss_scale": self.loss_scale, "growth_interval": self.growth_interval}

    @staticmethod
    def of_plain(plain: dict[str, Any]) -> Precision:
        named: Any = {name: dtype_named(x) if isinstance(x, str) else x for name, x in plain.items()}
        return Precision(**named)

    @property
    def scales(self) -> bool:
        """Whether gradients may be too small for their dtype."""
        return torch.float16 in (self.compute, self.param)

    def cast(self, tree: Any) -> Any:
        """The same arguments, floating tensors in the dtype of the computation."""

        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(self.compute) if tensor.is_floating_point() else tensor

        return pytree.tree_map_only(Tensor, cast, tree)


NAMED = {
    "fp32": Precision(torch.float32),
    "bf16": Precision(torch.bfloat16),
    "fp16": Precision(torch.float16),
}

# What somebody who knows other libraries asks for.
NARROWER = ("fp8", "mxfp8", "float8", "fp4", "nvfp4", "mxfp4")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def precision_of(given: str | Precision | None) -> Precision | None:
    """By its name; none is the model as it is."""
    if given is None or isinstance(given, Precision):
        return given
    if str(given).lower() in NARROWER:
        raise RuntimeFault(
            "SW0765",
            f"precision={given!r} is not there",
            why="8-bit and 4-bit products have scales that depend on a whole tensor, and no rule says how"
            " shards agree on them",
            fix='give "bf16"',
        )
    if given not in NAMED:
        raise _unknown(f"precision={given!r}")
    return NAMED[given]


def _unknown(what: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0765",
        f"{what} is unknown",
        why=f"named are {', '.join(NAMED)}; dtypes are {', '.join(map(str, DTYPES))}",
        fix="give a name, or `sw.Precision(compute=torch.bfloat16, ...)`",
    )
