"""Text with places for what was seen: as many tokens of the image as the model has features."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...built import BATCH, copied
from .looking import SHORT, About

Example = dict[str, Any]
MOST = 3000
_TOKEN = ("image_token_id", "image_token_index", "img_token_id", "image_pad_token_id")


def with_places(it: About, example: Example) -> Example | None:
    """None where the model has other features than a text of equal rows has places for."""
    token, features = it.find(*_TOKEN), getattr(it.module, "get_image_features", None)
    if not {"input_ids", "pixel_values"} <= example.keys() or not isinstance(token, int):
        return example
    if features is None:
        return None
    count = _features(features, example)
    if count is None or count % BATCH or count // BATCH > MOST:
        return None
    places = torch.full((BATCH, count // BATCH), token)
    ids = torch.cat([it.tokens(BATCH, 4), places, it.tokens(BATCH, SHORT)], 1)
    placed = {**example, "input_ids": ids}
    if "attention_mask" in it.takes:
        placed["attention_mask"] = torch.ones_like(ids)
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in it.takes and (name != "token_type_ids" or "gemma" in it.kind.lower()):
            placed[name] = (ids == token).long()
    return placed


def _features(function: Any, example: Example) -> int | None:
    taken = inspect.signature(function).parameters
    given = {name: value for name, value in example.items() if name in taken}
    dtype = next((p.dtype for p in function.__self__.parameters() if p.is_floating_point()), torch.float32)
    given = pytree.tree_map_only(Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, given)
    try:
        with torch.no_grad():
            features = function(**copied(given))
    except Exception:
        return None
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(features, name, None) is not None:
            features = getattr(features, name)
            break
    tensors = [leaf for leaf in pytree.tree_leaves(features) if isinstance(leaf, Tensor)]
    return sum(x.numel() for x in tensors) // tensors[0].shape[-1] if tensors else None
