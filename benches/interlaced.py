"""What a vocabulary that dwarfs the rest takes of each rank, in a stage or over all of a pipeline."""

from __future__ import annotations

import torch
from tables import Table, size_of

from shardwright import Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture

WORDS, WIDTH, DEVICES = 250_112, 512, 4
PLANS = ["stages:4", "stages:4 x interlaced", "stages:4 x interlaced x recompute"]


def bench(quick: bool) -> Table:
    del quick  # nothing runs
    text = graph()
    table = Table(
        "interlaced",
        "A large vocabulary in a pipeline",
        f"T5 of Transformers with {WORDS:,} words and a width of {WIDTH} (six layers each,"
        f" mT5's small shape) on `meta`, micro-batches of 4 with 128 words, on {DEVICES} devices: what the"
        " compiler tells that each rank needs in a step with AdamW.",
        ["", *(f"rank {rank}" for rank in range(DEVICES)), "most", "of `stages:4`"],
    )
    first = 0
    for plan in PLANS:
        predicted = [rank.total for rank in compile(Plan.named(Graph(text), plan, DEVICES)).memory()]
        first = first or max(predicted)
        table.add(
            f"`{plan}`", *map(size_of, predicted), size_of(max(predicted)), f"{max(predicted) / first:.3f}"
        )
        table.values[plan] = predicted
    return table


def graph() -> str:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS,
        d_model=WIDTH,
        d_kv=64,
        d_ff=1024,
        num_layers=6,
        num_heads=8,
        decoder_start_token_id=0,
        dropout_rate=0.0,
        use_cache=False,
    )
    with torch.device("meta"):
        module = T5ForConditionalGeneration(config).train()
        ids = torch.zeros(4, 128, dtype=torch.long)
    return capture(module, (), {"input_ids": ids, "labels": ids}).graph_text
