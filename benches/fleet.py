"""How long a compilation for thousands of devices takes, and what grows with their number."""

from __future__ import annotations

from compile_time import measured
from tables import Table

BATCH = 8192
PLANS = {
    "megatron": 8,
    "data:64 x megatron:8": 512,
    "data:1024 x megatron:8": 8192,
    "zero3:1024 x megatron:8": 8192,
    "stages:16 x data:64 x megatron:8": 8192,
}


def bench(quick: bool) -> Table:
    repeats = 1 if quick else 3
    table = Table(
        "fleet",
        "Compiling for thousands of devices",
        f"Llama-3-405B's shape (126 layers, full size on `meta`, batch {BATCH:,}, sequence 8,192), one"
        " thread."
        f" Medians of {repeats} fresh processes, of capture one. Memory is as above.",
        ["", "capture", *(f"{devices:,} devices" for devices in PLANS.values())],
    )
    return measured(table, ("llama_3_405b", BATCH), PLANS, repeats, 1)
