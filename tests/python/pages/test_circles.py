"""`scripts/check_circles.py` sees what files of a crate use, however they write it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "check_circles.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_circles", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def circle(folder: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    check = script()
    names: list[str] = check.circle_in(check.rust_edges(folder))
    return sorted(set(names))


@pytest.mark.parametrize(
    "there",
    [
        "use crate::b::B;",
        "use super::b::{self};",
        "use crate::{\n    b::{B as Other, C},\n};",
        "use crate::B;",  # what the root hands on
        "fn a() -> crate::b::B {}",
        "use crate::c;\nfn a() { c::B::new() }",  # what another one hands on
        "const QUOTE: char = '\"';\nuse crate::b::B;",
    ],
)
def test_two_files_that_use_each_other_are_a_circle(there: str, tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod a;\nmod b;\nmod c;\npub use b::B;\n",
        "a.rs": there,
        "b.rs": "use crate::a::A;\n",
        "c.rs": "pub use crate::b::B;\n",
    }
    assert {"a", "b"} <= set(circle(tmp_path, files))


@pytest.mark.parametrize(
    "there",
    [
        "/// See [`crate::b`].",
        'const TEXT: &str = "crate::b::B";',
        "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n",
        "use other::b::B;",
        "use super::c::C;",
    ],
)
def test_what_only_looks_like_a_use_is_none(there: str, tmp_path: Path) -> None:
    files = {"lib.rs": "mod a;\nmod b;\nmod c;\n", "a.rs": there, "b.rs": "use crate::a::A;\n", "c.rs": ""}
    assert circle(tmp_path, files) == []


def test_a_module_and_what_is_inside_of_it_are_no_circle(tmp_path: Path) -> None:
    files = {"lib.rs": "mod a;", "a/mod.rs": "mod b;\nuse b::B;", "a/b.rs": "use super::A;"}
    assert circle(tmp_path, files) == []


def test_longer_circles_are_found(tmp_path: Path) -> None:
    files = {
        "lib.rs": "",
        "a.rs": "use crate::b::B;",
        "b/mod.rs": "mod d;\nuse crate::c;",
        "b/d.rs": "",
        "c.rs": "use crate::a;",
    }
    assert circle(tmp_path, files) == ["a", "b", "c"]
