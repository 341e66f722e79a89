"""`shardwright report`: what the page says, and that a browser shows it."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import CHROMIUM, Browser
from shardwright.cli import main
from shardwright.cli.ops import MARKS
from shardwright.cli.report import words_of_others

GRAPH = str(Path(__file__).parents[1] / "golden" / "gpt.graph")
PLAN = GRAPH, "--plan", "stages:2 x 1f1b x data", "--cluster", "h200:4", "--batches", "8"
VIEWS = ("overview", "timeline", "memory", "model", "communication", "compare", "program")
SIZES = ((1440, 900), (1024, 700), (420, 800))

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


def answer_of(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def data_of(page: Path) -> Any:
    match = re.search(
        r'"application/(\w+)" id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL
    )
    assert match
    return json.loads(gzip.decompress(base64.b64decode(match[2])) if match[1] == "gzip" else match[2])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "page.html"
    assert main(["report", *PLAN, "--compare", "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def data(page: Path) -> Any:
    return data_of(page)


@pytest.fixture
def browser(page: Path) -> Iterator[Browser]:
    with Browser(*SIZES[0]) as browser:
        browser.open(page)
        yield browser
        assert browser.errors == []


def show(browser: Browser, view: str) -> None:
    browser.click(f"#tab-{view}")
    browser.drawn()


@pytest.mark.slow
def test_its_numbers_are_those_of_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    data = answer_of(capsys, "report", *PLAN)
    step, manifest = answer_of(capsys, "simulate", *PLAN), answer_of(capsys, "manifest", *PLAN)
    overview = data["overview"]
    assert (overview["seconds"], overview["utilisation"]) == (step["seconds"], step["utilisation"])
    most = max(step["memory"], key=lambda rank: rank["needed"])
    assert (overview["memory"]["needed"], overview["memory"]["there"]) == (most["needed"], most["there"])
    by_rank = {rank["rank"]: rank for rank in step["ranks"]}
    for row in data["tracks"]:
        assert row["seconds"] == {
            name: value for name, value in by_rank[row["rank"]].items() if name != "rank"
        }
    rows = {row["rank"]: number for number, row in enumerate(data["tracks"])}
    for role in manifest["roles"]:
        entries = [it for it in data["communication"]["entries"] if it["track"] == rows[role["rank"]]]
        assert sum(it["count"] for it in entries) == len(role["communications"])
        bytes = sum(it["bytes"] for it in role["communications"])
        assert sum(it["count"] * it["bytes"] for it in entries) == bytes


def test_it_is_one_file_and_says_what_makes_it_again(page: Path, data: Any) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text) < 500_000 and not re.search(r"""(src|href)=["']?https?:|@import|url\(http""", text)
    words = data["overview"]["command"]
    assert words.startswith("shardwright report ") and "'stages:2 x 1f1b x data'" in words
    assert [row["ranks"] for row in data["tracks"]] == [[[0, 1]], [[2, 3]]]
    assert len(data["compare"]["plans"]) > 3


def test_where_it_cannot_be_written_it_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["report", *PLAN, "-o", str(tmp_path / "no" / "page.html")]) == 1
    assert "SW0930" in capsys.readouterr().err


def test_a_plan_that_does_not_fit_is_shown_all_the_same(tmp_path: Path) -> None:
    cluster = tmp_path / "small.toml"
    cluster.write_text(
        '[[nodes]]\ndevices = ["small:4"]\n[devices.small]\nlike = "h100"\nmemory = "200 KB"\n'
    )
    command = "report", GRAPH, "--plan", "data", "--cluster", str(cluster), "-o", str(tmp_path / "page.html")
    assert main(command) == 3
    memory = data_of(tmp_path / "page.html")["overview"]["memory"]
    assert memory["needed"] > memory["there"]


@pytest.mark.slow
@in_a_browser
def test_each_view_opens(browser: Browser) -> None:
    for view in VIEWS:
        show(browser, view)
        assert browser.ask("location.hash") == f"#{view}"
        shown = browser.ask(
            "[...document.querySelectorAll('main > section:not([hidden])')].map((it) => it.id)"
        )
        assert shown == [view]
        assert browser.ask(f"document.querySelector('#{view} .card').getBoundingClientRect().height") > 40
    assert browser.ask("performance.getEntriesByType('resource').length") == 0


