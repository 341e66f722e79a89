"""Models that have names: what they are, what is kept of them, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import shardwright as sw
from shardwright._core import Graph, Plan, compile
from shardwright.cli import main
from shardwright.shipped.graph import example_of, graph_of
from shardwright.shipped.making import made
from shardwright.shipped.table import EVOFORMER, SHIPPED, Shipped
from shardwright.start.auto_plan import Choice

torch.set_num_threads(1)

WIDTHS = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
WIDTHS |= {"vocab_size": 64, "num_hidden_layers": 1}
LATENT = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 8,
    "n_routed_experts": 16,
    "num_hidden_layers": 2,
}
LATENT |= {"first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "v_head_dim": 4}
LATENT |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 4}
# What makes a model of each kind small.
SMALL: dict[str, dict[str, Any]] = {
    "llama-3-8b": WIDTHS,
    "gpt2-24l": {"n_layer": 1, "n_embd": 16, "n_head": 4, "vocab_size": 64},
    "mixtral-8x7b": WIDTHS,
    "deepseek-v3": {**WIDTHS, **LATENT},
    "swin-1.8b": {"image_size": 64, "window_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4]},
    "t5-3.9b": {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "vocab_size": 64},
    "alphafold2-87m": {"blocks": 1, "msa": 8, "pair": 8, "sequences": 4, "outer": 2},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "v1"


def small(name: str) -> Shipped:
    if SHIPPED[name].kind != EVOFORMER:
        pytest.importorskip("transformers")
    return replace(SHIPPED[name], name="tiny", config={**SHIPPED[name].config, **SMALL[name]})


def text_of(model: Shipped, micro_batches: int = 1, batch: int = 4) -> str:
    return graph_of(example_of(model, batch, model.sequence and 8, micro_batches)).text


@pytest.mark.slow
def test_parameters_are_as_many_as_are_told() -> None:
    pytest.importorskip("transformers")
    for model in SHIPPED.values():
        module, _ = made(model, 1, model.sequence and 8)
        assert sum(p.numel() for p in module.parameters()) == model.parameters, model.name
        # Newer releases keep the weights of routers in float32.
        others = (p for name, p in module.named_parameters() if not name.endswith("gate.weight"))
        assert {p.dtype for p in others} == {torch.bfloat16}, model.name


@pytest.mark.parametrize("size", ["87m", "930m", "2.4b", "3.2b"])
def test_the_sizes_of_alphafold_are_those_of_their_names(size: str) -> None:
    wanted = float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]
    assert abs(SHIPPED[f"alphafold2-{size}"].parameters / wanted - 1) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alphafold2-87m", "deepseek-v3"])
def test_parts_of_a_batch_are_proved_to_be_it(name: str) -> None:
    model = small(name)
    assert text_of(model, micro_batches=2) == text_of(model, batch=2)


@pytest.mark.parametrize("name", SMALL)
def test_each_kind_is_captured_and_its_batch_is_divided(name: str) -> None:
    graph = Graph(text_of(small(name)))
    made = compile(Plan.named(graph, "data", 2))
    split, alike, _ = made.divided
    assert split > alike
    assert " bf16" in graph.text


def test_every_kind_has_a_small_one() -> None:
    assert {SHIPPED[name].kind for name in SMALL} == {model.kind for model in SHIPPED.values()}


@pytest.mark.slow
def test_a_graph_is_captured_once_for_each_example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("gpt2-24l")
    first = text_of(model)
    (kept,) = folder.iterdir()
    assert (kept / "graph.txt").read_text() == first
    others = [
        text_of(model, batch=2),
        text_of(model, micro_batches=2),
        text_of(replace(model, config={**model.config, "n_layer": 2})),
        text_of(replace(model, dtype="float32")),
    ]
    assert len(list(folder.iterdir())) == 5
    # One of two parts of four rows is a batch of two.
    assert others[0] == others[1] and len({first, *others}) == 4
    monkeypatch.setattr("shardwright.start.micro_batches.captured_model", None)
    assert text_of(model) == first


def test_a_graph_that_was_damaged_is_captured_again(folder: Path) -> None:
    model = small("gpt2-24l")
    first = text_of(model)
    (file,) = folder.glob("*/graph.txt")
    file.write_text(first.replace("bf16", "f16"))
    assert text_of(model) == first == file.read_text()


def test_an_edit_of_the_models_file_in_transformers_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small("gpt2-24l")
    package = tmp_path / "transformers"
    (package / "models" / "gpt2").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    file = package / "models" / "gpt2" / "modeling_gpt2.py"
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    keys = set()
    for text in ("a = 1\n", "a = 2\n"):
        file.write_text(text)
        keys.add(example_of(model, None, None).key())
    assert len(keys) == 2


SECOND = """
import sys
from dataclasses import replace
from shardwright.start.auto_plan import Choice
from shardwright.cli import main
from shardwright.shipped.table import SHIPPED
SHIPPED["tiny"] = replace(SHIPPED["alphafold2-87m"], config={config})
words = "tiny --batch 4 --sequence 8 --plan data --cluster dgx-h100:2x1".split()
assert main(["{command}", *words]) == 0
print(sorted({{"torch", "transformers"}} & set(sys.modules)))
"""


@pytest.mark.slow
def test_a_second_start_imports_no_torch(folder: Path) -> None:
    config = dict(small("alphafold2-87m").config)
    code = SECOND.format(command="simulate", config=config)
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(2)]
    assert [run.returncode for run in runs] == [0, 0], runs
    first, second = (run.stdout.splitlines() for run in runs)
    assert first[:-1] == second[:-1] and "on dgx-h100:2x1, 2 devices" in first[2]
    assert (first[-1], second[-1]) == ("['torch']", "[]")
    # What capture has to say is said again.
    assert runs[0].stderr == runs[1].stderr


@pytest.mark.slow
def test_the_second_page_has_the_models_lines_as_the_first_and_imports_no_torch(
    folder: Path, tmp_path: Path
) -> None:
    code = SECOND.format(command="report", config=dict(small("alphafold2-87m").config))
    run = [sys.executable, "-c", code]
    pages, last = [], []
    for _ in range(2):
        done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        last.append(done.stdout.splitlines()[-1])
        pages.append((tmp_path / "report.html").read_text())
    assert last == ["['torch']", "[]"]
    assert pages[0] == pages[1]
    assert "first, at = msa[:, 0" in pages[1]


def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHIPPED, "tiny", small("gpt2-24l"))


SIZES = ["--batch", "4", "--sequence", "8"]


@pytest.mark.slow
def test_a_plan_is_for_the_devices_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(monkeypatch)
    assert main(["plan", "tiny", *SIZES, "--cluster", "dgx-h100:2x2", "--text"]) == 0
    assert "\ndevices 4\n" in capsys.readouterr().out
    assert main(["plan", "tiny", *SIZES, "--cluster", "dgx-h100:2x2", "--plan", "data:2", "--text"]) == 0
    assert "\ndevices 2\n" in capsys.readouterr().out


@pytest.mark.slow
def test_what_is_wide_for_exact_tables_has_a_found_plan(folder: Path) -> None:
    """All layers of T5's decoder read the same few values, each of which has many ways on eight devices."""
    graph = Graph(graph_of(example_of(SHIPPED["t5-3.9b"], 8, None)).text)
    search = Choice("dgx-v100:8x1").search(graph, 8, wanted=100)
    assert any(row["plan"].startswith("auto") for row in search.rows)
    # No plan of one block can beat what tables say of these, or else what holds for all plans.
    assert search.inside is not None
    assert 0 < search.bound <= search.inside[0]


