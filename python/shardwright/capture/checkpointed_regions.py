"""What a model itself has computed again for backward: everything under `torch.utils.checkpoint`.

While the model is traced, checkpoints only run what is in them, and each operator notes those that it
stands under, outermost first. Where a policy chooses what is kept (`create_selective_checkpoint_contexts`),
it is asked about what each operator calls; one of which it keeps something does not stand under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx
from torch.utils import checkpoint

from ..errors import CaptureError

SPANS = "shardwright_spans"

_RECOMPUTED = (
    checkpoint.CheckpointPolicy.MUST_RECOMPUTE,
    checkpoint.CheckpointPolicy.PREFER_RECOMPUTE,
    False,
)
_POLICY = checkpoint._CachingTorchDispatchMode


def spans_of(node: fx.Node) -> list[int]:
    return list((node.meta.get("custom") or {}).get(SPANS, ()))


def mark_spans(node: fx.Node, spans: tuple[int, ...]) -> None:
    """In the one place of a node's meta that decomposing carries on."""
    if spans:
        node.meta["custom"] = {**(node.meta.get("custom") or {}), SPANS: spans}


@contextmanager
def plain_checkpoint(around: Callable[[], AbstractContextManager[None]] = nullcontext) -> Iterator[None]:
    """Checkpoints, reentrant or not, only run what is in them: nothing is computed again for backward."""

    def apply(run_function: Any, _preserve_rng_state: bool, *args: Any) -> Any:
        # A reentrant one passes no gradient on if no argument has one, whatever parameters it reads.
        learns = any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)
        with torch.set_grad_enabled(learns and torch.is_grad_enabled()), around():
            return run_function(*args)

    with (
        mock.patch.object(checkpoint.CheckpointFunction, "apply", staticmethod(apply)),
        mock.patch.object(checkpoint, "_checkpoint_hook", lambda _frame: around()),
    ):
        yield


class Checkpoints:
    """The checkpoints that the model is under while it is traced, each by a number of its own."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self._count = 0
        self._last: fx.Node | None = None

    def note(self, node: fx.Node) -> None:
        node.meta[SPANS] = tuple(self._open)
        self._last = node

    @contextmanager
    def noted(self) -> Iterator[None]:
        original_init: Callable[..., None] = _POLICY.__init__

        def init(mode: Any, policy: Any, *args: Any, **kwargs: Any) -> None:
            original_init(mode, self._asking(policy), *args, **kwargs)

        with plain_checkpoint(self._under), mock.patch.object(_POLICY, "__init__", init):
            yield

    @contextmanager
    def _under(self) -> Iterator[None]:
        if not torch.is_grad_enabled():
            yield
            return
        self._open.append(self._count)
        self._count += 1
        try:
            yield
        finally:
            self._open.pop()

    def _asking(self, policy: Callable[..., Any]) -> Callable[..., Any]:
        """The contexts of a checkpoint are made just before it begins."""
        around = len(self._open)

        def ask(*args: Any, **kwargs: Any) -> Any:
            answer = policy(*args, **kwargs)
            if answer not in _RECOMPUTED and self._last is not None:
                self._last.meta[SPANS] = self._last.meta[SPANS][:around]
            return answer

        return ask


def cannot_repeat(place: str | None, why: str) -> CaptureError:
    """Of an update under a checkpoint."""
    return CaptureError(
        "SW0147",
        "the model updates a buffer under `torch.utils.checkpoint`, in a way that cannot be repeated",
        place=place,
        why=f"PyTorch runs what is under a checkpoint again in backward, with its updates; {why}",
        fix="move the update, or the module that makes it, out of what is under the checkpoint",
    )
