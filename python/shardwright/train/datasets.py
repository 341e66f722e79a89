"""Data sets of tokens: text files, a file of numbers, and folders that `datasets` has written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import RuntimeFault
from .config import DataConfig
from .importing import load

Encode = Callable[[str], list[int]]


class Tokens(Dataset[dict[str, Tensor]]):
    """Sequences one after the other of a long row of numbers, which may be a file in memory's place."""

    def __init__(self, numbers: Tensor, sequence: int, *, shifted: bool):
        self._numbers, self._sequence, self._shifted = numbers, sequence, shifted

    def __len__(self) -> int:
        return (len(self._numbers) - int(self._shifted)) // self._sequence

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        start = at * self._sequence
        given = self._numbers[start : start + self._sequence + int(self._shifted)].to(torch.int64)
        if self._shifted:
            return {"input_ids": given[:-1], "labels": given[1:]}
        return {"input_ids": given, "labels": given.clone()}


def dataset_of(config: DataConfig, encode: Encode | None, folder: Path) -> Any:
    """`folder` is that of the run's file, which relative paths start from."""
    given = [name for name in ("path", "text", "tokens", "dataset") if getattr(config, name)]
    if len(given) != 1:
        raise _refusal(f"the data is given {len(given)} times: {', '.join(given) or 'not at all'}")
    if config.path is not None:
        return load(config.path, folder)(**config.arguments)
    if config.sequence is None or config.sequence < 1:
        raise _refusal(f"`{given[0]}` is cut into samples, and `sequence` does not say how long")
    samples = Tokens(_numbers(config, encode, folder), config.sequence, shifted=config.shifted)
    if not len(samples):
        raise _refusal(f"there is not one sample of {config.sequence} tokens in it")
    return samples


def _numbers(config: DataConfig, encode: Encode | None, folder: Path) -> Tensor:
    if config.tokens is not None:
        return _mapped(folder / config.tokens, config.tokens_dtype)
    if encode is None:
        raise _refusal("it is text, and there is no `tokenizer`")
    texts = map(_text, (folder / name for name in config.text))
    chosen = texts if config.text else _texts_of(folder / str(config.dataset), config.field)
    return torch.tensor([number for text in chosen for number in encode(text)])


def _mapped(file: Path, dtype: str) -> Tensor:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or kind.is_floating_point:
        raise _refusal(f"`tokens_dtype` is {dtype}, which is no type of whole numbers")
    if not file.is_file():
        raise _refusal(f"there is no file {file}")
    return torch.from_file(str(file), size=file.stat().st_size // kind.itemsize, dtype=kind)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(f"{file}: {getattr(error, 'strerror', None) or error}") from None


def _texts_of(folder: Path, field: str) -> Sequence[str]:
    from datasets import load_from_disk

    rows = load_from_disk(str(folder))
    if field not in rows.features:
        raise _refusal(f"{folder} has no column {field}: it has {', '.join(rows.features)}")
    return rows[field]  # type: ignore[no-any-return]


def encoder_of(tokenizer: str | None, folder: Path) -> Encode | None:
    if tokenizer is None:
        return None
    if tokenizer == "bytes":
        return lambda text: list(text.encode())
    from transformers import AutoTokenizer

    place = folder / tokenizer
    tokenizer_there = AutoTokenizer.from_pretrained(str(place) if place.exists() else tokenizer)
    return lambda text: tokenizer_there(text, add_special_tokens=False)["input_ids"]  # type: ignore[no-any-return]


def _refusal(why: str) -> RuntimeFault:
    return RuntimeFault(
        "SW0853",
        "there is no data to train on",
        why=why,
        fix="give one of `path`, `text`, `tokens` and `dataset`, as `shardwright train --schema` says",
    )
