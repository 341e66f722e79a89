"""`shardwright models`: the models that have names."""

from __future__ import annotations

import argparse

from ..schemas import answer
from ..shipped.table import SHIPPED, Shipped
from .parser import Commands


def add(commands: Commands) -> None:
    models = commands.add_parser("models", help="the models that have names, such as llama-3-8b")
    models.add_argument("--json", action="store_true")
    models.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(answer("models", {"models": [_plain(model) for model in SHIPPED.values()]}))
        return
    print(f"{'name':<16} {'parameters':>15} {'batch':>6} {'sequence':>9}  {'dtype':<9} class")
    for model in SHIPPED.values():
        sequence = "image" if model.sequence is None else model.sequence
        sizes = f"{model.parameters:>15,} {model.batch:>6} {sequence:>9}"
        print(f"{model.name:<16} {sizes}  {model.dtype:<9} {model.kind}")


def _plain(model: Shipped) -> dict[str, object]:
    return {
        "name": model.name,
        "class": model.kind,
        "parameters": model.parameters,
        "batch": model.batch,
        "sequence": model.sequence,
        "longest": model.longest,
        "dtype": model.dtype,
        "config": dict(model.config),
    }
