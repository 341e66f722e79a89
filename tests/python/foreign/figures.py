"""What all results say together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .results import Found
from .trying import (
    AGAIN,
    HARNESS,
    as_without,
    is_equal_again,
    is_parallelized,
    is_parallelized_again,
)

Of = Callable[[Sequence[Found], str, Callable[[Found], bool]], "Figure"]


@dataclass(frozen=True)
class Figure:
    """So many of those that are asked."""

    what: str
    count: int
    out_of: int

    def __str__(self) -> str:
        return f"{self.count} of {self.out_of} ({self.count / self.out_of:.1%})" if self.out_of else "none"


def figures(results: Sequence[Found]) -> list[Figure]:
    built = [entry for entry in results if entry["state"] not in HARNESS]
    captured = [entry for entry in built if is_captured(entry)]
    split = [it for it in _under(captured, "megatron") if it["plans"]["megatron"]["outcome"] != "nothing"]
    drawn = _under(captured, "random") + [entry for entry in built if not is_captured(entry)]

    found_rules = AGAIN["discovered"]

    def share(some: Sequence[Found], what: str, holds: Callable[[Found], bool]) -> Figure:
        return Figure(what, sum(map(holds, some)), len(some))

    return [
        share(results, "built, and judged", lambda entry: entry["state"] not in HARNESS),
        share(built, "captured whole", is_whole),
        share(built, "captured with parts that run as they are", lambda entry: has_opaque(entry)),
        share(built, "compared in float64 throughout", lambda it: is_captured(it) and not it["coarse"]),
        share(built, "every operator under a rule", under_rules),
        share(built, f"every operator under a rule, {found_rules}", lambda it: under_rules(it, "discovered")),
        share(built, "compiled and equal under `data`", lambda entry: is_equal(entry, "data")),
        share(split, "equal under `megatron`, if that finds any", lambda entry: is_equal(entry, "megatron")),
        share(drawn, "equal under a random plan", lambda entry: is_equal(entry, "random")),
        share(built, "parallelized", is_parallelized),
        share(built, f"equal under `data`, {found_rules}", lambda it: is_equal_again(it, "discovered")),
        share(built, f"parallelized, {found_rules}", lambda it: is_parallelized_again(it, "discovered")),
        *before(built, share),
    ]  # fmt: skip


def before(built: Sequence[Found], share: Of) -> list[Figure]:
    """The same where no inputs are known."""
    said = AGAIN["without"]
    return [
        share(built, f"captured whole, {said}", lambda it: is_whole(as_without(it))),
        share(built, f"every operator under a rule, {said}", lambda it: under_rules(as_without(it))),
        share(built, f"compiled and equal under `data`, {said}", lambda it: is_equal(as_without(it), "data")),
        share(built, f"parallelized, {said}", lambda it: is_parallelized(as_without(it))),
    ]  # fmt: skip


def _under(captured: Sequence[Found], plan: str) -> list[Found]:
    """Those that were tried under a plan."""
    return [entry for entry in captured if plan in entry["plans"]]


def is_captured(entry: Found) -> bool:
    return bool(entry["state"] == "tried")


def has_opaque(entry: Found) -> bool:
    return bool(entry.get("opaque"))


def is_whole(entry: Found) -> bool:
    return is_captured(entry) and not has_opaque(entry)


def under_rules(entry: Found, *ways: str) -> bool:
    """As it is, or captured in one of these ways."""
    made = [entry.get(how, {}) for how in ways] + [entry] * is_captured(entry)
    return any(it.get("opaque") == [] and not it["without_rule"] for it in made)


def by_rounding(entry: Found) -> float:
    """How far a program's results are from one device's at most, where these depend on rounding."""
    return max((made.get("own", 0.0) for made in all_plans(entry).values()), default=0.0)


def is_equal(entry: Found, plan: str) -> bool:
    return is_captured(entry) and entry["plans"].get(plan, {}).get("outcome") == "equal"


def shares(results: Sequence[Found], plan: str) -> tuple[float, float] | None:
    """Of the operators of a model, and of its operations, how many a plan splits: means over the models."""
    plans = [entry["plans"][plan] for entry in results if is_equal(entry, plan)]
    operations = [made["split_operations"] for made in plans if made["split_operations"] is not None]
    if not plans or not operations:
        return None
    return sum(made["split"] for made in plans) / len(plans), sum(operations) / len(operations)


def silently_wrong(results: Sequence[Found]) -> list[tuple[Found, str]]:
    """Programs that were proved, and give other numbers than the model."""
    return [
        (entry, plan)
        for entry in results
        for plan, made in all_plans(entry).items()
        if made["outcome"] == "wrong"
    ]


def all_plans(entry: Found) -> Found:
    """Also the one under which it was tried again."""
    plans = dict(entry.get("plans", {}))
    for how, said in AGAIN.items():
        again = entry.get(how, {}).get("plans", {})
        plans |= {f"{plan}, {said}": made for plan, made in again.items()}
    return plans


def has_zeros(entry: Found) -> bool:
    """Whether some program of it has gradients of zeros where one device has none."""
    return any(made.get("zeros") for made in all_plans(entry).values())


def failures(results: Sequence[Found]) -> list[Found]:
    """What a run of the zoo ends with an error for: what goes wrong, and is not refused."""
    return [entry for entry in results if _fails(entry)]


def _fails(entry: Found) -> bool:
    plans = all_plans(entry).values()
    # The check refuses what lowering made.
    is_ours = any(made.get("code", "").startswith("SW05") for made in plans)
    return (
        is_ours
        or entry["state"] in ("differs", "fails")
        or any(m["outcome"] in ("wrong", "fails") for m in plans)
    )


def without_rule(results: Sequence[Found]) -> list[tuple[str, int]]:
    """Operators that no rule is known for, and in how many models they are."""
    models = Counter(target for entry in results for target in entry.get("without_rule", {}))
    return sorted(models.items(), key=lambda entry: (-entry[1], entry[0]))


def codes(results: Sequence[Found]) -> list[tuple[str, int]]:
    """Codes that models or their plans were refused by, or failed with, and by how many models."""
    models = Counter(code for entry in results for code in _codes_of(entry))
    return sorted(models.items(), key=lambda entry: (-entry[1], entry[0]))


def _codes_of(entry: Found) -> set[str]:
    plans = entry.get("plans", {}).values()
    entries = [entry, *(made for made in plans if made["outcome"] in ("refused", "fails"))]
    return {entry["code"] for entry in entries if entry.get("code")}
