"""Pictures on pages are what their commands draw: `scripts/pictures.py`."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "pictures.py"
FOLDER = ROOT / "docs" / "pictures"
QUICK = "schedule.svg"
# Drawn by hand, and taken in a browser.
OTHERS = {"how-it-works.svg", "report.png"}

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="the tests run away from the repository")


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = sys.modules["pictures"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_picture_has_a_command_and_a_page(pictures: ModuleType) -> None:
    there = {path.name for path in FOLDER.iterdir()}
    assert there == {picture.name for picture in pictures.PICTURES} | OTHERS
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    shown = {
        name for page in pages for name in re.findall(r"!\[[^]]+\]\(\S*pictures/(\S+)\)", page.read_text())
    }
    assert shown == there


def test_a_quick_one_is_what_its_command_draws(pictures: ModuleType) -> None:
    assert pictures.main(["--check", QUICK]) == 0


def test_an_older_one_is_told(
    pictures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    older = (FOLDER / QUICK).read_text().replace("device 0", "device 9")
    (tmp_path / QUICK).write_text(older)
    assert pictures.main(["--check", QUICK]) == 1
    assert QUICK in capsys.readouterr().err and (tmp_path / QUICK).read_text() == older
    assert pictures.main([QUICK]) == 0
    assert (tmp_path / QUICK).read_bytes() == (FOLDER / QUICK).read_bytes()
