"""Operations that really ran, as PyTorch's table counts them: products, convolutions, attention."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Counting(TorchDispatchMode):
    """Counts those of this thread, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.operations += int(count(*args, **(kwargs or {}), out_val=result))
        return result
