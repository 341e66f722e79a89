"""`shardwright simulate` and `shardwright manifest`, as people call them."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli import main

GRAPH = str(Path(__file__).parents[1] / "golden" / "gpt.graph")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


PARTS = ("forward", "backward", "again", "copies", "exposed", "idle", "update")


def answer_of(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(said(capsys, *words, "--json"))


def on(plan: str, cluster: str, devices: int = 4) -> tuple[str, ...]:
    return GRAPH, "--devices", str(devices), "--plan", plan, "--cluster", cluster


def test_a_line_for_each_device_and_the_parts_of_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    command = "simulate", *on("stages:4 x 1f1b", "h200:4"), "--batches", "8"
    lines = said(capsys, *command).splitlines()
    assert lines[0].startswith("a step takes ") and lines[1].startswith("memory: at most ")
    assert [line.split()[0] for line in lines[5:9]] == ["0", "1", "2", "3"]
    assert {*"FB"} <= {*lines[5]} and max(map(len, lines)) <= 100
    assert lines[11].split() == ["device", *PARTS]
    shares = [float(share.rstrip("%")) for share in lines[12].split()[1:]]
    assert sum(shares) == pytest.approx(100, abs=1)
    numbers = answer_of(capsys, *command)
    for rank in numbers["ranks"]:
        assert sum(rank[part] for part in PARTS) == pytest.approx(numbers["seconds"])
    assert numbers["micro_batches"] == 8 and all(one["needed"] < one["there"] for one in numbers["memory"])


def test_a_slower_link_makes_a_longer_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def seconds(bandwidth: str) -> float:
        path = tmp_path / "c.toml"
        path.write_text(f'[[nodes]]\ndevices = "h100:4"\nlink = {{ bandwidth = "{bandwidth}" }}\n')
        return float(answer_of(capsys, "simulate", *on("data", str(path)))["seconds"])

    assert seconds("1 MB/s") > 10 * seconds("400 GB/s")


def test_a_timeline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    command = *on("zero3", "h200:4"), "--trace", str(path)
    assert str(path) in said(capsys, "simulate", *command)
    events = json.loads(path.read_text())["traceEvents"]
    step = answer_of(capsys, "simulate", *command)["seconds"]
    drawn = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in drawn} == {0, 1, 2, 3}
    assert {"gather", "scatter_gradients", "optimizer"} <= {event["name"] for event in drawn}
    assert all(event["ts"] >= 0 and event["ts"] + event["dur"] <= step * 1e6 + 0.01 for event in drawn)
    assert any("models.py:" in (event["args"]["operator"] or "") for event in drawn)


def test_the_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    command = "manifest", *on("data:2 x megatron:2", "dgx-h100:2x2")
    answer = answer_of(capsys, *command)
    assert (answer["world"], answer["roles"][0]["ranks"]) == (4, [[0, 3]])
    messages = answer["roles"][0]["communications"]
    assert [one["start_seconds"] for one in messages] == sorted(one["start_seconds"] for one in messages)
    kinds = [{one["kind"] for one in messages if one["group"] == group} for group in ([0, 1], [0, 2])]
    assert "all_reduce" in kinds[0] and "reduce_gradients" in kinds[1]
    for one in messages:
        assert 0 <= one["exposed_seconds"] <= one["expected_seconds"] <= answer["step_seconds"]
        assert 0 <= one["share_of_link"] <= 1
    text = said(capsys, *command)
    lines = text.splitlines()
    assert re.match(
        r"Gpt under data:2 x megatron:2 on dgx-h100:2x2, one micro-batch: a step takes ", lines[0]
    )
    assert re.match(rf"ranks 0\.\.4, as rank 0 does: {len(messages)} communications, ", lines[2])
    assert "reduce_gradients" in text and max(map(len, lines)) <= 100


# So slow that bytes are all that counts.
SLOW = """
name = "slow"
[network]
bandwidth = "1 MB/s"
latency = "1 us"
shared = true
[[nodes]]
count = 2
devices = "%s"
link = { bandwidth = "10 MB/s", latency = "1 us", shared = %s }
"""


def test_links_inside_nodes_are_so_called_where_there_is_one_node(capsys: pytest.CaptureFixture[str]) -> None:
    command = "manifest", *on("megatron:4", "h200:4")
    assert "\n  inside nodes: busy for " in said(capsys, *command)
    links = answer_of(capsys, *command)["roles"][0]["links"]
    assert [link["link"] for link in links] == ["inside its node"], "readers of the JSON know this name"


def test_an_exchange_in_which_nothing_moves_is_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    options = on("data:2 x coshard", "h200:2", 2)
    [role] = answer_of(capsys, "manifest", *options)["roles"]
    messages = role["communications"]
    assert {one["kind"] for one in messages} == {"all_reduce", "reduce_gradients"}
    assert [one["order"] for one in messages] == [*range(len(messages))]
    in_bursts = [at for link in role["links"] for burst in link["bursts"] for at in burst["communications"]]
    assert sorted(in_bursts) == [*range(len(messages))]
    entries = answer_of(capsys, "report", *options)["communication"]["entries"]
    assert entries and all(entry["bytes"] > 0 for entry in entries)


# Sums within nodes first, over a link that devices share, and from one to the other.
@pytest.mark.parametrize(
    ("plan", "node", "shared"),
    [
        ("data", "h100:2", "false"),
        ("stages:2 x data:2 x 1f1b", "h100:4", "true"),
        ("stages:2 x megatron:2 x 1f1b", "h100:2", "true"),
    ],
)
def test_no_message_uses_more_than_its_link(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, plan: str, node: str, shared: str
) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(SLOW % (node, shared))
    answer = answer_of(capsys, "manifest", *on(plan, str(path)), "--batches", "4")
    shares = [one["share_of_link"] for role in answer["roles"] for one in role["communications"]]
    assert all(0 <= share <= 1 for share in shares), max(shares)
    assert max(shares) > 0.9


# Two nodes of two, on a network that is so slow that bytes are all that counts.
NETWORK = """
[network]
bandwidth = "1 Mbit/s"
latency = "1 us"
shared = %s
[[nodes]]
count = 2
devices = "h100:2"
"""


def messages_of(
    capsys: pytest.CaptureFixture[str], path: Path, plan: str, shared: str = "false"
) -> list[dict[str, Any]]:
    path.write_text(NETWORK % shared)
    answer = answer_of(capsys, "manifest", *on(plan, str(path)), "--batches", "2")
    return [one for role in answer["roles"] for one in role["communications"]]


def test_what_shares_no_link_does_not_wait(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Sums in a node go on while parameters come over the network, where one thing follows another."""
    actual = messages_of(capsys, tmp_path / "c.toml", "zero3:2 x megatron:2")
    spans = [
        (one["start_seconds"], one["start_seconds"] + one["expected_seconds"], one["group"]) for one in actual
    ]
    inside, between = ([span for span in spans if span[2] == group] for group in ([0, 1], [0, 2]))
    assert any(since < start < until for start, _, _ in inside for since, until, _ in between)
    ordered = sorted(between)
    assert len(ordered) > 5
    assert all(one[1] <= other[0] * (1 + 1e-9) for one, other in pairwise(ordered))


