"""What a search found, and why: lines under the plan that `auto` is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ..errors import PlanError
from ..report.summary import set_of, time_of
from ..support.suggestions import did_you_mean
from .answer import PARTS, SMALLEST

if TYPE_CHECKING:
    from .._core import Found, Graph

NOTHING_TO_DIVIDE = "on one device there is nothing to shard"

# So many ways are told, of so many plans.
WAYS = 8
NEXT = 24
# How the way is called of what has one device.
WHOLE = "whole"
# What says in the name of a plan that the search inside of a block knows none like it.
OTHER = (" layers ", "offload", "coshard")


def asked_for(search: Found | None, plan: str) -> Found:
    if search is not None:
        return search
    raise PlanError(
        "SW0925",
        f"there is nothing to explain of the plan {plan}",
        why="it was not chosen by a search, so there are no alternatives to show",
        fix="give --plan auto and a --cluster",
    )


def numbers_of(search: Found) -> dict[str, Any]:
    row = search.rows[0]
    numbers: dict[str, Any] = {
        "step": row["seconds"],
        "bound": search.bound,
        "utilisation": row["utilisation"],
        "shapes": {"tried": search.tried[0], "all": search.tried[1], "left_out": search.left_out},
    }
    if search.inside is not None:
        bound, decisions, choices, sums, seconds = search.inside
        searched = {"decisions": decisions, "choices": choices, "sums": sums, "seconds": seconds}
        numbers |= {"bound_of_one_block": bound if bound <= row["seconds"] else None, "search": searched}
    if search.pipelines is not None:
        names = ("places", "groups", "looked_at", "seconds", "is_whole")
        numbers["pipelines"] = dict(zip(names, search.pipelines, strict=True))
    return numbers


def line_of_step(seconds: float, parts: Mapping[str, float], utilisation: float) -> str:
    """How long a step takes, and what the rank does meanwhile that waits least."""
    if seconds <= 0:
        return f"a step takes {time_of(seconds)}: there is nothing to compute"
    shown = [name for name in PARTS if parts[name] >= SMALLEST * seconds]
    spent = ", ".join(f"{parts[name] / seconds:.1%} {name}" for name in shown)
    return f"a step takes {time_of(seconds)}: {spent}; {utilisation:.1%} of what the devices can compute"


def lines_of(search: Found, searched: bool = True) -> Iterator[str]:
    """How far from the best the plan is, and what was `searched`."""
    step = search.rows[0]["seconds"]
    if search.bound > 0 and searched:
        times = step / search.bound
        quickest = time_of(search.bound)
        yield f"no plan takes less than {quickest}: it is at most {times:.3f} times the lower bound"
    if (makespan := search.rows[0]["order"]) is not None:
        shortest = time_of(makespan)
        yield f"its schedule was searched: with blocks of these lengths none takes less than {shortest}"
    if search.constraints:
        yield f"it respects all constraints: {search.constraints}"
    if search.tried[0] < search.tried[1]:
        yield "the deadline ended the search: with a longer one there may be a quicker plan"
    if search.inside is None or not searched:
        return
    bound, decisions, choices, sums, seconds = search.inside
    if 0 < bound <= step:
        times = step / bound
        plans = "that respects them " if search.constraints else ""
        if any(word in row["plan"] for row in search.rows for word in OTHER):
            plans += "and " if plans else "that "
            plans += "recomputes all layers or none, offloads nothing and runs no parts in turn, "
        lower = f"{time_of(bound)}: {times:.3f} times that"
        yield f"no plan of one block {plans}takes less than {lower}"
    yield (
        f"searched: {decisions} decisions with {choices:,} choices, {sums:,.0f} sums in {time_of(seconds)};"
        f" {search.tried[0]} of {search.tried[1]} shapes with names, {search.left_out} plans left out"
    )
    if search.pipelines is not None:
        places, groups, looked, seconds, is_whole = search.pipelines
        rest = "" if is_whole else "; not all were evaluated, for lack of time or memory"
        yield (
            f"pipelines: {places} places to cut, {groups} groups of devices that differ,"
            f" {looked:,} evaluated in {time_of(seconds)}{rest}"
        )


def explained(search: Found, graph: Graph, path: str, others: Callable[[], Found]) -> Iterator[str]:
    """Why an operator is divided so in the chosen plan. `others` finds more plans, for one with a name."""
    at = operator_at(graph, path)
    answer = search.explain(at, WAYS)
    first = search.rows[0]
    if answer is None:
        yield from _by_plans(others(), at, path)
        return
    name, block, count, ways = answer
    if name != first["plan"]:
        yield f"the plan that was chosen is `{first['plan']}`: this is about `{name}`, from which it was made"
    if block is not None:
        number, blocks, (begin, end) = block
        where = f"device{'' if end == begin + 1 else 's'} {set_of(begin, end - 1)}"
        yield f"it is in block {number + 1} of {blocks} of `{name}`, on {where}: this is about that block"
    yield from _why(path, ways)
    others_of_it = "" if count == 1 else f", with {count - 1} more that are split with it"
    best = "plan" if block is None else "block"
    yield f"{path}{others_of_it}: what the best {best} takes with each way to split it"
    yield f"{'':<52} {'a step':>10} {'works':>9} {'waits':>9} {'sends':>9} {'memory':>9}  better if"
    yield from (_way(way, first=number == 0) for number, way in enumerate(ways))


def _by_plans(search: Found, at: int, path: str) -> Iterator[str]:
    """Of a plan with a name: the quickest other plans that split the operator otherwise."""
    from ..report.memory import size_of

    if search.plan(0).devices == 1:
        yield NOTHING_TO_DIVIDE
        return
    ways = _ways_of_plans(search, at)
    chosen, *others = ways
    yield f"the plan that was chosen is `{chosen['plan']}`, and splits {path} by `{chosen['divided']}`"
    if not others:
        yield "no other plan that was evaluated splits it in another way"
        return
    yield "the quickest of the plans that split it in another way:"
    yield f"{'':<32} {'a step':>10} {'memory':>9}  plan"
    for split in ways:
        over = "chosen" if split is chosen else f"+{time_of(split['seconds_more'])}"
        over = over if split["fits"] else "no room"
        yield f"{split['divided']:<32} {over:>10} {size_of(split['bytes']):>9}  {split['plan']}"


def _ways_of_plans(search: Found, at: int) -> list[dict[str, Any]]:
    """Each way to split the operator once, by the quickest plan that has it; the chosen plan's first."""
    ways: dict[str, dict[str, Any]] = {}
    candidates = search.rows
    for number, candidate in enumerate(candidates):
        _, splits, devices = search.plan(number).decisions[at]
        divided = " x ".join(f"{dim} {parts}" for dim, parts in splits if parts > 1) or (
            WHOLE if len(set(devices)) == 1 else f"{WHOLE} on each of {len(set(devices))}"
        )
        more = candidate["seconds"] - candidates[0]["seconds"]
        split = {"divided": divided, "plan": candidate["plan"], "seconds_more": more}
        ways.setdefault(divided, split | {"bytes": candidate["memory"][1], "fits": candidate["fits"]})
    return list(ways.values())[:WAYS]


