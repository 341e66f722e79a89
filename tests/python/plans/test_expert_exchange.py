"""Experts by exchange: tokens send rows to their experts on other ranks, which send results back; beside the
single device, with what is really sent."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import live
import shardwright as sw
import zoo
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture
from shardwright.runtime import ParallelModule, TorchComm, load_program, run_local
from shardwright.runtime.communication.local import LocalComm
from shardwright.runtime.rows import combine, dispatch, expert_rows
from shardwright.start.compiling import sources
from test_expert_plan import EVEN, OPERATOR, SIZES, Mixture, batch_of, bundled, known

torch.set_num_threads(1)

ONE = [99.0, 0.0, 0.0, 0.0]  # with one expert a token: all to the first


class Routed(Mixture):
    """Tokens that learn, and so many experts for each."""

    def __init__(self, towards: list[float], slots: int = 1, experts: int = 4, **how: Any) -> None:
        super().__init__(experts, towards, **how)
        self.slots = slots
        self.embed = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        scores = self.router(x) + self.towards
        weights, chosen = scores.softmax(-1).topk(self.slots)
        return (x + sw.experts(x, chosen, weights, self.up, self.down, **self.how)).cos().mean()


def routed(*args: Any, **how: Any) -> tuple[nn.Module, tuple[Tensor], Captured]:
    module = Routed(*args, **how).double()
    given = (torch.randn(12, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),)
    return module, given, capture(module, given)


def exchanges(plan: Plan) -> list[str]:
    return [word for _, splits, _ in plan.decisions for word, _ in splits if word.startswith("exchange")]


def compared(module: nn.Module, args: Any, captured: Captured, plan: str, devices: int) -> None:
    assert exchanges(Plan.named(Graph(captured.graph_text), plan, devices)), "rows are gathered"
    actual = equality.run(bundled(captured, plan, devices), module, args)
    equality.assert_equal(actual, equality.reference(module, args))


@pytest.mark.slow
@pytest.mark.oldest
@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize(
    ("towards", "how"),
    [
        (EVEN, {}),
        (ONE, {}),  # all tokens to one expert: other ranks get nothing
        (EVEN, {"capacity": 0.8}),
        (ONE, {"capacity": 1.0}),
        (EVEN, {"activation": "relu", "gated": False}),
    ],
)
def test_rows_that_are_exchanged_compute_what_the_single_device_computes(
    towards: list[float], how: dict[str, Any], devices: int
) -> None:
    compared(*routed(towards, **how), "expert", devices)


@pytest.mark.parametrize(
    ("plan", "devices"),
    [
        ("data:2 x expert:3", 6),
        ("zero3:2 x expert:3", 6),
        ("zero1:2 x expert:4", 8),
        ("sequence:3 x expert:3", 9),
    ],
)
def test_products_exchange_rows_too(plan: str, devices: int) -> None:
    compared(*routed(EVEN, 2), plan, devices)


@pytest.mark.parametrize(
    ("plan", "devices"),
    [
        ("expert:3 x megatron:2", 6),
        ("expert:3 x coshard", 3),
        ("expert:3 x data:2", 6),  # each part's tokens would be divided further
        ("data:2 x expert:2", 4),  # as many experts a token as devices
    ],
)
def test_what_cannot_exchange_or_should_not_gathers_tokens(plan: str, devices: int) -> None:
    module, args, captured = routed(EVEN, 2)
    assert not exchanges(Plan.named(Graph(captured.graph_text), plan, devices))
    actual = equality.run(bundled(captured, plan, devices), module, args)
    equality.assert_equal(actual, equality.reference(module, args))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "plan", "devices"),
    [
        ("mixtral", "expert", 4),
        ("mixtral", "expert", 3),
        ("mixtral", "expert:4 x recompute", 4),
        ("mixtral", "expert:4 x recompute:selective", 4),
        ("mixtral", "expert:4 x offload", 4),
        ("qwen", "expert", 4),
        ("deepseek", "expert", 3),
    ],
)
def test_models_of_transformers_exchange_rows(name: str, plan: str, devices: int) -> None:
    (module, args, kwargs), captured, expected = known(name)
    named = Plan.named(Graph(captured.graph_text), plan, devices)
    assert exchanges(named) == ["exchange t.0"] * (1 if name == "deepseek" else 2)
    with zoo.widened():
        actual = equality.run(bundled(captured, plan, devices), module, args, kwargs=kwargs)
    equality.assert_equal(actual, expected)


@pytest.mark.parametrize("plan", ["stages:2 x expert:3", "stages:2 x expert:3 x zb-h1"])
def test_rows_are_exchanged_inside_of_stages(plan: str) -> None:
    (module, _, kwargs), captured, _ = known("deepseek")
    assert exchanges(Plan.named(Graph(captured.graph_text), plan, 6))
    batches = equality.micro_batches(kwargs, 2)
    with zoo.widened():
        actual = equality.run_steps(bundled(captured, plan, 6), module, batches)
        expected = equality.steps_reference(module, batches)
    equality.assert_equal(actual, expected)


@pytest.mark.slow
def test_slices_of_a_sequence_exchange_their_rows() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    with zoo.widened():
        module, args, kwargs = batch_of(MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4)))
        captured = capture(module, args, kwargs)
        plan = "stages:2 x tokens:2 x expert:3"
        assert exchanges(Plan.named(Graph(captured.graph_text), plan, 6))
        batches = equality.micro_batches(kwargs, 2)
        actual = equality.run_steps(bundled(captured, plan, 6), module, batches)
        expected = equality.steps_reference(module, batches)
    equality.assert_equal(actual, expected)


# ---- what is sent ------------------------------------------------------------------------------


class Counted(nn.Module):
    """Each token says which experts it has: the next ones in a row, so that all have as many."""

    def __init__(self, experts: int, width: int = 8, inner: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(width, width)
        self.up = nn.Parameter(torch.randn(experts, 2 * inner, width))
        self.down = nn.Parameter(torch.randn(experts, width, inner))

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        weights = x[..., : chosen.shape[-1]].sigmoid()
        return sw.experts(self.embed(x), chosen, weights, self.up, self.down).cos().mean()


@pytest.mark.parametrize(("devices", "slots"), [(2, 1), (4, 1), (4, 2), (4, 3)])
def test_as_many_rows_are_sent_as_the_papers_say(
    devices: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, width, experts = 16, 8, 4
    module = Counted(experts).double()
    numbers = (torch.arange(tokens)[:, None] + torch.arange(slots)) % experts
    args = (torch.randn(tokens, width, dtype=torch.float64), numbers)
    captured = capture(module, args)
    bundle = bundled(captured, "expert", devices)
    program = load_program(bundle.files, digest=bundle.digest, world=devices)
    values = sources(module, captured)
    sent: Counter[tuple[int, torch.dtype]] = Counter()
    all_to_all = LocalComm.all_to_all

    def counting(self: LocalComm, out: list[Tensor], pieces: list[Tensor], ranks: Any) -> None:
        for peer, piece in zip(ranks, pieces, strict=True):
            sent[self.rank, piece.dtype] += piece.numel() if peer != self.rank else 0
        all_to_all(self, out, pieces, ranks)

    monkeypatch.setattr(LocalComm, "all_to_all", counting)

    def body(rank: int, comm: Any) -> Any:
        model = ParallelModule(program, comm, values, captured)
        model(*args).backward()
        return [size for kind, _, size in model.issued if kind == "all_to_all"]

    issued = run_local(devices, body)
    # Forward to the experts and back, and backward the same.
    rows = tokens // devices * slots * (devices - 1) // devices
    for rank in range(devices):
        assert sent[rank, torch.float64] == 4 * rows * width
        assert sent[rank, torch.int64] == 4 * (rows + devices - 1)
    listed = compile(Plan.named(Graph(captured.graph_text), "expert", devices)).bytes
    for rank, sizes in enumerate(issued):
        counted = sum(size for what, size in listed[rank].items() if what.endswith("all_to_all"))
        assert sum(sizes) == counted == 4 * tokens // devices * slots * width * 8


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 2])
def test_memory_is_that_of_the_rows_that_are_expected(slots: int) -> None:
    tokens, module = 1024, Counted(8, 64, 96)
    args = (torch.randn(tokens, 64), (torch.arange(tokens)[:, None] + torch.arange(slots)) % 8)
    captured = capture(module, args)
    program = compile(Plan.named(Graph(captured.graph_text), "expert", 4))
    lived = live.of_steps(program, module, captured, args)
    for rank, measured in zip(program.memory(), lived, strict=True):
        assert abs(rank.total - rank.peak["inputs"] - measured) <= 0.05 * measured


def test_rows_of_a_token_that_are_for_one_rank_are_sent_once_an_expert() -> None:
    """Twice the same expert is one row."""
    x = torch.eye(3, dtype=torch.float64)
    rows = dispatch(x, torch.tensor([[1, 1], [0, -1], [-4, 1]]), 3, True)
    assert rows.indices().tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert rows.values().tolist() == x[[1, 0, 2, 1]].tolist()


# ---- plans that say so -------------------------------------------------------------------------


HEADER = 'shardwright-plan 1\ndevices {}\nuse "data"\n'


def planned(captured: Captured, devices: int, how: str) -> Plan:
    text = HEADER.format(devices) + f'op "*" {OPERATOR}: {how}'
    return Plan.parse(Graph(captured.graph_text), text)


@pytest.mark.parametrize(
    ("devices", "how"),
    [
        (2, "exchange t.0 2"),
        (3, "exchange t.0 3 on 2 0 1"),
        (4, "split t.0 2, exchange t.0 2"),
        (4, "replicate 2, exchange t.0 2"),
        (4, "exchange t.0 2, replicate 2"),
        (3, "exchange t.1 3"),
        (4, "split t.0 2, exchange t.1 2"),
        (4, "exchange t.0 2, split t.1 2"),
    ],
)
def test_a_plan_says_that_rows_are_exchanged(devices: int, how: str) -> None:
    module, args, captured = routed(EVEN, 2)
    plan = planned(captured, devices, how)
    assert Plan.parse(Graph(captured.graph_text), plan.text).text == plan.text
    assert Plan.parse(Graph(captured.graph_text), plan.folded).text == plan.text
    made = compile(plan)
    bundle = Bundle(dict(made.files), made.digest, "", devices, captured, "", "")
    actual = equality.run(bundle, module, args)
    equality.assert_equal(actual, equality.reference(module, args))
    assert "(shardwright.experts.default) along e" in plan.rewritings[0]


@pytest.mark.parametrize(
    ("devices", "how", "why"),
    [
        (2, "exchange m 2", "rows can only be exchanged along the dim of the experts"),
        (2, "exchange e 2", "rows can only be exchanged along the dim of the experts"),
        (2, "exchange t.0 2 on 1 1", "several of its parts are on one device"),
        (4, "exchange t.0 2, split t.0 2", "the dims of the exchanged tokens are split further"),
        (4, "exchange t.0 2, exchange t.1 2", "its parts exchange rows already"),
        (4, "exchange t.0 2, split n 2", "it is also split along dims other than tokens"),
        (4, "split e 2, exchange t.0 2", "it is also split along dims other than tokens"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(devices: int, how: str, why: str) -> None:
    _, _, captured = routed(EVEN, 2)
    with pytest.raises(sw.PlanError) as refused:
        planned(captured, devices, how)
    assert refused.value.code == "SW0304"
    assert f"parts of {OPERATOR} cannot exchange rows" in str(refused.value) and why in str(refused.value)


def test_more_parts_than_experts_or_other_operators_are_refused() -> None:
    _, _, captured = routed(EVEN)
    with pytest.raises(sw.PlanError, match=r"`e` of .* cannot be split into 6 parts") as refused:
        planned(captured, 6, "exchange t.0 6")
    assert refused.value.code == "SW0305"
    with pytest.raises(sw.PlanError, match="it has no experts to send tokens to"):
        text = HEADER.format(2) + 'op "*" aten.linear.default: exchange b 2'
        Plan.parse(Graph(captured.graph_text), text)


# ---- at run --------------------------------------------------------------------------------------


def test_all_rows_at_once_compute_what_the_operator_computes() -> None:
    """What a proof rests on: rows of all tokens for all experts, and their sums, are the mixture."""
    torch.manual_seed(0)
    for chosen, drops in [
        (torch.randint(4, (7, 2)), False),
        (torch.randint(4, (7, 3), dtype=torch.int32), False),
        (torch.tensor([[0, 0], [3, -5], [-1, 2], [-5, -5]]), True),
        (torch.zeros(0, 2, dtype=torch.int64), False),
    ]:
        x, weights = torch.randn(len(chosen), 5), torch.rand(chosen.shape)
        up, down = torch.randn(4, 8, 3), torch.randn(4, 5, 6)
        for dtype in (torch.float64, torch.bfloat16):
            leaves = [leaf.to(dtype).requires_grad_() for leaf in (x, weights, up, down)]
            for transposed, gated in [(False, True), (True, True), (False, False)]:
                pair = given(leaves, transposed, gated)
                first, weight, *matrices = pair
                says = ("silu", gated, transposed)
                whole = torch.ops.shardwright.experts(first, chosen, weight, *matrices, *says, drops)
                rows = expert_rows(dispatch(first, chosen, 4, drops), *matrices, *says)
                parts = combine(rows, chosen, weight, 4, drops)
                close(parts, whole)
                towards = torch.randn(whole.shape).to(whole.dtype)
                for one, other in zip(
                    torch.autograd.grad((parts * towards).sum(), leaves),
                    torch.autograd.grad((whole * towards).sum(), leaves),
                    strict=True,
                ):
                    close(one, other)


def given(leaves: list[Tensor], transposed: bool, gated: bool) -> list[Tensor]:
    x, weights, up, down = leaves
    # As many in the middle as `down` takes.
    up, down = (up[..., :3], down[..., :4]) if gated else (up[:, :4, :3], down[..., :4])
    x = x[:, :3]
    return [x, weights, *((up.mT, down.mT) if transposed else (up, down))]


def close(one: Tensor, other: Tensor) -> None:
    assert one.dtype == other.dtype
    rough = {"rtol": 0.03, "atol": 0.05} if one.dtype == torch.bfloat16 else {}
    torch.testing.assert_close(one, other, **rough)


def test_a_number_of_no_expert_is_an_index_error() -> None:
    x = torch.randn(2, 5)
    for chosen, drops, number in [([[0], [4]], False, 4), ([[0], [-5]], False, -5), ([[-6], [0]], True, -6)]:
        with pytest.raises(IndexError, match=f"index {number} is out of bounds for dimension 0 with size 4"):
            dispatch(x, torch.tensor(chosen), 4, drops)


def test_gradients_off_and_other_sizes_exchange_rows_too() -> None:
    module, args, captured = routed(EVEN)
    bundle = bundled(captured, "expert", 3)
    program = load_program(bundle.files, digest=bundle.digest, world=3)
    values = sources(module, captured)

    def body(rank: int, comm: Any) -> Tensor:
        model = ParallelModule(program, comm, values, captured)
        with torch.no_grad():
            return model(*args)

    for actual in run_local(3, body):
        torch.testing.assert_close(actual, module(*args))


def test_rows_are_listed_as_expected_and_recorded() -> None:
    module, args = Routed(EVEN), (torch.randn(12, 3, 6),)

    def body(rank: int, comm: Any) -> Any:
        copied = copy.deepcopy(module)
        model = sw.parallelize(copied, args, plan="expert", comm=comm, cache=False, progress=False)
        with sw.record() as recorded:
            model.train_step(args)
        return recorded.manifest

    for role in run_local(3, body)[0]["roles"]:
        rows = {row["kind"]: row["bytes_expected"] for row in role["communications"]}
        assert rows["all_to_all"] and not rows["all_reduce"]
        assert sum(row["kind"] == "all_to_all" for row in role["communications"]) == 4


def train_in_process(rank: int, bundle: Bundle, folder: str) -> None:
    module, args = Routed(ONE).double(), torch.load(Path(folder, "args.pt"))
    program = load_program(bundle.files, digest=bundle.digest, world=bundle.devices)
    comm = TorchComm(watch=False)
    model = ParallelModule(program, comm, sources(module, bundle.captured), bundle.captured)
    torch.save(equality.train(model, args), Path(folder, f"{rank}.pt"))


@pytest.mark.processes
def test_real_processes_exchange_rows_on_gloo(tmp_path: Path) -> None:
    """All tokens to the expert of one rank: the others send everything, and get nothing."""
    module, args, captured = routed(ONE)
    torch.save(args, tmp_path / "args.pt")
    sw.launch(train_in_process, 3, (bundled(captured, "expert", 3), str(tmp_path)), timeout=200)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(3)]
    equality.assert_equal(equality.assemble(ranks), equality.reference(module, args))