@in_a_browser
def test_packed_data_is_read(page: Path, data: Any, tmp_path: Path) -> None:
    packed = base64.b64encode(gzip.compress(json.dumps(data).encode())).decode()
    large = re.sub(
        r'"application/json" id="data">.*?</script>',
        lambda _: f'"application/gzip" id="data">{packed}</script>',
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    (tmp_path / "large.html").write_text(large, encoding="utf-8")
    with Browser(*SIZES[0]) as browser:
        browser.open(tmp_path / "large.html")
        assert browser.ask("document.getElementById('data').type") == "application/gzip"
        assert browser.ask("DATA.overview.plan") == data["overview"]["plan"]
        show(browser, "timeline")
        assert browser.errors == []


@pytest.mark.slow
@in_a_browser
def test_keys_open_views(browser: Browser) -> None:
    for number, view in enumerate(VIEWS, 1):
        browser.key(str(number))
        assert browser.ask("location.hash") == f"#{view}"
    browser.click("#tab-model")
    browser.key("ArrowRight")
    assert browser.ask("document.activeElement.id") == "tab-communication"


@pytest.mark.slow
@in_a_browser
def test_the_overview_says_what_the_data_says(browser: Browser, data: Any) -> None:
    def figure(name: str) -> str:
        return str(browser.ask(f"document.querySelector('[data-figure={name}] b').textContent"))

    number, unit = figure("seconds").split()
    factor = {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit]
    assert float(number) * factor == pytest.approx(data["overview"]["seconds"], rel=0.01)
    number, unit = figure("memory").split()
    factor = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
    assert float(number) * factor == pytest.approx(data["overview"]["memory"]["needed"], rel=0.01)
    times = data["overview"]["seconds"] / data["overview"]["bound"]
    assert float(figure("bound")[:-1]) == pytest.approx(times, abs=0.006)
    assert data["overview"]["plan"] in browser.ask("document.getElementById('sentence').textContent")
    assert browser.ask("document.getElementById('command').textContent") == data["overview"]["command"]


@pytest.mark.slow
@in_a_browser
def test_a_slice_says_what_it_is(browser: Browser, data: Any) -> None:
    show(browser, "timeline")
    timeline = data["timeline"]
    code, batch, start, slices, _ = timeline["tasks"][0][:5]
    after, long, sort, instr = timeline["slices"][slices][:4]
    first = timeline["codes"][data["tracks"][0]["role"]][code]["instrs"][3 * instr + 1]
    name = data["operators"][first][0]
    x, y, width, left = browser.ask(
        "(() => { const it = document.getElementById('timeline-canvas');"
        " const box = it.getBoundingClientRect();"
        " return [box.x, box.y, it.clientWidth - LINE.left, LINE.left]; })()"
    )
    place = (start + after + long / 2) / (timeline["seconds"] * 1e9)
    browser.move(x + left + place * width, y + 28 + 14)
    said = browser.ask("document.getElementById('tip').innerText")
    assert timeline["sorts"][sort] in said and f"%{name}" in said and f"{batch + 1} of 8" in said
    # Above what is communicated there are bytes.
    begun = timeline["tasks"][0][2], timeline["parts"][timeline["tasks"][0][4]]
    place = (begun[0] + begun[1][1] + begun[1][2] / 2) / (timeline["seconds"] * 1e9)
    browser.move(x + left + place * width, y + 28 + 35)
    said = browser.ask("document.getElementById('tip').innerText")
    assert "bytes" in said and "of its bandwidth" in said


@pytest.mark.slow
@in_a_browser
def test_the_timeline_is_drawn_and_zooms(browser: Browser) -> None:
    show(browser, "timeline")
    count = (
        "(() => { const it = document.getElementById('timeline-canvas'); const all = it.getContext('2d')"
        ".getImageData(0, 0, it.width, it.height).data; let found = 0; const [r, g, b] = [58, 143, 208];"
        " for (let at = 0; at < all.length; at += 4)"
        " if (all[at] === r && all[at + 1] === g && all[at + 2] === b) found++; return found; })()"
    )
    before = browser.ask(count)
    assert before > 200, "forward is blue"
    browser.ask("document.getElementById('timeline-canvas').focus()")
    for _ in range(4):
        browser.key("+")
    browser.drawn()
    assert browser.ask(count) != before
    browser.key("f")
    browser.drawn()
    assert browser.ask(count) == before
    browser.ask("[...document.querySelectorAll('#timeline button')].at(-1).click()")
    browser.drawn()
    path = "document.querySelector('#timeline button:last-of-type').getAttribute('aria-pressed')"
    assert browser.ask(path) == "true", "the critical path is drawn"
    browser.key("m")
    browser.drawn()
    assert browser.ask(count) < before / 2, "micro-batches have their own colours"


@pytest.mark.slow
@in_a_browser
def test_a_table_sorts_and_filters(browser: Browser, data: Any) -> None:
    show(browser, "communication")

    def column(number: int) -> list[str]:
        texts = browser.ask(
            f"[...document.querySelectorAll('#entries tbody tr')].map((it) => it.cells[{number}].innerText)"
        )
        return [str(text) for text in texts]

    entries = data["communication"]["entries"]
    assert column(0) == [it["kind"] for it in entries]
    browser.click("#entries th:nth-child(8) button")
    assert [int(text) for text in column(7)] == sorted((it["count"] for it in entries), reverse=True)
    browser.click("#entries th:nth-child(8) button")
    assert [int(text) for text in column(7)] == sorted(it["count"] for it in entries)
    browser.ask(
        "(() => { const it = document.querySelector('#entries input'); it.value = 'send';"
        " it.dispatchEvent(new Event('input')); })()"
    )
    assert set(column(0)) == {"send"} and len(column(0)) == sum(it["kind"] == "send" for it in entries)


@pytest.mark.slow
@in_a_browser
def test_a_module_shows_its_sharding(browser: Browser) -> None:
    show(browser, "model")
    browser.ask("document.querySelector('tr[data-path=\"h.0.mlp\"]').focus()")
    browser.key("Enter")
    said = browser.ask("document.querySelector('#model .side > div:last-child').innerText")
    assert "h.0.mlp" in said and "batch" in said
    assert browser.ask("document.querySelectorAll('#model .side > div:last-child svg rect').length") == 2


@pytest.mark.slow
@in_a_browser
def test_another_plan_shows_the_command_that_makes_its_page(browser: Browser, tmp_path: Path) -> None:
    show(browser, "compare")
    plans = browser.ask("DATA.compare.plans.map((it) => [it.plan, it.micro_batches])")
    this = browser.ask("DATA.compare.plans.findIndex((it) => it.is_this)")
    assert plans[this] == ["stages:2 x data:2 x 1f1b", 8], "it has another name there"
    assert "this one" in browser.ask(
        f"document.querySelector('#plans tbody tr:nth-child({this + 1})').innerText"
    )
    at = next(at for at, (name, _) in enumerate(plans) if at != this and name.startswith("stages:4"))
    browser.click(f"#plans tbody tr:nth-child({at + 1})")
    command = browser.ask("document.getElementById('opened-command').textContent")
    words = shlex.split(command)
    assert words[0] == "shardwright" and "--compare" not in words
    assert main([*words[1:], "-o", str(tmp_path / "other.html")]) == 0
    overview = data_of(tmp_path / "other.html")["overview"]
    assert [overview["plan"], overview["micro_batches"]] == plans[at]


@pytest.mark.slow
@in_a_browser
def test_it_says_what_holds_the_step_back(browser: Browser, data: Any) -> None:
    show(browser, "compare")
    said = browser.ask("document.getElementById('sensitivity').innerText")
    assert data["sensitivity"]["words"][0] in said and "links twice as fast" in said
    assert all(row["seconds"] <= data["overview"]["seconds"] for row in data["sensitivity"]["rows"][:3])


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("report m --plan data --cluster h200:4 -o page.html", "report m --cluster h200:4"),
        ("report m --plan=data --batch 8 --batches 2 -opage.html", "report m --batch 8"),
        ("report m --pl data --micro-batches 4 --compare --json", "report m"),
        ("report m --recorded steps.json --optimizer sgd", "report m --optimizer sgd"),
    ],
)
def test_other_pages_are_made_alike(words: str, kept: str) -> None:
    assert words_of_others(words.split()) == ["shardwright", *kept.split()]


