#!/usr/bin/env python3
"""Counts what makes the sources and the pages hard to read. No count may rise: `words.json` has them.

- *words*: identifiers that say in a word of our own what the field has a word for. `WORDS` has both.
- *names*: variables, closures and functions that say nothing (`of`, `own`, `found`, `told`).
- *homonyms*: names of types that more than two crates define.
- *sentences*: their mean length and that of the longest twentieth, by page and in doc comments.
- *lines*: of Markdown that are longer than 120 characters, but for tables and code.

`--update` writes the counts down as they are, `--word away` lists where a word stands.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = Path(__file__).with_name("words.json")

# Ours, and the field's.
WORDS = {
    "again": "recompute",
    "alike": "symmetric, replicated or isomorphic",
    "arrangement": "mesh",
    "away": "offload",
    "beside": "static or modifier",
    "chance": "random",
    "column": "per rank",
    "crowd": "contention",
    "deed": "instruction cost",
    "digit": "mesh axis",
    "effort": "operator cost",
    "filling": "padding",
    "fluid": "symmetry",
    "forget": "drop",
    "forgets": "drop",
    "forgotten": "drop",
    "halves": "split backward",
    "home": "parameter sharding",
    "homes": "parameter sharding",
    "ladder": "fallbacks",
    "least": "lower bound",
    "leg": "reshard step",
    "legs": "reshard step",
    "letter": "message",
    "likeness": "facade",
    "looked": "evaluated",
    "lying": "memory format",
    "mail": "messages",
    "meeting": "collective",
    "remembered": "state",
    "rolled": "loop",
    "row": "candidate",
    "rung": "fallback",
    "settle": "synchronise gradients",
    "slid": "symmetry",
    "spread": "sharding spec",
    "told": "estimated",
    "turn": "iteration",
    "turns": "iteration",
    "way": "route",
}
NOT_OURS = ("is_ascii_digit", "is_ascii_hexdigit")
"""Names of the standard library."""
EMPTY = ("of", "own", "found", "told")
CRATES = 2
"""So many crates may define a type of one name."""
LONG = 120
CHANGE = 200
"""A line of the changelog is one change."""
AIMS = {"mean ": 17.0, "p95 ": 30.0}
"""Words of a sentence. Below these a count may rise."""
GENERATED = ("zoo.md", "interface.md", "operators.md")
# An indented `type` is named by the trait that it is of.
TYPE = re.compile(
    r"^(?:\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait)|(?:pub(?:\([^)]*\))? )?type) ([A-Z]\w*)", re.M
)
RUST_NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|r#*".*?"#*|"(?:\\.|[^"\\])*"', re.S)
RUST_EMPTY = re.compile(rf"\b(?:let|let mut|fn) ({'|'.join(EMPTY)})\b|\b({'|'.join(EMPTY)}) = \|")
ENDS = re.compile(r"(?<=[.!?])[)\"*_`]*\s+(?=[A-Z`*\"(\[])")


def main() -> int:
    given = parsed()
    if given.word:
        return where(given.word)
    counts = measured()
    if given.update:
        kept = {name: count for name, count in sorted(counts.items()) if count}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
        return 0
    known = json.loads(KEPT.read_text())
    risen = [
        f"{name}: {count}, was {known.get(name, 0)}"
        for name, count in counts.items()
        if count > known.get(name, 0) and not is_met(name, count)
    ]
    for line in risen:
        print(f"error: {line} (scripts/check_words.py says what is counted)", file=sys.stderr)
    if risen:
        return 1
    print("words: " + ", ".join(f"{counts[name]} {name}" for name in SUMS))
    return 0


def is_met(name: str, count: float) -> bool:
    return any(name.startswith(kind) and count <= aim for kind, aim in AIMS.items())


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--update", action="store_true", help="write the counts down")
    parser.add_argument("--word", help="list where a word stands")
    return parser.parse_args()


SUMS = ("words", "names", "homonyms", "lines")


def measured() -> dict[str, float]:
    counts: dict[str, float] = {}
    words = Counter(word for _, name in identifiers() for word in parts(name) if word in WORDS)
    counts |= {f"word {word}": count for word, count in words.items()}
    counts["words"] = sum(words.values())
    counts["names"] = sum(map(empty_names, python())) + sum(map(empty_names_of_rust, rust()))
    counts["homonyms"] = len(homonyms())
    for page in pages():
        text = page.read_text()
        name = page.relative_to(ROOT).as_posix()
        add_sentences(counts, name, sentences(prose(text)))
        counts[f"lines {name}"] = sum(1 for _ in long_lines(text, CHANGE if name == "CHANGELOG.md" else LONG))
    counts["lines"] = sum(count for name, count in counts.items() if name.startswith("lines "))
    add_sentences(counts, "Rust's comments", [s for text in rust_docs() for s in sentences(text)])
    add_sentences(counts, "Python's comments", [s for text in python_docs() for s in sentences(text)])
    return counts


def add_sentences(counts: dict[str, float], name: str, lengths: list[int]) -> None:
    if len(lengths) > 3:
        ordered = sorted(lengths)
        counts[f"mean {name}"] = round(sum(lengths) / len(lengths), 1)
        counts[f"p95 {name}"] = ordered[int(len(ordered) * 0.95)]


# ---- identifiers ---------------------------------------------------------------------------------


def rust() -> list[Path]:
    return sorted((ROOT / "crates").glob("*/src/**/*.rs"))


def python() -> list[Path]:
    return sorted((ROOT / "python" / "shardwright").rglob("*.py"))


def identifiers() -> Iterator[tuple[Path, str]]:
    for path in rust():
        names = re.findall(r"\b[A-Za-z_]\w*\b", RUST_NOISE.sub("", path.read_text()))
        yield from ((path, name) for name in names if name not in NOT_OURS)
    for path in python():
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type == tokenize.NAME:
                yield path, token.string


def parts(name: str) -> list[str]:
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def empty_names_of_rust(path: Path) -> int:
    return len(RUST_EMPTY.findall(RUST_NOISE.sub("", path.read_text())))


def empty_names(path: Path) -> int:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    variables = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    return sum(name in EMPTY for name in [*variables, *functions])


def homonyms() -> list[str]:
    crates: dict[str, set[str]] = defaultdict(set)
    for path in rust():
        crate = path.relative_to(ROOT / "crates").parts[0]
        for match in TYPE.finditer(RUST_NOISE.sub("", path.read_text())):
            crates[match[1]].add(crate)
    return sorted(name for name, defining in crates.items() if len(defining) > CRATES)


def where(word: str) -> int:
    for path, name in identifiers():
        if word in parts(name):
            print(f"{path.relative_to(ROOT)}: {name}")
    return 0


# ---- pages ---------------------------------------------------------------------------------------


def pages() -> list[Path]:
    every_page = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(page for page in every_page if page.name not in GENERATED)


def prose(text: str) -> str:
    """Without code, tables, comments and headings; items of lists are sentences of their own."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#"))]
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", "\n".join(lines), flags=re.M)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]*`", "Code", text)


def sentences(text: str) -> list[int]:
    """The numbers of words of each."""
    lengths = []
    for paragraph in re.split(r"\n\s*\n", text):
        flat = " ".join(paragraph.split())
        lengths += [len(sentence.split()) for sentence in ENDS.split(flat) if sentence.strip()]
    return [count for count in lengths if count > 1]


def long_lines(text: str, most: int) -> Iterator[str]:
    is_code = False
    for line in text.splitlines():
        is_code ^= line.startswith("```")
        if len(line) > most and not is_code and not line.lstrip().startswith("|"):
            yield line


def rust_docs() -> Iterator[str]:
    for path in rust():
        for block in re.findall(r"(?:^\s*//[/!] ?.*\n)+", path.read_text(), re.M):
            yield prose(re.sub(r"^\s*//[/!] ?", "", block, flags=re.M))


def python_docs() -> Iterator[str]:
    for path in python():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (
                text := ast.get_docstring(node)
            ):
                yield prose(text)


if __name__ == "__main__":
    sys.exit(main())
