"""Examples for models that see: images, videos, patches that are packed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...built import BATCH
from .looking import About, first, pair

Example = dict[str, Any]
USUAL = ((64, 64), (224, 224), (256, 256), (384, 384))
PATCHES = 4
"""A side of an image whose patches are packed."""


def examples(it: About) -> Iterator[Example]:
    if "pixel_values" in it.takes:
        yield from _packed(it)
        if not {"image_grid_thw", "grid_thw"} & it.takes:
            for shape in _shapes(it):
                yield from _of_shape(it, shape)
    elif "pixel_values_videos" in it.takes:
        frames = it.number("num_frames", "frames_per_clip", default=8)
        for size in sizes(it)[:2]:
            yield {**it.text(), "pixel_values_videos": it.random(BATCH, frames, channels(it), *size)}
    elif "hidden_states" in it.takes and "grid_thw" in it.takes:
        yield _patches(it, "hidden_states", "grid_thw", flat=True)
    if "visual_feats" in it.takes:
        width = it.number("visual_feat_dim", default=2048)
        yield {**it.text(), "visual_feats": it.random(BATCH, 4, width), "visual_pos": it.random(BATCH, 4, 4)}
    if "visual_embeds" in it.takes:
        width = it.number("visual_embedding_dim", default=512)
        yield {**it.text(), "visual_embeds": it.random(BATCH, 4, width)}


def channels(it: About) -> int:
    return it.number("num_channels", "in_channels", "in_chans", default=3)


def sizes(it: About) -> list[tuple[int, int]]:
    said = it.find("image_size", "img_size", "input_size")
    configured = [] if said is None else [pair(said)]
    return configured + [size for size in USUAL if size not in configured]


def _shapes(it: About) -> Iterator[tuple[int, ...]]:
    some, depth = sizes(it), channels(it)
    frames = it.find("num_frames", "n_frames")
    if frames is not None or "Video" in it.kind:
        for size in some[:2]:
            yield BATCH, frames if isinstance(frames, int) else 8, depth, *size
    for size in some[:3]:
        yield BATCH, depth, *size
    for extra in ((1,), (2,), (1, 1)):
        yield BATCH, *extra, depth, *some[0]


def _of_shape(it: About, shape: tuple[int, ...]) -> Iterator[Example]:
    height, width = shape[-2:]
    example: Example = {**it.text(), "pixel_values": it.random(*shape)}
    if "pixel_mask" in it.takes:
        example["pixel_mask"] = torch.ones(BATCH, height, width, dtype=torch.long)
    if "input_points" in it.takes:
        yield {**example, "input_points": it.uniform(BATCH, 1, 1, 2) * 32}
    if "bool_masked_pos" in it.takes:
        yield {**example, "bool_masked_pos": _half(it, shape)}
    if "image_sizes" in it.takes:
        yield {**example, "image_sizes": torch.tensor([[height, width]] * BATCH)}
    yield example


def _half(it: About, shape: tuple[int, ...]) -> torch.Tensor:
    """Every first half of the patches is masked."""
    patch = first(it.find("patch_size", default=16))
    count = (shape[-2] // patch) * (shape[-1] // patch)
    tube = it.find("tubelet_size")
    if tube and len(shape) == 5:
        count *= shape[1] // first(tube)
    mask = torch.zeros(BATCH, count, dtype=torch.bool)
    mask[:, : count // 2] = True
    return mask


def _packed(it: About) -> Iterator[Example]:
    """All patches of a batch in one row, with the grid that each image has of them."""
    for name in ("image_grid_thw", "grid_thw"):
        if name in it.takes:
            yield _patches(it, "pixel_values", name, flat=True)
            yield _patches(it, "pixel_values", name, flat=False)
    if "spatial_shapes" in it.takes:
        count, size = PATCHES**2, first(_seen(it, "patch_size", 14))
        example = {**it.text(), "pixel_values": it.random(BATCH, count, _depth(it) * size * size)}
        example["spatial_shapes"] = torch.tensor([[PATCHES, PATCHES]] * BATCH)
        if "pixel_attention_mask" in it.takes:
            example["pixel_attention_mask"] = torch.ones(BATCH, count, dtype=torch.long)
        yield example


def _patches(it: About, name: str, grid: str, flat: bool) -> Example:
    size, times = first(_seen(it, "patch_size", 14)), first(_seen(it, "temporal_patch_size", 1))
    count = BATCH * PATCHES**2
    shape = (count, _depth(it) * times * size * size) if flat else (count, _depth(it), size, size)
    return {**it.text(), name: it.random(*shape), grid: torch.tensor([[1, PATCHES, PATCHES]] * BATCH)}


def _depth(it: About) -> int:
    return first(_seen(it, "in_channels", _seen(it, "in_chans", _seen(it, "num_channels", 3))))


def _seen(it: About, name: str, otherwise: Any) -> Any:
    value = getattr(getattr(it.config, "vision_config", it.config), name, None)
    return otherwise if value is None else value
