"""A plan that is chosen: `plan="auto"`, `shardwright compare`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import models
import shardwright as sw
from shardwright._core import cluster_devices
from shardwright.cli import main
from shardwright.errors import ClusterError
from shardwright.runtime import run_local
from shardwright.start.auto_plan import Choice, Here, cluster_here
from shardwright.start.options import PlanOptions
from shardwright.support.deadline import default_deadline

torch.set_num_threads(1)

GRAPH = str(Path(__file__).parents[1] / "golden" / "gpt.graph")
SLOW_LINKS = """
[[nodes]]
devices = "d:2"
link = { bandwidth = "1 MB/s", latency = "1 us" }

[devices.d]
memory = "1 GB"
bandwidth = "1 TB/s"
peak = { f64 = "1 TFLOP/s" }
"""


def answer_of(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main((*words, "--json")) == 0
    return json.loads(capsys.readouterr().out)


def test_a_table_of_plans_the_quickest_first(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "compare", GRAPH, "--cluster", "h200:4", "--batches", "4")
    rows = answer["rows"]
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    assert {"data:4", "zero3:4", "megatron:4", "stages:4 x 1f1b"} <= {row["plan"] for row in rows}
    assert all(row["fits"] and row["seconds"] >= answer["bound"] > 0 for row in rows)
    assert answer["tried"] == [6, 6]
    assert main(("compare", GRAPH, "--cluster", "h200:4", "--batches", "4")) == 0
    lines = capsys.readouterr().out.splitlines()
    first, step, bound, _, _, row = lines[:6]
    assert first == f"Gpt on h200:4: `{rows[0]['plan']}` is the quickest"
    assert step.startswith("a step takes ") and "this one takes at most" in bound
    assert row.split(maxsplit=1)[1].startswith(rows[0]["plan"]) and "1.00x" in row
    assert lines[-1].startswith("6 of 6 shapes") and max(map(len, lines[4:])) <= 100


def test_a_step_is_as_long_as_it_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--cluster", "dgx-h100:2x2", "--batches", "4"
    rows = answer_of(capsys, "compare", GRAPH, *words)["rows"]
    for row in (row for row in rows if not row["plan"].startswith(("auto", "found"))):
        step = answer_of(capsys, "simulate", GRAPH, "--devices", "4", "--plan", row["plan"], *words)
        assert row["seconds"] == pytest.approx(step["seconds"], rel=1e-12)


@pytest.mark.slow
def test_batches_are_cut_as_often_as_they_can_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "demo_gpt.py").write_text(
        "from shardwright import demo\n\ndef small():\n    return demo.build(), demo.batches()[0]\n"
    )
    model = f"{tmp_path / 'demo_gpt.py'}:small"
    answer = answer_of(capsys, "compare", model, "--cluster", "cpu:2")
    assert {row["micro_batches"] for row in answer["rows"]} == {1, 2, 4, 8}
    only = answer_of(capsys, "compare", model, "--cluster", "cpu:2", "--micro-batches", "2")
    assert {row["micro_batches"] for row in only["rows"]} == {2}
    # A plan takes the same whoever asks.
    same = [row for row in answer["rows"] if row["micro_batches"] == 2]
    assert [row["seconds"] for row in same] == [row["seconds"] for row in only["rows"]]


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("--cluster", "h200:2", "--devices", "4"), "SW0921", "from 1 to 2"),
        (("--cluster", "h200:0"), "SW0901", "h200:1"),
        (("--cluster", "h200:2", "--devices", "0"), "SW0315", "from 1 to 1048576"),
        (("--cluster", "nowhere:2"), "SW0900", "dgx-h100"),
        (("--cluster", "h200:2", "--deadline", "-1"), "SW0929", "not -1 seconds"),
        (("--cluster", "h200:2", "--deadline", "nan"), "SW0929", "not NaN seconds"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: str, part: str) -> None:
    assert main(("compare", GRAPH, *words)) == 1
    said = capsys.readouterr().err
    assert code in said and part in said


def test_auto_needs_a_cluster_and_says_what_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    auto = "plan", GRAPH, "--devices", "2", "--plan", "auto"
    assert main(auto) == 1
    assert "SW0924" in capsys.readouterr().err
    assert main((*auto, "--cluster", "h200:2", "--memory", "10KB")) == 1
    said = capsys.readouterr().err
    assert "SW0920" in said and "parameters" in said and "more memory" in said
    chosen = answer_of(capsys, *auto, "--cluster", "h200:2")
    first = answer_of(capsys, "compare", GRAPH, "--cluster", "h200:2", "--batches", "1")["rows"][0]
    assert chosen["plan"] == first["plan"]


@pytest.mark.slow
def test_a_model_is_trained_under_the_plan_that_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(SLOW_LINKS)
    module, given = models.gpt(batch=4)

    def body(_: int, comm: Any) -> Any:
        options = {"plan": "auto", "comm": comm, "cache": False, "progress": False}
        here = sw.parallelize(module, given, cluster=str(path), micro_batches=2, **options)
        plain = sw.parallelize(module, given, **options)  # for what is known of the devices here
        named = here.program.plan, plain.program.plan
        return *named, here.train_step(given), plain(*given)

    expected = module(*given)[1].detach()
    for slow, plain, stepped, loss in run_local(2, body):
        assert slow == Choice(str(path), SLOW_LINKS, 2).plan(_graph(module, given, 2), 2).name
        assert plain and slow
        torch.testing.assert_close(stepped, expected)
        torch.testing.assert_close(loss[1].detach(), expected)


def trained(model: Any, optimizer: Any, given: Any) -> list[torch.Tensor]:
    """Losses of three steps, of fewer rows, and of evaluation."""
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(*given)[1]
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    with torch.no_grad():
        return [*losses, model(*(x[:2] for x in given))[1], model.eval()(*given)[1]]


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_plan_is_chosen_where_none_is_named(world: int, capsys: pytest.CaptureFixture[str]) -> None:
    module, given = models.gpt(batch=4)

    def body(rank: int, comm: Any) -> Any:
        model = sw.parallelize(copy.deepcopy(module), given, comm=comm, cache=False, progress=rank == 0)
        return trained(model, sw.optimizer(model, torch.optim.SGD, lr=0.1), given)

    actual = run_local(world, body)
    expected = trained(module, torch.optim.SGD(module.parameters(), lr=0.1), given)
    for losses in actual:
        torch.testing.assert_close(losses, expected)
    said = capsys.readouterr().err
    assert f"  chosen for cpu:{world}: a step takes" in said and "times the lower bound" in said


@pytest.mark.slow
def test_ranks_that_are_given_their_own_rows_run_a_plan_that_reads_rows() -> None:
    module, given = models.gpt(batch=4)
    rows = list(zip(*given, strict=True))

    def body(_: int, comm: Any) -> Any:
        model = sw.parallelize(module, given, inputs="local", comm=comm, cache=False, progress=False)
        sampler = sw.sampler(model, rows, batch_size=4, shuffle=False)
        [rows_here] = torch.utils.data.DataLoader(rows, batch_sampler=sampler)
        return model(*rows_here)[1].detach()

    for loss in run_local(4, body):
        torch.testing.assert_close(loss, module(*given)[1].detach())
    graph = _graph(module, given, 1)
    with_names = Choice("cpu:4", inputs="local").search(graph, 4, every=True)
    assert with_names.inside is None and with_names.pipelines is None
    assert not any(row["plan"].startswith(("auto", "found")) for row in with_names.rows)


def _graph(module: Any, given: Any, parts: int) -> sw.Graph:
    bundle, _ = sw.compile_model(module, tuple(x[: len(x) // parts] for x in given), plan="replicate")
    return sw.Graph(bundle.graph_text)


def test_what_is_known_of_the_devices_here() -> None:
    assert cluster_here("cpu", 4) == Here("cpu:4")
    with pytest.raises(sw.ClusterError, match="SW0923"):
        cluster_here("abacus", 4)


def gpus(monkeypatch: pytest.MonkeyPatch, name: str, memory: int = 10**12, **said: Any) -> None:
    for variable in ("LOCAL_WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    properties = {"multi_processor_count": 132, "major": 9, "minor": 0, **said}
    properties = SimpleNamespace(name=name, total_memory=memory, **properties)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100-40g-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", None),
        ("NVIDIA A10G", "a10g"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100S-PCIE-32GB", "v100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_gpu_is_known_by_the_words_of_its_name_or_described(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: str | None
) -> None:
    gpus(monkeypatch, name)
    here = cluster_here("cuda", 4)
    if kind is not None:
        assert here == Here(f"{kind}:4x1")
    else:
        assert here.name == name and here.text is not None
    assert cluster_devices(here.name, here.text) == 4


def test_a_gpu_without_a_name_is_described_from_what_its_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"clock_rate": 2_520_000, "memory_clock_rate": 10_501_000, "memory_bus_width": 384}
    gpus(
        monkeypatch,
        "NVIDIA GeForce RTX 4090",
        25 * 10**9,
        multi_processor_count=128,
        major=8,
        minor=9,
        **said,
    )
    text = cluster_here("cuda", 16).text
    assert text is not None and "count = 2" in text and 'devices = "here:8"' in text
    # But for what the driver and others have of it.
    assert 'memory = "22.550 GB"' in text and 'bandwidth = "1008.1 GB/s"' in text
    assert 'bf16 = "330.3 TFLOP/s"' in text


def test_how_many_ranks_a_node_has(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, "NVIDIA H100 80GB HBM3")
    assert cluster_here("cuda", 64).name == "dgx-h100:8x8"
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "4(x16)")
    assert cluster_here("cuda", 64).name == "dgx-h100:4x16"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert cluster_here("cuda", 64).name == "dgx-h100:2x32"
    gpus(monkeypatch, "NVIDIA H100 PCIe")
    assert cluster_here("cuda", 64).name == "h100-pcie:8x8"


def test_a_device_has_no_more_memory_than_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, "NVIDIA L4", 20 * 10**9)
    assert cluster_here("cuda", 8) == Here("l4:8x1", None, 17_800_000_000)
    gpus(monkeypatch, "Tesla V100-SXM2-16GB", 17 * 10**9)
    assert cluster_here("cuda", 1) == Here("v100:1x1", None, 14_950_000_000)
    gpus(monkeypatch, "NVIDIA L4", 23 * 10**9)
    assert cluster_here("cuda", 8).memory is None
    gpus(monkeypatch, "NVIDIA H100 80GB HBM3", 85 * 10**9)
    assert cluster_here("cuda", 8).memory is None


def test_a_plan_is_chosen_for_the_memory_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    comm: Any = SimpleNamespace(device=torch.device("cuda"))

    def memory(cluster: str | None, asked: int | str | None) -> int | str | None:
        options = PlanOptions("auto", None, cluster, None, asked, "adamw")
        return options.choice(comm, 2, "global").memory

    gpus(monkeypatch, "NVIDIA L4", 20 * 10**9)
    assert memory(None, None) == 17_800_000_000
    assert memory(None, "8GiB") == "8GiB" and memory("l4:2", None) is None


def test_a_plan_is_chosen_for_as_many_batches_as_a_step_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = Choice.search

    def search(choice: Choice, *args: Any, **options: Any) -> Any:
        asked.append(choice.batches)
        return original(choice, *args, **options)

    monkeypatch.setattr(Choice, "search", search)
    model, example = torch.nn.Linear(4, 1), torch.randn(4, 4)
    sw.parallelize(model, example, batches=3, cache=False)
    assert asked == [3]
    with pytest.raises(sw.ShardwrightError) as error:
        sw.parallelize(model, example, batches=0)
    assert error.value.code == "SW0845"


VIEW = """shardwright-graph 1
model "View"
in_spec "*"
out_spec "*"
module "" "View"
input %x f32[8,32] 0
op %y f32[4,64] = aten.view.default(%x, [4, 64]) in "" at "m.py:1"
output %y
"""


@pytest.mark.parametrize("words", [("compare",), ("compare", "--batches", "1"), ("plan",), ("simulate",)])
def test_a_model_without_work_takes_no_time(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "view.graph"
    path.write_text(VIEW)
    assert main((words[0], str(path), "--cluster", "cpu:1", *words[1:])) == 0
    assert " 0 us" in capsys.readouterr().out
    assert answer_of(capsys, words[0], str(path), "--cluster", "cpu:1", *words[1:])


def test_one_device_has_nothing_to_divide(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("compare", GRAPH, "--cluster", "h200:1")) == 0
    out = capsys.readouterr().out
    assert "replicate" in out and "on one device there is nothing to shard" in out
    assert main(("plan", GRAPH, "--cluster", "h200:1")) == 0
    assert "on one device there is nothing to shard" in capsys.readouterr().out


def test_a_deadline_that_ends_the_search_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan", GRAPH, "--devices", "2", "--cluster", "h200:2"
    for deadline, is_late in ((("--deadline", "0"), True), ((), False)):
        assert main((*words, *deadline)) == 0
        assert ("the deadline ended the search" in capsys.readouterr().out) is is_late
        shapes = answer_of(capsys, *words, *deadline)["found"]["shapes"]
        assert (shapes["tried"] < shapes["all"]) is is_late


def test_memory_over_time_comes_to_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = "simulate", GRAPH, "--devices", "4", "--plan", "stages:4 x 1f1b"
    answer = answer_of(capsys, *words, "--cluster", "h200:4", "--batches", "8")
    assert [one["rank"] for one in answer["memory_over_time"]] == [0, 1, 2, 3]
    for one in answer["memory_over_time"]:
        most = max(bytes for _, _, bytes in one["stretches"])
        # It grows a little with micro-batches beyond those that what is needed is counted of.
        assert most == pytest.approx(answer["memory"][one["rank"]]["needed"], rel=0.01)
        assert all(0 <= start <= end <= answer["seconds"] for start, end, _ in one["stretches"])


def test_how_long_a_search_may_take_is_said_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, seconds in (("", 60.0), ("7.5", 7.5), ("inf", None)):
        monkeypatch.setenv("SHARDWRIGHT_DEADLINE", said)
        assert default_deadline() == seconds == Choice("cpu:2").deadline
    monkeypatch.setenv("SHARDWRIGHT_DEADLINE", "soon")
    with pytest.raises(ClusterError, match=r"SW0935\S* SHARDWRIGHT_DEADLINE='soon' is no number of seconds"):
        default_deadline()