@pytest.mark.slow
@in_a_browser
def test_the_program_is_linked(browser: Browser) -> None:
    show(browser, "program")
    browser.click("#graph .row:nth-child(2)")
    lit = browser.ask("[...document.querySelectorAll('#emitted .lit')].map((it) => it.innerText)")
    assert any("run.call(" in line for line in lit) and any("embedding" in line for line in lit), lit


SMALL = """
import torch


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 16)

    def forward(self, x):
        hidden = torch.relu(self.up(x))
        return hidden.sum()


def small():
    return Small(), (torch.ones(4, 8),)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a model whose file is at hand."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "small_model.py").write_text(SMALL)
    model, page = f"{folder / 'small_model.py'}:small", folder / "page.html"
    assert main(["report", model, "--plan", "data", "--cluster", "h200:2", "-o", str(page)]) == 0
    return page


def test_what_the_models_lines_say_is_there(small: Path, data: Any) -> None:
    names = data_of(small)["names"]
    said = dict(zip(names["lines"], names["sources"], strict=True))
    assert said["small_model.py:11"] == "hidden = torch.relu(self.up(x))"
    assert data["names"]["sources"] == [], "nobody knows the file of which a graph was written"


@pytest.mark.slow
@in_a_browser
def test_lines_of_the_model_stand_above_their_operators(small: Path) -> None:
    with Browser(*SIZES[0]) as browser:
        browser.open(small)
        show(browser, "program")
        said = browser.ask("[...document.querySelectorAll('#graph .source')].map((it) => it.innerText)")
        assert "hidden = torch.relu(self.up(x))" in said
        assert browser.errors == []


MASKED = """
import torch


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        mask = torch.ones(64, 64).tril()
        for layer in self.layers:
            x = layer(x) * mask
        return x.sum()


