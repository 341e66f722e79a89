"""`shardwright clusters`: the clusters and GPUs that have names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..schemas import answer
from .parser import Commands

CLUSTER = ("name", "about")
GPU = ("name", "generation", "memory", "bandwidth", "half", "link", "link_bandwidth")


def add(commands: Commands) -> None:
    clusters = commands.add_parser(
        "clusters", help="the clusters and GPUs that have names, such as dgx-h100:8x4"
    )
    clusters.add_argument("--json", action="store_true")
    clusters.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from .._core import cluster_examples, gpus

    if arguments.json:
        clusters, cards = _named(cluster_examples(), CLUSTER), _named(gpus(), GPU)
        print(answer("clusters", {"clusters": clusters, "gpus": cards}))
        return
    print(f"{'cluster':<18} what it is")
    for name, about in cluster_examples():
        print(f"{name:<18} {about}")
    figures = f"{'memory':>7} {'bandwidth':>10} {'half':>12}"
    print(f"\n{'GPU':<14} {'generation':<10} {figures}  between those of a node")
    for name, generation, memory, bandwidth, half, link, rate in gpus():
        figures = f"{memory / 1e9:>4.0f} GB {bandwidth / 1e12:>5.2f} TB/s {half / 1e12:>5.0f} TFLOP/s"
        print(f"{name:<14} {generation:<10} {figures}  {rate / 1e9:g} GB/s {link}")


def _named(values: Sequence[tuple[object, ...]], keys: Sequence[str]) -> list[dict[str, object]]:
    return [dict(zip(keys, value, strict=True)) for value in values]
