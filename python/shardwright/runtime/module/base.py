"""What the parts of a parallel model share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...errors import RuntimeFault
from ..agreement.agreement import Agreement
from ..communication.comm import Comm
from ..communication.watch import inside
from ..execution import inputs as given_inputs
from ..execution.micro_batches import MicroBatches
from ..execution.pieces import Pieces
from ..execution.run import Issued
from ..execution.scaling import LossScaling
from ..execution.steady import Steady
from ..execution.variants import Variant, Variants
from ..execution.worker import Worker
from ..facade.places import Placed
from ..optimizers.said import Stepping
from ..programs.program import Program, TensorInfo
from ..shards.shards import Shards

if TYPE_CHECKING:
    from ...report.step_profile import StepProfile
    from .parallel import ParallelModule

# A call with its tensors filled up to the lengths that there are programs for.
Fill = Callable[[Sequence[Any], Mapping[str, Any]], given_inputs.Arguments]
# By which method of the model's own class, and its arguments.
SavePretrained = Callable[["ParallelModule", str, tuple[Any, ...], Mapping[str, Any]], Any]
# Given batches, a cluster, an optimizer and how many steps.
ProfileStep = Callable[["ParallelModule", Any, "str | None", str, int], "StepProfile"]


class Base(Placed):
    """Whoever is given a part of a parallel model is given a `ParallelModule`, which makes these."""

    shards: Shards
    worker: Worker
    variants: Variants
    loss_scaling: LossScaling | None
    inputs: str
    pieces: Pieces | None
    step: int
    issued: list[Issued]
    stepping: Stepping
    _agreement: Agreement
    _steady: Steady
    _owed: bool
    _tensors: int
    _micro_batches: MicroBatches | None
    _fill: Fill | None
    _save_pretrained: SavePretrained | None
    _profile_step: ProfileStep | None
    _example: Any
    _in_parts: list[Tensor]
    _other_modes: tuple[str, ...]

    @property
    def program(self) -> Program:
        return self.worker.program

    @property
    def comm(self) -> Comm:
        return self.worker.comm

    def names_of(self, tensor: TensorInfo) -> list[str]:
        """All names that a parameter or buffer has in the single-device model's state dict."""
        aliases: Mapping[str, str] = getattr(self.variants.first.captured, "buffer_aliases", {})
        return [*tensor.names, *(name for name, first in aliases.items() if first in tensor.names)]

    @contextmanager
    def _together(self, kind: str) -> Iterator[None]:
        """Around what all ranks do with the model besides calling it."""
        with inside(kind):
            self._agreement.meet(kind, list, names=lambda _: (), training=self.training)
            yield

    def _agreed(
        self,
        kind: str,
        given: Callable[[], Sequence[given_inputs.Arguments]],
        scale: float | None = None,
        says: bool = False,
    ) -> list[given_inputs.Call]:
        captured = self.variants.first.captured

        def make() -> list[given_inputs.Call]:
            self._facade.refuse_changes()
            self.variants.fixed.require()
            return [given_inputs.read_by(self.variants, *self._filled(call)) for call in given()]

        calls = self._agreement.meet(
            kind,
            make,
            names=lambda call: captured.tensor_names(call.structure),
            training=self.training,
            settings=(*self.variants.settings(), *self._other_modes, *self.stepping.settings()),
            scale=scale,
            says=says,
            news=self.variants.trained.has_news(),
        )
        if self._agreement.news:
            self.variants.trained.agree(self.comm)
        return calls

    def _filled(self, call: given_inputs.Arguments) -> given_inputs.Arguments:
        return call if self._fill is None else self._fill(*call)

    def _require_backward(self, what: str) -> None:
        """Refuses what sees buffers after a forward whose backward is yet to come."""
        if self._owed:
            raise RuntimeFault(
                "SW0868",
                f"{what}, and the forward before had no backward",
                why="the model updates buffers under `torch.utils.checkpoint`, in forward and again in"
                " backward, and its program has made both updates",
                fix="run each backward before the next forward, and forwards without one under"
                " `torch.no_grad()`; or load the values of before",
            )

    def _require_finished(self, what: str, *, loads: bool = False) -> None:
        """Refuses what would leave out the batch that is under way."""
        if loads:
            self._owed = False
        self._require_backward(what)
        if self._steady.under_way:
            raise RuntimeFault(
                "SW0813",
                f"{what}, while a batch is under way",
                why="the plan runs steps without a pipeline flush: its gradients are yet to come",
                fix="`model.finish()` on all ranks, and `optimizer.step()`, which that batch is yet to have",
            )

    def _parameters_here(self) -> list[Tensor]:
        return [shard.data for shard in self.shards.held if shard.tensor.kind == "param"]

    def _agree_about_overflow(self, arrived: Mapping[int, Tensor]) -> None:
        if self.loss_scaling:
            self.loss_scaling.after_backward(arrived)

    def _count(self, variant: Variant) -> None:
        """An evaluation between two steps must not change the masks of the second."""
        if self.training or variant.worker.program.random:
            self.step += 1
