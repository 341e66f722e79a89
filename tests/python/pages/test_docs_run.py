"""What the pages show runs: every block of Python, every command, every plan file.

The blocks of a page run in order, in one namespace and one new folder, as a reader would copy them.
HTML comments, which readers do not see, say what else there is to say of the block behind them:

- `<!-- run ... -->`: Python that runs before it: a model, a batch, a file; the rest of the comment is code;
- `<!-- ranks: 4 -->`: it runs on as many ranks, which are threads, each with a copy of the namespace;
- `<!-- not run: reason -->`: it does not run, and why.

Commands that stand inside of a sentence are read by the command's own parser.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch

import forked
import ready_python
import shardwright as sw
from shardwright import api
from shardwright.cli import parser
from shardwright.runtime import run_local

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUN, READ = {"python", "sh", "plan"}, {"", "text", "json", "toml", "yaml"}
PIECE = re.compile(r"^<!-- ?(?P<comment>.*?)-->$|^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)

pytestmark = pytest.mark.skipif(not PAGES, reason="the tests run away from the repository")


@dataclass
class Block:
    language: str
    code: str
    line: int
    before: str = ""
    ranks: int = 1
    not_run: str | None = None


def blocks_of(text: str) -> list[Block]:
    blocks: list[Block] = []
    said = Block("", "", 0)
    for piece in PIECE.finditer(text):
        if piece["comment"] is not None:
            _note(said, piece["comment"])
            continue
        line = text.count("\n", 0, piece.start()) + 2
        said.language, said.code, said.line = piece["language"], piece["code"], line
        blocks.append(said)
        said = Block("", "", 0)
    return blocks


def _note(block: Block, comment: str) -> None:
    word, _, rest = comment.partition("\n" if comment.startswith("run\n") else ":")
    if word == "run":
        block.before += rest
    elif word == "ranks":
        block.ranks = int(rest)
    elif word.strip() == "not run":
        assert rest.strip(), f"{comment}: it has no reason"
        block.not_run = rest.strip()


def test_blocks_are_read_with_what_is_said_of_them() -> None:
    text = "<!-- run\nx = 1\n-->\n<!-- ranks: 2 -->\n```python\ny = x\n```\n"
    text += "<!-- not run: slow -->\n```sh\na\n```\n<!-- something else -->\n```\nb\n```\n"
    python = Block("python", "y = x\n", 6, "x = 1\n", 2)
    assert blocks_of(text) == [python, Block("sh", "a\n", 10, not_run="slow"), Block("", "b\n", 14)]


def test_what_does_not_run_has_a_reason() -> None:
    with pytest.raises(AssertionError, match="it has no reason"):
        blocks_of("<!-- not run -->\n```sh\na\n```\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A block without a known language would never run, and nobody would see it."""
    assert {block.language for block in blocks_of(page.read_text())} <= RUN | READ


def test_yaml_on_pages_is_a_run_or_a_part_of_one() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    from shardwright.train.config import Config

    known = {field.name for field in fields(Config)}
    yaml_blocks = [
        block.code for page in PAGES for block in blocks_of(page.read_text()) if block.language == "yaml"
    ]
    assert yaml_blocks
    for code in yaml_blocks:
        assert set(yaml.safe_load(code) or {}) <= known, code


def pages_that_run() -> list[Any]:
    params = []
    for page in PAGES:
        blocks = [block for block in blocks_of(page.read_text()) if block.language in RUN]
        if any(block.not_run is None for block in blocks):
            params.append(pytest.param(page, blocks, id=page.name))
    return params


@pytest.mark.slow
@pytest.mark.parametrize(("page", "blocks"), pages_that_run())
def test_what_a_page_shows_runs(
    page: Path, blocks: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = tmp_path / ".outputs"
    outputs.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    namespace: dict[str, Any] = {"__name__": page.stem, "sw": sw, "torch": torch}
    for block in blocks:
        if block.not_run is not None:
            continue
        place = f"{page.name}:{block.line}"
        _python(block.before, f"{place} (before)", namespace)
        if "__main__" in block.code:
            Path("script.py").write_text(block.code)
            ended = forked.script(Path("script.py").absolute(), folder=outputs)
            assert ended.code == 0, f"{place}\n{ended.out}\n{ended.error}"
        elif block.language == "python":
            _on_ranks(block, place, namespace, monkeypatch)
        elif block.language == "sh":
            for command in _commands(block.code):
                _shell(command, place, outputs)
        else:
            sw.Plan.parse(namespace["graph"], block.code)
    for module in set(sys.modules) & {file.stem for file in tmp_path.glob("*.py")}:
        del sys.modules[module]


def _on_ranks(block: Block, place: str, namespace: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    if block.ranks == 1:
        _python(block.code, place, namespace)
        return
    mine = threading.local()

    def rank(rank: int, comm: Any) -> None:
        mine.comm = comm
        _python(block.code, place, dict(namespace))

    with patch.context() as here:
        here.setattr(api, "joined", lambda *_: mine.comm)
        run_local(block.ranks, rank)


def _python(code: str, place: str, namespace: dict[str, Any]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, place, "exec"), namespace)


def _commands(code: str) -> list[str]:
    """The lines, those that a backslash continues joined, without what is said about them."""
    lines = code.replace("\\\n", " ").splitlines()
    return [bare for line in lines if (bare := re.sub(r"(^|\s)#.*", "", line).strip())]


def _shell(command: str, place: str, outputs: Path) -> None:
    words = shlex.split(command)
    if words[0] == "shardwright" and not set(command) & set("|&;<>$`*?(){}~"):
        ended = forked.command(*words[1:], folder=outputs)
        assert ended.code == 0, f"{place}: {command}\n{ended.out}\n{ended.error}"
        return
    command = re.sub(r"\bshardwright (?=\w)", f"{ready_python.command()} -m shardwright ", command)
    environment = ready_python.environment()
    done = subprocess.run(["bash", "-ec", command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{place}: {command}\n{done.stdout}\n{done.stderr}"


def inline_commands() -> list[Any]:
    """`shardwright ...` in backticks, once each."""
    commands: dict[str, str] = {}
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        for command in re.findall(r"`shardwright ([^`]+)`", text.replace("\n", " ")):
            commands.setdefault(command, page.name)
    return [pytest.param(command, id=f"{page}: {command}") for command, page in commands.items()]


@pytest.mark.parametrize("command", inline_commands())
def test_a_command_in_a_sentence_is_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Names that only stand for a command, such as `shardwright plan`, may lack their arguments."""
    with contextlib.suppress(SystemExit):
        parser().parse_args(shlex.split(command))
    wrong = capsys.readouterr().err
    assert not wrong or "the following arguments are required" in wrong, wrong
