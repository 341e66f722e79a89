"""The plan `auto` of a command, and into how many micro-batches it cuts the batch where nobody says that."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..start.auto_plan import AUTO
from .candidates import candidate_of
from .cluster import choice_of
from .model import devices_of
from .source import graph_of, source_of

if TYPE_CHECKING:
    from .._core import Found, Graph


def take_candidate(arguments: argparse.Namespace) -> None:
    """Of a plan that is a row of a comparison: its text, and its micro-batches unless others are named."""
    candidate = candidate_of(arguments)
    arguments.candidate = candidate
    if candidate is None:
        return
    if candidate.cut and arguments.micro_batches is None and arguments.batches is None:
        arguments.micro_batches = candidate.micro_batches
    if not candidate.cut and arguments.batches is None:
        arguments.batches = candidate.micro_batches


def chosen(
    arguments: argparse.Namespace,
    watch: Callable[[str], object],
    before: Callable[[Graph], object] = lambda graph: None,
) -> tuple[Graph, Found | None, str | None]:
    """The graph of one micro-batch, what was found if a plan is to be chosen, and how the batch is cut.

    `arguments` say afterwards how many micro-batches there are. `before` is told graphs before a search.
    """
    if arguments.plan != AUTO or arguments.cluster is None:
        take_candidate(arguments)
        return graph_of(arguments), None, None
    from ..start.micro_batch_search import Cutting
    from ..start.planning import MOST_DEVICES

    source = source_of(arguments)
    is_said = arguments.micro_batches is not None or arguments.batches is not None
    parts = 1 if arguments.micro_batches is None else arguments.micro_batches
    graph = source.graph(parts)[0] if is_said or source.rows == 1 else None
    devices = devices_of(arguments, graph, AUTO)
    if devices is None or not 0 < devices <= MOST_DEVICES:
        # Whoever makes a plan of a name refuses it.
        return source.graph(parts)[0], None, None
    choice = choice_of(arguments)
    if graph is not None:
        before(graph)
        return graph, choice.search(graph, devices, watch=watch), None

    def graph_of_parts(number: int) -> Graph:
        graph = source.graph(number)[0]
        before(graph)
        return graph

    cut = Cutting(source.rows, devices, choice, graph_of_parts, watch).best()
    arguments.micro_batches = cut.parts
    return cut.graph, cut.search, cut.says
