"""The pictures of the pages, each by the command that draws it: `make docs`.

Without names all of them are written. `--check` writes none, and fails where one is another than its command
draws.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"

# Models by the name of their file.
SOURCES = {
    "my_gpt.py": """
from shardwright import demo

def small():
    return demo.build(), demo.batches()[0]
""",
    "my_swin.py": """
import torch
from transformers import SwinConfig, SwinForImageClassification

def swin():
    config = SwinConfig(image_size=448, window_size=14, depths=[2, 2], num_heads=[3, 6], drop_path_rate=0.0)
    with torch.device("meta"):
        batch = {
            "pixel_values": torch.zeros(256, 3, 448, 448),
            "labels": torch.zeros(256, dtype=torch.long),
        }
        return SwinForImageClassification(config), batch
""",
    "my_t5.py": """
import torch
from transformers import T5Config, T5ForConditionalGeneration

def t5():
    config = T5Config(
        vocab_size=250_112, d_model=512, d_kv=64, d_ff=1024, num_layers=6, num_heads=8,
        decoder_start_token_id=0, dropout_rate=0.0, use_cache=False,
    )
    with torch.device("meta"):
        words = torch.zeros(32, 64, dtype=torch.long)
        return T5ForConditionalGeneration(config), {"input_ids": words, "labels": words}
""",
    "my_trunk.py": """
from shardwright.shipped.evoformer import Config, Evoformer, batch

def trunk():
    config = Config(residues=8, sequences=4, blocks=2, msa=16, pair=8)
    return Evoformer(config), batch(config, 4)
""",
}


@dataclass(frozen=True)
class Picture:
    name: str
    """Of its file."""
    command: str
    """Of `shardwright`, without `--svg`; the models of `SOURCES` lie where it runs."""


PICTURES = [
    Picture("schedule.svg", "schedule v --devices 4 --micro-batches 6"),
    Picture("tensor-parallel.svg", "plan my_gpt.py:small --devices 4 --plan megatron"),
    Picture("kf1b.svg", 'simulate my_trunk.py:trunk --plan "stages:2 x kf1b" --cluster h200:2 --batches 4'),
    Picture(
        "kf1b-as-1f1b.svg",
        'simulate my_trunk.py:trunk --plan "stages:2 x 1f1b" --cluster h200:2 --batches 4',
    ),
    Picture("coshard.svg", 'simulate my_swin.py:swin --plan "data:2 x coshard" --cluster a100:2'),
    Picture("coshard-as-data.svg", "simulate my_swin.py:swin --plan data:2 --cluster a100:2"),
    Picture(
        "interlaced.svg", 'simulate my_t5.py:t5 --plan "stages:4 x interlaced" --cluster a10g:4 --batches 8'
    ),
    Picture(
        "interlaced-as-1f1b.svg",
        'simulate my_t5.py:t5 --plan "stages:4 x 1f1b" --cluster a10g:4 --batches 8',
    ),
    Picture(
        "llama-70b.svg",
        "simulate llama-3-70b --batch 8 --batches 8 --cluster dgx-h100:8x8"
        ' --plan "zero1:8 x megatron-sp:8 x recompute:selective"',
    ),
    Picture("searching.svg", "plan llama-3-8b --batch 1 --batches 1 --cluster dgx-h100:8x2"),
    Picture(
        "pipeline.svg", 'simulate gpt2-24l --plan "stages:4 x 1f1b" --cluster a10g:4 --batch 8 --batches 8'
    ),
    Picture(
        "split-backward.svg",
        'simulate gpt2-24l --plan "stages:4 x zb-h1" --cluster a10g:4 --batch 8 --batches 8',
    ),
    Picture("choosing.svg", "compare my_gpt.py:small --cluster cpu:4 --micro-batches 4"),
]


def main(words: Sequence[str] | None = None) -> int:
    given = parsed(words)
    known = {picture.name: picture for picture in PICTURES}
    stale = []
    for picture in map(known.__getitem__, given.names or known):
        start = time.perf_counter()
        drawn = drawn_by(picture)
        there = FOLDER / picture.name
        is_same = there.exists() and there.read_text(encoding="utf-8") == drawn
        if not is_same:
            stale.append(picture.name)
        if not given.check:
            there.write_text(drawn, encoding="utf-8")
        said = "as it was" if is_same else "is another" if given.check else "written"
        print(f"{picture.name}: {said}, {time.perf_counter() - start:.1f} s", flush=True)
    if given.check and stale:
        print(f"not what their commands draw: {', '.join(stale)}; `make docs` draws them", file=sys.stderr)
        return 1
    return 0


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pictures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as kf1b.svg; all without")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where one is another")
    given = parser.parse_args(words)
    if unknown := set(given.names) - {picture.name for picture in PICTURES}:
        parser.error(f"no such picture: {', '.join(sorted(unknown))}")
    return given


def drawn_by(picture: Picture) -> str:
    """What the command draws. What it prints is said only if it fails."""
    from shardwright.cli import main as shardwright

    before, printed = Path.cwd(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        for name, source in SOURCES.items():
            (Path(folder) / name).write_text(source.lstrip(), encoding="utf-8")
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(printed):
                code = shardwright([*shlex.split(picture.command), "--svg", "it.svg"])
            # 3: a plan that does not fit has a picture, too.
            if code not in (0, 3):
                raise SystemExit(f"{printed.getvalue()}{picture.name}: `{picture.command}` ended with {code}")
            return Path("it.svg").read_text(encoding="utf-8")
        finally:
            os.chdir(before)


def alone() -> None:
    """A search goes to its end: what it finds by a time depends on the machine."""
    os.environ |= {"SHARDWRIGHT_DEADLINE": "inf", "SHARDWRIGHT_PROGRESS": "off"}


if __name__ == "__main__":
    alone()
    sys.exit(main())
