"""One model through the whole system: built, captured, compiled and trained beside the single device.

What is found is plain data. Its `state` is one of `STATES`; a model that comes through has for each plan what
became of it, one of `OUTCOMES`.
"""

from __future__ import annotations

import re
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import equality
import zoo
from fuzz.noise import Noise
from fuzz.pairs import COARSE, FINE
from shardwright import Graph, Plan
from shardwright._core import Compiled
from shardwright.capture import Captured, capture
from shardwright.errors import ShardwrightError
from shardwright.report.computed_work import lines_of_work, work_of
from shardwright.start.compiling import captured_model, compile_plan
from shardwright.start.further_programs import skeleton_of

from . import building
from .building.built import Built, NotBuilt, copied, said
from .counting import Counting
from .results import PLANS

STATES = {
    "tried": "captured, compared with the model, and run under plans",
    "refused": "capture refuses it, by a code",
    "differs": "the captured graph computes something else than the model",
    "fails": "capture, or what follows it, fails with an error that is none of ours",
    "not built": "the generic code here makes no model of it that runs and trains",
    "not judged": "what the single device gives is not finite, so that nothing can be compared",
    "too slow": "it was given up after the limit of time",
    "died": "its process ended, by the limit of memory or otherwise",
}
HARNESS = ("not built", "not judged", "too slow", "died")
"""What counts against the code here, and says nothing about the system."""
OUTCOMES = {
    "equal": "losses, gradients and updated values are those of the single device",
    "wrong": "they are not",
    "rounding": "they are not, nor are the single device's own when it rounds otherwise",
    "nothing": "the plan finds nothing to split",
    "refused": "by a code, when it is planned or compiled, or as it draws by itself",
    "fails": "it does not run, or its ranks disagree",
}
DEVICES, STEPS, SEED = 2, 2, 11
AS_THEY_ARE = ("shardwright.module.default", "shardwright.function.default")
"""Operators that run as the Python that they are, unless a rule is registered for them."""
EVEN = 0.55
"""Of a model's operations a rank computes at most this share, if the model counts as parallelized,"""
OPAQUE = 0.05
"""and modules that run as they are have at most this share of them."""

MOST_OWN = 1e-6
"""As far as results may be from those of one device, where its own are as far when it rounds otherwise."""

NO_MEMORY = "can't allocate memory"
"""What PyTorch says where the process may take no more."""
CHANCE = "SW0711"
"""Here programs draw what one device draws, or cannot be compared: what draws by itself is refused."""
AGAIN = {"without": "with `known_inputs=()`", "discovered": "with rules that are found"}
"""How a model is tried again that reads values of its inputs, or runs in part as it is. What was found before
stays, if that ends it."""
Found = dict[str, Any]
Say = Callable[[Found], object]


