"""What somebody may have meant."""

from __future__ import annotations

from collections.abc import Iterable


def nearby(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known words that are like this one, the nearest first, whatever their case."""
    from difflib import get_close_matches

    by_lower: dict[str, str] = {}
    for name in sorted(known):
        by_lower.setdefault(name.lower(), name)
    return [by_lower[match] for match in get_close_matches(word.lower(), by_lower, most, 0.7)]


def did_you_mean(word: str, known: Iterable[str], before: str = "") -> str:
    """`before` and a question, or nothing where no known word is like this one."""
    near = [f"`{name}`" for name in nearby(word, known)]
    return f"{before}did you mean {' or '.join(near)}?" if near else ""
