"""PyTorch Geometric: its networks, and each of its convolutions twice in a row, on a graph of some nodes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from .built import Built, NotBuilt, finished, said

NODES, EDGES, WIDTH = 24, 80, 8
NETWORKS = ("GCN", "GraphSAGE", "GIN", "GAT", "EdgeCNN", "LINKX", "GraphUNet")
ATTRIBUTES = ("CGConv", "GINEConv", "GMMConv", "NNConv", "PDNConv")
"""Convolutions that need attributes of edges: two of each."""
OTHERS = ("APPNP", "DNAConv", "DynamicEdgeConv", "ECConv", "FiLMConv", "FusedGATConv", "GravNetConv", "HANConv", "HEATConv", "HGTConv", "LGConv", "MixHopConv", "PANConv", "PointConv", "PointGNNConv", "SignedConv", "SimpleConv", "SplineConv", "WLConv", "WLConvContinuous")  # fmt: skip
"""Of nodes of two kinds, without parameters, of another package, or another name of one that is there."""
GIVEN: dict[str, Any] = {
    "in_channels": WIDTH, "out_channels": WIDTH, "hidden_channels": 16, "channels": WIDTH, "heads": 2, "concat": False,
    "dim": 1, "kernel_size": 3, "K": 2, "edge_dim": None, "num_relations": 3, "num_layers": 2, "num_timesteps": 2,
    "num_nodes": NODES, "alpha": 0.5, "theta": 0.5, "num_spheres": 2, "num_segments": 2, "propagate_dim": 4,
    "space_dimensions": 2, "k": 3, "depth": 2, "groups": 2, "iterations": 2, "num_heads": 2, "num_blocks": 1,
    "layer": 1, "towers": 1, "processing_steps": 2,
}  # fmt: skip


class Twice(nn.Module):
    """Two layers and what is between them."""

    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edge_index: Tensor, **others: Tensor) -> Tensor:
        hidden = self.first(x=x, edge_index=edge_index, **others)
        return self.second(x=hidden.relu(), edge_index=edge_index, **others)


def names() -> list[str]:
    from torch_geometric.nn import conv

    layers = [
        name
        for name, kind in vars(conv).items()
        if inspect.isclass(kind) and issubclass(kind, conv.MessagePassing) and name not in OTHERS
        if kind is not conv.MessagePassing
    ]
    return [*NETWORKS, *sorted(layers)]


def build(name: str) -> Built:
    from torch_geometric import nn as graphs

    torch.manual_seed(0)
    kind = getattr(graphs, name)
    try:
        module = kind(**_options(kind))
        module = module if name in NETWORKS else Twice(module, kind(**_options(kind)))
        return finished(module, _example(kind), task="graphs")
    except NotBuilt:
        raise
    except Exception as error:
        raise NotBuilt(said(error)) from error


def _options(kind: Any) -> dict[str, Any]:
    """What its constructor needs, and of the rest what makes it small."""
    taken = inspect.signature(kind.__init__).parameters
    options = {name: GIVEN[name] for name in taken if GIVEN.get(name) is not None}
    if "nn" in taken:
        double = 2 if kind.__name__ in ("EdgeConv", "DynamicEdgeConv") else 1
        options["nn"] = nn.Sequential(nn.Linear(double * WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH))
    if "deg" in taken:
        options |= {
            "deg": torch.tensor([0, 4, 8, 12]),
            "aggregators": ["mean", "max"],
            "scalers": ["identity", "linear"],
        }
    if kind.__name__ in ATTRIBUTES:
        options |= {name: 2 for name in ("dim", "edge_dim") if name in taken}
    if kind.__name__ == "NNConv":
        options["nn"] = nn.Linear(2, WIDTH * WIDTH)
    return options


def _edges() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(NODES, (2, EDGES), generator=generator)


def _example(kind: Any) -> dict[str, Any]:
    taken = inspect.signature(kind.forward).parameters
    generator = torch.Generator().manual_seed(1)
    example: dict[str, Any] = {
        "x": torch.randn(NODES, WIDTH, generator=generator, dtype=torch.float64),
        "edge_index": _edges(),
    }
    if "edge_type" in taken:
        example["edge_type"] = torch.randint(3, (EDGES,), generator=generator)
    for name in ("pos", "x_0", "x0"):
        if name in taken:
            width = 3 if name == "pos" else WIDTH
            example[name] = torch.randn(NODES, width, generator=generator, dtype=torch.float64)
    if kind.__name__ in ATTRIBUTES:
        example["edge_attr"] = torch.rand(EDGES, 2, generator=generator, dtype=torch.float64)
    if "batch" in taken and taken["batch"].default is inspect.Parameter.empty:
        example["batch"] = torch.arange(NODES) // (NODES // 2)
    return example
