"""Each rewriting on real tensors: the rewritten graph, run whole, computes what the model computes.

That a rewriting is equal to its operator is what proofs rest on, and nothing proves it. So each is run here
for every choice of dims, with every argument: two forwards, what they change, and all gradients, as capture
is compared with the module.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rule_cases import CASES, Case, Spec, given, ints, normal
from shardwright import CaptureError
from shardwright._core import Draft, Graph, Operator, Plan, operators_table
from shardwright.capture import capture
from shardwright.capture.casts import Casting
from shardwright.capture.verify import interpreter
from shardwright.capture.verify.against_module import Call, verify_capture
from shardwright.runtime import ops
from test_losses import Loss, classes, distances, probabilities
from test_losses import case as case_of
from test_rules import Whole

OWN = re.compile(r"(\w+)@")


class Ours:
    """An operator of the runtime, such as `sw.pick` on all columns."""

    _schema = SimpleNamespace(arguments=[])

    def __init__(self, name: str) -> None:
        self._function = getattr(ops, name.removeprefix("sw."))

    def __call__(self, *args: Any) -> Tensor:
        return self._function(*args)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of capture have no pieces of rewritings; this evaluates those too."""
    known = interpreter._target
    monkeypatch.setattr(
        interpreter, "_target", lambda name: Ours(name) if name.startswith("sw.") else known(name)
    )


def own_dims(operator: Operator) -> list[str]:
    """The dims that it is rewritten for, and that can be divided."""
    return [dim for dim in dict.fromkeys(OWN.findall(operator.rule or "")) if operator.dims.get(dim, 1) > 1]


def choices(graph: Graph) -> Iterator[list[str]]:
    """Every choice among the dims that operators are rewritten for."""
    dims = list(dict.fromkeys(dim for operator in graph.operators for dim in own_dims(operator)))
    for count in range(1, len(dims) + 1):
        yield from map(list, combinations(dims, count))


def split(graph: Graph, dims: Sequence[str]) -> Plan:
    """Divides the operators that are rewritten for these dims, all others stay whole."""
    draft = Draft(graph, "split", 1)
    for operator in graph.operators:
        draft.single(operator)
        parts = [draft.trans(operator, dim, 2) for dim in dims if dim in own_dims(operator)]
        draft.place(operator, [0] * 2 ** len(parts))
    return draft.finish()


def computes(module: Whole, text: str) -> None:
    """Raises unless the graph computes what the module computes."""
    call = Call(module, inspect.signature(module.forward).bind(*module.inputs), Casting(module))
    plain = re.sub(r"%([\w.]+)", lambda name: "%" + name[1].replace(".", "__"), text)
    verify_capture(call, plain, {})


def compared(it: Case) -> int:
    """Compares all rewritings of a case, and says how many there are."""
    module = Whole(it)
    graph = Graph(capture(module, tuple(module.inputs), verify=False).graph_text)
    count = 0
    for dims in choices(graph):
        plan = split(graph, dims)
        assert plan.rewritings, dims
        assert plan.rewritten.text != graph.text
        computes(module, plan.rewritten.text)
        count += 1
    return count


NAMES = {
    "linear", "batch_norm", "group_norm", "instance_norm", "softmax", "log_softmax", "cross_entropy",
    "nll_loss", "mse_loss", "bce", "kl_div", "poisson_nll_loss", "hinge_embedding_loss",
    "margin_ranking_loss", "cosine_embedding_loss", "triplet_margin_loss", "multilabel_margin_loss",
    "special", "conv2d", "conv3d", "max_pool2d",
}  # fmt: skip
FAMILIES = [it for it in CASES if it.name.split("-")[0] in NAMES]


@pytest.mark.parametrize("it", FAMILIES, ids=lambda it: it.name)
def test_a_rewritten_operator_computes_the_same(it: Case) -> None:
    compared(it)


@pytest.mark.parametrize("it", [it for it in CASES if it.name.startswith("experts")], ids=lambda it: it.name)
def test_rows_for_experts_compute_what_a_mixture_computes(it: Case) -> None:
    module = Whole(it)
    graph = Graph(capture(module, tuple(module.inputs), verify=False).graph_text)
    draft = Draft(graph, "exchange", 2)
    for operator in graph.operators:
        draft.single(operator)
        exchanges = operator.target == "shardwright.experts.default"
        parts = draft.trans(operator, "exchange t", 2) if exchanges else []
        draft.place(operator, [0, 1] if parts else [0])
    text = draft.finish().rewritten.text
    assert "sw.dispatch" in text and "sw.combine" in text
    computes(module, text)
    wrong = re.sub('"(silu|relu|gelu|gelu_tanh)"', lambda it: '"silu"' if it[1] == "relu" else '"relu"', text)
    with pytest.raises(CaptureError):
        computes(module, wrong)


def losses() -> Iterator[Any]:
    """Every one that may be rewritten, with every argument; of distances only means are."""
    for loss in classes():
        if not re.search("weight|smooth 0.[12]|probabilities", loss[0]):
            for reduction in ("mean", "sum", "none"):
                yield pytest.param(loss, reduction, id=f"{loss[0]} {reduction}")
    for loss in (*distances(), *probabilities()):
        if not loss[0].startswith(("mse weight", "huber weight", "mse exp", "huber exp")):
            yield pytest.param(loss, "mean", id=loss[0])


