"""Ten questions about a plan: the clicks of the page of reports, and the answers that they lead to."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import CHROMIUM, Browser
from firefox import FIREFOX, Firefox
from shardwright.cli import main
from test_page import PLAN, VIEWS, data_of, show

ROOT = Path(__file__).parents[3]
DOCUMENTED = ROOT / "docs" / "how-to" / "report.md"
# Of the timeline's canvas in pixels: what is above all rows, a row, and in it what is communicated.
HEAD, ROW, TALK = 28, 50, 35


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "page.html"
    assert main(["report", *PLAN, "--compare", "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def data(page: Path) -> Any:
    return data_of(page)


@pytest.fixture(scope="module")
def opened(page: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with Browser() as browser:
        browser.open(page)
        yield browser
        assert browser.errors == []


@pytest.fixture
def browser(opened: Browser) -> Browser:
    show(opened, "overview")
    return opened


def said(browser: Browser, selector: str) -> str:
    """Words as they are shown."""
    found = browser.ask(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
    return " ".join(str(found).split())


def answers(browser: Browser, selector: str, *words: str) -> None:
    text = said(browser, selector)
    assert text and [word for word in words if word not in text] == [], text


def shown(browser: Browser, expression: str) -> str:
    """A number as the page writes it."""
    return str(browser.ask(expression))


def fits(browser: Browser, data: Any) -> None:
    memory = data["overview"]["memory"]
    part = shown(browser, f"percentOf({memory['needed'] / memory['there']})")
    there = shown(browser, f"bytesOf({memory['there']})")
    answers(browser, "[data-figure=memory]", "memory at the peak", f"{part} of {there}")


def waits(browser: Browser, data: Any) -> None:
    seconds = data["tracks"][0]["seconds"]
    part = "exposed" if seconds["exposed"] > 0 else "idle"
    browser.hover(f"#overview .bar [style*='--{'exposed' if part == 'exposed' else 'waits'}']")
    name = "waits for communication" if part == "exposed" else "idle"
    answers(browser, "#tip", name, shown(browser, f"timeOf({seconds[part]})"), "of the step")


def is_late(browser: Browser, data: Any) -> None:
    browser.click("#tab-timeline")
    browser.click("#timeline button:last-of-type")
    assert said(browser, "#timeline button:last-of-type") == "Critical path"
    timeline = data["timeline"]
    tasks, role = timeline["tasks"][1], data["tracks"][1]["role"]
    red = (
        (code, start + part[1] + part[2] / 2, part)
        for code, _, start, _, parts in zip(*[iter(tasks)] * 5, strict=True)
        for part in zip(*[iter(timeline["parts"][parts])] * 4, strict=True)
    )
    code, middle, (instr, _, long, exposed) = max(red, key=lambda one: one[2][3])
    assert exposed > 0
    x, y, width, left = browser.ask(
        "(() => { const it = document.getElementById('timeline-canvas');"
        " const box = it.getBoundingClientRect();"
        " return [box.x, box.y, it.clientWidth - LINE.left, LINE.left]; })()"
    )
    whole = timeline["seconds"] * timeline["ticks_per_second"]
    browser.press(x + left + middle / whole * width, y + HEAD + ROW + TALK)
    kind = timeline["kinds"][timeline["codes"][role][code]["instrs"][3 * instr]]
    answers(
        browser, "#picked", "What is picked", kind, "exposed", shown(browser, f"percentOf({exposed / long})")
    )


def holds_the_peak(browser: Browser, data: Any) -> None:
    browser.click("#tab-memory")
    browser.click("#memory .tools button:nth-child(2)")
    track = data["memory"]["tracks"][1]
    most = max(zip(track["peak"], data["memory"]["purposes"], strict=True))
    answers(browser, "#peak tr:first-child", most[1], shown(browser, f"bytesOf({most[0]})"))
    operator = re.search(r'%\S+ in ".*" at \S+', track["at"])
    assert operator
    answers(browser, "#memory", "At the peak", operator[0])


def would_buy(browser: Browser, data: Any) -> None:
    browser.click("#tab-compare")
    row = next(row for row in data["sensitivity"]["rows"] if row["what"] == "links twice as fast")
    seconds = shown(browser, f"timeOf({row['seconds']})")
    answers(browser, "#sensitivity", f"{row['what']} {seconds}")
    assert row["seconds"] < data["overview"]["seconds"]


def is_sent_most(browser: Browser, data: Any) -> None:
    browser.click("#tab-communication")
    browser.click("#entries th:nth-child(7) button")
    most = max(data["communication"]["entries"], key=lambda one: one["bytes"])
    answers(browser, "#entries tbody tr", most["kind"], shown(browser, f"bytesOf({most['bytes']})"))
    answers(browser, "#communication", "By kind", most["kind"])


def sends_to_whom(browser: Browser, data: Any) -> None:
    browser.click("#tab-communication")
    matrix = data["communication"]["matrix"]
    at, most = max(enumerate(matrix["bytes"]), key=lambda one: one[1])
    cells = "#matrix rect"
    browser.ask(f"[...document.querySelectorAll('{cells}')].forEach((it, at) => it.dataset.at = at)")
    browser.hover(f"{cells}[data-at='{at}']")
    source, target = divmod(at, matrix["lines"])
    answers(browser, "#tip", f"{source} to {target}", shown(browser, f"bytesOf({most})"))


def module(browser: Browser, path: str) -> None:
    browser.click("#tab-model")
    browser.click(f'tr[data-path="{path}"]')


def is_sharded(browser: Browser, data: Any) -> None:
    module(browser, "h.0.mlp")
    answers(browser, "#model .details", "h.0.mlp", "Sharding", "batch 2", "parts")
    assert browser.ask("document.querySelectorAll('#model .details svg rect').length") == 2


def is_split_so(browser: Browser, data: Any) -> None:
    linear = (
        "[...document.querySelectorAll('#modules tr')].find((it) => it.previousElementSibling?.dataset.path"
        " === 'h.0.attn.c_attn' && it.innerText.trim().startsWith('linear'))"
    )
    module(browser, "h.0.attn.c_attn")
    if not browser.ask(f"{linear} !== undefined"):
        browser.click('tr[data-path="h.0.attn.c_attn"]')
    browser.ask(f"{linear}.id = 'linear'")
    browser.click("#linear")
    answers(browser, "#model .details", "rule", "may split", "Other ways")
    answers(browser, "#alternatives .chosen", "batch 2")
    assert browser.ask("document.querySelectorAll('#alternatives tbody tr').length") > 1


def comes_next(browser: Browser, data: Any) -> None:
    browser.click("#tab-compare")
    plans = data["compare"]["plans"]
    at, plan = next((at, one) for at, one in enumerate(plans) if not one["is_this"] and one["command"])
    browser.click(f"#plans tbody tr:nth-child({at + 1})")
    words = shlex.split(said(browser, "#opened-command"))
    assert words == shlex.split(plan["command"]) and words[:2] == ["shardwright", "report"]


QUESTIONS: dict[str, Callable[[Browser, Any], None]] = {
    "Does it fit, and how much room is left?": fits,
    "What do devices wait for?": waits,
    "Why is the second stage late?": is_late,
    "Which layer holds the peak?": holds_the_peak,
    "What would faster links buy?": would_buy,
    "What is sent the most?": is_sent_most,
    "Who sends to whom?": sends_to_whom,
    "How is this layer sharded?": is_sharded,
    "Why is this operator split so?": is_split_so,
    "Which plan comes next?": comes_next,
}


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_clicks_lead_to_the_answer(question: str, browser: Browser, data: Any) -> None:
    QUESTIONS[question](browser, data)


@pytest.mark.skipif(not DOCUMENTED.exists(), reason="the tests run away from the repository")
def test_the_questions_are_those_of_the_page_of_reports() -> None:
    section = DOCUMENTED.read_text().partition("## Ten questions")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (.*?\?) \|", section, re.MULTILINE) == list(QUESTIONS)


@pytest.mark.slow
@pytest.mark.skipif(FIREFOX is None, reason="there is no Firefox on this machine")
def test_firefox_shows_each_view_without_an_error(page: Path) -> None:
    with Firefox() as browser:
        browser.open(page)
        for view in VIEWS:
            browser.ask(f"document.getElementById('tab-{view}').click()")
            assert browser.ask(f"document.querySelector('#{view} .card').getBoundingClientRect().height") > 40
        assert browser.errors(page) == []
