"""Examples for models that hear: spectra, waves, codes of a codec, spectra to speak."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...built import BATCH
from .looking import SHORT, About

Example = dict[str, Any]
BANDS = (
    "num_mel_bins", "n_mels", "input_feat_per_channel", "num_mel_channels", "feature_size", "input_feat_dim",
    "mel_bins", "n_mel_bins", "spectrogram_bins",
)  # fmt: skip


def examples(it: About, first: bool) -> Iterator[Example]:
    """`first`: whether nothing else is known to be its input."""
    bands = it.number(*BANDS, default=80)
    for name, shapes in _shapes(it, bands).items():
        if name in it.takes and (first or name == it.main) and not _speaks(it, name):
            for shape in shapes:
                yield from _of_shape(it, name, shape, bands)
    if "audio_codes" in it.takes and "input_ids" not in it.takes:
        books = it.number("num_quantizers", "num_codebooks", "n_codebooks", default=4)
        yield {"audio_codes": it.whole(10, BATCH, books, SHORT)}
    if _speaks(it, "input_values") or "speech_inputs" in it.takes:
        text = {name: value for name, value in it.text().items() if name != "decoder_input_ids"}
        spectrum = it.random(BATCH, SHORT, bands)
        if "decoder_input_values" in it.takes:
            text |= {"labels": spectrum, "decoder_input_values": spectrum.clone()}
        yield text


def _speaks(it: About, name: str) -> bool:
    return name == "input_values" and "labels" in it.takes and "TextToSpeech" in it.kind


def _shapes(it: About, bands: int) -> dict[str, list[tuple[int, ...]]]:
    positions = it.find("max_source_positions")
    spectra: list[tuple[int, ...]] = [(BATCH, bands, 2 * positions)] if isinstance(positions, int) else []
    spectra += [(BATCH, 64, bands), (BATCH, bands, 64), (BATCH, 1, 64, bands), (BATCH, 1, 1001, 64)]
    spectra += [(BATCH, 128, bands), (BATCH, 3000, bands), (BATCH, bands, 3000)]
    spectra += [(BATCH, 64, it.number("feature_projection_input_dim", "input_dim", default=160))]
    waves = [(BATCH, 8000), (BATCH, 1, 8000), (BATCH, 1024, 128), (BATCH, 1, 16000), (BATCH, 2, 8000)]
    waves += [(BATCH, 32000), (BATCH, 64, bands)]
    return {
        "input_features": spectra,
        "spectrogram": [(BATCH, 64, bands)],
        **dict.fromkeys(("input_values", "audio_values", "waveform"), waves),
    }


def _of_shape(it: About, name: str, shape: tuple[int, ...], bands: int) -> Iterator[Example]:
    text = it.text()
    if "input_ids" not in it.takes:
        text.pop("attention_mask", None)
    example: Example = {**text, name: it.random(*shape)}
    yield example
    time = shape[-1] if shape[1] == bands else shape[1]
    if "attention_mask" in it.takes and "input_ids" not in it.takes:
        length = shape[1] if shape[1] > 3 else shape[-1]
        yield {**example, "attention_mask": torch.ones(BATCH, length, dtype=torch.long)}
    if "input_features_mask" in it.takes:
        yield {**example, "input_features_mask": torch.ones(BATCH, time, dtype=torch.long)}
    if "feature_attention_mask" in it.takes:
        yield {**example, "feature_attention_mask": torch.ones(BATCH, shape[-1], dtype=torch.long)}
