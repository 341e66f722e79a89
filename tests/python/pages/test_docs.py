"""The pages agree with the sources: codes of errors, links, crates, dependencies."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright._core import plan_names
from shardwright.runtime.execution.run import Run

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

pytestmark = pytest.mark.skipif(not PAGES, reason="the tests run away from the repository")


def sources() -> Iterator[tuple[str, str]]:
    """The home of each source file (a crate, a package, a module of the top), and its text."""
    for file in sorted((ROOT / "crates").glob("*/src/**/*.rs")):
        yield file.relative_to(ROOT / "crates").parts[0], _without_tests(file)
    for file in sorted((ROOT / "python" / "shardwright").rglob("*.py")):
        yield file.relative_to(ROOT / "python" / "shardwright").parts[0], file.read_text()


def _without_tests(file: Path) -> str:
    is_test = file.name == "tests.rs" or "tests" in file.parts
    return "" if is_test else file.read_text().partition("#[cfg(test)]\nmod tests")[0]


def raised() -> dict[str, set[str]]:
    """The codes that the sources raise, and the homes that raise each."""
    homes: dict[str, set[str]] = defaultdict(set)
    for home, text in sources():
        for code in re.findall(r'"(SW\d{4})"', text):
            homes[code].add(home)
    return homes


def explained() -> list[str]:
    return re.findall(r"^### (SW\d{4}): ", (REFERENCE / "errors.md").read_text(), re.MULTILINE)


def test_every_code_is_explained_once_and_in_order() -> None:
    assert explained() == sorted(raised())


def test_a_code_has_one_home() -> None:
    shared = {code: sorted(homes) for code, homes in raised().items() if len(homes) > 1}
    assert not shared


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_resolve(page: Path) -> None:
    assert not [link for link in _links(page) if not _resolves(page, link)]


def test_the_page_for_the_package_index_stands_alone() -> None:
    """Links into the repository lead nowhere from there."""
    declared = re.search(r'^readme = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert _links(ROOT / declared[1]) == []


def _links(page: Path) -> list[str]:
    links = re.findall(r"\]\(([^)\s]+)\)", _without_code(page.read_text()))
    return [link for link in links if "://" not in link and not link.startswith("mailto:")]


def _without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def _resolves(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not anchor or anchor in _anchors(target)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_pages_name_exist(page: Path) -> None:
    named = re.findall(r"`((?:crates|docs|python|scripts|tests/python)/[\w./-]+)`", page.read_text())
    assert not [path for path in named if not (ROOT / path).exists()]


def test_the_runtime_has_the_methods_of_the_page() -> None:
    """Each instruction that is a method of `run`, with the parameters that the page says."""
    page = (REFERENCE / "emitted-program.md").read_text()
    table = page.partition("<!-- instructions: ")[2].partition("<!-- end of instructions -->")[0]
    cells = re.findall(r"^\| (`.*?`) \| ", table, re.MULTILINE)
    forms = [form for cell in cells for form in re.findall(r"`(\w+\(.*?\))`", cell)]
    assert len(forms) > 20
    assert {form: _form(form.partition("(")[0]) for form in forms} == {form: form for form in forms}


def _form(method: str) -> str:
    """A method of the runtime as the page writes it."""
    given = list(inspect.signature(getattr(Run, method)).parameters.values())[1:]
    star = {inspect.Parameter.VAR_POSITIONAL: "*"}
    default = {inspect.Parameter.empty: "", (): "=[]", "sum": '="sum"', False: "=False", None: "=None"}
    shown = [f"{star.get(it.kind, '')}{it.name}{default[it.default]}" for it in given]
    return f"{method}({', '.join(shown)})"


def test_the_architecture_names_every_crate() -> None:
    crates = {folder.parent.name for folder in (ROOT / "crates").glob("*/Cargo.toml")}
    named = re.findall(r"^\*\*`crates/(\w+)`\*\*", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(crates)


def test_every_plan_has_a_row_of_its_own() -> None:
    text = (REFERENCE / "plan-names.md").read_text().partition("## What named plans move")[0]
    cells = re.findall(r"^\| (`.*?`) \|", text.partition("## Axes")[2], re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`([^`:]+)(?::[^`]*)?`", cell)}
    assert named == set(plan_names())


def test_every_dependency_has_a_reason() -> None:
    listed = set(re.findall(r"^\| `([\w-]+)`", (REFERENCE / "dependencies.md").read_text(), re.MULTILINE))
    assert listed == _rust_dependencies() | _python_dependencies()


def _rust_dependencies() -> set[str]:
    workspace = set(re.findall(r"^(\w+) = \{ path", (ROOT / "Cargo.toml").read_text(), re.MULTILINE))
    section = re.compile(r"^\[[\w-]*dependencies\]\n(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
    named: set[str] = set()
    for manifest in (ROOT / "crates").glob("*/Cargo.toml"):
        for lines in section.findall(manifest.read_text()):
            named |= set(re.findall(r"^([\w-]+)", lines, re.MULTILINE))
    return named - workspace


def _python_dependencies() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'"([A-Za-z][\w-]*)(?:\[\w+\])?[><=]=?[\d.,<>=]+"', text)
    return set(named)