def masked():
    return Masked(), (torch.ones(64, 64),)
"""


@pytest.mark.slow
@in_a_browser
def test_a_call_is_linked_with_operators_that_do_not_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "masked.py").write_text(MASKED)
    model, page = f"{tmp_path / 'masked.py'}:masked", tmp_path / "page.html"
    assert main(["report", model, "--plan", "stages:2", "--cluster", "h200:2", "-o", str(page)]) == 0
    with Browser(*SIZES[0]) as browser:
        browser.open(page)
        show(browser, "program")
        links = browser.ask(
            "[...linksOf(1).byOperator].map(([operator, lines]) => [operatorOf(operator).name,"
            " lines.map((line) => DATA.program.roles[1].text.split('\\n')[line - 1].trim())])"
        )
        assert browser.errors == []
    # The second stage makes the mask, too, and has none of the first two layers.
    lines = {name: [line for line in own if "run." not in line] for name, own in links}
    assert set(lines) == {"ones", "mask", "mul_1", "linear_2", "mul_2", "linear_3", "x_1", "sum"}
    for name, word in {"mask": "torch.tril", "linear_3": "F.linear", "x_1": "*", "sum": ".sum()"}.items():
        assert len(lines[name]) == 1 and word in lines[name][0], lines


def pick_linear(browser: Browser) -> None:
    """The operator of a module, which is opened before if it is folded."""
    show(browser, "model")
    find = (
        "(() => { const head = document.querySelector('tr[data-path=\"h.0.attn.c_attn\"]');"
        " const next = head.nextElementSibling;"
        " return next?.querySelector('td:first-child > .mono')?.innerText === 'linear' ? next : null; })()"
    )
    if not browser.ask(f"{find} !== null"):
        browser.ask("document.querySelector('tr[data-path=\"h.0.attn.c_attn\"]').click()")
    browser.ask(f"{find}.click()")
    browser.drawn()


@pytest.mark.slow
@in_a_browser
def test_an_operator_says_its_rule_and_what_is_emitted(browser: Browser) -> None:
    pick_linear(browser)
    said = browser.ask("document.querySelector('#model .side > div:last-child').innerText")
    assert "rule" in said and "may split" in said
    assert MARKS["@"] in said
    lines = browser.ask("[...document.querySelectorAll('[data-emitted] .row')].map((it) => it.innerText)")
    assert any("linear" in line for line in lines), lines


@pytest.mark.slow
@in_a_browser
def test_an_operator_has_the_other_ways_of_the_compared_plans(browser: Browser, data: Any) -> None:
    pick_linear(browser)
    rows = browser.ask("[...document.querySelectorAll('#alternatives tbody tr')].map((it) => it.innerText)")
    assert len(rows) > 1 and any("batch 4" in row for row in rows), rows

    def ways_below(node: Any) -> Iterator[Any]:
        yield from node["operators"]
        for inner in node["inner"]:
            yield from ways_below(inner)

    plans = data["compare"]["plans"]
    for one in ways_below(data["model"]["tree"]):
        numbers = [number for _, number in one["alternatives"]]
        assert numbers == sorted(numbers) and numbers[0] == 0, "the quickest plan first"
        assert len({way for way, _ in one["alternatives"]}) == len(numbers)
        assert numbers[-1] < len(plans)


@pytest.mark.slow
@in_a_browser
def test_it_has_room_in_windows_of_all_sizes_and_at_night(browser: Browser) -> None:
    light = browser.ask("getComputedStyle(document.body).backgroundColor")
    for size in SIZES:
        browser.resize(*size)
        for view in VIEWS:
            show(browser, view)
            wide = browser.ask("document.documentElement.scrollWidth")
            assert wide <= size[0], f"{view} is {wide} wide in {size}"
    browser.dark()
    assert browser.ask("getComputedStyle(document.body).backgroundColor") != light


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize(("view", "chart"), [("memory", "memory-chart"), ("compare", "scatter")])
def test_charts_are_drawn_for_narrow_windows(browser: Browser, view: str, chart: str) -> None:
    browser.resize(400, 800)
    show(browser, view)
    browser.drawn()
    wide, scale, outside = browser.ask(
        f"(() => {{ const it = document.getElementById('{chart}'), box = it.getBoundingClientRect();"
        " const outside = [...it.querySelectorAll('text')].filter((text) => {"
        " const own = text.getBoundingClientRect();"
        " return own.left < box.left - 1 || own.right > box.right + 1; });"
        " return [box.right, box.width / it.viewBox.baseVal.width, outside.map((it) => it.textContent)]; })()"
    )
    assert wide <= 400 and outside == []
    assert scale == pytest.approx(1, abs=0.01), "words are as large as in a wide window"
    browser.resize(*SIZES[0])
    browser.drawn()
    assert browser.ask(f"document.getElementById('{chart}').viewBox.baseVal.width") > 700


@pytest.mark.slow
@in_a_browser
def test_paper_has_all_views_on_a_light_ground(browser: Browser) -> None:
    browser.dark()
    browser.ask("dispatchEvent(new Event('beforeprint'))")
    shown = browser.ask(
        "[...document.querySelectorAll('main > section:not([hidden]) .card:first-of-type')]"
        ".map((it) => it.offsetHeight)"
    )
    assert len(shown) >= len(VIEWS) and min(shown) > 20
    corner = (
        "[...document.getElementById('timeline-canvas').getContext('2d')"
        ".getImageData(2, 2, 1, 1).data].slice(0, 3)"
    )
    assert browser.ask(corner) == [255, 255, 255], "the timeline is drawn, and light"
    browser.ask("dispatchEvent(new Event('afterprint'))")
    assert browser.ask("document.querySelectorAll('main > section:not([hidden])').length") == 1
    browser.click("#tab-timeline")
    browser.drawn()
    assert browser.ask(corner) != [255, 255, 255]
