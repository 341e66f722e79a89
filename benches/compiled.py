"""Emitted code compiled by `torch.compile`, against the module that `torch.compile` compiles whole."""

from __future__ import annotations

import statistics

import torch
from hf import sized_gpt2, sized_llama
from measure import one_thread
from one_device import AIM, BATCH, LENGTH, compare
from tables import Table, ratio_of, size_of, time_of

MODELS = {
    "Llama": lambda: sized_llama(2, 576, 12, 1536, 8192, BATCH, LENGTH),
    "GPT-2": lambda: sized_gpt2(2, 576, 12, 8192, BATCH, LENGTH),
}


def bench(quick: bool) -> Table:
    pairs = 5 if quick else 25
    threads = torch.get_num_threads()
    one_thread()
    table = Table(
        "compiled",
        "Compiled by `torch.compile`",
        f"Models of Transformers, float32, batch {BATCH}, sequence {LENGTH}: forward, backward and AdamW."
        " `sw.parallelize(..., compile=True)`, plan `replicate`, against `torch.compile(module)`,"
        f" {pairs} interleaved pairs of steps, one thread on one core. The aim is at most {AIM}x. In the"
        " first step each side compiles, ours first: what is alike the second finds in the cache of"
        " `torch.compile`.",
        ["", "", "emitted", "torch.compile", "ratio [95%]"],
    )
    for name, make in MODELS.items():
        module, batch = make()
        compared = compare(name, module, batch, pairs, compile=True)
        size = sum(p.numel() for p in module.parameters())
        medians = (time_of(statistics.median(compared[side])) for side in ("ours", "theirs"))
        table.add(f"{name}, {size / 1e6:.0f}M", "step", *medians, ratio_of(compared["ratio"]))
        table.add("", "the first step", *map(time_of, compared["firsts"]), "")
        ours, theirs = compared["peaks"]
        above = "step's peak above what is held"
        table.add("", above, size_of(ours), size_of(theirs), f"{ours / theirs:.3f}x")
        table.notes.append(f"Largest relative difference of {name}'s losses: {compared['worst']:.1e}.")
        table.values[name] = compared
    torch.set_num_threads(threads)
    return table
