#!/usr/bin/env python3
"""Asserts that neither modules of the Python package nor files of a Rust crate use each other in a circle.

Python: imports inside of functions count, too: they only hide a circle. Those for type checkers alone do not.

Rust: a file uses those in which what it names is defined, whoever hands it on by `pub use`. A module and
those inside of it are no circle: it declares them, and they may use what it has. Tests do not count.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Container, Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / "python"
CRATES = ROOT / "crates"

# A Rust path, word by word: a module's from the root of its crate on.
Words = tuple[str, ...]
# For each module the paths of what `use` brings into it.
Names = dict[Words, dict[str, Words]]

# Comments and literals, of which the content is no code.
NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\bb?r(#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^\\'])'""", re.DOTALL
)
TESTS = re.compile(r"#\[cfg\(test\)\]\s*mod \w+ \{.*?^\}", re.DOTALL | re.MULTILINE)
USE = re.compile(r"\buse\s+([^;]+);")
PATH = re.compile(r"(?<![\w:$])\w+(?:::\w+)+")


def main() -> int:
    parts = {"python": python_edges()}
    parts |= {f"crates/{source.parent.name}": rust_edges(source) for source in sorted(CRATES.glob("*/src"))}
    circles = {part: circle for part, edges in parts.items() if (circle := circle_in(edges))}
    for part, circle in circles.items():
        print(f"error: {part}: modules use each other in a circle: {' -> '.join(circle)}", file=sys.stderr)
    if not circles:
        print(f"{sum(map(len, parts.values()))} modules of Python and Rust, no circle")
    return 1 if circles else 0


def circle_in(edges: dict[str, set[str]]) -> list[str]:
    """Modules each of which uses the next one; none if there is no circle."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def python_edges() -> dict[str, set[str]]:
    modules = {name_of(path): path for path in sorted(PYTHON.rglob("*.py"))}
    return {name: set(imported(name, path, modules)) for name, path in modules.items()}


def name_of(path: Path) -> str:
    parts = path.relative_to(PYTHON).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(name: str, path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of ours that a module imports, but for the packages that it is in."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for statement in statements(ast.parse(path.read_text())):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names if alias.name in modules)
            continue
        parts = package.split(".")[: len(package.split(".")) - statement.level + 1]
        base = ".".join([*(parts if statement.level else []), *filter(None, [statement.module])])
        for alias in statement.names:
            module = f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
            if module in modules and module != name:
                yield module


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        yield from statements(child)


def rust_edges(source: Path) -> dict[str, set[str]]:
    texts = {module_of(path.relative_to(source)): code(path) for path in sorted(source.rglob("*.rs"))}
    uses = {module: list(used(module, text, texts)) for module, text in texts.items()}
    names = {module: dict(all_of) for module, all_of in uses.items()}
    edges: dict[str, set[str]] = {}
    for module, text in texts.items():
        paths = [path for _, path in uses[module]] + list(named(module, text, names))
        files = {defining(path, names) for path in paths}
        edges["::".join(module)] = {"::".join(file) for file in files if not is_inside(module, file)}
    return edges


def module_of(path: Path) -> Words:
    parts = path.with_suffix("").parts
    return parts[:-1] if parts[-1] in ("lib", "main", "mod") else parts


def code(path: Path) -> str:
    return TESTS.sub("", NO_CODE.sub('""', path.read_text()))


def is_inside(one: Words, other: Words) -> bool:
    """Whether one of two modules is in the other, or they are the same."""
    return all(a == b for a, b in zip(one, other, strict=False))


def used(module: Words, text: str, modules: Container[Words]) -> Iterator[tuple[str, Words]]:
    """What `use` brings into a file from its crate: by the name that it has there, its path."""
    for statement in USE.finditer(text):
        for name, words in leaves(statement[1]):
            if path := absolute(module, words, modules):
                yield name, path


def leaves(tree: str) -> Iterator[tuple[str, Words]]:
    """`a::{b, c as d}` is b, a::b and d, a::c."""
    head, brace, rest = tree.partition("{")
    if brace:
        for branch in branches(rest.rpartition("}")[0]):
            yield from leaves(head.strip() + branch)
        return
    path, _, name = tree.partition(" as ")
    words = tuple(path.removesuffix("::self").split("::"))
    yield name.strip() or words[-1], words


def branches(text: str) -> Iterator[str]:
    """What stands between commas that are in no braces."""
    depth, start = 0, 0
    for at, sign in enumerate(text + ","):
        depth += (sign == "{") - (sign == "}")
        if sign == "," and depth == 0:
            if branch := text[start:at].strip():
                yield branch
            start = at + 1


def named(module: Words, text: str, names: Names) -> Iterator[Words]:
    """The paths in a file's code that stay in its crate."""
    for match in PATH.finditer(USE.sub("", text)):
        first, *rest = match[0].split("::")
        if known := names[module].get(first):
            yield (*known, *rest)
        elif path := absolute(module, (first, *rest), names):
            yield path


def absolute(module: Words, words: Words, modules: Container[Words]) -> Words | None:
    """A path from the root of the crate on; none if it leads out of that."""
    if up := len(list(takewhile(lambda word: word == "super", words))):
        return (*module[:-up], *words[up:])
    if words[0] == "crate":
        return words[1:]
    if words[0] == "self":
        return (*module, *words[1:])
    return (*module, *words) if (*module, words[0]) in modules else None


def defining(path: Words, names: Names, seen: frozenset[Words] = frozenset()) -> Words:
    """The file that has what a path means, or else the last one that hands it on."""
    file = next(path[:end] for end in range(len(path), -1, -1) if path[:end] in names)
    name, rest = path[len(file) : len(file) + 1], path[len(file) + 1 :]
    further = names[file].get(name[0]) if name else None
    return defining((*further, *rest), names, seen | {path}) if further and path not in seen else file


if __name__ == "__main__":
    raise SystemExit(main())
