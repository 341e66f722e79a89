"""The batch and the sequence of an example that is made for a model."""

from __future__ import annotations

from ..errors import RuntimeFault

# Beyond this a number is a mistake.
MOST = 1 << 20


def require_sizes(model: str, batch: int, sequence: int | None, longest: int | None = None) -> None:
    """`longest` is how many positions the model has, if they are counted."""
    _require(
        "batch", model, batch, MOST, "an example has at least one row, and no more than a plan can split"
    )
    if sequence is not None and longest is not None:
        _require("sequence", model, sequence, longest, f"{model} has {longest} positions")
    elif sequence is not None:
        _require("sequence", model, sequence, MOST, "an example has at least one token")


def no_sequence(model: str) -> RuntimeFault:
    return _impossible(
        f"{model} is given no sequence",
        "it looks at images, whose size its config has",
        "leave out --sequence",
    )


def no_sizes(model: str) -> RuntimeFault:
    return _impossible(
        f"the sizes of {model} cannot be chosen",
        "its example is what its function returns, or its graph says",
        "leave out --batch and --sequence, or name a model of `shardwright models`, or one from hf:",
    )


def _require(what: str, model: str, number: int, most: int, why: str) -> None:
    if not 0 < number <= most:
        raise _impossible(
            f"there is no example for {model} with a {what} of {number}",
            why,
            f"give a --{what} from 1 to {most}",
        )


def _impossible(what: str, why: str, fix: str) -> RuntimeFault:
    return RuntimeFault("SW0772", what, why=why, fix=fix)
