#!/usr/bin/env python3
"""Asserts that the crates depend on each other in one direction, and that only `py` knows Python.

What is checked is what ships: normal and build dependencies. Tests may look anywhere but at PyO3.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# A crate may depend on those named behind it and on no other crate of the workspace.
ALLOWED = {
    "diag": "",
    "hashing": "",
    "collective": "",
    "graph": "diag",
    "rules": "diag graph",
    "padding": "diag graph rules",
    "cluster": "diag collective graph",
    "schedule": "",
    "elimination": "",
    "orders": "diag schedule",
    "plan": "diag graph rules schedule",
    "sharding": "collective hashing graph rules",
    "program": "diag collective graph rules",
    "lower": "diag graph rules schedule plan sharding program",
    "check": "diag hashing graph rules program",
    "emit": "diag graph rules sharding program",
    # A second opinion: it must not see `check`, `lower` or `plan`, and has no rules of operators.
    "reference": "diag graph rules program",
    "simulate": "diag hashing graph rules program check cluster",
    "compiler": "diag graph rules schedule plan sharding program lower check emit cluster simulate",
    "search": "diag hashing graph rules schedule orders elimination plan sharding program check cluster"
    " compiler",
    "report": "diag graph rules plan program cluster emit simulate compiler",
    "py": "diag graph rules padding orders plan sharding program lower check emit cluster simulate compiler"
    " search report reference",
}
PYTHON = "pyo3"
MAY_KNOW_PYTHON = {"py"}


def main() -> int:
    metadata = asked()
    problems = forbidden_edges(metadata) + knowing_python(metadata)
    return ended(problems, f"{len(metadata['workspace_members'])} crates, one direction")


def asked(*options: str) -> dict[str, Any]:
    """What cargo knows of the workspace."""
    command = ["cargo", "metadata", "--format-version", "1", *options]
    text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    metadata: dict[str, Any] = json.loads(text)
    return metadata


def ended(problems: list[str], fine: str) -> int:
    """Says what is wrong, or that nothing is; gives the exit status."""
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if not problems:
        print(fine)
    return 1 if problems else 0


def forbidden_edges(metadata: dict[str, Any]) -> list[str]:
    crates = workspace(metadata)
    by_package = {package["name"]: crate for crate, package in crates.items()}
    problems = [
        f"crate `{crate}` has no line in {Path(__file__).name}" for crate in crates if crate not in ALLOWED
    ]
    for crate, package in crates.items():
        for dependency in package["dependencies"]:
            other = by_package.get(dependency["name"])
            ships = dependency["kind"] != "dev"
            if other and ships and other not in ALLOWED.get(crate, "").split():
                problems.append(f"crate `{crate}` must not depend on `{other}`")
    return problems


def knowing_python(metadata: dict[str, Any]) -> list[str]:
    """The crates that reach PyO3, directly or through others, and should not."""
    needs = {
        node["id"]: [dependency["pkg"] for dependency in node["deps"]]
        for node in metadata["resolve"]["nodes"]
    }
    names = {package["id"]: package["name"] for package in metadata["packages"]}
    reaching = {
        crate
        for crate, package in crates_and_ids(metadata)
        if any(names[package_id].startswith(PYTHON) for package_id in reachable(package, needs))
    }
    return [f"crate `{crate}` must not depend on {PYTHON}" for crate in sorted(reaching - MAY_KNOW_PYTHON)]


def reachable(start: str, needs: dict[str, list[str]]) -> set[str]:
    reached, left = {start}, [start]
    while left:
        new = set(needs[left.pop()]) - reached
        reached |= new
        left += new
    return reached


def crates_and_ids(metadata: dict[str, Any]) -> list[tuple[str, str]]:
    return [(crate, package["id"]) for crate, package in workspace(metadata).items()]


def workspace(metadata: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The packages of the workspace by the name of their folder in `crates`."""
    members = set(metadata["workspace_members"])
    return {
        Path(package["manifest_path"]).parent.name: package
        for package in metadata["packages"]
        if package["id"] in members
    }


if __name__ == "__main__":
    sys.exit(main())
