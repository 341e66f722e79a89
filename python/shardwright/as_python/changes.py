"""What is changed in place by what runs as it is, and was not when it was captured."""

from __future__ import annotations

from torch import Tensor

from ..errors import RuntimeFault


def version_of(tensor: Tensor | None) -> int:
    """How often it was changed in place, as far as that is counted."""
    return 0 if tensor is None or tensor.is_inference() else tensor._version


def changes(who: str, what: str | None) -> RuntimeFault:
    """Of nothing, that is a tensor that it is given."""
    return RuntimeFault(
        "SW0866",
        f"{who}, which runs as it is, changes {what or 'a tensor that it is given'},"
        " and did not when it was captured",
        why="the program knows no such change, so it would be lost",
        fix="let the example show it, or make the change in every forward: `self.x.copy_(torch.where(...))`",
    )
