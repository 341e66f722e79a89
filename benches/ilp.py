"""The decisions of a search inside of a block, solved by elimination and as an integer program by HiGHS.

Both are given the same tables: a variable for each bundle of operators, with a value for each way to divide
it; what each costs by itself, and what each two cost of which one reads the other. The integer program is the
usual one: a choice for each variable, and for each two of them a share for each pair of their values that has
both as its margins.
"""

from __future__ import annotations

import math
import time

import highspy
import numpy as np
import shapes
from tables import Table, time_of

from shardwright._core import DecisionTables, Graph, decision_tables
from shardwright.capture import capture

# So long the integer program may take.
LIMIT = 300.0
CLUSTER, DEVICES = "dgx-h100:8x1", 8
MODELS = {
    "GPT, 24 layers": shapes.gpt_24l,
    "Llama-3-8B": shapes.llama_3_8b,
    "Llama-3-70B": shapes.llama_3_70b,
}


def bench(quick: bool) -> Table:
    table = Table(
        "ilp",
        "The same decisions as an integer program",
        f"Plans of one block for {CLUSTER}, a micro-batch: the least time that devices work and wait."
        f" The same tables for both; one thread, at most {LIMIT:.0f} s.",
        ["model", "decisions", "values", "ours", "in", "HiGHS", "in", "times as long"],
    )
    models = {"GPT, 24 layers": shapes.gpt_24l} if quick else MODELS
    for name, make in models.items():
        module, example = make()
        graph = Graph(capture(module, example).graph_text)
        _row(table, name, decision_tables(graph, DEVICES, CLUSTER))
    return table


def _row(table: Table, name: str, decided: DecisionTables) -> None:
    assert decided.least is not None
    theirs, seconds = solved(decided)
    assert theirs is None or math.isclose(theirs, decided.least, rel_tol=1e-6), (theirs, decided.least)
    ours = decided.seconds[1]
    unit = 1e-12
    table.add(
        name,
        str(len(decided.sizes)),
        str(sum(decided.sizes)),
        time_of(decided.least * unit),
        time_of(ours),
        "not in time" if theirs is None else time_of(theirs * unit),
        time_of(seconds),
        f"{seconds / ours:,.0f}",
    )
    table.values.setdefault("rows", []).append(
        {"model": name, "ours": decided.least, "theirs": theirs, "seconds": [ours, seconds]}
    )


def solved(decided: DecisionTables) -> tuple[float | None, float]:
    """The least that HiGHS finds, and how long it takes to give it the program and to solve it."""
    start = time.perf_counter()
    program, scale, offset = _program(decided)
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("time_limit", LIMIT)
    highs.setOptionValue("mip_rel_gap", 1e-9)
    highs.passModel(program)
    highs.run()
    seconds = time.perf_counter() - start
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None, seconds
    return highs.getInfo().objective_function_value * scale + offset, seconds


def _program(decided: DecisionTables) -> tuple[highspy.HighsLp, float, float]:
    first = np.concatenate([[0], np.cumsum(decided.sizes)])
    own_costs = np.zeros(first[-1])
    pairs: dict[tuple[int, int], np.ndarray] = {}
    for scope, at in decided.terms:
        costs = np.array(decided.tables[at])
        if len(scope) == 1:
            own_costs[first[scope[0]] : first[scope[0] + 1]] += costs
        else:
            one, other = scope
            shape = (decided.sizes[one], decided.sizes[other])
            pairs[one, other] = pairs.get((one, other), np.zeros(shape)) + costs.reshape(shape)
    offset = 0.0
    for (one, other), costs in pairs.items():
        least = costs.min()
        offset += least
        pairs[one, other] = costs - least
    for at in range(len(decided.sizes)):
        least = own_costs[first[at] : first[at + 1]].min()
        offset += least
        own_costs[first[at] : first[at + 1]] -= least
    return _linear(decided.sizes, first, own_costs, pairs, offset)


def _linear(
    sizes: list[int],
    first: np.ndarray,
    own_costs: np.ndarray,
    pairs: dict[tuple[int, int], np.ndarray],
    offset: float,
) -> tuple[highspy.HighsLp, float, float]:
    """Columns are the choices, then the shares of each pair; rows the variables, then each pair's margins."""
    choices = int(first[-1])
    costs = [own_costs, *(table.ravel() for table in pairs.values())]
    columns = np.concatenate(costs)
    scale = max(float(columns.max()), 1.0)
    rows: list[np.ndarray] = [np.repeat(np.arange(len(sizes)), sizes)]
    places: list[np.ndarray] = [np.arange(choices)]
    entries: list[np.ndarray] = [np.ones(choices)]
    lower = [np.ones(len(sizes))]
    row, column = len(sizes), choices
    for (one, other), table in pairs.items():
        shares = column + np.arange(table.size).reshape(table.shape)
        for variable, margin in ((one, shares), (other, shares.T)):
            count, others = margin.shape
            rows += [row + np.repeat(np.arange(count), others), row + np.arange(count)]
            places += [margin.ravel(), first[variable] + np.arange(count)]
            entries += [np.ones(margin.size), -np.ones(count)]
            lower.append(np.zeros(count))
            row += count
        column += table.size
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = column, row
    program.col_cost_ = columns / scale
    program.col_lower_, program.col_upper_ = np.zeros(column), np.ones(column)
    program.row_lower_ = program.row_upper_ = np.concatenate(lower)
    kinds = [highspy.HighsVarType.kInteger] * choices + [highspy.HighsVarType.kContinuous] * (
        column - choices
    )
    program.integrality_ = kinds
    order = np.argsort(np.concatenate(places), kind="stable")
    counts = np.bincount(np.concatenate(places), minlength=column)
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = np.concatenate([[0], np.cumsum(counts)])
    program.a_matrix_.index_ = np.concatenate(rows)[order]
    program.a_matrix_.value_ = np.concatenate(entries)[order]
    return program, scale, offset