def tried(package: str, name: str, say: Say = lambda entry: None, plans: Sequence[str] = PLANS) -> Found:
    """`say` hears what is known before each phase, in case it ends the process."""
    entry: Found = {"package": package, "name": name, "state": "too slow", "seconds": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with phase(entry, "build", say):
                built = building.build(package, name)
            entry |= {"kind": built.kind, "task": built.task, "how": built.how}
            entry["parameters"] = sum(p.numel() for p in built.module.parameters())
        except NotBuilt as error:
            return entry | {"state": "not built", "reason": str(error)}
        except Exception as error:
            return entry | {"state": "not built", "reason": said(error)}
        return judged(built, entry, say, plans)


@contextmanager
def phase(entry: Found, name: str, say: Say) -> Iterator[None]:
    entry["phase"] = name
    say(entry)
    begin = time.process_time()
    try:
        yield
    finally:
        entry["seconds"][name] = round(time.process_time() - begin, 2)


def judged(built: Built, entry: Found, say: Say = lambda entry: None, plans: Sequence[str] = PLANS) -> Found:
    """What becomes of a model that was built."""
    try:
        with phase(entry, "reference", say):
            expected, operations = single_device(built)
    except Exception as error:
        return entry | {"state": "not built", "reason": f"it does not train: {said(error)}"}
    if not_finite(expected):
        return entry | {"state": "not judged", "reason": f"{not_finite(expected)} is not finite"}
    entry["operations"] = operations
    try:
        with phase(entry, "capture", say), zoo.widened():
            captured = capture(built.module, built.args, built.kwargs)
            graph = Graph(captured.graph_text)
    except ShardwrightError as error:
        state = "differs" if error.code == "SW0114" else "refused"
        return entry | {"state": state, "code": error.code, "reason": said_of_error(error), "reads": []}
    except BaseException as error:
        return entry | {"state": "fails", "reason": raised(error)}
    if not captured.verified:
        return entry | {"state": "fails", "reason": str(captured.not_compared)}
    entry |= of_graph(graph, captured)
    entry["plans"] = {}
    for name in plans:
        entry["plans"][name] = under(name, built, captured, graph, expected, entry, say)
    if "data" in plans:
        entry |= tried_again(built, expected, entry, say)
    return entry | {"state": "tried"}


def tried_again(built: Built, expected: equality.Result, actual: Found, say: Say) -> Found:
    """In each way that the model has something for."""
    ways: Found = {}
    if actual["reads"]:
        ways["without"] = again("without", built, expected, actual, say, known_inputs=())
    if actual["opaque"]:
        ways["discovered"] = again("discovered", built, expected, actual, say, discover=True)
    return ways


def again(
    how: str, built: Built, expected: equality.Result, actual: Found, say: Say, **capturing: Any
) -> Found:
    """What becomes of it under `data`, captured in another way."""
    try:
        with phase(actual, how, say), zoo.widened():
            captured = captured_model(built.module, built.args, built.kwargs, **capturing)
            graph = Graph(captured.graph_text)
        now = of_graph(graph, captured)
        made = under("data", built, captured, graph, expected, actual | now, say)
    except ShardwrightError as error:
        return {"plans": {"data": {"outcome": "refused", "code": error.code, "reason": said_of_error(error)}}}
    except MemoryError as error:
        return {"plans": {"data": {"outcome": "fails", "reason": str(error)}}}
    except BaseException as error:
        return {"plans": {"data": {"outcome": "fails", "reason": raised(error)}}}
    return {"plans": {"data": made}, **now}


def single_device(built: Built, noise: float = 0.0) -> tuple[equality.Result, int]:
    """The model's own steps, and how many operations they take."""
    equality.torch.manual_seed(SEED)
    with zoo.widened(), Counting() as counting, Noise(noise):
        result = equality.reference(
            built.module, built.args, STEPS, copied(built.kwargs), updates=equality.SGD
        )
    return result, counting.operations


def not_finite(result: equality.Result) -> str:
    for kind, tensors in result.kinds():
        for name, x in tensors.items():
            if x.is_floating_point() and not x.isfinite().all():
                return f"{kind} {name}"
    return ""


def of_graph(graph: Graph, captured: Captured) -> Found:
    whole = [op.target for op in graph.operators if op.target in AS_THEY_ARE and op.rule is None]
    without_rule: dict[str, list[Any]] = {}
    for op in graph.operators:
        if op.rule is None and op.target not in whole:
            seen = without_rule.setdefault(op.target, [0, str(op.shapes), op.line])
            seen[0] += 1
    return {
        "operators": len(graph.operators),
        "without_rule": without_rule,
        "opaque": whole,
        "opaque_share": opaque_share(captured.notes),
        "notes": captured.notes,
        "coarse": is_coarse(captured),
        "reads": list(captured.known_names),
    }


def is_coarse(captured: Captured) -> bool:
    """Whether something is computed in fewer digits than float64, whatever was asked for."""
    return bool(re.search(r"\b(f32|f16|bf16)\[", captured.graph_text))


def opaque_share(notes: list[str]) -> float:
    """Of a forward's operations, what modules take that run as they are, and are not divided."""
    whole = [note for note in notes if "whole on each device" in note]
    shares = re.findall(r"([\d.]+)% of a forward's operations", "\n".join(whole))
    return round(sum(map(float, shares)) / 100, 4)


def under(
    name: str,
    built: Built,
    captured: Captured,
    graph: Graph,
    expected: equality.Result,
    actual: Found,
    say: Say,
) -> Found:
    """What becomes of it under a plan."""
    made: Found = {}
    with phase(actual, name, say):
        try:
            plan = plan_of(name, graph, actual)
            bundle, compiled = compile_plan(captured, plan)
            made |= of_plan(plan, compiled)
        except ShardwrightError as error:
            outcome = "nothing" if error.code == "SW0309" else "refused"
            return {"outcome": outcome, "code": error.code, "reason": said_of_error(error)}
        except BaseException as error:  # a panic of Rust is no Exception
            return {"outcome": "fails", "reason": raised(error)}
        try:
            ours, counted = on_ranks(built, bundle, actual["coarse"])
        except ShardwrightError as error:
            outcome = "refused" if error.code == CHANCE else "fails"
            return made | {"outcome": outcome, "code": error.code, "reason": error.what}
        except Exception as error:
            return made | {"outcome": "fails", "reason": raised(error)}
        made["share"] = round(max(counted) / actual["operations"], 4) if actual["operations"] else None
        return made | compared(built, ours, expected, actual["coarse"])


def plan_of(name: str, graph: Graph, entry: Found) -> Plan:
    if name == "random":
        return Plan.random(graph, DEVICES, zlib.crc32(f"{entry['package']} {entry['name']}".encode()) % 10**6)
    return Plan.named(graph, name, DEVICES)


def on_ranks(built: Built, bundle: Any, coarse: bool) -> tuple[equality.Result, list[int]]:
    """The steps of all ranks, and the operations that each rank took."""
    counted = [0] * bundle.devices

    @contextmanager
    def around(rank: int) -> Iterator[None]:
        with zoo.Widened(), Counting() as counting:
            yield
        counted[rank] = counting.operations

    def options() -> dict[str, Any]:
        return {**equality.single_device(SEED)(), "skeleton": skeleton_of(built.module)}

    with zoo.widened():
        ours = equality.run(
            bundle,
            built.module,
            built.args,
            STEPS,
            options,
            copied(built.kwargs),
            equality.SGD,
            around,
            coarse,
        )
    return ours, counted


def compared(built: Built, ours: equality.Result, expected: equality.Result, coarse: bool) -> Found:
    limit = COARSE if coarse else FINE
    ours, zeros = without_zeros(ours, expected)
    wrong = equality.differences(ours, expected, limit)
    if not wrong:
        return {"outcome": "equal", "zeros": zeros}
    again, _ = single_device(built, 1e-7 if coarse else 1e-14)
    rounding = max((gap / size for _, gap, size in equality.gaps(again, expected) if size), default=0.0)
    if any("other names" in said for said in wrong) or not rounding > limit / 2:
        return {"outcome": "wrong", "reason": "; ".join(wrong[:4])}
    if limit < rounding < MOST_OWN and not equality.differences(ours, expected, rounding):
        return {"outcome": "equal", "zeros": zeros, "own": rounding}
    return {"outcome": "rounding", "reason": wrong[0]}


def without_zeros(ours: equality.Result, expected: equality.Result) -> tuple[equality.Result, int]:
    """Without gradients of nothing but zeros for parameters that one device has no gradient for, and how many
    these are: where gradients are reduced, a rank does not know whether others used what it did not."""
    zeros = {name for name, x in ours.gradients.items() if name not in expected.gradients and not x.any()}
    kept = {name: x for name, x in ours.gradients.items() if name not in zeros}
    return replace(ours, gradients=kept), len(zeros)


def of_plan(plan: Plan, compiled: Compiled) -> Found:
    """How many operators are divided, and which share of the operations is theirs."""
    count = split = 0
    flops = split_flops = 0
    for op, splits, _ in plan.decisions:
        is_split = any(on != "replicate" for on, _ in splits)
        count, split = count + 1, split + is_split
        flops, split_flops = flops + op.cost.flops, split_flops + op.cost.flops * is_split
    work = work_of(plan)
    return {
        "split": split / max(count, 1),
        "split_operations": split_flops / flops if flops else None,
        "repeated": lines_of_work(work)[1:] if work["model"] else [],
    }


def said_of_error(error: ShardwrightError) -> str:
    return error.what + (f" ({error.place})" if error.place else "")


def raised(error: BaseException) -> str:
    """Of an error that is none of ours: anything but being told to end, or the limit of memory."""
    if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
        raise error
    if NO_MEMORY in str(error):
        raise MemoryError(said(error)) from error
    return said(error)


def is_parallelized(entry: Found) -> bool:
    return why_not_parallelized(entry) is None


def as_without(entry: Found) -> Found:
    """What becomes of it if no inputs are known: of a model that reads none, the same."""
    if "without" not in entry:
        return entry
    made: Found = entry["without"]
    if "opaque" in made:
        return entry | made | {"state": "tried"}
    return entry | made["plans"]["data"] | {"state": "refused", "plans": {}, "opaque": []}


def is_equal_again(entry: Found, *ways: str) -> bool:
    """Compiled and equal under `data`, as it is or in one of these ways."""
    made = [entry, *(entry.get(how, {}) for how in ways)]
    return any(it.get("plans", {}).get("data", {}).get("outcome") == "equal" for it in made)


def is_parallelized_again(entry: Found, *ways: str) -> bool:
    """Where it is not as it is, in one of these ways."""
    return is_parallelized(entry) or any(how in entry and why_not_again(entry, how) is None for how in ways)


def why_not_again(entry: Found, how: str) -> str | None:
    """Of a model that is not parallelized as it is: why not in this way."""
    made = entry[how]
    if "opaque_share" not in made:
        return f"{AGAIN[how]}: {made['plans']['data'].get('reason')}"
    why = why_not_parallelized(entry | made | {"state": "tried"})
    said = re.findall(
        r"no rule was found: (.*?), [\d.]+% of a forward's operations", "\n".join(made["notes"])
    )
    return why and f"{why}; no rule: {said[0]}" if said else why


def why_not_parallelized(entry: Found) -> str | None:
    """None if it is, as `EVEN` and `OPAQUE` say; a model that did not come so far says why itself."""
    if entry["state"] != "tried":
        return str(entry.get("reason") or STATES[entry["state"]])
    data = entry["plans"]["data"]
    if data["outcome"] != "equal":
        return f"under `data`: {data.get('reason') or OUTCOMES[data['outcome']]}"
    if entry["opaque_share"] > OPAQUE:
        return f"modules that run as they are have {entry['opaque_share']:.0%} of a forward's operations"
    if data["share"] is None:
        return "it has no products, convolutions or attention to count"
    if data["share"] > EVEN:
        said = data["repeated"][:1] or ["no operators that count are repeated by the plan"]
        return f"a rank computes {data['share']:.0%} of the single device's operations: {said[0]}"
    return None
