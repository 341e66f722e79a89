"""By what a tensor is made in the graph that is being traced."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx
from torch.fx.experimental import proxy_tensor


def node_of(tensor: Any) -> fx.Node | None:
    mode = proxy_tensor.get_proxy_mode()
    if mode is None or not isinstance(tensor, Tensor):
        return None
    if not proxy_tensor.has_proxy_slot(tensor, mode.tracer):
        return None
    node: fx.Node = proxy_tensor.get_proxy_slot(tensor, mode.tracer).proxy.node
    return node