def test_the_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(SHIPPED)
    assert lines[1].split() == ["llama-3-8b", "8,030,261,248", "64", "8192", "bfloat16", "LlamaForCausalLM"]
    assert main(["models", "--json"]) == 0
    answer = {model["name"]: model for model in json.loads(capsys.readouterr().out)["models"]}
    assert answer["swin-5b"]["sequence"] is None and answer["gpt2-48l"]["longest"] == 1024


def test_the_cache_lists_graphs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(monkeypatch)
    assert main(["plan", "tiny", *SIZES, "--plan", "data:2"]) == 0
    capsys.readouterr()
    assert main(["cache"]) == 0
    assert "  the graph of tiny, batch 4, sequence 8\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["llama-3-8"], "SW0773", "did you mean `llama-3-8b`"),
        (["gtp2"], "SW0773", "did you mean `gpt2-24l`? `shardwright models` lists the names"),
        (["xyz"], "SW0773", "`shardwright models` lists the names"),
        (["llama-3-8b", "--batch", "0"], "SW0772", "a batch of 0"),
        (["llama-3-8b", "--batch", "-1"], "SW0772", "a batch of -1"),
        (["llama-3-8b", "--batch", str(10**12)], "SW0772", "give a --batch from 1 to 1048576"),
        (["llama-3-8b", "--sequence", "0"], "SW0772", "a sequence of 0"),
        (["llama-3-8b", "--sequence", "8193"], "SW0772", "llama-3-8b has 8192 positions"),
        (["t5-3.9b", "--sequence", str(10**12)], "SW0772", "give a --sequence from 1 to 1048576"),
        (["swin-5b", "--sequence", "8"], "SW0772", "it looks at images"),
        (["model.py:make", "--batch", "8"], "SW0772", "the sizes of model.py:make cannot be chosen"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], code: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--plan", "data:2", *words]) == 1
    printed = capsys.readouterr().err
    assert f"error[{code}]" in printed and said in printed


def test_a_file_of_that_name_is_named_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").write_text("no graph")
    assert main(["plan", "./tiny", "--plan", "data:2"]) == 1
    assert "error[SW0205]" in capsys.readouterr().err


def test_transformers_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    made(small("alphafold2-87m"), 1, 8)
    with pytest.raises(sw.RuntimeFault) as refused:
        made(SHIPPED["llama-3-8b"], 1, 8)
    assert refused.value.code == "SW0770"
    assert refused.value.fix == "install it: pip install transformers"


def test_sizes_of_a_model_from_a_config_are_required(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from shardwright.integrations.transformers_models import from_config

    (tmp_path / "config.json").write_text(json.dumps({**WIDTHS, "max_position_embeddings": 16}))
    model = f"hf:LlamaForCausalLM:{tmp_path / 'config.json'}"
    _, given = from_config(model)
    assert given["input_ids"].shape == (8, 16)
    for batch, sequence in [(0, None), (8, 17), (8, -1)]:
        with pytest.raises(sw.RuntimeFault) as refused:
            from_config(model, batch, sequence)
        assert refused.value.code == "SW0772"


def test_a_config_that_transformers_refuses_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    model = replace(SHIPPED["t5-3.9b"], config={"feed_forward_proj": "a-b-c"})
    with pytest.raises(sw.RuntimeFault, match=r"does not take the config of t5-3\.9b") as refused:
        made(model, 1, 8)
    assert refused.value.code == "SW0770"
