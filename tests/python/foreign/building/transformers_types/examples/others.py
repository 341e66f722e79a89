"""Examples for series over time, decisions, points, and whatever takes hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...built import BATCH
from .images import channels, sizes
from .looking import TIME, About

Example = dict[str, Any]


def series(it: About) -> Iterator[Example]:
    if "past_values" not in it.takes:
        return
    context, ahead = it.number("context_length", default=32), it.number("prediction_length", default=16)
    if "past_time_features" in it.takes:
        yield _with_features(it, context, ahead)
        return
    count = it.number("num_input_channels", "input_size", default=1)
    past = it.random(BATCH, context, count)
    for name in ("future_values", "target_values"):
        if name in it.takes:
            yield {"past_values": past, name: it.random(BATCH, ahead, count)}
    one = it.random(BATCH, context)
    if "freq" in it.takes:
        yield {"past_values": one, "freq": torch.zeros(BATCH, 1, dtype=torch.long)}
    yield {"past_values": past}
    yield {"past_values": one}


def _with_features(it: About, context: int, ahead: int) -> Example:
    lags = it.find("lags_sequence")
    length = context + (max(lags) if isinstance(lags, (list, tuple)) and lags else 0)
    count = getattr(it.config, "num_time_features", 0) or 0
    example: Example = {
        "past_values": it.random(BATCH, length),
        "past_time_features": it.random(BATCH, length, count),
        "past_observed_mask": torch.ones(BATCH, length),
        "future_values": it.random(BATCH, ahead),
        "future_time_features": it.random(BATCH, ahead, count),
    }
    fixed = getattr(it.config, "num_static_categorical_features", 0)
    if fixed:
        example["static_categorical_features"] = torch.zeros(BATCH, fixed, dtype=torch.long)
    return example


def decisions(it: About) -> Iterator[Example]:
    if {"states", "actions"} <= it.takes:
        yield {
            "states": it.random(BATCH, TIME, it.config.state_dim),
            "actions": it.random(BATCH, TIME, it.config.act_dim),
            "rewards": it.random(BATCH, TIME, 1),
            "returns_to_go": it.random(BATCH, TIME, 1),
            "timesteps": torch.arange(TIME).expand(BATCH, TIME).contiguous(),
            "attention_mask": torch.ones(BATCH, TIME),
        }


def inputs(it: About) -> Iterator[Example]:
    """Models that take anything, as text and as images."""
    if "inputs" in it.takes and "input_ids" not in it.takes:
        yield {"inputs": it.tokens(BATCH, TIME), "attention_mask": torch.ones(BATCH, TIME, dtype=torch.long)}
        for size in sizes(it)[:2]:
            yield {"inputs": it.random(BATCH, channels(it), *size)}


def states(it: About) -> Iterator[Example]:
    """For what has no other input."""
    width = it.number("hidden_size", "d_model", default=64)
    for name in ("inputs_embeds", "hidden_states"):
        if name in it.takes:
            yield {name: it.random(BATCH, TIME, width)}
    if "sample" in it.takes:
        yield {"sample": it.random(BATCH, channels(it), *sizes(it)[0])}
