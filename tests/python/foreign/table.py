"""The page of the zoo, from the results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .figures import (
    Figure,
    all_plans,
    by_rounding,
    codes,
    figures,
    has_opaque,
    has_zeros,
    shares,
    silently_wrong,
    without_rule,
)
from .results import Found, is_of_before
from .trying import (
    EVEN,
    HARNESS,
    OPAQUE,
    PLANS,
    as_without,
    is_parallelized,
    is_parallelized_again,
    why_not_again,
    why_not_parallelized,
)

WIDEST = 220
"""Characters of a reason."""

INTRODUCTION = f"""\
# The zoo

Models that nobody here wrote: of each architecture of the installed Transformers a tiny one from a config, with random weights, and models of other
packages. Each is captured and compared with the module (outputs, buffers, gradients), compiled for two ranks under `data`, `megatron` and a random plan, and trained for
two steps of SGD in float64 beside the single device. Losses, gradients and updated parameters must be equal to a billionth (where a model computes in float32 whatever
its weights are, to three thousandths).

A model counts as **parallelized** if, under `data`, it is equal, a rank's measured operations are at most {EVEN:.0%} of the single device's, and modules that run as they are
have at most {OPAQUE:.0%} of a forward's operations. That is with no help: what a model reads in Python of its inputs is [noticed](../explanation/capture.md#known-inputs). One that reads values is tried again with `known_inputs=()`,
where nothing is: figures of their own, and the column `without`. One in parts of which runs as it is is tried again with [rules that are found](../how-to/discovering.md#of-a-model) (`discover=True`): the column `discover`. `-` is what was not tried so. Operations are those that PyTorch's own counter counts while the two steps run, forward and backward: products, convolutions, attention.
(It counts what the backward of a grouped convolution computes as if that had no groups: under `megatron` a rank's share may then be less than a half.)

A model that the generic code of the zoo does not build, or not in time, says nothing about Shardwright; these are listed last. Written by `make zoo`, which
goes on where it was ended.
"""

PARTIAL = "They are tried in an order that is drawn, so that the shares stand for the whole; those that are parts of others come last."

OF_BEFORE = (
    "Of {} the results are from when inputs were known only if they were named, as with `known_inputs=()`, or only"
    " of `data`: `make zoo` tries these again."
)

ZEROS = (
    "Equal but for gradients of zeros where one device has none, since what runs as it is did not use these parameters"
    " in a step ([why](../explanation/capture.md#modules-that-run-as-they-are))"
)


ROUNDING = (
    "Further than a billionth from one device, but no further than that is from itself where each of its operators rounds"
    " otherwise, by a hundredth of a millionth of a millionth"
)


def page(results: Sequence[Found], listed: Mapping[str, int], versions: str, day: str) -> str:
    """`listed`: of each package how many models there are to try."""
    tried = f"{len(results)} of {sum(listed.values())} models were tried ({versions}; {day})."
    if len(results) < sum(listed.values()):
        tried += " " + PARTIAL
    if before := sum(map(is_of_before, results)):
        tried += f" {OF_BEFORE.format(before)}"
    parts = [
        INTRODUCTION,
        tried,
        _wrong(results),
        _figures(results, listed),
        _shares(results),
        _rules(results),
    ]
    parts += [_models(package, results) for package in listed]
    return "\n\n".join(part.strip("\n") for part in [*parts, _not_built(results)] if part) + "\n"


def _wrong(results: Sequence[Found]) -> str:
    differing = [entry for entry in results if entry["state"] == "differs"]
    lines = ["## Silently wrong", ""]
    lines += [
        f"- **{_name(entry)}** under `{plan}`: {_text(all_plans(entry)[plan]['reason'])}"
        for entry, plan in silently_wrong(results)
    ] or ["None: no program that was proved gave other numbers than its model."]
    zeros = ", ".join(_name(entry) for entry in results if has_zeros(entry))
    if zeros:
        lines += ["", f"{ZEROS}: {zeros}."]
    rounding = ", ".join(
        f"{_name(entry)} ({rounding:.0e})" for entry in results if (rounding := by_rounding(entry))
    )
    if rounding:
        lines += ["", f"{ROUNDING}: {rounding}."]
    if differing:
        lines += ["", "Refused because the captured graph differs from the model (SW0114):", ""]
        lines += [f"- {_name(entry)}: {_text(entry['reason'])}" for entry in differing]
    return "\n".join(lines)


def _figures(results: Sequence[Found], listed: Mapping[str, int]) -> str:
    columns = {"all": list(results)} | {package: _of(package, results) for package in listed}
    columns = {name: some for name, some in columns.items() if some}
    by_column = {name: figures(some) for name, some in columns.items()}
    rows = [
        [
            "tried",
            *(f"{len(some)} of {listed.get(name, sum(listed.values()))}" for name, some in columns.items()),
        ]
    ]
    for at, figure in enumerate(by_column["all"] if by_column else []):
        rows.append([figure.what, *(_figure(by_column[name][at]) for name in columns)])
    return "## Figures\n\n" + _table(["share of what was built", *columns], rows)


def _figure(figure: Figure) -> str:
    return f"{figure.count} of {figure.out_of}, {figure.count / figure.out_of:.0%}" if figure.out_of else "-"


def _shares(results: Sequence[Found]) -> str:
    rows = []
    for plan in PLANS:
        share = shares(results, plan)
        if share is not None:
            rows.append([f"`{plan}`", f"{share[0]:.0%}", f"{share[1]:.0%}"])
    if not rows:
        return ""
    intro = "What a plan splits rather than copies, a mean over the models that are equal under it:"
    return f"{intro}\n\n" + _table(["plan", "of the operators", "of the operations forward"], rows)


def _rules(results: Sequence[Found]) -> str:
    missing = [[f"`{target}`", str(count)] for target, count in without_rule(results)]
    parts = []
    if missing:
        parts.append(
            "Operators without a rule, which are copied:\n\n" + _table(["operator", "models"], missing)
        )
    refused = [[f"[{code}](errors.md)", str(count)] for code, count in codes(results)]
    if refused:
        parts.append("Codes of what was refused:\n\n" + _table(["code", "models"], refused))
    return "\n\n".join(parts)


def _models(package: str, results: Sequence[Found]) -> str:
    rows = [_row(entry) for entry in _of(package, results) if entry["state"] not in HARNESS]
    if not rows:
        return ""
    head = [
        "model",
        "class",
        "capture",
        *(f"`{plan}`" for plan in PLANS),
        "parallelized",
        "reads",
        "`without`",
        "`discover`",
        "why not",
    ]
    return f"## {package}\n\n" + _table(head, sorted(rows))


def _row(entry: Found) -> list[str]:
    plans = entry.get("plans", {})
    if entry["state"] == "tried":
        capture = f"{entry['opaque_share']:.0%} as it is" if has_opaque(entry) else "whole"
    else:
        capture = str(entry.get("code") or entry["state"])
    outcomes = [_outcome(plans.get(plan)) for plan in PLANS]
    reason = why_not_parallelized(entry)
    done = "yes" if is_parallelized(entry) else "no"
    ways = ["", ""]
    if entry.get("reads"):
        ways[0] = _again(entry, "without", is_parallelized(as_without(entry)))
    if done == "no" and (has_opaque(entry) or "discovered" in entry):
        ways[1] = _again(entry, "discovered", is_parallelized_again(entry, "discovered"))
        reason = why_not_again(entry, "discovered") if "discovered" in entry else reason
    reads = ", ".join(f"`{name}`" for name in entry.get("reads", []))
    text = _text(reason or "")
    return [entry["name"], str(entry.get("kind", "")), capture, *outcomes, done, reads, *ways, text]


def _again(entry: Found, how: str, done: bool) -> str:
    if how not in entry:
        return "-"
    outcome = _outcome(entry[how]["plans"]["data"])
    return f"{'yes' if done else 'no'}: {outcome}"


def _outcome(made: Found | None) -> str:
    if made is None:
        return "-"
    share = made.get("share")
    said = made["outcome"] if made["outcome"] != "refused" else str(made["code"])
    return f"{said}, {share:.0%}" if said == "equal" and share is not None else said


def _not_built(results: Sequence[Found]) -> str:
    rows = [
        [entry["package"], entry["name"], entry["state"], _text(str(entry.get("reason", "")))]
        for entry in results
        if entry["state"] in HARNESS
    ]
    if not rows:
        return ""
    head = ["package", "model", "state", "reason"]
    return "## What the zoo did not build or judge\n\n" + _table(head, sorted(rows))


def _of(package: str, results: Sequence[Found]) -> list[Found]:
    return [entry for entry in results if entry["package"] == package]


def _name(entry: Found) -> str:
    return f"{entry['package']} {entry['name']}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell or ' ' for cell in line)} |" for line in lines)


def _text(said: str) -> str:
    """Of an error what fits into a cell: no paths of a machine, no marks of the page's own."""
    said = re.sub(r"(/[\w.+-]+)+/([\w.+-]+)", r"\2", " ".join(said.split()))
    said = said.replace("|", "/").replace("](", "] (").replace("<", "&lt;")
    return said if len(said) <= WIDEST else said[: WIDEST - 3] + "..."
