"""What is compared after a capture takes bounded time and memory, and what was compared is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import shardwright as sw
from shardwright.capture import Captured, capture
from shardwright.capture.verify import against_module, comparison, cost, results
from shardwright.capture.verify.cost import Extent, extent_of
from shardwright.capture.verify.reduced import alike_in_rows
from shardwright.capture.verify.results import Results, first_difference, weighted_sum
from shardwright.errors import CaptureError
from shardwright.start import starter

torch.set_num_threads(1)
WIDTH, LAYERS, ROWS = 16, 6, 12
X, Y = torch.randn(ROWS, 4, WIDTH), torch.randn(ROWS, 4, WIDTH)
# Of one layer, for one row.
OPERATIONS = 2 * 4 * WIDTH * WIDTH


def exporting() -> bool:
    return torch.compiler.is_exporting()


class Block(nn.Module):
    def __init__(self, run: Callable[..., Tensor]):
        super().__init__()
        self.linear, self.run = nn.Linear(WIDTH, WIDTH), run

    def forward(self, x: Tensor) -> Tensor:
        return x + self.run(self, x)


def plain(block: Block, x: Tensor) -> Tensor:
    return F.dropout(block.linear(x).relu(), 0.1, block.training)


def other(block: Block, x: Tensor) -> Tensor:
    return block.linear(x) * (2 if exporting() else 1)


class Deep(nn.Module):
    """Every forward of a layer is counted."""

    def __init__(self, run: Callable[..., Tensor] = plain, layers: int = LAYERS):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Block(run) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(self.norm(x), y)


class Counted(TorchDispatchMode):
    """Operations in products, and the largest float64 tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.largest = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            left, right = [x for x in args if isinstance(x, Tensor)][-2:]
            self.operations += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        if isinstance(result, Tensor) and result.dtype == torch.float64:
            self.largest = max(self.largest, result.numel())
        return result


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how many operations a forward may have."""
    return lambda number: monkeypatch.setattr(cost, "MOST_OPERATIONS", {"cpu": number, "cuda": number})


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """What comparisons have run, of both sides."""
    counted, run = Counted(), comparison.verify_capture

    def counting(*args: Any, **kwargs: Any) -> None:
        with counted:
            run(*args, **kwargs)

    monkeypatch.setattr(comparison, "verify_capture", counting)
    return counted


def said(captured: Captured) -> str:
    assert captured.compared is not None and captured.verified
    return captured.compared.what


def test_below_the_limit_all_of_it_is_compared(counted: Counted) -> None:
    captured = capture(Deep(), (X, Y))
    assert said(captured) == "outputs, buffers and gradients of two forwards" and not captured.notes
    assert captured.compared is not None and captured.compared.operations > LAYERS * ROWS * OPERATIONS
    # Two forwards of each side, and of one a backward, which is a little less than two more: the first input
    # has no gradient.
    assert counted.operations == 2 * (4 * LAYERS - 1) * ROWS * OPERATIONS


@pytest.mark.slow
def test_above_it_fewer_rows_are(counted: Counted, most: Callable[[float], None]) -> None:
    whole = extent_of(capture(Deep(), (X, Y), verify=False).graph_text, {}).operations
    most(whole * 0.4)
    model = Deep()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    captured = capture(model, (X, Y))
    assert said(captured).startswith("outputs, buffers and gradients of two forwards of 4 of 12 rows,")
    assert counted.operations == 2 * (4 * LAYERS - 1) * 4 * OPERATIONS
    assert "f32[12,4,16]" in captured.graph_text and "[4,4,16]" not in captured.graph_text
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with pytest.raises(CaptureError, match="SW0114"):
        capture(Deep(other), (X, Y))


@pytest.mark.slow
def test_then_fewer_layers_and_both(counted: Counted, most: Callable[[float], None]) -> None:
    """Of a batch of two rows none are left out."""
    two = (X[:2], Y[:2])
    whole = extent_of(capture(Deep(), two, verify=False).graph_text, {}).operations
    most(whole / 2)
    model = Deep()
    layers = list(model.layers)
    captured = capture(model, two)
    assert said(captured).startswith(
        "outputs, buffers and gradients of two forwards of 2 of 6 layers of `layers`,"
    )
    assert counted.operations == 2 * (4 * 2 - 1) * 2 * OPERATIONS
    assert list(model.layers) == layers and captured.graph_text.count("aten.linear.default") == LAYERS
    most(whole * 0.8)
    assert "of 3 of 12 rows, with 2 of 6 layers of `layers`" in said(capture(model, (X, Y)))
    with pytest.raises(CaptureError, match="SW0114"):
        capture(Deep(other), two)


def test_layers_that_differ_are_all_there(most: Callable[[float], None]) -> None:
    model = Deep()
    model.layers[3].linear = nn.Linear(WIDTH, WIDTH, bias=False)
    two = (X[:2], Y[:2])
    most(extent_of(capture(model, two, verify=False).graph_text, {}).operations * 0.8)
    assert "4 of 6 layers" in said(capture(model, two))


class Numbered(Deep):
    """Its layers do what their number says: fewer of them are not alike."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for at, layer in enumerate(self.layers):
            x = layer(x) * (1 + at)
        return F.mse_loss(self.norm(x), y)