def test_messages_between_stages_share_the_network_of_a_node(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def sent(shared: str) -> float:
        actual = messages_of(capsys, tmp_path / "c.toml", "stages:2 x data:2 x 1f1b", shared)
        return max(float(one["expected_seconds"]) for one in actual if one["kind"] == "send")

    assert sent("true") == pytest.approx(2 * sent("false"), rel=0.01)


@pytest.mark.parametrize(
    ("words", "code", "said_of_it"),
    [
        (("--cluster", "dgx-h900:8"), "SW0900", "dgx-h100:8x4"),
        (("--cluster", "h200"), "SW0901", "h200:1"),
        (("--plan", "data", "--cluster", "h200:2"), "SW0910", "has 2"),
        (("--cluster", "h200:4", "--batches", "0"), "SW0912", "--batches 1"),
        (("--cluster", "h200:4", "--optimizer", "lion"), "SW0430", "adamw"),
        (("--cluster", "h200:4", "--trace", "nowhere/step.json"), "SW0913", "nowhere"),
        (("--cluster", "missing.toml"), "SW0914", "missing.toml"),
    ],
)
def test_refusals(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
    code: str,
    said_of_it: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(("simulate", GRAPH, "--devices", "4", *words)) == 1
    printed = capsys.readouterr().err
    assert code in printed and said_of_it in printed


def test_a_cluster_file_is_refused_at_its_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[[nodes]]\ndevices = "h100:4"\nlink = { bandwidth = "fast" }\n')
    assert main(("simulate", *on("data", str(path)))) == 1
    assert f"{path}:3:22" in capsys.readouterr().err
