"""TRL's fused head in operators that a plan can split.

`trl.trainer.utils.add_fused_lm_head` gives a model a forward that computes log-probabilities of labels in
chunks, with a backward of its own, which no plan could divide. Here they follow from the model's own logits.
The results are the same but for rounding.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch
from torch import Tensor, nn

FUSED = "_fused_forward"


def open_heads(model: nn.Module) -> None:
    """In the place of each fused forward one that is written out."""
    for module in model.modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, types.MethodType) and forward.__func__.__code__.co_name == FUSED:
            known = inspect.getclosurevars(forward.__func__).nonlocals
            fields = tuple(known["outputs"])
            module.forward = types.MethodType(_opened(module, known["temperature"], fields), module)


def _opened(module: nn.Module, temperature: float, fields: tuple[str, ...]) -> Any:
    from trl.trainer.utils import FusedCausalLMOutput

    kind = type(module)

    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        if not fused_lm_head:
            return kind.forward(self, *args, **kwargs)
        labels, shifted = kwargs.pop("labels", None), kwargs.pop("shift_labels", None)
        count = kwargs.pop("num_items_in_batch", None)
        kwargs["use_cache"] = False
        result = kind.forward(self, *args, **kwargs)
        logits = result.logits if shifted is not None else result.logits[:, :-1]
        labels = shifted if shifted is not None else labels[:, 1:]  # type: ignore[index]
        values = _scores(logits.float() / temperature, labels, fields)
        mask = values["label_mask"]
        loss = -values["log_probs"].sum() / (mask.sum().clamp(min=1) if count is None else count)
        return FusedCausalLMOutput(loss=loss, aux_loss=getattr(result, "aux_loss", None), **values)

    return forward


def _scores(logits: Tensor, labels: Tensor, fields: tuple[str, ...]) -> dict[str, Tensor]:
    """By token, zero where the label is ignored."""
    mask = labels != -100
    scores = logits.log_softmax(-1)
    known = labels.clamp(min=0)
    result = {"log_probs": scores.gather(-1, known[..., None]).squeeze(-1)}
    if "entropy" in fields:
        result["entropy"] = -(scores.exp() * scores).sum(-1)
    if "log_sum_sq_probs" in fields:
        result["log_sum_sq_probs"] = (2 * scores.detach()).logsumexp(-1)
    if "mean_logits" in fields:
        result["mean_logits"] = logits.detach().mean(-1)
    result = {name: value.masked_fill(~mask, 0) for name, value in result.items()}
    if "is_top1" in fields:
        result["is_top1"] = (logits.argmax(-1) == known) & mask
    return {**result, "label_mask": mask}


class Asked(BaseException):
    """With what a model was called, in the place of its results."""

    def __init__(self, arguments: dict[str, Any]):
        self.arguments = arguments


class Asks:
    """A model that only says how it is called."""

    def __init__(self, model: nn.Module):
        self._model = model

    def __call__(self, **arguments: Any) -> Any:
        raise Asked(arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def arguments_in(trainer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """What a Trainer's own `compute_loss` calls the model with, of a batch."""
    try:
        count = torch.ones((), device=trainer.args.device)
        trainer.compute_loss(Asks(trainer.model), dict(inputs), num_items_in_batch=count)
    except Asked as asked:
        return asked.arguments
    return inputs
