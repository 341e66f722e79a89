"""What compiling says, and that what it predicts is what runs."""

from __future__ import annotations

import io
import os
import re
import select
import time
from collections import Counter
from typing import Any

import pytest
import torch

import equality
import models
import shardwright as sw
from shardwright import Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture
from shardwright.report import progress
from shardwright.report.progress import Progress
from shardwright.runtime import ParallelModule, load_program, run_local
from shardwright.start.compiling import sources

torch.set_num_threads(1)

# A summary says how long a capture takes.
CAPTURES_ANEW = True


@pytest.mark.parametrize("name", ["gpt", "resnet", "two_losses"])
@pytest.mark.parametrize("plan", ["data", "megatron", 3, 4, 5])
def test_the_bytes_of_a_step_are_those_that_are_issued(name: str, plan: Any) -> None:
    """A number is the seed of a random plan."""
    module, args = getattr(models, name)()
    captured = capture(module, args)
    graph = Graph(captured.graph_text)
    made = Plan.named(graph, plan, 2) if isinstance(plan, str) else Plan.random(graph, 3, plan)
    compiled = compile(made)
    program = load_program(dict(compiled.files), digest=compiled.digest, world=made.devices)

    def rank(rank: int, comm: Any) -> tuple[Counter[str], int, int]:
        model = ParallelModule(program, comm, sources(module, captured), captured)
        losses = equality.scalars(model(*args))
        torch.stack(losses).sum().backward()
        issued: Counter[str] = Counter()
        for kind, _, size in model.issued:
            issued[kind] += size
        held = sum(shard.data.nbytes for shard in model.shards.held)
        return issued, held, sum(p.nbytes for p in model.parameters() if p.requires_grad)

    for (issued, held, trained), sizes, ours, grads in zip(
        run_local(made.devices, rank), compiled.bytes, compiled.held, compiled.trained, strict=True
    ):
        predicted: Counter[str] = Counter()
        for key, size in sizes.items():
            predicted[key.split()[1]] += size
        assert predicted == issued
        assert (ours, grads) == (held, trained)


def test_the_phases_are_told_as_they_begin() -> None:
    module, args = models.mlp()
    messages: list[str] = []
    graph = Graph(capture(module, args).graph_text)
    compiled = compile(Plan.named(graph, "data", 2), "loss", messages.append)
    assert messages == ["lower", "emit", "read back", "check"] == [name for name, _ in compiled.phases]


SUMMARY = r"""shardwright: Gpt, plan `replicate`, 1 device
  compiled in \d+\.\d s: .*capture \d+\.\d.*; proved equal to the model
  memory: \d+\.\d [KM]iB, on rank 0, which needs most, with the state of adamw
  communication in a step: nothing
COUNTED  the program is in memory \(`save_to` writes it to a folder\)
"""
COUNTED = r"""  compared with the module in \d+\.\d s: outputs, buffers and gradients of two forwards
  operators: 0 split, 0 replicated, 47 on one device
  a rank holds: 228\.2 KiB of parameters and buffers, 228\.2 KiB of gradients
  a step needs \d+\.\d [KM]iB on rank 0: 228\.2 KiB parameters, .*456\.\d KiB optimizer \(adamw\), .*
    that is in (forward|backward), \w+ \d+: aten\..* at models\.py:\d+
"""


@pytest.mark.parametrize(("word", "counted"), [("", ""), ("0", ""), ("1", COUNTED)])
def test_parallelize_ends_with_a_summary(
    word: str, counted: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the compiler counted is for those who ask."""
    monkeypatch.setenv("SHARDWRIGHT_VERBOSE", word)
    module, args = models.gpt()
    sw.parallelize(module, args, plan="replicate", progress=True)
    out, err = capsys.readouterr()
    assert (out, bool(re.fullmatch(SUMMARY.replace("COUNTED", counted), err))) == ("", True), err


def test_the_summary_says_that_it_fits_and_what_is_uneven(capsys: pytest.CaptureFixture[str]) -> None:
    module, args = models.gpt()
    sw.parallelize(module, args, plan="replicate", memory="1GiB", progress=True)
    assert re.search(r"memory: \d+\.\d [KM]iB of 1GiB: it fits, on rank 0", capsys.readouterr().err)
    run_local(2, lambda rank, comm: sw.parallelize(module, args, plan="replicate", progress=True, comm=comm))
    assert re.search(r"a rank computes .* a step: 100%, an even share is 50%", capsys.readouterr().err)


def test_it_can_be_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module, args = models.mlp()
    monkeypatch.setenv("SHARDWRIGHT_PROGRESS", "on")
    sw.parallelize(module, args, plan="replicate", progress=False)
    assert capsys.readouterr() == ("", "")
    sw.parallelize(module, args, plan="replicate")
    assert "Mlp, plan `replicate`" in capsys.readouterr().err
    monkeypatch.setenv("SHARDWRIGHT_PROGRESS", "off")
    sw.parallelize(module, args, plan="replicate")
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "terminal", "expected"), [(1.5, True, True), (0.2, True, False)])
def test_a_bar_is_for_what_takes_long(seconds: float, terminal: bool, expected: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    with Progress(True, stream).phases("Gpt") as phases:
        phases.begin("capture")
        time.sleep(seconds)
    assert ("shardwright: Gpt: capture" in stream.getvalue()) is expected


def test_a_bar_is_drawn_where_a_terminal_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SOON", 0.0)
    reader, writer = os.openpty()
    with open(writer, "w") as stream:
        assert os.get_terminal_size(writer).columns == 0
        with Progress(True, stream).phases("Gpt") as phases:
            phases.begin("capture")
            drawn = b""
            while b"Gpt: capture" not in drawn and select.select([reader], [], [], 5)[0]:
                drawn += os.read(reader, 4096)
    os.close(reader)
    assert b"shardwright: Gpt: capture" in drawn


@pytest.mark.slow
def test_a_bar_is_for_terminals() -> None:
    for wanted, stream in [(True, io.StringIO()), (False, Terminal())]:
        with Progress(wanted, stream).phases("Gpt") as phases:
            phases.begin("capture")
            time.sleep(1.3)
        assert stream.getvalue() == ""


def test_emit_ends_with_the_same_summary(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from shardwright.cli import main

    (tmp_path / "model.txt").write_text(capture(*models.gpt()).graph_text)
    command = ["emit", str(tmp_path / "model.txt"), "--devices", "2", "--plan", "megatron"]
    assert main([*command, "-o", str(tmp_path / "out"), "--progress"]) == 0
    assert "operators:" not in capsys.readouterr().err
    assert main([*command, "-o", str(tmp_path / "out"), "--progress", "--verbose"]) == 0
    said = capsys.readouterr().err
    assert "shardwright: Gpt, plan `megatron`, 2 devices" in said
    assert re.search(r"operators: \d\d split, \d+ replicated, 0 on one device", said)
    assert re.search(r"communication in a step: \d+ all_reduce \(\d+\.\d KiB\)", said)
    assert f"the program is in {tmp_path / 'out'}" in said
