"""Programs of several blocks on real processes, beside the single device."""

from __future__ import annotations

from pathlib import Path

import torch

import equality
import shardwright as sw
from models import MODELS
from shardwright import Bundle, Plan
from shardwright._core import compile
from shardwright.capture import Captured
from shardwright.runtime import ParallelModule, TorchComm, load_program
from shardwright.start.compiling import sources

WORLD = 4
BATCHES = 5


def bundle_of(captured: Captured, plan: Plan) -> Bundle:
    made = compile(plan)
    graph = captured.graph_text
    return Bundle(dict(made.files), made.digest, plan.name, WORLD, captured, made.proof, graph)


def _train(rank: int, bundles: list[Bundle], folder: str) -> None:
    trained = []
    for bundle in bundles:
        module, args = MODELS["gpt"]()
        program = load_program(bundle.files, digest=bundle.digest, world=bundle.devices)
        values = sources(module, bundle.captured)
        model = ParallelModule(program, TorchComm(watch=False), values, bundle.captured)
        trained.append(equality.train_steps(model, equality.micro_batches(args, BATCHES)))
    torch.save(trained, Path(folder, f"{rank}.pt"))


def is_equal_to_the_single_device(bundles: list[Bundle], folder: Path) -> None:
    """Trains the small GPT by each program."""
    sw.launch(_train, WORLD, (bundles, str(folder)), timeout=600)
    ranks = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(WORLD)]
    module, args = MODELS["gpt"]()
    expected = equality.steps_reference(module, equality.micro_batches(args, BATCHES))
    for at, bundle in enumerate(bundles):
        result = equality.assemble([([], of_rank[at][1]) for of_rank in ranks])
        for losses, _ in (of_rank[at] for of_rank in ranks):
            assert losses == ranks[0][at][0]
        result.losses = ranks[0][at][0]
        equality.assert_equal(result, expected, bundle.plan)
