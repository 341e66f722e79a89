"""The values of a parallel model, as those of the single-device model: taken, given and saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import _IncompatibleKeys

from ...errors import RuntimeFault
from ..shards import state
from ..shards.own_state import parts_are_known, parts_known, require_whole
from .base import Base


class Values(Base):
    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """That of the single-device model, if the plan divides nothing; else it takes `full_state_dict`."""
        return self._state_below("", super().state_dict, args, kwargs)

    def _state_below(self, path: str, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Of a module inside, by all names that tensors have there."""
        self._require_finished("a state dict")
        if parts_known():  # also by whom it is asked for the modules inside
            return plain(*args, **kwargs)
        start = f"{path}." if path else ""
        names = {tensor.id: self.names_of(tensor) for tensor in self.program.saved_tensors()}
        names = {key: [n for n in known if n.startswith(start)] for key, known in names.items()}
        inside = [tensor for tensor in self.program.saved_tensors() if names[tensor.id]]
        require_whole(self.program, inside)
        with parts_are_known():
            state = plain(*args, **kwargs)
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        for shard in self.shards.held:
            for name in names.get(shard.tensor.id, ()):
                data = shard.data if kwargs.get("keep_vars") else shard.data.detach()
                state.setdefault(prefix + name.removeprefix(start), data)
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Takes this rank's parts out of the single-device model's state dict."""
        self._require_finished("values are loaded", loads=True)
        self.variants.fixed.require_whole(state_dict, self.names_of)
        missing, unknown = state.load_full_state_dict(self.shards, state_dict, self.names_of, strict=strict)
        return _IncompatibleKeys(missing, unknown)

    def full_state_dict(self, *, rank0_only: bool = False, cpu: bool = False) -> dict[str, Tensor]:
        """The state dict of the single-device model, on every rank or on rank 0 (`{}` on the others).

        All ranks must call this.
        """
        self._require_finished("a state dict")
        with self._together("full_state_dict"):
            return state.full_state_dict(
                self.shards, self.comm, self.names_of, rank0_only=rank0_only, cpu=cpu
            )

    def load_full_state_dict(self, full: Mapping[str, Tensor]) -> None:
        """Takes this rank's parts out of a single-device state dict."""
        self._require_finished("values are loaded", loads=True)
        self.variants.fixed.require_whole(full, self.names_of)
        state.load_full_state_dict(self.shards, full, self.names_of)

    def save_pretrained(self, folder: str | Path, *args: Any, **options: Any) -> Any:
        """What `save_pretrained` of the model's own class writes, with the values of all ranks.

        All ranks must call this. Of a model of Transformers, with no option but `max_shard_size`, no rank
        ever holds more than one file; else rank 0 has the whole model on its host meanwhile.
        """
        return self._saved("save_pretrained", (folder, *args), options)

    def push_to_hub(self, *args: Any, **options: Any) -> Any:
        """That of the model's own class, on rank 0, which has the whole model on its host meanwhile.

        All ranks must call this.
        """
        return self._saved("push_to_hub", args, options)

    def _saved(self, method: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        if self._save_pretrained is None:
            raise TypeError(f"this model was made without `{method}`")
        self._require_finished("the model is saved")
        return self._save_pretrained(self, method, args, options)  # type: ignore[arg-type]

    def clock(self) -> dict[str, Any]:
        """What the next step depends on, besides the program and the parameters: the key of its random
        numbers, and how its loss is scaled."""
        scaling = {"loss_scaling": self.loss_scaling.state_dict()} if self.loss_scaling else {}
        return {"step": self.step, "seed": self.worker.seed, **scaling}

    def set_clock(self, clock: Mapping[str, Any]) -> None:
        self.step = clock["step"]
        if self.loss_scaling and "loss_scaling" in clock:
            self.loss_scaling.load_state_dict(clock["loss_scaling"])
        for worker in self.variants.workers():
            worker.seed = clock["seed"]

    def original_shape(self, parameter: str | Tensor) -> torch.Size:
        """The single-device shape of a parameter, by its name or by this rank's part of it."""
        parameters = dict(self.named_parameters())
        part = parameters.get(parameter) if isinstance(parameter, str) else parameter
        for shard in self.shards.held:
            if shard.data is part:
                return torch.Size(shard.tensor.shape)
        for tensor in self.program.parameters() if isinstance(parameter, str) else ():
            if parameter in tensor.names:
                return torch.Size(tensor.shape)
        raise RuntimeFault(
            "SW0764",
            f"the model has no parameter {parameter if isinstance(parameter, str) else 'like this tensor'!r}",
            fix="give a name of the single-device model, or one of this model's `parameters()`",
        )
