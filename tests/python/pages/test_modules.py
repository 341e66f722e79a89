"""`scripts/check_modules.py` sees which files of a crate nobody compiles, and which tests nobody runs."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"

FILES = {
    "src/lib.rs": "mod a;\n#[cfg(test)]\nmod tests;\n",
    "src/a.rs": "pub(crate) mod b;",
    "src/a/b.rs": "",
    "src/tests.rs": "#[test]\nfn f() {}",
    "tests/all.rs": "mod one;\nmod two;\n",
    "tests/one.rs": "#[test]\nfn f() {}",
    "tests/two/mod.rs": "mod three;",
    "tests/two/three.rs": "#[test]\nfn f() {}",
    "examples/shown.rs": '#[path = "../tests/two/mod.rs"]\nmod two;\n',
}
LIB = ("lib", "src/lib.rs", True)
ALL = ("test", "tests/all.rs", True)
SHOWN = ("example", "examples/shown.rs", False)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("check_modules")


def problems(
    script: ModuleType, folder: Path, files: dict[str, str], *targets: tuple[str, str, bool]
) -> list[str]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    package: dict[str, Any] = {
        "manifest_path": str(folder / "Cargo.toml"),
        "targets": [
            {"name": kind, "kind": [kind], "src_path": str(folder / path), "test": tested}
            for kind, path, tested in targets
        ],
    }
    return [problem.replace(f"{folder}/", "") for problem in script.problems_of(package)]


def test_where_all_is_listed_there_is_no_problem(script: ModuleType, tmp_path: Path) -> None:
    assert problems(script, tmp_path, FILES, LIB, ALL, SHOWN) == []


@pytest.mark.parametrize(
    "listed",
    ["mod two;", "mod two;\n// mod one;", "mod two;\n/* mod one; */", "mod two;\n#[cfg(any())]\nmod one;"],
)
def test_a_file_that_is_not_listed_is_named(script: ModuleType, tmp_path: Path, listed: str) -> None:
    files = FILES | {"tests/all.rs": listed}
    assert problems(script, tmp_path, files, LIB, ALL) == [
        "examples/shown.rs is compiled by nobody: list it by `mod`",
        "tests/one.rs is compiled by nobody: list it by `mod`",
    ]


def test_a_second_executable_is_named(script: ModuleType, tmp_path: Path) -> None:
    assert problems(script, tmp_path, FILES, LIB, ALL, SHOWN, ("test", "tests/one.rs", True)) == [
        "tests/one.rs is one more executable: say `autotests = false`, and `mod` in `all.rs`"
    ]


@pytest.mark.parametrize(("target", "file"), [(LIB, "src/tests.rs"), (SHOWN, "examples/shown.rs")])
def test_tests_that_are_left_out_are_named(
    script: ModuleType, tmp_path: Path, target: tuple[str, str, bool], file: str
) -> None:
    files = FILES | {file: "#[test]\nfn f() {}"}
    left_out = (target[0], target[1], False)
    targets = [left_out if target == other else other for other in (LIB, ALL, SHOWN)]
    assert problems(script, tmp_path, files, *targets) == [
        f"{file} has tests, and `{target[0]}` is not tested"
    ]
