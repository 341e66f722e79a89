"""Examples of a call, by what a model's forward takes: several, and the first that it runs with is taken."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from torch import nn

from ...built import BATCH
from . import images, others, sounds
from .labels import labelled
from .looking import SHORT, TIME, About
from .mixed import with_places

Example = dict[str, Any]


def examples_for(module: nn.Module, config: Any, kind: str, task: str) -> Iterator[Example]:
    it = About(module, config, kind, task)
    for example in _unlabelled(it):
        placed = with_places(it, example)
        if placed is not None:
            yield from labelled(it, placed)


def _unlabelled(it: About) -> Iterator[Example]:
    seen = list(images.examples(it))
    nothing = not seen or "input_ids" not in it.takes
    known = chain(
        _special(it), seen, sounds.examples(it, nothing), others.series(it), others.decisions(it),
        others.inputs(it), _texts(it),
    )  # fmt: skip
    any_given = False
    for example in known:
        any_given = True
        yield example
    if not any_given:
        yield from others.states(it)


def _special(it: About) -> Iterator[Example]:
    """Texts of several rows each."""
    if "input_ids" not in it.takes:
        return
    if "MultipleChoice" in it.kind:
        yield {"input_ids": it.tokens(BATCH, 3, TIME)}
    books = it.find("num_codebooks")
    if isinstance(books, int) and "decoder_input_ids" in it.takes:
        yield {**it.text(), "decoder_input_ids": it.whole(100, BATCH * books, SHORT, least=4)}
    elif isinstance(books, int) and "Musicgen" in it.kind:
        yield {"input_ids": it.whole(100, BATCH * books, SHORT, least=4)}


def _texts(it: About) -> Iterator[Example]:
    if "input_ids" not in it.takes:
        return
    text = it.text()
    yield text
    yield {name: value for name, value in text.items() if name != "decoder_input_ids"}
    yield {"input_ids": text["input_ids"]}
    books = it.find("num_codebooks")
    if isinstance(books, int):
        yield {**text, "input_ids": it.whole(min(it.vocabulary, 100), BATCH, TIME, books, least=4)}
