"""`shardwright report --recorded`: what ranks measured stands beside what is predicted of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import equality
import models
import shardwright as sw
from browser import CHROMIUM, Browser
from shardwright.cli import main
from shardwright.runtime import run_local

GRAPH = str(Path(__file__).parents[1] / "golden" / "gpt.graph")
PLAN = "stages:2 x 1f1b x data"
HERE = "report", GRAPH, "--cluster", "cpu:4"

# Ranks are threads with one generator.
SEEDING = threading.Lock()

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real steps of four ranks."""
    path = tmp_path_factory.mktemp("recorded") / "steps.json"

    def rank(rank: int, comm: Any) -> Any:
        with SEEDING:
            module, args = models.gpt()
        model = sw.parallelize(module, args, plan=f"{PLAN}:2", comm=comm, cache=False, progress=False)
        given = equality.micro_batches(args, 4)
        with sw.record() as recorded:
            model.train_step(given)
            model.train_step(given)
        return recorded.manifest

    path.write_text(json.dumps(run_local(4, rank)[0]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(steps: Path) -> Path:
    path = steps.parent / "page.html"
    assert main([*HERE, "--plan", PLAN, "--batches", "4", "--recorded", str(steps), "-o", str(path)]) == 0
    return path


def test_what_ranks_measured_is_in_the_page(steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    command = *HERE, "--plan", PLAN, "--batches", "4", "--recorded", str(steps), "--json"
    assert main(command) == 0
    data, recording = json.loads(capsys.readouterr().out), json.loads(steps.read_text())
    recorded = data["recorded"]
    assert recorded["steps"] == 2 and [rank["rank"] for rank in recorded["ranks"]] == [0, 1, 2, 3]
    assert recorded["seconds"] == max(max(role["measured_step_seconds"]) for role in recording["roles"])
    for rank, role in zip(recorded["ranks"], recording["roles"], strict=True):
        assert len(rank["parts"]) == 7 * len(role["communications"])
        ticks = data["timeline"]["ticks_per_second"]
        begun = [start / ticks for start in rank["parts"][3::7]]
        listed = [max(it["measured"]["start_seconds"]) for it in role["communications"]]
        assert begun == pytest.approx(listed, abs=2 / ticks)
    assert "were predicted" in recorded["words"][0] and "the largest difference" in recorded["words"][1]


@pytest.mark.parametrize(
    ("plan", "batches", "why"),
    [("data", "4", "communication"), (PLAN, "8", "number of micro-batches is 4, here it is 8")],
)
def test_another_plan_is_refused(
    steps: Path, capsys: pytest.CaptureFixture[str], plan: str, batches: str, why: str
) -> None:
    command = *HERE, "--plan", plan, "--batches", batches, "--recorded", str(steps), "--json"
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "SW0933" in said and why in said


def test_what_is_no_recording_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = *HERE, "--plan", "data", "-o", str(tmp_path / "page.html"), "--recorded"
    assert main([*command, str(tmp_path / "none.json")]) == 1
    assert "SW0931" in capsys.readouterr().err
    (tmp_path / "some.json").write_text("{}")
    assert main([*command, str(tmp_path / "some.json")]) == 1
    assert "SW0932" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


@pytest.fixture
def browser(page: Path) -> Iterator[Browser]:
    with Browser(1440, 900) as browser:
        browser.open(page)
        browser.click("#tab-timeline")
        browser.drawn()
        yield browser
        assert browser.errors == []


@pytest.mark.slow
@in_a_browser
def test_ranks_have_lines_above_the_prediction(browser: Browser) -> None:
    assert "the largest difference" in browser.ask("document.getElementById('measured').innerText")
    high = "document.getElementById('timeline-canvas').clientHeight"
    before = browser.ask(high)
    browser.click("#show-measured")
    browser.drawn()
    assert browser.ask(high) == before - 4 * browser.ask("LINE.measured")


@pytest.mark.slow
@in_a_browser
def test_a_measured_communication_says_what_it_is(browser: Browser) -> None:
    x, y = browser.ask(
        "(() => { const it = document.getElementById('timeline-canvas').getBoundingClientRect();"
        " const rank = DATA.recorded.ranks[0]; const [start, long] = rank.parts.slice(3, 5);"
        " const all = DATA.recorded.ranks.map((it) => it.seconds);"
        " const whole = Math.max(DATA.timeline.seconds, ...all) / TICK;"
        " const place = (start + long / 2) / whole * (it.width - LINE.left);"
        " return [it.x + LINE.left + place, it.y + LINE.head + 10]; })()"
    )
    browser.move(x, y)
    said = browser.ask("document.getElementById('tip').innerText")
    assert "measured" in said and "predicted" in said and "times that" in said