@pytest.mark.parametrize("loss, reduction", list(losses()))
@pytest.mark.filterwarnings("ignore:reduction")
def test_a_rewritten_loss_computes_the_same(loss: Loss, reduction: str) -> None:
    assert compared(case_of(loss[1], loss[2], reduction))


def low(*shape: int, dtype: torch.dtype) -> Spec:
    return "param", lambda: torch.randn(shape).to(dtype)


def masked(*shape: int) -> Spec:
    """Scores, some of which are minus infinity, and a row of huge ones."""

    def make() -> Tensor:
        x = torch.randn(shape, dtype=torch.float64)
        x[..., 1] = -torch.inf
        return torch.cat([x[:1] * 1e4, x[1:]])

    return "param", make


def statistics(value: float) -> Spec:
    return "buffer", lambda: torch.full((5,), value)


def unusual() -> Iterator[tuple[str, Callable[..., Any], tuple[Spec, ...]]]:
    """Types that are widened, and values at the ends."""
    rows = given([1, -100, 3, 0, 2, 5, 4])
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x, y = low(7, 6, dtype=dtype), low(7, 6, dtype=dtype)
        yield f"softmax {dtype}", lambda x: x.softmax(-1), (x,)
        yield f"softmax of float {dtype}", lambda x: x.softmax(-1, dtype=torch.float32), (x,)
        yield f"log_softmax {dtype}", lambda x: x.log_softmax(0), (x,)
        yield f"mse {dtype}", F.mse_loss, (x, y)
        yield f"cross_entropy {dtype}", F.cross_entropy, (x, rows)
        yield f"nll {dtype}", F.nll_loss, (x, rows)
        norm = low(7, 5, 3, dtype=dtype)
        for momentum in (0.0, 0.3, 1.0):
            yield (
                f"batch_norm {dtype} momentum {momentum}",
                lambda x, m, v, p=momentum: F.batch_norm(x, m, v, training=True, momentum=p),
                (norm, statistics(0.5), statistics(2.0)),
            )
    for scores in (masked(7, 6), masked(7, 6, 2)):
        yield f"softmax masked {len(scores[1]().shape)}", lambda x: x.softmax(-2), (scores,)
    yield "linear of one row", F.linear, (normal(4, 5, 7), normal(7), normal())
    yield "linear of a vector", F.linear, (normal(7), normal(6, 7), normal(6))
    yield "log_softmax masked", lambda x: x.log_softmax(-1)[:, ::2], (masked(7, 6),)
    yield "cross_entropy masked", F.cross_entropy, (masked(7, 6), given([0, 2, 3, 4, 5, 0, -100]))
    yield "cross_entropy all ignored", F.cross_entropy, (normal(3, 6), given([-100] * 3))
    yield "nll all ignored", F.nll_loss, (normal(3, 6), given([-100] * 3))
    yield "cross_entropy one class", F.cross_entropy, (normal(3, 1), given([0, 0, -100]))
    yield "cross_entropy one row of images", F.cross_entropy, (normal(1, 6, 4), ints(6, 1, 4))


@pytest.mark.parametrize("it", list(unusual()), ids=lambda it: it[0])
def test_rewritings_hold_for_other_types_and_at_the_ends(it: Any) -> None:
    assert compared(Case("", frozenset(), it[1], it[2], {}))


def test_every_family_that_rewrites_is_compared() -> None:
    rows = re.findall(r"^\| (\w+) \| yes \|", operators_table(), re.MULTILINE)
    assert rows == [
        "contraction", "mixtures", "norms", "softmax", "losses", "distances", "margins", "convolution",
        "pooling",
    ]  # fmt: skip


FAULTS = {
    ("cross_entropy", "v"): (
        (r" = aten\.log\.", " = aten.exp."),
        (r"(aten\.ne\.Scalar\(.*), -100\)", r"\1, 3)"),
        (r"aten\.sub\.Tensor\((.*\.5), ", r"aten.add.Tensor(\1, "),
    ),
    # Averages of other dims, another scale, weights of other channels.
    ("group_norm-images", "c"): (
        (r"(aten\.mean\.dim\(\S+), \[2, 3, 4\], True", r"\1, [2, 3], True"),
        (r" = aten\.rsqrt\.", " = aten.sqrt."),
        (r"(aten\.add\.Tensor\(.*), 0\.1\)", r"\1, 0.2)"),
        (r"(aten\.addcmul\.default\()(%\S+), (%\S+), (%\S+)\)", r"\1\4, \3, \2)"),
    ),
    # Rows of the wrong side, of the wrong block, in the wrong order.
    ("conv2d-rows", "p"): (
        (r"(aten\.slice\.Tensor\(.*, 3), 1, 2\)", r"\1, 0, 1)"),
        (r"1, -1\], 0\)", "-1, 1], 0)"),
        (r"(aten\.cat\.default\(\[%\S+), (%\S+), (%\S+)\]", r"\1, \3, \2]"),
    ),
}


@pytest.mark.parametrize(("name", "dim"), list(FAULTS))
def test_what_computes_something_else_is_found(name: str, dim: str) -> None:
    """So that the comparisons above are worth something."""
    module = Whole(next(it for it in CASES if it.name == name))
    graph = Graph(capture(module, tuple(module.inputs), verify=False).graph_text)
    text = split(graph, [dim]).rewritten.text
    computes(module, text)
    for pattern, new in FAULTS[name, dim]:
        wrong = re.sub(pattern, new, text)
        assert wrong != text, pattern
        with pytest.raises(CaptureError):
            computes(module, wrong)
