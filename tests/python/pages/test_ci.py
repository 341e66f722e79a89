"""CI makes what `make lint test` makes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def steps_of(target: str) -> list[str]:
    [needed] = re.findall(rf"^{target}: (.*?) ##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return str(needed).split()


def test_every_step_is_made_once() -> None:
    calls = re.findall(r"^(?:exec )?make ([^#&\n]*)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    made = [word for call in calls for word in call.split() if "=" not in word]
    assert sorted(made) == sorted(steps_of("lint") + steps_of("test"))
