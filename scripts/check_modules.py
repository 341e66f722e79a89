#!/usr/bin/env python3
"""Asserts that every Rust file of the crates is compiled, and every test of them built, in few executables.

- A file that no target of its crate names by `mod` is compiled by nobody, and its tests never run.
- A crate has one executable of tests, `tests/all.rs`: to link one for each file takes minutes.
- A target that `cargo test` leaves out has no tests.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from check_circles import NO_CODE
from check_edges import asked, ended

ROOT = Path(__file__).resolve().parent.parent

ATTRIBUTES = r"((?:#\[[^\]]*\]\s*)*)"
MODULE = re.compile(ATTRIBUTES + r"(?:pub(?:\([^)]*\))?\s+)?\bmod\s+(?:r#)?(\w+)\s*;")
# With one of these it is another file, or none.
UNSURE = re.compile(r"#\[\s*(?:path\b|cfg(?!\(test\)\]))")
TEST = re.compile(r"#\[\s*test\s*\]")


def main() -> int:
    packages = asked("--no-deps")["packages"]
    problems = [problem for package in packages for problem in problems_of(package)]
    count = sum(len(files_of(package)) for package in packages)
    return ended(problems, f"{count} files of Rust, all compiled")


def problems_of(package: dict[str, Any]) -> Iterator[str]:
    folder = Path(package["manifest_path"]).parent
    compiled: set[Path] = set()
    for target in package["targets"]:
        root = Path(target["src_path"])
        files = set(modules(root))
        compiled |= files
        if "test" in target["kind"] and root != folder / "tests" / "all.rs":
            yield f"{shown(root)} is one more executable: say `autotests = false`, and `mod` in `all.rs`"
        if not target["test"]:
            yield from (
                f"{shown(file)} has tests, and `{target['name']}` is not tested"
                for file in sorted(files)
                if TEST.search(code(file))
            )
    yield from (
        f"{shown(file)} is compiled by nobody: list it by `mod`"
        for file in files_of(package)
        if file not in compiled
    )


def files_of(package: dict[str, Any]) -> list[Path]:
    return sorted(Path(package["manifest_path"]).parent.rglob("*.rs"))


def modules(root: Path) -> Iterator[Path]:
    """The files of a target: its root, and whatever they name."""
    left = [(root, root.parent)]
    while left:
        file, folder = left.pop()
        yield file
        for attributes, name in MODULE.findall(code(file)):
            if UNSURE.search(attributes):
                continue
            flat, nested = folder / f"{name}.rs", folder / name / "mod.rs"
            left += [(path, folder / name) for path in (flat, nested) if path.is_file()]


def code(file: Path) -> str:
    return NO_CODE.sub('""', file.read_text())


def shown(file: Path) -> Path:
    return file.relative_to(ROOT) if file.is_relative_to(ROOT) else file


if __name__ == "__main__":
    sys.exit(main())
