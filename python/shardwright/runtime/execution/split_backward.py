"""The backward of a call in two halves: the gradients of its arguments first, those of leaves later.

The first half goes through the call's graph once, as a whole backward does, but for what computes the
gradient of a leaf and can wait: there it stops, and keeps the gradient that has arrived. The second half
goes on from these places, so that nothing is computed twice. Between the two, what only the first half
needed is free.

What can wait is where an operator computes its gradients apart (`_APART`), such as the two products of a
linear. Others compute them together, or were compiled, or are Python's: of those, the first half has the
gradient of a leaf as well, and the second hands it over. So it is where a call reads a leaf in several
ways, each of which would lead through the others, and where the values of a parameter would be read that
is gathered: its memory is given up between the halves. So the second half reads nothing that is gathered,
whatever the operators are.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, saved_tensors_hooks

from .unread import Unread, nan_like

Edge = tuple[Node, int]
Edges = tuple[tuple[Node | None, int], ...]

# For who only wants to know of what is saved where it lies.
_NOTHING = torch.empty(0)

# Of these each gradient is computed by operators of its own. For each operand: what its gradient reads of
# what autograd saved.
_APART: dict[str, tuple[str | None, ...]] = {
    "AddmmBackward": (None, "mat2", "mat1"),
    "AddmvBackward": (None, "vec", "mat"),
    "BaddbmmBackward": (None, "batch2", "batch1"),
    "BmmBackward": ("mat2", "self"),
    "ConvolutionBackward": ("weight", "input", None),
    "DotBackward": ("tensor", "self"),
    "LinearBackward": ("weight", "input", None),
    "MmBackward": ("mat2", "self"),
    "MvBackward": ("vec", "self"),
    "VdotBackward": ("other", "self"),
}
# These hand all operands to one operator, which computes what is asked for.
_TOGETHER = {"ConvolutionBackward", "LinearBackward"}
# These lead on to one other node, and know nothing of the values.
_WITHOUT_VALUES = {
    "AliasBackward", "AsStridedBackward", "CloneBackward", "EmbeddingBackward", "ExpandBackward",
    "PermuteBackward", "ReshapeAliasBackward", "SelectBackward", "SliceBackward", "SqueezeBackward",
    "TBackward", "ToCopyBackward", "TransposeBackward", "UnsafeViewBackward", "UnsqueezeBackward",
    "ViewBackward",
}  # fmt: skip
# But for where rows lie.
_INDICES = {"EmbeddingBackward": "indices"}


class Packing(Protocol):
    """How tensors that autograd saves are kept."""

    def pack(self, x: Any) -> Any: ...

    def unpack(self, kept: Any) -> Tensor: ...


@dataclass
class _Box:
    kept: Any
    # Whether its memory is there for a while only.
    gathered: bool


class Boxes:
    """What autograd saves of one call. A tensor is free once its operator has run, unless that runs again."""

    def __init__(self, inner: Packing | None = None, gathered: frozenset[int] = frozenset()):
        """`gathered` are the addresses of storages that are given up after the first half."""
        self._inner, self._gathered = inner, gathered
        # How many operators run now that run again.
        self._again = 0
        # What stands for what is gathered once it is given up.
        self._stands: Callable[[Tensor], Tensor] = Unread
        self._looks, self._seen = False, False

    def hooks(self) -> Any:
        return saved_tensors_hooks(self._pack, self._unpack)

    def run_again(self, nodes: Sequence[Node]) -> list[Any]:
        """These do, from now on until the handles are removed."""
        begun = [node.register_prehook(self._begin) for node in nodes]
        return begun + [node.register_hook(self._end) for node in nodes]

    def _begin(self, *_: Any) -> None:
        self._again += 1

    def _end(self, *_: Any) -> None:
        self._again -= 1

    def reads(self, node: Node, saved: str | None) -> bool:
        """Whether what an operator saved under this name is gathered; also where nothing is known of it."""
        if not self._gathered or saved is None:
            return False
        self._looks, self._seen = True, True
        try:
            getattr(node, f"_saved_{saved}", None)
        finally:
            self._looks = False
        return self._seen

    def later(self, node: Node) -> None:
        """The second half runs this operator."""
        self._stands = nan_like if _kind(node) in _TOGETHER else Unread

    def _pack(self, x: Tensor) -> _Box:
        gathered = bool(self._gathered) and not x.is_sparse and _address(x) in self._gathered
        return _Box(self._inner.pack(x) if self._inner else x, gathered)

    def _unpack(self, box: _Box) -> Tensor:
        if self._looks:
            self._seen = box.gathered
            return _NOTHING
        if box.gathered and not _is_there(box.kept):
            return self._stands(box.kept)
        kept = box.kept
        if not self._again:
            box.kept = None
        tensor: Tensor = self._inner.unpack(kept) if self._inner else kept
        return tensor


@dataclass
class Left:
    """What the second half of a backward starts from."""

    boxes: Boxes
    # Operators that run again, for these leaves only.
    nodes: list[tuple[Node, Tensor, list[Tensor]]] = field(default_factory=list)
    # Ways to a leaf each, or the leaves themselves.
    edges: list[tuple[Edge, Tensor]] = field(default_factory=list)

    def backward(self) -> None:
        while self.nodes:
            node, grad, leaves = self.nodes.pop()
            self.boxes.later(node)
            torch.autograd.backward([GradientEdge(node, 0)], [grad], inputs=leaves)
        if self.edges:
            edges, grads = zip(*self.edges, strict=True)
            torch.autograd.backward([GradientEdge(*edge) for edge in edges], grads)
        self.edges = []


def first_half(
    entries: Sequence[Node], edges: Sequence[GradientEdge], grads: Sequence[Tensor], boxes: Boxes
) -> tuple[list[Tensor | None], Left]:
    """The gradients at the entries of a graph, and what is left."""
    graph = _Graph(edges, frozenset(entries), boxes)
    left = Left(boxes)
    roots = []
    for edge, grad in zip(edges, grads, strict=True):
        if graph.waits(edge.node):
            left.edges.append(((edge.node, edge.output_nr), grad))
        else:
            roots.append((edge, grad))
    apart, others = graph.stops()
    # Of an entry that nothing leads to autograd's node may be gone: to ask for it would end the process.
    reached = [node for node in entries if node in graph]
    wanted: list[Edge] = [(node, 0) for node in (*reached, *apart)] + others
    again = boxes.run_again(list(apart))
    gradients = _run([edge for edge, _ in roots], [grad for _, grad in roots], wanted)
    for handle in again:
        handle.remove()
    arrived = iter(gradients[len(reached) :])
    at_nodes = [(node, next(arrived), leaves) for node, leaves in apart.items()]
    left.nodes = [(node, grad, leaves) for node, grad, leaves in at_nodes if grad is not None]
    left.edges += [(edge, grad) for edge, grad in zip(others, arrived, strict=True) if grad is not None]
    of_entries = dict(zip(reached, gradients, strict=False))
    return [of_entries.get(node) for node in entries], left


def _run(
    roots: Sequence[GradientEdge], grads: Sequence[Tensor], wanted: Sequence[Edge]
) -> list[Tensor | None]:
    if not roots or not wanted:
        return [None] * len(wanted)
    edges = [GradientEdge(*edge) for edge in wanted]
    return list(torch.autograd.grad(roots, edges, grads, retain_graph=True, allow_unused=True))


class _Graph:
    """The graph of a call, from its results to its entries and leaves."""

    def __init__(self, roots: Sequence[GradientEdge], entries: frozenset[Node], boxes: Boxes):
        self._boxes = boxes
        # What each node leads to. Readers come after what they read.
        self._next = dict(_postorder([edge.node for edge in roots], entries))
        # Of each node from which a way without values leads to a leaf: the leaf's.
        self._leaf: dict[Node, Node] = {}
        for node, following in self._next.items():
            if node not in entries:
                self._know(node, following)
        self._ways = self._counted(roots)

    def __contains__(self, node: Node) -> bool:
        return node in self._next

    def waits(self, node: Node) -> bool:
        """Whether it leads to a leaf without values, and nothing else of the call does."""
        leaf = self._leaf.get(node)
        return leaf is not None and self._ways[leaf] == 1

    def stops(self) -> tuple[dict[Node, list[Tensor]], list[Edge]]:
        """Operators that run again, with the leaves for which they do, and where else the first half ends."""
        apart: dict[Node, list[Tensor]] = {}
        others: dict[Edge, None] = {}
        for node, edges in self._next.items():
            if node in self._leaf:
                continue
            for at, (following, number) in enumerate(edges):
                if following not in self._leaf:
                    continue
                leaf: Any = self._leaf[following]
                if self.waits(following) and self._runs_again(node, at):
                    apart.setdefault(node, []).append(leaf.variable)
                elif self.waits(following):
                    others[following, number] = None
        for node, leaf in self._leaf.items():
            if leaf is node and not self.waits(node):
                others[node, 0] = None
        return apart, list(others)

    def _runs_again(self, node: Node, operand: int) -> bool:
        """Whether an operator can compute the gradient of an operand later, and by itself."""
        reads = _APART.get(_kind(node), ())
        return operand < len(reads) and not self._boxes.reads(node, reads[operand])

    def _know(self, node: Node, edges: Edges) -> None:
        kind = _kind(node)
        if kind == "AccumulateGrad":
            self._leaf[node] = node
        elif kind in _WITHOUT_VALUES:
            following = [one for one, _ in edges if one is not None]
            leads = len(following) == 1 and following[0] in self._leaf
            if leads and not self._boxes.reads(node, _INDICES.get(kind)):
                self._leaf[node] = self._leaf[following[0]]

    def _counted(self, roots: Sequence[GradientEdge]) -> Counter[Node]:
        """In how many ways the graph leads to each leaf, and to what leads to it without values."""
        ways = Counter(edge.node for edge in roots if edge.node in self._leaf)
        for node, edges in reversed(self._next.items()):
            for following, _ in edges:
                if following in self._leaf:
                    ways[following] += ways[node] if node in self._leaf else 1
        return ways


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _is_there(x: Tensor) -> bool:
    return x.untyped_storage().nbytes() > 0


def _kind(node: Node) -> str:
    return _name_of(type(node))


@functools.cache
def _name_of(kind: type) -> str:
    return kind.__name__.rstrip("0123456789")


def _postorder(roots: Sequence[Node], entries: frozenset[Node]) -> Iterator[tuple[Node, Edges]]:
    seen: set[Node] = set()
    open_: list[tuple[Node, Edges | None]] = [(root, None) for root in roots]
    while open_:
        node, following = open_.pop()
        if following is not None:
            yield node, following
        elif node not in seen:
            seen.add(node)
            following = node.next_functions
            open_.append((node, following))
            if node not in entries:
                open_ += [(one, None) for one, _ in following if one is not None and one not in seen]
