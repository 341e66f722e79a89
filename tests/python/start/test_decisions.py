"""The decisions of a search inside of a block: an integer program of the same tables has the same least."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shardwright import demo
from shardwright._core import Graph, decision_tables
from shardwright.capture import capture

pytest.importorskip("highspy")
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benches"))
from ilp import solved

CLUSTERS = {"fast links": "h200:4", "slow links": "cpu:4", "nodes": "ethernet-25g:2x2"}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(capture(demo.build(), demo.batches()[0]).graph_text)


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
@pytest.mark.parametrize("byte", [0.0, 1e3])
def test_an_integer_program_has_the_same_least(graph: Graph, cluster: str, byte: float) -> None:
    search = decision_tables(graph, 4, cluster, byte=byte)
    theirs, _ = solved(search)
    assert search.least is not None and theirs is not None
    assert theirs == pytest.approx(search.least, rel=1e-6)
