"""Graph and module are compared as far as that is affordable: whole, or fewer rows, or fewer layers of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import BoundArguments
from typing import Any, Protocol

import torch
from torch import nn

from ...errors import CaptureError, ShardwrightError
from ...precision import Precision
from ..casts import Casting
from ..spec import CallSpec, ResultSpec
from .against_module import Call, missing_value, verify_capture
from .cost import MOST_AT_A_START, Extent, extent_of
from .random_values import kinds_here, moved, standing_in, too_large
from .reduced import FEWEST, alike_in_layers, alike_in_rows, few_layers, rows_of, with_rows

# Where less than the model fails, that says nothing of the model.
_FAILS = "SW0115"


@dataclass(frozen=True)
class Compared:
    """What of a model was compared with its graph."""

    what: str
    """As a summary says it."""
    operations: float
    """Of a forward of the whole model."""
    seconds: float = field(default=0.0, compare=False)
    """None where it was compared at another start."""

    def __str__(self) -> str:
        once = "" if self.operations <= MOST_AT_A_START else ", and not again at starts from the cache"
        return f"{self.what}{once}"

    def plain(self) -> dict[str, Any]:
        """What is kept, and the same each time."""
        return {"what": self.what, "operations": self.operations}


class Noted(Protocol):
    """What was compared at other starts, by the text and constants of a graph."""

    def find(self, text: str, constants: Mapping[str, torch.Tensor]) -> Compared | None: ...

    def keep(self, text: str, constants: Mapping[str, torch.Tensor], compared: Compared) -> None: ...


class Graphed(Protocol):
    """What was captured of less of a model."""

    graph_text: str
    constants: dict[str, torch.Tensor]
    in_spec: CallSpec
    out_spec: ResultSpec
    as_python: dict[str, tuple[str, float]]


@dataclass
class Comparison:
    """Of one capture. `casts_of` is the kind of device whose autocast it has, and `writes` the line that
    writes something under a checkpoint; `capture_less` captures another call of the module as it is then,
    without a comparison. What takes long and is `noted` is not done again. With `always` nothing is too
    large, and nothing noted counts."""

    module: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    precision: Precision | None
    device: str | None
    casts_of: str | None
    writes: str | None
    capture_less: Callable[[Sequence[Any], Mapping[str, Any]], Graphed]
    noted: Noted | None = None
    always: bool = False

    def run(self, whole: Graphed) -> Compared | str:
        """Raises where they differ, and says why if nothing was compared."""
        extent = extent_of(whole.graph_text, whole.as_python)
        if self.noted is None or self.always or extent.operations <= MOST_AT_A_START:
            return self._run(whole, extent)
        before = self.noted.find(whole.graph_text, whole.constants)
        if before is not None:
            return before
        compared = self._run(whole, extent)
        if isinstance(compared, Compared):
            self.noted.keep(whole.graph_text, whole.constants, compared)
        return compared

    def _run(self, whole: Graphed, extent: Extent) -> Compared | str:
        started = time.monotonic()
        why = self._compare(whole, self.args, self.kwargs, extent)
        what = "outputs, buffers and gradients of two forwards"
        for less in (self._fewer_rows, self._fewer_layers) if why and self._kinds() else ():
            said = less(whole, extent)
            if said is not None:
                why, what = None, f"{what} of {said}, since the whole takes too much here"
                break
        return why or Compared(what, extent.operations, time.monotonic() - started)

    def _fewer_rows(self, whole: Graphed, extent: Extent) -> str | None:
        rows = rows_of(self.args, self.kwargs)
        share = max((extent.share(self.module, kind) for kind in self._kinds()), default=0.0)
        fewer = max(FEWEST, min(rows // 2, int(rows * share)))
        if fewer >= rows or self._in_vain(whole, extent, fewer / rows):
            return None
        args, kwargs = with_rows(self.args, self.kwargs, rows, fewer)
        less = self._captured(args, kwargs)
        if less is None or not alike_in_rows(whole.graph_text, less.graph_text, rows, fewer):
            return None
        return f"{fewer} of {rows} rows" if self._compares(less, args, kwargs) else None

    def _fewer_layers(self, whole: Graphed, extent: Extent) -> str | None:
        rows = max(FEWEST, rows_of(self.args, self.kwargs))
        with few_layers(self.module) as lists:
            layers = min((few / all_of for few, all_of in lists.values()), default=1.0)
            if not lists or self._in_vain(whole, extent, layers * FEWEST / rows):
                return None
            less = self._captured(self.args, self.kwargs)
            if less is None or not alike_in_layers(whole.graph_text, less.graph_text, lists):
                return None
            said = " and ".join(
                f"{few} of {all_of} layers of `{path}`" for path, (few, all_of) in lists.items()
            )
            if self._compares(less, self.args, self.kwargs):
                return said
            part = self._fewer_rows(less, extent_of(less.graph_text, less.as_python))
            return None if part is None else f"{part}, with {said}"

    def _in_vain(self, whole: Graphed, extent: Extent, share: float) -> bool:
        """Whether less of it is known to be too large, too, before that is captured: no values are made for
        the module, as it is now; or what a share of its forward computes has no room, all else aside."""
        rows = rows_of(self.args, self.kwargs)
        args, kwargs = with_rows(self.args, self.kwargs, rows, min(rows, FEWEST))
        bound = whole.in_spec.bind(args, kwargs)
        valued = missing_value(self.module, bound) is None
        part = replace(extent, bytes=int(extent.bytes * share))
        return not any(
            (valued or too_large(self.module, bound, kind) is None) and (self.always or part.has_room(kind))
            for kind in self._kinds()
        )

    def _captured(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Graphed | None:
        try:
            return self.capture_less(args, kwargs)
        except ShardwrightError:
            return None

    def _compares(self, less: Graphed, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        extent = extent_of(less.graph_text, less.as_python)
        try:
            return self._compare(less, args, kwargs, extent) is None
        except CaptureError as error:
            if error.code == _FAILS:
                return False
            raise

    def _compare(
        self, graphed: Graphed, args: Sequence[Any], kwargs: Mapping[str, Any], extent: Extent
    ) -> str | None:
        """Why not, or nothing if they were and are equal."""
        bound = graphed.in_spec.bind(args, kwargs)
        with self._values(bound, extent) as call:
            if isinstance(call, str):
                return call
            try:
                verify_capture(call, graphed.graph_text, graphed.constants, graphed.out_spec, self.writes)
            except CaptureError as error:
                if isinstance(error.__cause__, torch.OutOfMemoryError):
                    return "there is not enough memory for it"
                raise
        return None

    @contextmanager
    def _values(self, bound: BoundArguments, extent: Extent) -> Iterator[Call | str]:
        kinds = self._kinds()
        if kinds and not self.always:
            stands_in = missing_value(self.module, bound) is not None
            fits = extent.has_room if stands_in else partial(extent.fits, self.module)
            kinds = [kind for kind in kinds if fits(kind)]
            if not kinds:
                yield _too_large(extent)
                return
        with with_values(self.module, bound, self.precision, kinds) as call:
            yield call

    def _kinds(self) -> list[str]:
        """Of devices, those first on which the model lies."""
        lies, here = kind_of(self.module), kinds_here(self.device, self.casts_of)
        first = [lies] if self.casts_of in (None, lies) else []
        return list(dict.fromkeys((*first, *here)))


@contextmanager
def with_values(
    module: nn.Module, bound: BoundArguments, precision: Precision | None, kinds: Sequence[str]
) -> Iterator[Call | str]:
    """A call that can be run on one of these kinds of devices, or why there is none."""
    if not kinds:
        yield NO_GPU
    elif missing_value(module, bound) is not None:
        with standing_in(module, bound, precision, kinds) as stand_in:
            yield stand_in
    elif kinds[0] == kind_of(module):
        yield Call(module, bound, Casting(module, precision))
    else:
        with moved(module, bound, precision, kinds[0]) as call:
            yield call


NO_GPU = "it runs under the autocast of a GPU, and there is no GPU here"


def kind_of(module: nn.Module) -> str:
    """Of the devices on which a model lies, if that is told."""
    tensor = next((t for t in (*module.parameters(), *module.buffers())), None)
    return "cuda" if tensor is not None and tensor.is_cuda else "cpu"


def _too_large(extent: Extent) -> str:
    return (
        f"a forward is {extent.operations:.1e} operations and {extent.bytes / 2**30:.1f} GiB,"
        " too many for a comparison here (`shardwright.capture(..., verify=True)` compares all the same,"
        " and `sw.verify` a smaller model)"
    )
