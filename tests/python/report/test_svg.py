"""`--svg` of commands: well-formed pictures whose text is text, with the same bytes each time.

`UPDATE_GOLDEN=1 pytest -p no:xdist tests/python/report/test_svg.py` writes the golden ones anew.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from shardwright.cli import main

GOLDEN = Path(__file__).parents[1] / "golden"
GRAPH = str(GOLDEN / "gpt.graph")
COMMANDS = {
    "simulate": (GRAPH, "--plan", "stages:2 x 1f1b x data", "--cluster", "h200:4", "--batches", "8"),
    "schedule": ("v", "--devices", "4", "--micro-batches", "6"),
    "compare": (GRAPH, "--cluster", "h200:4"),
    "plan": (GRAPH, "--devices", "4", "--plan", "data:2 x megatron:2"),
}


def picture(command: str, path: Path) -> str:
    assert main([command, *COMMANDS[command], "--svg", str(path)]) == 0
    return path.read_text(encoding="utf-8")


def words_of(text: str) -> list[str]:
    return [it.text or "" for it in ElementTree.fromstring(text).iter() if it.tag.endswith("}text")]


@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_one_picture_and_the_same_each_time(command: str, tmp_path: Path) -> None:
    text = picture(command, tmp_path / "one.svg")
    assert text == picture(command, tmp_path / "two.svg")
    root = ElementTree.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert root.attrib["viewBox"] == f"0 0 {width:g} {height:g}"
    for it in root.iter():
        at = {name: float(it.attrib[name]) for name in ("x", "y", "cx", "cy") if name in it.attrib}
        across, down = at.get("x", at.get("cx", 0.0)), at.get("y", at.get("cy", 0.0))
        assert 0 <= across <= width and 0 <= down <= height, it.attrib
        if it.tag.endswith("}rect") and "x" in it.attrib:
            assert across + float(it.attrib["width"]) <= width + 0.1, it.attrib


@pytest.mark.parametrize("command", ["schedule", "plan"])
def test_it_is_as_it_was(command: str, tmp_path: Path) -> None:
    drawn, golden = picture(command, tmp_path / "new.svg"), GOLDEN / f"{command}.svg"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(drawn, encoding="utf-8")
    assert drawn == golden.read_text(encoding="utf-8")


def test_it_says_what_it_shows(tmp_path: Path) -> None:
    said = {command: words_of(picture(command, tmp_path / f"{command}.svg")) for command in COMMANDS}
    assert said["simulate"][0] == "Gpt under stages:2 x 1f1b x data"
    assert {"devices 0..2", "devices 2..4", "forward", "backward", "communication"} <= {*said["simulate"]}
    assert {"1", "8"} <= {*said["simulate"]}, "micro-batches have their numbers"
    assert len([word for word in said["simulate"] if word.startswith("at most ")]) == 2, "memory of a line"
    assert {"device 0", "device 3", "forward", "backward", "F0", "B5"} <= {*said["schedule"]}
    assert "Plans of Gpt on h200:4" in said["compare"] and "step time" in said["compare"]
    assert said["plan"][0] == "Gpt under data:2 x megatron:2"
    assert {"0", "1", "2", "3", "batch 2"} <= {*said["plan"]}


def test_the_frontier_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = words_of(picture("compare", tmp_path / "all.svg"))
    quickest = capsys.readouterr().out.split("`")[1]
    assert quickest in words


@pytest.mark.parametrize("command", COMMANDS)
def test_where_it_cannot_be_written_it_says_so(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *COMMANDS[command], "--svg", str(tmp_path / "no" / "it.svg")]) == 1
    assert "SW0934" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_browser_draws_no_text_over_the_edge(command: str, tmp_path: Path) -> None:
    picture(command, tmp_path / "it.svg")
    with Browser(1200, 900) as browser:
        browser.open(tmp_path / "it.svg")
        over = browser.ask(
            "[...document.querySelectorAll('text')].filter((it) => { const box = it.getBBox();"
            " return box.x < 0 || box.x + box.width > 1000; }).map((it) => it.textContent)"
        )
        assert over == [] and browser.errors == []
