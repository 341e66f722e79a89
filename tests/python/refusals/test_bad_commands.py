"""Commands that cannot be done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import models
import shardwright as sw
from edited_programs import folder_with
from refusing import expect
from shardwright import cli
from shardwright._core import Graph
from shardwright.capture import capture
from shardwright.start.compiling import Bundle, compile_model


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(capture(*models.mlp()).graph_text)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return compile_model(*models.mlp(), plan="megatron", devices=2)[0]


MODEL_FILE = """
import torch
from torch import nn
from shardwright import demo

def model():
    return demo.build(), demo.batches()[0]

def fails():
    raise ValueError("no weights")

def number():
    return 3

def branch():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x.sum() if (self.scale * x).sum() > 0 else -x.sum()
    return Branch(), torch.ones(2)

three = 3
"""

COMMANDS = {
    "no file": ["emit", "DIR/nofile.py:f", "--plan=data", "--devices", "2", "-o", "DIR/out"],
    "unknown function": ["emit", "DIR/model.py:f", "--plan=data", "--devices", "2", "-o", "DIR/out"],
    "no function": ["emit", "DIR/model.py:three", "--plan=data", "--devices", "2", "-o", "DIR/out"],
    "function that fails": ["emit", "DIR/model.py:fails", "--plan=data:2", "-o", "DIR/out"],
    "function that gives no model": ["plan", "DIR/model.py:number", "--plan=data", "--devices", "2"],
    "model that cannot be captured": ["plan", "DIR/model.py:branch", "--plan=data", "--devices", "2"],
    "file that is no Python": ["plan", "DIR/broken.py:f", "--plan=data", "--devices", "2"],
    "file that fails": ["plan", "DIR/failing.py:f", "--plan=data", "--devices", "2"],
    "no graph": ["plan", "DIR/none.txt", "--plan=data", "--devices", "2"],
    "graph that is none": ["plan", "DIR/wrong.plan", "--plan=data", "--devices", "2"],
    "file without its function": ["plan", "DIR/model.py", "--plan=data", "--devices", "2"],
    "file that has no function": ["plan", "DIR/failing.py", "--plan=data", "--devices", "2"],
    "misspelt function": ["plan", "DIR/model.py:modle", "--plan=data", "--devices", "2"],
    "misspelt file": ["plan", "DIR/modle.py:model", "--plan=data", "--devices", "2"],
    "misspelt graph": ["plan", "DIR/grahp.txt", "--plan=data", "--devices", "2"],
    "binary graph": ["plan", "DIR/binary", "--plan=data", "--devices", "2"],
    "unreadable plan": ["plan", "DIR/graph.txt", "--devices", "2", "--plan", "DIR/none.plan"],
    "binary plan": ["plan", "DIR/graph.txt", "--devices", "2", "--plan", "DIR/binary.plan"],
    "wrong plan": ["plan", "DIR/graph.txt", "--devices", "2", "--plan", "DIR/wrong.plan"],
    "unknown plan": ["plan", "DIR/graph.txt", "--devices", "2", "--plan", "nonsense"],
    "no devices": ["plan", "DIR/graph.txt", "--plan=data", "--devices", "0"],
    "fewer devices than none": ["plan", "DIR/graph.txt", "--plan=data", "--devices", "-1"],
    "compare on no devices": ["compare", "DIR/graph.txt", "--cluster=cpu:2", "--devices", "0"],
    "folder that holds other things": ["emit", "DIR/graph.txt", "--plan=data:2", "-o", "DIR"],
    "folder that is a file": ["emit", "DIR/graph.txt", "--plan=data:2", "-o", "DIR/graph.txt"],
    "folder below a file": ["emit", "DIR/graph.txt", "--plan=data:2", "-o", "DIR/graph.txt/out"],
    "check of nothing": ["check", "DIR/none"],
    "check of an edited program": ["check", "DIR/program"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, graph: Graph, bundle: Bundle) -> Path:
    folder = tmp_path_factory.mktemp("place")
    (folder / "model.py").write_text(MODEL_FILE)
    (folder / "broken.py").write_text("def f(:\n")
    (folder / "failing.py").write_text("import no_such_module\n")
    (folder / "graph.txt").write_text(graph.text)
    (folder / "wrong.plan").write_text('shardwright-plan 1\ndevices 2\nop "nope": single\n')
    for name in ("binary", "binary.plan"):
        (folder / name).write_bytes(b"\xff\xfe\0")
    folder_with(bundle, folder / "program", "role with another argument")
    return folder


@pytest.mark.parametrize("title", COMMANDS)
def test_a_command(title: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(place.iterdir())
    assert cli.main([word.replace("DIR", str(place)) for word in COMMANDS[title]]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    expect(f"command: {title}", err.rstrip("\n"), DIR=place)
    assert [path for path in sorted(place.iterdir()) if path.name != "__pycache__"] == before


ON_TWO = {
    "plan": ("plan", "DIR/graph.txt", "--cluster=cpu:2"),
    "a named plan": ("plan", "DIR/graph.txt", "--plan=data:2"),
    "compare": ("compare", "DIR/graph.txt", "--cluster=cpu:2"),
    "simulate": ("simulate", "DIR/graph.txt", "--cluster=cpu:2"),
    "manifest": ("manifest", "DIR/graph.txt", "--cluster=cpu:2", "--plan=data"),
    "emit": ("emit", "DIR/graph.txt", "--cluster=cpu:2", "-o", "DIR/out"),
    "coverage": ("ops", "coverage", "DIR/graph.txt"),
}
# Whoever has no cluster has no step. A graph has no batch that can be cut.
CODES = {"--devices": "SW0315", "--batches": "SW0912", "--micro-batches": "SW0116"}
IMPOSSIBLE = [
    (title, option, number)
    for title, words in ON_TWO.items()
    for option in CODES
    for number in ("0", "-3", "99999999999")
    if option != "--batches" or "--cluster=cpu:2" in words
]


@pytest.mark.parametrize(("title", "option", "number"), IMPOSSIBLE)
def test_a_number_that_cannot_be(
    title: str, option: str, number: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("DIR", str(place)) for word in ON_TWO[title]]
    assert cli.main([*words, option, number]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error[{CODES[option]}]")
    assert "\n  why: " in err and "\n  help: " in err
    assert not (place / "out").exists()


def shell(*arguments: str | Path) -> subprocess.Popen[str]:
    code = "import sys; from shardwright.cli import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": str(Path(sw.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # What starts the tests may ignore interrupts, as a shell does for what runs behind it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def test_a_command_in_its_own_process(place: Path) -> None:
    process = shell("plan", place / "graph.txt", "--devices", "2", "--plan", "nonsense")
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (1, "")
    expect("command: unknown plan", err.rstrip("\n"))


@pytest.mark.slow
def test_a_command_that_is_interrupted(tmp_path: Path) -> None:
    started = tmp_path / "started"
    (tmp_path / "slow.py").write_text(
        f"import pathlib, time\n\ndef f():\n    pathlib.Path({str(started)!r}).touch()\n    time.sleep(100)\n"
    )
    process = shell("emit", f"{tmp_path}/slow.py:f", "--plan=data", "--devices", "2", "-o", tmp_path / "out")
    end = time.monotonic() + 100
    while not started.exists() and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=120) == ("", "interrupted\n")
    assert process.returncode == 130
    assert not (tmp_path / "out").exists()
