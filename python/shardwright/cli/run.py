"""`shardwright run`: trains with an emitted program on local processes, beside the model on one device."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .parser import Commands

if TYPE_CHECKING:
    from ..running import Losses

STEPS = 3


def add(commands: Commands) -> None:
    from .model import add_model

    run = commands.add_parser(
        "run", help="prove an emitted program, edited or not, and train with it on local processes"
    )
    run.add_argument("program", help="its folder")
    add_model(run, optional="; without it, the one that the program was emitted for")
    run.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="how many; as many as the program is for, which is the default",
    )
    run.add_argument("--steps", type=int, default=STEPS, help=f"steps of AdamW (default: {STEPS})")
    run.add_argument(
        "--threads", action="store_true", help="ranks are threads of this process, which is quicker"
    )
    run.add_argument("--json", action="store_true", help="print the losses as JSON")
    run.set_defaults(run=run_program)


def run_program(arguments: argparse.Namespace) -> int:
    from ..report.progress import Progress, wanted
    from ..running import losses_of
    from ..schemas import answer
    from ..start.edited_program import Edited
    from .source import known_inputs_of
    from .valued import module_and_example

    edited = Edited.read(arguments.program, arguments.processes)
    asked = _of_model(arguments)
    with Progress(wanted(None)).phases(asked.model) as phases:
        phases.begin("model")
        module, example = module_and_example(asked)
        phases.begin("run")
        losses = losses_of(
            module,
            example,
            edited,
            max(arguments.steps, 1),
            processes=not arguments.threads,
            micro_batches=asked.micro_batches or 1,
            outputs=asked.outputs,
            discover=asked.discover,
            known_inputs=known_inputs_of(asked),
        )
    print(answer("run", losses.plain()) if arguments.json else "\n".join(_lines(losses, edited.folder)))
    return 0 if losses.equal is not False else 1


def _of_model(arguments: argparse.Namespace) -> argparse.Namespace:
    """What the command says of the model, or else what the folder says."""
    from ..errors import RuntimeFault
    from ..start.edited_program import MADE_OF, made_of

    noted: dict[str, Any] | None = made_of(arguments.program)
    if arguments.model is None and noted is None:
        raise RuntimeFault(
            "SW0891",
            f"it is not known of which model the program in {arguments.program} is",
            why=f"the folder has no {MADE_OF}, which `shardwright emit` writes for a model that can be run",
            fix=f"name it: `shardwright run {arguments.program} FILE.py:FUNCTION`; or write"
            f" `sw.parallelize(model, example, program={arguments.program!r})` in your own loop",
        )
    said = {name: value for name, value in vars(arguments).items() if value not in (None, False)}
    return argparse.Namespace(**{**vars(arguments), "outputs": "loss", **(noted or {}), **said})


def _lines(losses: Losses, folder: str) -> list[str]:
    single, several = losses.one_device, losses.ranks
    lines = [
        f"{losses.model}, plan `{losses.plan}`, {losses.world} ranks: the program in {folder} is proved equal"
        " to the model",
        "step   one device       parallel         difference",
        *(
            f"{step:4}   {a:.12f}   {b:.12f}   {abs(a - b):.1e}"
            for step, (a, b) in enumerate(zip(single, several, strict=True))
        ),
    ]
    if losses.equal is None:
        return [*lines, "The model draws random numbers, other ones on each side: losses are not compared."]
    verdict = "equal" if losses.equal else "NOT equal"
    return [*lines, f"The losses are {verdict} (relative difference {losses.worst:.1e})."]