def explained_in_numbers(
    search: Found, graph: Graph, path: str, others: Callable[[], Found]
) -> dict[str, Any]:
    """The same as JSON: of every way what the best plan with it takes."""
    at = operator_at(graph, path)
    answer = search.explain(at, WAYS)
    common = {"path": path, "plan": search.rows[0]["plan"]}
    if answer is None:
        return common | {"of": None, "block": None, "alike": 0, "ways": _ways_of_plans(others(), at)}
    name, block, count, ways = answer
    names = ("compute", "wait", "update", "send")
    return common | {
        "of": name,
        "block": block and {"number": block[0], "of": block[1], "devices": block[2]},
        "alike": count,
        "ways": [
            {
                "divided": divided,
                "seconds_more": more,
                "seconds": dict(zip(names, seconds, strict=True)),
                "bytes": held,
                "better_if": change,
            }
            for divided, more, seconds, held, change in ways
        ],
    }


Way = tuple[str, float, tuple[float, float, float, float], float, str | None]
"""Its name, seconds more, those to work, wait, update and send parameters, bytes, and what it would take."""


def _why(path: str, ways: Sequence[Way]) -> Iterator[str]:
    """In words, what speaks for the way that was chosen."""
    chosen = ways[0]
    if chosen[0] == WHOLE:
        yield f"{path} is whole: it has one device"
        return
    if len(ways) == 1:
        yield f"{path} is split by `{chosen[0]}`: there is no other way"
        return
    other = min(ways[1:], key=lambda way: way[1])
    more = [theirs - ours for ours, theirs in zip(chosen[2], other[2], strict=True)]
    worse = {
        "compute": more[0] + more[2],
        "wait for each other": more[1],
        "send parameters and gradients": more[3],
    }
    what = max(worse, key=lambda word: worse[word])
    if other[1] <= 0:
        why = f"`{other[0]}` would take as long"
    elif worse[what] > 0:
        why = f"with `{other[0]}`, the next best, devices would {what} for {time_of(worse[what])} more"
    else:
        why = f"with `{other[0]}`, the next best, they would need more memory, or send more to other blocks"
    yield f"{path} is split by `{chosen[0]}`: {why}"


def _way(way: Way, first: bool) -> str:
    from ..report.memory import size_of

    name, more, (works, waits, updates, sends), held, change = way
    over = "chosen" if first else f"+{time_of(more)}"
    times = " ".join(f"{time_of(seconds):>9}" for seconds in (works + updates, waits, sends))
    return f"{name:<52} {over:>10} {times} {size_of(int(held)):>9}  {change or ''}".rstrip()


def operator_at(graph: Graph, path: str) -> int:
    """The number of the dearest of those whose path fits."""
    all_of = list(enumerate(graph.operators))
    fits = [it for it in all_of if it[1].path == path or fnmatchcase(it[1].path, path)]
    inside = [it for it in all_of if it[1].path.startswith(path + ".")]
    if fits or inside:
        return max(fits or inside, key=lambda it: it[1].cost.flops)[0]
    raise PlanError(
        "SW0926",
        f"no operator has the path {path}",
        why="`shardwright plan` prints the paths of all operators",
        fix=did_you_mean(path, {it.path for it in graph.operators})
        or "name one of them, or a glob such as `h.*.mlp`",
    )
