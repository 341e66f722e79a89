"""`shardwright report`: everything that is known of a plan, as one page to look at."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ClusterError
from .parser import Commands
from .working import working

if TYPE_CHECKING:
    from .._core import Found

PAGE = "report.html"
# So many rows of a comparison are kept for other commands.
KEPT = 24


def add(commands: Commands) -> None:
    from .step import add_arguments

    report = commands.add_parser(
        "report", help="write a page that shows a plan: timeline, memory, modules, ..."
    )
    add_arguments(report)
    report.add_argument(
        "-o", dest="to", metavar="FILE", help=f"write the page there ({PAGE}), one file that needs no network"
    )
    report.add_argument(
        "--compare", action="store_true", help="also show the named plans in all their shapes beside it"
    )
    report.add_argument(
        "--recorded", metavar="FILE", help="also show what `sw.record` measured and saved there"
    )
    report.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from .. import __version__
    from .._core import report_page
    from ..report.memory import status_of
    from .cluster import write
    from .source_lines import source_lines
    from .step import step_of

    command = command_of(arguments)
    recorded = _recorded(arguments.recorded)
    asked = argparse.Namespace(**vars(arguments))
    step = step_of(arguments)
    compared = _compared(asked) if arguments.compare else []
    kept = _keep(asked, compared)
    if not compared and step.search is not None:
        compared = [(step.batches, step.search)]
    with working(arguments.model, "page"):
        data, page = report_page(
            step.plan,
            step.compiled,
            step.simulated,
            step.choice.cluster,
            step.choice.text,
            batches=step.batches,
            optimizer=arguments.optimizer,
            command=command,
            version=__version__,
            compared=compared,
            recorded=recorded,
            others=(words_of_others(arguments.words), asked.batches is None, kept),
            compile=arguments.compile,
            sources=source_lines(step.graph, arguments.model),
        )
    path = Path(arguments.to or PAGE)
    if arguments.to or not arguments.json:
        write("SW0930", "the page", path, page)
    if arguments.json:
        print(data)
    else:
        print(f"The page is in {path}: open it in a browser.")
    return status_of(step.simulated)


def _recorded(file: str | None) -> tuple[str, str] | None:
    """The name of a recording, and its text."""
    if file is None:
        return None
    try:
        return file, Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(
            "SW0931",
            f"the recording {file} cannot be read",
            why=getattr(error, "strerror", None) or "it is not text",
            fix="name a file that `recorded.save` wrote",
        ) from None


def command_of(arguments: argparse.Namespace) -> str:
    """What makes the page again."""
    return shlex.join(["shardwright", *arguments.words])


# What a page of another plan is made without, and how many words each is.
OWN = {"--plan": 2, "--micro-batches": 2, "--batches": 2, "--recorded": 2, "--compare": 1, "--json": 1}


def words_of_others(words: Sequence[str]) -> list[str]:
    """The command without what is only of this page, to which a plan and its micro-batches are added."""
    kept, skipped = ["shardwright"], 0
    for word in words:
        if skipped:
            skipped -= 1
            continue
        name, equals, _ = word.partition("=")
        # argparse takes the beginning of an option for it, unless that is an option itself.
        fits = [option for option in OWN if option.startswith(name) and name.startswith("--")]
        if word.startswith("-o"):
            skipped = int(word == "-o")
        elif (name != "--batch" and len(fits) == 1) or name in OWN:
            skipped = 0 if equals else OWN[name if name in OWN else fits[0]] - 1
        else:
            kept.append(word)
    return kept


def _keep(arguments: argparse.Namespace, compared: Sequence[tuple[int, Found]]) -> int:
    """Of a comparison as many rows as can be asked for afterwards, as `shardwright compare` does."""
    from . import candidates

    order = sorted(
        (not one["fits"], one["seconds"], which, at)
        for which, (_, search) in enumerate(compared)
        for at, one in enumerate(search.rows)
    )
    plans = [(compared[which][0], compared[which][1].plan(at)) for _, _, which, at in order[:KEPT]]
    cut = arguments.batches is None
    rows = [candidates.Candidate(plan.name, many, cut, plan.folded) for many, plan in plans]
    return len(rows) if rows and candidates.keep(arguments, rows) else 0


def _compared(arguments: argparse.Namespace) -> list[tuple[int, Found]]:
    """All plans with names, in all their shapes, with the micro-batches of each."""
    from .compare import searches_of

    asked = argparse.Namespace(**vars(arguments) | {"all": True, "memory": None})
    return [(many, search) for many, _, search in searches_of(asked, time.perf_counter(), [], [])]