class Sized(Deep):
    """It takes another way for few rows."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x if len(x) > ROWS // 2 else x + 1, y)


class Asking(Deep):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        assert len(self.layers) == LAYERS and len(x) == ROWS
        return super().forward(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Numbered, Sized, Asking])
def test_less_that_is_not_alike_stands_for_nothing(
    kind: type[Deep], most: Callable[[float], None], counted: Counted
) -> None:
    batch = (X, Y) if kind is not Numbered else (X[:2], Y[:2])
    few = kind(layers=LAYERS if kind is Asking else 2)
    most(extent_of(capture(kind(), batch, verify=False).graph_text, {}).operations / 2.2)
    captured = capture(kind(), batch)
    if kind is Sized:  # its layers are alike
        assert "2 of 6 layers" in said(captured) and "rows" not in said(captured)
        return
    [note] = captured.notes
    assert re.match(r"graph and module were not compared: a forward is \d\.\de\+0\d operations", note)
    assert "`sw.verify`" in note and counted.operations == 0 and not captured.verified
    assert capture(kind(), batch, verify=True).verified and counted.operations
    with pytest.warns(UserWarning, match="too many for a comparison here"):
        sw.parallelize(few if kind is Asking else kind(), batch, plan="replicate", cache=False)


@pytest.mark.slow
def test_memory_is_a_limit_too(monkeypatch: pytest.MonkeyPatch, counted: Counted) -> None:
    whole = extent_of(capture(Deep(), (X, Y), verify=False).graph_text, {})
    held = 2 * sum(parameter.nbytes for parameter in Deep().parameters())
    assert whole.needed(Deep(), "cpu") == whole.bytes + held
    # A tensor in float32 for each of linear, relu, dropout and sum of a layer, at least.
    assert whole.bytes >= LAYERS * 4 * X.nbytes
    monkeypatch.setattr(cost, "room", lambda kind: held + int(whole.bytes * 0.6))
    assert "of 6 of 12 rows" in said(capture(Deep(), (X, Y)))
    monkeypatch.setattr(cost, "room", lambda kind: 0)
    assert "not compared" in capture(Deep(), (X, Y)).notes[0]


def test_what_runs_as_it_is_counts() -> None:
    text = capture(Deep(), (X, Y), verify=False).graph_text
    half = extent_of(text, {"a": ("", 0.25), "b": ("", 0.25)})
    assert half.operations == 2 * extent_of(text, {}).operations


def test_it_is_compared_on_the_gpu_where_that_has_room(
    monkeypatch: pytest.MonkeyPatch, most: Callable[[float], None]
) -> None:
    """There is none here: that it would be is what can be seen."""
    asked: list[str] = []

    @contextmanager
    def moved(module: nn.Module, bound: Any, precision: Any, kind: str) -> Iterator[against_module.Call]:
        asked.append(kind)
        yield against_module.Call(module, bound, comparison.Casting(module, precision))

    whole = extent_of(capture(Deep(), (X, Y), verify=False).graph_text, {}).operations
    monkeypatch.setattr(cost, "MOST_OPERATIONS", {"cpu": whole / 2, "cuda": whole * 2})
    monkeypatch.setattr(cost, "room", lambda kind: 2**40)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(comparison, "moved", moved)
    assert "rows" not in said(capture(Deep(), (X, Y), device="cuda")) and asked == ["cuda"]
    assert "rows" in said(capture(Deep(), (X, Y), device="cpu")) and asked == ["cuda"]


def test_less_memory_than_was_there_is_no_fault_of_the_model(
    monkeypatch: pytest.MonkeyPatch, counted: Counted
) -> None:
    """Something else may have taken it in the meantime."""

    def short(block: Block, x: Tensor) -> Tensor:
        if not exporting() and len(x) > 6:
            raise torch.OutOfMemoryError("planted")
        return plain(block, x)

    assert "of 6 of 12 rows" in said(capture(Deep(short), (X, Y)))


def test_without_values_less_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwright.capture.verify import random_values

    meta = Deep().to("meta")
    batch = (X.to("meta"), Y.to("meta"))
    # What is counted there is what runs, the results of all operators too.
    monkeypatch.setattr(random_values, "_MOST_OPERATIONS", {"cpu": LAYERS * ROWS * OPERATIONS * 0.7})
    assert "of 6 of 12 rows" in said(capture(meta, batch))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_too_large_in_any_case_is_captured_once(
    monkeypatch: pytest.MonkeyPatch, most: Callable[[float], None], device: str
) -> None:
    """Neither two rows nor two layers would be compared."""
    from shardwright import capture as package
    from shardwright.capture.verify import random_values

    captures, trace = [], package.trace
    monkeypatch.setattr(package, "trace", lambda tracing: captures.append(1) or trace(tracing))
    whole = extent_of(capture(Deep(), (X, Y), verify=False).graph_text, {})
    least = whole.bytes * 2 / ROWS * 2 / LAYERS

    def notes_of_captures(number: int) -> str:
        captures.clear()
        captured = capture(Deep().to(device), (X.to(device), Y.to(device)))
        assert len(captures) == number
        return " ".join(captured.notes)

    most(whole.operations / 2)
    held = 3 * sum(parameter.nbytes for parameter in Deep().parameters())
    monkeypatch.setattr(cost, "room", lambda kind: held + int(whole.bytes / 2))
    assert "not compared" not in notes_of_captures(2)
    monkeypatch.setattr(cost, "room", lambda kind: int(least * 0.9))
    assert "not compared" in notes_of_captures(1)
    if device == "meta":
        monkeypatch.setattr(cost, "room", lambda kind: held + int(whole.bytes / 2))
        monkeypatch.setattr(random_values, "_MOST_BYTES", 1)
        assert "not compared" in notes_of_captures(1)


# ---- float64 in pieces -----------------------------------------------------------------------


def test_a_loss_of_large_results_makes_no_copies_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = [torch.randn(7, 33, requires_grad=True), torch.randn(5, dtype=torch.complex64)]
    outputs.append(torch.randn(8, 3).t().requires_grad_())

    def loss() -> tuple[Tensor, ...]:
        weighted = weighted_sum(outputs)
        return weighted.detach(), *torch.autograd.grad(weighted, [outputs[0], outputs[2]])

    whole = loss()
    flat = outputs[0].detach().reshape(-1).double()
    weights = torch.arange(7 * 33, dtype=torch.float64).cos()
    assert torch.allclose(whole[1].reshape(-1), weights.float())
    assert torch.allclose(weighted_sum(outputs[:1]), flat @ weights)
    monkeypatch.setattr(results, "_PIECE", 10)
    with Counted() as counting:
        pieces = loss()
        for name, tensors in {"outputs": outputs, "gradients": list(pieces[1:])}.items():
            given = {str(at): value.detach() for at, value in enumerate(tensors)}
            assert first_difference(Results(**{name: given}), Results(**{name: given})) is None
    assert all(torch.allclose(one, another) for one, another in zip(whole, pieces, strict=True))
    assert counting.largest <= max(10, 7 * 33 // 10 + 1)


def test_a_difference_in_any_piece_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_PIECE", 10)
    tensor = torch.randn(35)
    tensor[3], tensor[34] = torch.nan, torch.inf
    for at in range(35):
        changed = tensor.clone()
        changed[at] = 0.5
        ours, theirs = Results(outputs={"a": changed}), Results(outputs={"a": tensor})
        assert first_difference(ours, theirs) is not None and first_difference(theirs, theirs) is None


def test_texts_of_fewer_rows_differ_in_proportion_only() -> None:
    line = 'op %mm_12 f32[12,8] = aten.sum.dim_IntList(%x_12, [0], 0.125) in "a.12" at "m.py:12"'
    assert alike_in_rows(line, line.replace("[12,8]", "[4,8]"), 12, 4)
    for wrong in (
        line.replace("[12,8]", "[4,4]"),
        line.replace("[12,8]", "[5,8]"),
        line.replace("0.125", "0.25"),
        line.replace("sum", "mean"),
        line.replace('"a.12"', '"a.4"'),
        line.replace("%x_12", "%x_4"),
        f"{line}\n{line}",
    ):
        assert not alike_in_rows(line, wrong, 12, 4), wrong


# ---- at further starts -----------------------------------------------------------------------


def parallel(plan: str, **options: Any) -> None:
    sw.parallelize(Deep(), (X, Y), plan=plan, progress=True, **options)


@pytest.mark.slow
def test_a_later_start_does_not_pay_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: Counted, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setenv("SHARDWRIGHT_VERBOSE", "1")
    again: list[int] = []
    monkeypatch.setattr(starter, "still_computes", lambda *args: again.append(1) or True)
    for most in (1e12, 1.0):  # one forward more, and none
        for module in (starter, comparison):
            monkeypatch.setattr(module, "MOST_AT_A_START", most)
        again.clear()
        sw_cache(tmp_path)
        counted.operations = 0
        parallel("replicate")
        first = counted.operations
        line = compared_line(capsys)
        assert re.match(
            r"  compared with the module in \d+\.\d s: outputs, buffers and gradients of two", line
        )
        line = re.sub(r" in \d+\.\d s", "", line)
        assert line.endswith(", and not again at starts from the cache") is (most == 1.0)
        parallel("replicate")
        assert line in capsys.readouterr().err
        assert first and counted.operations == first and len(again) == (most > 1)
    # Under another plan it is captured again, and compared no more.
    parallel("data")
    assert counted.operations == first and line in capsys.readouterr().err
    monkeypatch.setattr("torch.__version__", "0.0.0")
    parallel("data")
    assert counted.operations == 2 * first


def compared_line(capsys: pytest.CaptureFixture[str]) -> str:
    [line] = [line for line in capsys.readouterr().err.splitlines() if "compared with the module" in line]
    return line


def sw_cache(folder: Path) -> None:
    from shardwright.cache import open_cache

    cache = open_cache()
    assert cache is not None
    for entry in cache.entries():
        cache.drop(entry.key)
    assert folder.exists()


def test_another_graph_was_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: Counted
) -> None:
    """The code is the same, and what it reads is not."""
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    for module in (starter, comparison):
        monkeypatch.setattr(module, "MOST_AT_A_START", 1.0)
    parallel("replicate")
    first = counted.operations
    sw.parallelize(Deep(layers=2), (X, Y), plan="data")
    assert counted.operations > first


def test_an_extent_fits_by_both() -> None:
    model = Deep()
    assert Extent(1.0, 1).fits(model, "cpu") and not Extent(1e30, 1).fits(model, "cpu")
    assert not Extent(1.0, 2**60).fits(model, "cpu")
