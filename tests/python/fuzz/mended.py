"""Programs that once went wrong, each under the plan that showed it: they hold now."""

from __future__ import annotations

from typing import NamedTuple


class Mended(NamedTuple):
    name: str
    source: str
    plan: str
    """A name, or the text of a plan file."""
    devices: int
    outputs: str = "loss"


MENDED: list[Mended] = [
    Mended(
        "a group norm of one sample with one value a group",
        """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(normal(2, 1))
        self.x3 = nn.Parameter(normal(1))
        self.p4 = nn.Parameter(normal(1))

    def forward(self):
        p1 = self.p1
        x3 = self.x3
        p4 = self.p4
        v3 = F.group_norm(p1, 1, x3, p4, eps=0.1)
        v5 = v3.mean()
        return {"loss": v5}


def inputs():
    return ()
""",
        """\
shardwright-plan 1
name "random:5"
devices 2
op %group_norm: split a 2 on 0..2
op %mean: single on 0
""",
        2,
    ),
]
