"""Programs that were changed, cut, or are for something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import models
import shardwright as sw
from edited_programs import EDITS, UNSEEN, folder_with, role_of
from models import MODELS
from refusing import refused
from shardwright import api
from shardwright._core import verify
from shardwright.runtime import load_program
from shardwright.start.compiling import Bundle, compile_model


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return compile_model(*models.mlp(), plan="megatron", devices=2)[0]


@pytest.mark.parametrize("title", EDITS)
def test_a_program_that_was_changed(title: str, bundle: Bundle, tmp_path: Path) -> None:
    folder = folder_with(bundle, tmp_path / "program", title)
    files = {file.name: file.read_text() for file in folder.iterdir() if file.name != "graph.txt"}
    refused(f"verify: {title}", lambda: verify(bundle.graph_text, files), DIR=tmp_path)
    load = lambda: load_program(folder, world=2, digest=bundle.digest)  # noqa: E731
    refused(f"load: {title}", load, DIR=tmp_path)


@pytest.mark.parametrize("title", UNSEEN)
def test_a_table_that_was_changed(title: str, bundle: Bundle, tmp_path: Path) -> None:
    folder = folder_with(bundle, tmp_path / "program", title)
    files = {file.name: file.read_text() for file in folder.iterdir() if file.name != "graph.txt"}
    with pytest.raises(sw.ShardwrightError):
        verify(bundle.graph_text, files)


@pytest.mark.parametrize("plan", ["replicate", "data", "megatron", "coshard:4"])
@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_a_program_that_was_saved_is_proved_again(name: str, plan: str, tmp_path: Path) -> None:
    bundle, _ = compile_model(*MODELS[name](), plan=plan, devices=2)
    folder = api.save_program(bundle, tmp_path / "program")
    assert load_program(folder, world=2, digest=bundle.digest).digest == bundle.digest


def test_a_program_of_another_model(bundle: Bundle, tmp_path: Path) -> None:
    other, _ = compile_model(*models.two_losses(), plan="data", devices=2)
    refused("load: another model", lambda: load_program(bundle.files, world=2, digest=other.digest))
    refused("verify: another model", lambda: verify(other.graph_text, bundle.files))
    refused("load: nowhere", lambda: load_program(tmp_path / "none"), DIR=tmp_path)


def test_any_cut_of_the_tables_is_refused(bundle: Bundle) -> None:
    text = bundle.files["program.json"].rstrip()
    for end in range(0, len(text), 97):
        for action in (load_program, lambda files: verify(bundle.graph_text, files)):
            with pytest.raises(sw.ShardwrightError):
                action({**bundle.files, "program.json": text[:end]})


def test_any_entry_of_another_kind_is_refused(bundle: Bundle) -> None:
    """Never with an exception of Python's own."""
    data = json.loads(bundle.files["program.json"])
    for key in data:
        for value in (None, "x", -1, [], [[]], {"x": 1}):
            files = {**bundle.files, "program.json": json.dumps({**data, key: value})}
            if data[key] == value or key in ("model", "plan", "tensors", "random"):
                continue
            with pytest.raises(sw.ShardwrightError):
                verify(bundle.graph_text, files)
            with pytest.raises(sw.ShardwrightError):
                load_program({**files, "graph.txt": bundle.graph_text}, world=2, digest=bundle.digest)


def test_the_code_of_a_program_runs_only_if_it_is_code(bundle: Bundle) -> None:
    for title, text in [("no Python", "def forward(:"), ("no forward", "x = 1\n")]:
        files = {**bundle.files, role_of(bundle): text}
        refused(f"code: {title}", lambda files=files: load_program(files).code(0))
