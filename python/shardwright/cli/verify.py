"""`shardwright verify`: one step of a compiled program on local processes, beside the model."""

from __future__ import annotations

import argparse
import sys

from ..schemas import answer
from .parser import Commands, suggest
from .style import paint

# Without a model, and without a plan.
OF_DEMO = "data:2 x megatron:2"


def add(commands: Commands) -> None:
    from .model import add_model, plans

    verify = commands.add_parser(
        "verify",
        help="run a compiled model on local processes, and compare a step with the model's, tensor by tensor",
    )
    add_model(verify, optional="; without it, the small GPT of the demo")
    plan = verify.add_argument(
        "--plan", help="a name, the path of a plan file, or `auto`, which is taken without it"
    )
    suggest(plan, plans)
    verify.add_argument("--devices", type=int, help="how many processes; without it what the plan says, or 4")
    cluster = verify.add_argument(
        "--cluster", help="what the plan `auto` is chosen for, such as dgx-h100:8x1"
    )
    suggest(cluster, ("cpu:4",))
    verify.add_argument(
        "--dtypes",
        default="model,float64",
        metavar="DTYPE,...",
        help="in which dtypes: `model` (its own), float64, float32, bfloat16, float16",
    )
    outputs = verify.add_argument("--outputs", default="loss", help="also compare these results, or `all`")
    suggest(outputs, ("loss", "all"))
    verify.add_argument("--seed", type=int, default=0, help="of random operators")
    verify.add_argument(
        "--threads", action="store_true", help="ranks are threads of this process, which is quicker"
    )
    verify.add_argument("--json", action="store_true", help="print what is known as JSON")
    verify.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ..comparing import verify
    from ..report.progress import Progress, wanted
    from .source import known_inputs_of
    from .valued import module_and_example

    with Progress(wanted(None)).phases(arguments.model or "demo") as phases:
        phases.begin("model")
        module, (args, kwargs) = module_and_example(arguments)
        phases.begin("verify")
        comparison = verify(
            module,
            args,
            kwargs,
            plan=arguments.plan or (OF_DEMO if arguments.model is None else "auto"),
            devices=arguments.devices,
            micro_batches=1 if arguments.micro_batches is None else arguments.micro_batches,
            dtypes=[word.strip() for word in arguments.dtypes.split(",") if word.strip()],
            outputs=arguments.outputs,
            seed=arguments.seed,
            processes=not arguments.threads,
            cluster=arguments.cluster,
            discover=arguments.discover,
            known_inputs=known_inputs_of(arguments),
        )
    if arguments.json:
        print(answer("verify", comparison.plain()))
    else:
        print("\n".join(map(_coloured, str(comparison).splitlines())))
    return 0 if comparison.equal else 1


def _coloured(line: str) -> str:
    word, colon, rest = line.partition(":")
    colour = {"EQUAL": "green", "DIFFERENT": "red", "NOT COMPARED": "yellow"}.get(word)
    return paint(word + colon, colour, sys.stdout) + rest if colour else line
