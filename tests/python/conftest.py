"""Tests are quiet, and leave nothing in the user's cache or in the temporary directory. Processes that they
start inherit it."""

from __future__ import annotations

import gc
import multiprocessing.util
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import cores

pytest_plugins = ["crashes"]
# What differs from the golden messages is shown.
pytest.register_assert_rewrite("refusing")

os.environ.setdefault("SHARDWRIGHT_CACHE", "off")
os.environ.setdefault("SHARDWRIGHT_PROGRESS", "off")
# What a search finds by then depends on how busy the machine is.
os.environ.setdefault("SHARDWRIGHT_DEADLINE", "inf")

# Each collection looks at all that torch and the models of other tests have made, for a third of a second.
gc.set_threshold(300_000, 20, 10)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=0, help="so many cases of each test, 0 for all")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After `-m` and `-k` have chosen."""
    if number := config.getoption("--cases"):
        chosen = first_cases(items, number)
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen
    items[:] = case_by_case(items)


def first_cases(items: list[pytest.Item], number: int) -> list[pytest.Item]:
    seen: Counter[str] = Counter()
    chosen = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        seen[test] += 1
        if seen[test] <= number:
            chosen.append(item)
    return chosen


def case_by_case(items: list[pytest.Item]) -> list[pytest.Item]:
    """All tests of a `case` of a file one after another: what they share of it, one worker makes."""
    places: dict[object, int] = {}
    for at, item in enumerate(items):
        places.setdefault(_case_of(item), at)
    return sorted(items, key=lambda item: places[_case_of(item)])


def _case_of(item: pytest.Item) -> object:
    asked = getattr(item, "callspec", None)
    return (item.path, id(asked.params["case"])) if asked and "case" in asked.params else item


def pytest_collection_finish() -> None:
    """Nor does any look at what was imported for the tests."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """What is still frozen at the end libraries call leaked."""
    gc.unfreeze()


if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    cores.keep_to_one(int(worker.removeprefix("gw")))


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Such as for reports of bugs, which users are to find later."""
    # That of the process which ranks are forked off is removed at the end of this one, after this folder.
    multiprocessing.util.get_temp_dir()  # type: ignore[attr-defined]
    before = os.environ.get("TMPDIR")
    folder = tmp_path_factory.mktemp("temporary")
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    yield folder
    if before is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before
    tempfile.tempdir = None


@pytest.fixture(scope="module", autouse=True)
def starts() -> Iterator[None]:
    """How `launch` starts ranks."""
    from forking import Forking
    from shardwright.runtime.communication import launch

    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setattr(launch, "FRESH", Forking())
        yield


@pytest.fixture(scope="module", autouse=True)
def captures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Once each, where captures are not what a file tests."""
    from capturing import captured_once

    with captured_once(request.module):
        yield
