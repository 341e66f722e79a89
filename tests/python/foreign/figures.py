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
    of: int

    def __str__(self) -> str:
        return f"{self.count} of {self.of} ({self.count / self.of:.1%})" if self.of else "none"


def figures(results: Sequence[Found]) -> list[Figure]:
    built = [found for found in results if found["state"] not in HARNESS]
    captured = [found for found in built if is_captured(found)]
    split = [it for it in _under(captured, "megatron") if it["plans"]["megatron"]["outcome"] != "nothing"]
    drawn = _under(captured, "random") + [found for found in built if not is_captured(found)]

    found_rules = AGAIN["discovered"]

    def of(some: Sequence[Found], what: str, holds: Callable[[Found], bool]) -> Figure:
        return Figure(what, sum(map(holds, some)), len(some))

    return [
        of(results, "built, and judged", lambda found: found["state"] not in HARNESS),
        of(built, "captured whole", is_whole),
        of(built, "captured with parts that run as they are", lambda found: has_opaque(found)),
        of(built, "compared in float64 throughout", lambda found: is_captured(found) and not found["coarse"]),
        of(built, "every operator under a rule", under_rules),
        of(built, f"every operator under a rule, {found_rules}", lambda it: under_rules(it, "discovered")),
        of(built, "compiled and equal under `data`", lambda found: is_equal(found, "data")),
        of(split, "equal under `megatron`, if that finds any", lambda found: is_equal(found, "megatron")),
        of(drawn, "equal under a random plan", lambda found: is_equal(found, "random")),
        of(built, "parallelized", is_parallelized),
        of(built, f"equal under `data`, {found_rules}", lambda it: is_equal_again(it, "discovered")),
        of(built, f"parallelized, {found_rules}", lambda it: is_parallelized_again(it, "discovered")),
        *before(built, of),
    ]  # fmt: skip


def before(built: Sequence[Found], of: Of) -> list[Figure]:
    """The same where no inputs are known."""
    said = AGAIN["without"]
    return [
        of(built, f"captured whole, {said}", lambda found: is_whole(as_without(found))),
        of(built, f"every operator under a rule, {said}", lambda found: under_rules(as_without(found))),
        of(built, f"compiled and equal under `data`, {said}", lambda it: is_equal(as_without(it), "data")),
        of(built, f"parallelized, {said}", lambda found: is_parallelized(as_without(found))),
    ]  # fmt: skip


def _under(captured: Sequence[Found], plan: str) -> list[Found]:
    """Those that were tried under a plan."""
    return [found for found in captured if plan in found["plans"]]


def is_captured(found: Found) -> bool:
    return bool(found["state"] == "tried")


def has_opaque(found: Found) -> bool:
    return bool(found.get("opaque"))


def is_whole(found: Found) -> bool:
    return is_captured(found) and not has_opaque(found)


def under_rules(found: Found, *ways: str) -> bool:
    """As it is, or captured in one of these ways."""
    made = [found.get(how, {}) for how in ways] + [found] * is_captured(found)
    return any(it.get("opaque") == [] and not it["without_rule"] for it in made)


def by_rounding(found: Found) -> float:
    """How far a program's results are from one device's at most, where these depend on rounding."""
    return max((made.get("own", 0.0) for made in all_plans(found).values()), default=0.0)


def is_equal(found: Found, plan: str) -> bool:
    return is_captured(found) and found["plans"].get(plan, {}).get("outcome") == "equal"


def shares(results: Sequence[Found], plan: str) -> tuple[float, float] | None:
    """Of the operators of a model, and of its operations, how many a plan splits: means over the models."""
    plans = [found["plans"][plan] for found in results if is_equal(found, plan)]
    operations = [made["split_operations"] for made in plans if made["split_operations"] is not None]
    if not plans or not operations:
        return None
    return sum(made["split"] for made in plans) / len(plans), sum(operations) / len(operations)


def silently_wrong(results: Sequence[Found]) -> list[tuple[Found, str]]:
    """Programs that were proved, and give other numbers than the model."""
    return [
        (found, plan)
        for found in results
        for plan, made in all_plans(found).items()
        if made["outcome"] == "wrong"
    ]


def all_plans(found: Found) -> Found:
    """Also the one under which it was tried again."""
    plans = dict(found.get("plans", {}))
    for how, said in AGAIN.items():
        again = found.get(how, {}).get("plans", {})
        plans |= {f"{plan}, {said}": made for plan, made in again.items()}
    return plans


def has_zeros(found: Found) -> bool:
    """Whether some program of it has gradients of zeros where one device has none."""
    return any(made.get("zeros") for made in all_plans(found).values())


def failures(results: Sequence[Found]) -> list[Found]:
    """What a run of the zoo ends with an error for: what goes wrong, and is not refused."""
    return [found for found in results if _fails(found)]


def _fails(found: Found) -> bool:
    plans = all_plans(found).values()
    # The check refuses what lowering made.
    is_ours = any(made.get("code", "").startswith("SW05") for made in plans)
    return (
        is_ours
        or found["state"] in ("differs", "fails")
        or any(m["outcome"] in ("wrong", "fails") for m in plans)
    )


def without_rule(results: Sequence[Found]) -> list[tuple[str, int]]:
    """Operators that no rule is known for, and in how many models they are."""
    models = Counter(target for found in results for target in found.get("without_rule", {}))
    return sorted(models.items(), key=lambda entry: (-entry[1], entry[0]))


def codes(results: Sequence[Found]) -> list[tuple[str, int]]:
    """Codes that models or their plans were refused by, or failed with, and by how many models."""
    models = Counter(code for found in results for code in _codes_of(found))
    return sorted(models.items(), key=lambda entry: (-entry[1], entry[0]))


def _codes_of(found: Found) -> set[str]:
    plans = found.get("plans", {}).values()
    entries = [found, *(made for made in plans if made["outcome"] in ("refused", "fails"))]
    return {entry["code"] for entry in entries if entry.get("code")}
