"""A graph's operators in the order of the forward: what each makes and reads, and where in the model."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from math import prod

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
COARSE = ("f32", "bf16", "f16", "c64")
_TYPED = re.compile(r"%(\w+) (\w+)\[([\d,]*)\]")


@dataclass(frozen=True)
class Made:
    name: str
    dtype: str
    numel: int


@dataclass(frozen=True)
class Node:
    """An `op` line."""

    results: tuple[Made, ...]
    reads: tuple[str, ...]
    target: str
    """The operator; of a function or a module that runs as it is, its name."""
    path: str
    line: str


@dataclass(frozen=True)
class Order:
    nodes: tuple[Node, ...]
    params: dict[str, tuple[str, ...]]
    """Names in the model by names in the graph, of parameters and buffers."""
    typed: dict[str, Made]
    outputs: tuple[str | None, ...]
    updates: dict[str, str]
    """What buffers and parameters become, by their names in the model."""

    @cached_property
    def in_graph(self) -> dict[str, str]:
        return {name: key for key, names in self.params.items() for name in names}

    @cached_property
    def _readers(self) -> dict[str, list[int]]:
        readers: dict[str, list[int]] = {}
        for at, node in enumerate(self.nodes):
            for name in node.reads:
                readers.setdefault(name, []).append(at)
        return readers

    def first_reader(self, name: str) -> int:
        """The number of the first operator that reads a parameter or buffer of the model."""
        return min(self._readers.get(self.in_graph.get(name, ""), [len(self.nodes)]))

    def line_of_reader(self, name: str) -> str:
        at = self.first_reader(name)
        return self.nodes[at].line if at < len(self.nodes) else ""

    def said_of_coarse(self) -> str:
        """Of a graph in float64: where it is not."""
        nodes = [node for node in self.nodes if any(made.dtype in COARSE for made in node.results)]
        lines = list(dict.fromkeys(node.line for node in nodes if node.line))
        said = ", ".join(lines[:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")
        return (
            f"in float64 the model still computes with fewer digits at {said or 'some places'}:"
            " what follows from that is compared with their rounding"
        )

    def maker(self, name: str) -> Node | None:
        return next((node for node in self.nodes if any(made.name == name for made in node.results)), None)


def order_of(text: str) -> Order:
    nodes: list[Node] = []
    params: dict[str, tuple[str, ...]] = {}
    typed: dict[str, Made] = {}
    outputs: list[str | None] = []
    updates: dict[str, str] = {}
    for kind, _, line in (line.partition(" ") for line in text.splitlines()[1:]):
        if kind == "op":
            nodes.append(_node(line))
            typed |= {made.name: made for made in nodes[-1].results}
        elif kind in ("param", "buffer", "input", "const"):
            made = _made(line.partition("] ")[0] + "]")[0]
            typed[made.name] = made
            if kind in ("param", "buffer"):
                params[made.name] = tuple(json.loads(text) for text in _STRING.findall(line))
        elif kind == "output":
            outputs.append(None if line == "none" else line[1:])
        elif kind == "update":
            name, end = json.JSONDecoder().raw_decode(line)
            updates[name] = line[end + 2 :]
    return Order(tuple(nodes), params, typed, tuple(outputs), updates)


def _node(line: str) -> Node:
    texts = [json.loads(text) for text in _STRING.findall(line)]
    plain = _STRING.sub('""', line)
    results, _, rest = plain.partition(" = ")
    called, _, where = rest.rpartition(' in ""')
    # Behind the call: the module's path, and the line if there is one.
    behind = texts[called.count('""') :]
    target, _, arguments = called.partition("(")
    if target.startswith("shardwright.") and called.count('""'):
        target = texts[0]
    reads = tuple(dict.fromkeys(re.findall(r"%(\w+)", arguments)))
    return Node(tuple(_made(results)), reads, target, behind[0], behind[1] if ' at ""' in where else "")


def _made(text: str) -> list[Made]:
    return [
        Made(name, dtype, prod(map(int, filter(None, shape.split(",")))))
        for name, dtype, shape in _TYPED.findall(text)
    ]
