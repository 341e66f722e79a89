"""Ten questions of somebody who has never seen the project, and the page that answers each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
HOME = ROOT / "README.md"
CLICKS = 2
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+\.md)(?:#[^)\s]*)?\)")

# The question, the page, the heading below which it is answered, and words of the answer.
QUESTIONS = [
    (
        "I have a loop with FSDP2. Which lines change?",
        "coming-from/ddp-and-fsdp2.md",
        "Before and after",
        "sw.parallelize",
    ),
    ("Will my model fit, before I pay for GPUs?", "explanation/memory.md", "A limit", "refused"),
    ("How do I start it under Slurm?", "how-to/many-machines.md", "Several machines", "sbatch"),
    ("A node dies: what is lost?", "how-to/many-machines.md", "When machines are taken away", "checkpoint"),
    ("May I resume on fewer GPUs?", "how-to/checkpoints.md", "What continues", "plan"),
    ("What is FSDP called here?", "faq.md", "What is FSDP called here", "zero3"),
    (
        "How do I know that it computes the same?",
        "faq.md",
        "How do I know that it computes the same",
        "proved",
    ),
    (
        "Can I keep Transformers' Trainer, with LoRA?",
        "how-to/transformers-trainer.md",
        "TRL and PEFT",
        "LoRA",
    ),
    ("My model has a Triton kernel.", "how-to/custom-operators.md", "Custom operators and kernels", "rule"),
    ("Why is my step slow?", "tutorials/slow-step.md", "Look at one step", "simulate"),
]

# Words of the field, and the page whose title has them.
WORDS = {
    "activation checkpointing": "explanation/activation-checkpointing.md",
    "context parallel": "explanation/context-parallel.md",
    "expert parallel": "explanation/expert-parallel.md",
    "device mesh": "reference/plan-names.md",
    "sharding": "reference/plan-names.md",
}

pytestmark = pytest.mark.skipif(not HOME.exists(), reason="the tests run away from the repository")


def within_clicks() -> set[Path]:
    """The pages that so many links lead to from the first one."""
    reached = {HOME}
    for _ in range(CLICKS):
        reached |= {link for page in reached for link in links(page)}
    return reached


def links(page: Path) -> Iterator[Path]:
    for match in LINK.finditer(page.read_text()):
        there = (page.parent / match[1]).resolve()
        if there.exists():
            yield there


def below(page: Path, heading: str) -> str:
    """What stands below the heading that begins so, up to the next one that is no deeper."""
    parts = re.split(r"^(#+) (.*)$", page.read_text(), flags=re.MULTILINE)
    sections = list(zip(parts[1::3], parts[2::3], parts[3::3], strict=True))
    at = next(at for at, (_, title, _) in enumerate(sections) if title.startswith(heading))
    text = sections[at][2]
    for marks, _, more in sections[at + 1 :]:
        if len(marks) <= len(sections[at][0]):
            break
        text += more
    return text


@pytest.mark.parametrize(
    ("page", "heading", "words"), [row[1:] for row in QUESTIONS], ids=[row[0] for row in QUESTIONS]
)
def test_a_question_is_answered_within_two_clicks(page: str, heading: str, words: str) -> None:
    assert DOCS / page in within_clicks()
    assert words in below(DOCS / page, heading)


@pytest.mark.parametrize("words", WORDS)
def test_words_of_the_field_are_titles(words: str) -> None:
    title = (DOCS / WORDS[words]).read_text().splitlines()[0]
    assert title.startswith("# ") and words in title.lower()
