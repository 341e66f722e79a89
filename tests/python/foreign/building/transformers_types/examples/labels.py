"""What an example is to give, by what the model's forward takes and its class is called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from ...built import BATCH
from .looking import SHORT, TIME, About

Example = dict[str, Any]
_BOXES = re.compile(r"(ObjectDetection|ForSegmentation|Detr)")
_ONE = re.compile(
    r"(SequenceClassification|ImageClassification|VideoClassification|AudioClassification|MultipleChoice)"
)


def labelled(it: About, example: Example) -> Iterator[Example]:
    """With what makes the model give a loss, and without."""
    if {"start_positions", "end_positions"} <= it.takes:
        starts = torch.arange(BATCH) + 1
        yield {**example, "start_positions": starts, "end_positions": starts + 2}
    if "labels" in it.takes and "labels" not in example:
        labels = _labels(it, example)
        if labels is not None:
            yield {**example, "labels": labels}
    elif "return_loss" in it.takes:
        yield {**example, "return_loss": True}
    yield example


def _labels(it: About, example: Example) -> Any:
    if _BOXES.search(it.kind) or "DETECTION" in it.task:
        return [_boxes(it) for _ in range(BATCH)]
    if "CTC" in it.kind or it.task in ("RNNT", "TDT"):
        return it.whole(min(it.vocabulary, 20), BATCH, 4, least=1)
    if "SemanticSegmentation" in it.kind and "pixel_values" in example:
        return it.whole(2, BATCH, *example["pixel_values"].shape[-2:])
    if "DepthEstimation" in it.kind:
        return None
    if _ONE.search(it.kind):
        return it.whole(2, BATCH)
    if "TokenClassification" in it.kind:
        return it.whole(2, BATCH, TIME)
    if "decoder_input_ids" in example:
        return it.tokens(BATCH, example["decoder_input_ids"].shape[1])
    if "input_ids" in example:
        return example["input_ids"].clone()
    return it.tokens(BATCH, SHORT) if "decoder_input_ids" in it.takes else None


def _boxes(it: About) -> dict[str, torch.Tensor]:
    return {"class_labels": torch.tensor([0, 1]), "boxes": it.uniform(2, 4) * 0.4 + 0.2}
