"""What a forward keeps, shares, reads by other ways and sets: kept right, or refused by name and line."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shardwright as sw
from equality import assert_equal, reference, run
from shardwright import Graph, Plan
from shardwright.capture import capture
from shardwright.capture.verify import random_values
from shardwright.errors import CaptureError
from shardwright.start.compiling import compile_model, compile_plan
from shardwright.start.further_programs import skeleton_of

X = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(4, 5)
Forward = Callable[[Any, Tensor], Any]


class Model(nn.Module):
    def __init__(self, forward: Forward, init: Callable[[Any], object] = lambda m: None):
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(5, 8, dtype=torch.float64))
        self._run, self._init = forward, init
        init(self)

    def __deepcopy__(self, memo: Any) -> Model:
        """Copying would take tensors of one memory apart."""
        return Model(self._run, self._init)

    def forward(self, x: Tensor) -> Any:
        return self._run(self, x)


def refused(model: nn.Module, code: str, marker: str | None = None, x: Tensor = X) -> str:
    with pytest.raises(CaptureError, match=code) as caught:
        capture(model, (x,))
    if marker is not None:
        text = Path(__file__).read_text().splitlines()
        line = next(i for i, line in enumerate(text, 1) if line.endswith(f"# {marker}"))
        assert str(caught.value.place).startswith(f"test_capture_state.py:{line}:")
    return str(caught.value)


def is_right(model: nn.Module) -> None:
    """Captured, and equal to the single device in parts: values, gradients and buffers."""
    assert capture(model, (X,)).verified
    bundle, _ = compile_model(model, (X,), plan="data", devices=2)
    assert_equal(run(bundle, model, (X,)), reference(model, (X,)), "in parts")


# ---- what Python keeps -----------------------------------------------------------------------


def counter(m: Any, x: Tensor) -> Tensor:
    m.n += 1  # counter
    return (x @ m.w).mean() * m.n


def unused_counter(m: Any, x: Tensor) -> Tensor:
    m.n = m.n + 1  # unused counter
    return (x @ m.w).mean()


def hidden(m: Any, x: Tensor) -> Tensor:
    h = x @ m.w + (0 if m.h is None else m.h)  # hidden is read
    m.h = h.detach()  # hidden
    return h.mean()


def dictionary(m: Any, x: Tensor) -> Tensor:
    m.d["t"][0] *= 2  # dictionary
    return (x @ m.w).mean() * m.d["t"][0]


def growing(m: Any, x: Tensor) -> Tensor:
    y = (x @ m.w).mean()
    m.l.append(1)  # growing
    return y


class Schedule:
    step = 0


def schedule(m: Any, x: Tensor) -> Tensor:
    m.s.step += 1  # schedule
    return (x @ m.w).mean() * m.s.step


KEEPING: dict[str, tuple[Forward, str, Callable[[], Any]]] = {
    "counter": (counter, "n", lambda: 0),
    "unused counter": (unused_counter, "n", lambda: 0),
    "hidden": (hidden, "h", lambda: None),
    "dictionary": (dictionary, "d", lambda: {"t": [1.0]}),
    "growing": (growing, "l", list),
    "schedule": (schedule, "s", Schedule),
}


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("values", ["its own", "random", "none"])
def test_what_a_forward_keeps_in_python_is_refused(
    name: str, values: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, attribute, make = KEEPING[name]
    device = "cpu" if values == "its own" else "meta"
    if values == "none":
        monkeypatch.setattr(random_values, "_MOST_BYTES", 0)
    model = Model(forward, lambda m: setattr(m, attribute, make())).to(device)
    marker = "hidden is read" if (name, values) == ("hidden", "none") else name
    said = refused(model, "SW0137", marker, X.to(device))
    assert f"in `{attribute}" in said and "register_buffer" in said
    kept = getattr(model, attribute)
    assert kept.step == 0 if isinstance(kept, Schedule) else kept == make(), "as it was before"


def table(m: Any, x: Tensor) -> Tensor:
    if m.table is None:
        m.table = torch.arange(8.0, dtype=x.dtype, device=x.device)
    m.last = x @ m.w
    return (m.last * m.table).mean()


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("most", [0, 2**30])
def test_a_table_that_the_first_forward_makes_and_a_value_that_nobody_reads_are_fine(
    device: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_values, "_MOST_BYTES", most)
    model = Model(table, lambda m: setattr(m, "table", None)).to(device)
    capture(model, (X.to(device),))


def test_a_second_forward_is_compared_too() -> None:
    calls = []

    def late(m: Any, x: Tensor) -> Tensor:
        calls.append(1)
        return (x @ m.w).mean() * (2 if len(calls) == 3 else 1)

    assert "a second forward of the model computes something else" in refused(Model(late), "SW0137")


# ---- memory that is shared -------------------------------------------------------------------


def tied_data(m: Any) -> None:
    m.a, m.b = nn.Linear(5, 8).double(), nn.Linear(5, 8).double()
    m.b.weight.data = m.a.weight.data


def view_buffers(m: Any) -> None:
    m.register_buffer("buf", torch.zeros(8, dtype=torch.float64))
    m.register_buffer("v", m.buf[:4])


def of_a_parameter(m: Any) -> None:
    m.register_buffer("v", m.w.detach()[1])


def changing(m: Any, x: Tensor) -> Tensor:
    m.buf.add_(1)
    return (x @ m.w).mean() * m.v.sum()


SHARED: dict[str, tuple[Forward, Callable[[Any], None], str, str]] = {
    "data of another": (lambda m, x: (m.a(x) * m.b(x)).mean(), tied_data, "a.weight", "b.weight"),
    "a view of a buffer": (changing, view_buffers, "buf", "v"),
    "a view of a parameter": (lambda m, x: (x @ m.w).mean() + m.v.sum(), of_a_parameter, "w", "v"),
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_two_tensors_that_share_memory_are_refused_by_name(name: str, device: str) -> None:
    forward, init, one, other = SHARED[name]
    with torch.device(device):
        model = Model(forward)
        if device == "meta":
            model.w = nn.Parameter(model.w.detach().to("meta"))
        init(model)
    said = refused(model, "SW0136", None, X.to(device))
    assert f"`{one}`" in said and f"`{other}`" in said


def frozen_data(m: Any) -> None:
    tied_data(m)
    m.a.weight.requires_grad_(False)
    m.b.weight.requires_grad_(False)


def same_buffers(m: Any) -> None:
    m.register_buffer("buf", torch.ones(8, dtype=torch.float64))
    m.register_buffer("v", m.buf.view(8))


def parts_of_one(m: Any) -> None:
    both = torch.randn(5, 16, dtype=torch.float64)
    m.u = nn.Parameter(both[:, 8:])
    m.w.data = both[:, :8]


OTHERWISE_READ: dict[str, tuple[Forward, Callable[[Any], object]]] = {
    "beside each other in one memory": (lambda m, x: (x @ m.w * (x @ m.u)).mean(), parts_of_one),
    "in a list": (lambda m, x: (x @ m.ws[0]).pow(2).mean(), lambda m: setattr(m, "ws", [m.w])),
    "detached": (
        lambda m, x: (x @ m.w).mean() + (x @ m.al).sin().mean(),
        lambda m: setattr(m, "al", m.w.detach()),
    ),
    "a row of it": (
        lambda m, x: (x @ m.w).mean() * m.al["row"].sin().mean(),
        lambda m: setattr(m, "al", {"row": m.w.detach()[2]}),
    ),
    "its data": (lambda m, x: (x @ m.w).mean() + m.w.data.sum(), lambda m: None),
}


@pytest.mark.parametrize("name", OTHERWISE_READ)
def test_registered_tensors_are_followed_by_whatever_way_they_are_read(name: str) -> None:
    is_right(Model(*OTHERWISE_READ[name]))


def test_memory_is_shared_in_further_programs_too() -> None:
    model, single = (Model(*OTHERWISE_READ["a row of it"]) for _ in range(2))
    parallel = sw.parallelize(model, (X,), cache=False, progress=False)
    for each in (parallel, single):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        each(X).backward()
        optimizer.step()
        each.eval()
    torch.testing.assert_close(parallel(X), single(X))


def test_what_is_one_tensor_by_two_names_is_tied() -> None:
    frozen = capture(Model(lambda m, x: (m.a(x) * m.b(x)).mean() + m.w.sum(), frozen_data), (X,))
    assert frozen.verified and '"a.weight" "b.weight" frozen' in frozen.graph_text
    buffers = capture(Model(changing, same_buffers), (X,))
    assert buffers.verified and buffers.buffer_aliases == {"v": "buf"}


ELSEWHERE: list[Tensor] = []


def test_a_parameter_that_is_read_from_outside_of_the_module_is_refused() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return (x @ m.w).mean() * ELSEWHERE[-1].sum()  # elsewhere

    refused(Model(forward, lambda m: ELSEWHERE.append(m.w)), "SW0136", "elsewhere")


# ---- data, seeds, places in memory -----------------------------------------------------------


def clamped(m: Any, x: Tensor) -> Tensor:
    y = x @ m.w
    y.data.clamp_(-1, 1)  # clamped
    return y.mean()


def replaced(m: Any, x: Tensor) -> Tensor:
    y = x @ m.w
    y.data = y * 2  # replaced
    return y.mean()


def seeded(m: Any, x: Tensor) -> Tensor:
    torch.manual_seed(0)  # seeded
    return (x @ m.w * torch.rand(8)).mean()


def forked(m: Any, x: Tensor) -> Tensor:
    with torch.random.fork_rng():  # forked
        return (x @ m.w * torch.rand(8)).mean()


def beyond(m: Any, x: Tensor) -> Tensor:
    return (x @ m.w)[:, :3].as_strided((4, 3), (8, 1)).mean()  # beyond


def written(m: Any, x: Tensor) -> Tensor:
    y = x @ m.w
    y.as_strided((4,), (9,)).add_(1)  # written
    return y.mean()


def drops_by_a_buffer(m: Any, x: Tensor) -> Tensor:
    return F.dropout(x @ m.w, m.p)  # drops by a buffer


@pytest.mark.parametrize(
    ("forward", "code"),
    [
        (clamped, "SW0107"),
        (replaced, "SW0133"),
        (seeded, "SW0134"),
        (forked, "SW0134"),
        (beyond, "SW0135"),
        (written, "SW0135"),
        (drops_by_a_buffer, "SW0102"),
    ],
)
def test_refused_by_name_and_line(forward: Forward, code: str) -> None:
    init = lambda m: m.register_buffer("p", torch.tensor(0.3))  # noqa: E731
    refused(Model(forward, init), code, forward.__name__.replace("_", " "))


def test_a_seed_set_by_a_name_of_its_own_is_refused() -> None:
    seed = torch.manual_seed

    def forward(m: Any, x: Tensor) -> Tensor:
        seed(12345)
        return (x @ m.w * torch.rand(8)).mean()

    refused(Model(forward), "SW0134")


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: (x @ m.w).t().as_strided((8, 4), (4, 1)).cumsum(1).sin().mean(),
        lambda m, x: (x @ m.w).as_strided((4, 3, 2), (8, 1, 2), 1).sin().mean(),
        lambda m, x: m.w.t().as_strided((5, 8), (8, 1)).sin().mean() + x.mean(),
    ],
)
def test_places_in_memory_are_those_of_the_model(forward: Forward) -> None:
    is_right(Model(forward))


class Normed(nn.Module):
    def __init__(self, norm: nn.Module):
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.linspace(1, 2, 3)[:, None, None]), norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x * self.scale).sin().mean()


@pytest.mark.slow
@pytest.mark.parametrize("affine", [False, True])
def test_an_instance_norm_keeps_running_statistics(affine: bool) -> None:
    model = Normed(nn.InstanceNorm2d(3, affine=affine, track_running_stats=True)).double()
    x = torch.randn(4, 3, 5, 2, dtype=torch.float64)
    captured = capture(model, (x,))
    assert captured.verified and 'update "norm.running_var"' in captured.graph_text
    bundle, _ = compile_model(model, (x,), plan="data", devices=2)
    assert_equal(run(bundle, model, (x,)), reference(model, (x,)), "in parts")


# ---- errors that tell what is wrong ----------------------------------------------------------


@dataclass
class Result:
    loss: Tensor


def test_a_class_as_result_is_named() -> None:
    said = refused(Model(lambda m, x: Result((x @ m.w).mean())), "SW0108")
    assert "the model returns a `Result`" in said and "register_dataclass" in said


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("error", ["shapes", "attribute", "silent"])
def test_a_model_that_fails_by_itself_is_told_so(device: str, error: str) -> None:
    def shapes(m: Any, x: Tensor) -> Tensor:
        return x @ m.w @ m.w  # shapes

    def attribute(m: Any, x: Tensor) -> Any:
        return m.nothing(x)  # attribute

    def silent(m: Any, x: Tensor) -> Any:
        raise ValueError  # silent

    model = Model({"shapes": shapes, "attribute": attribute}.get(error, silent)).to(device)
    said = refused(model, "SW0115", error, X.to(device))
    assert "torch.export" not in said


class Frozen(OrderedDict[str, Any]):
    """As the configs of Diffusers: nobody writes to one."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("frozen")

    clear = update = pop = setdefault = _refuse


def test_a_config_that_nobody_may_write_to() -> None:
    config = Frozen(scale=2.0, sizes=[5, 8])

    def init(model: Any) -> None:
        model.config, model.seen = config, {}

    def forward(model: Any, x: Tensor) -> Tensor:
        model.seen.setdefault("rows", len(x))
        return (x @ model.w * model.config["scale"]).sum()

    model = Model(forward, init)
    assert capture(model, (X,)).verified
    assert model.config is config and dict(config) == {"scale": 2.0, "sizes": [5, 8]}
    assert model.seen == {}


def _positions(model: Any, x: Tensor) -> Tensor:
    if getattr(model, "positions", None) is None:
        model.register_buffer("positions", torch.arange(x.shape[1], dtype=x.dtype), persistent=False)
    return ((x + model.positions) @ model.w).sum()


def _counted(model: Any, x: Tensor) -> Tensor:
    model.register_buffer("count", getattr(model, "count", x.new_zeros(())) + 1)
    return (x @ model.w).sum()


@pytest.mark.parametrize("init", [lambda m: None, lambda m: m.register_buffer("positions", None)])
def test_a_buffer_that_forward_registers_is_computed(init: Callable[[Any], object]) -> None:
    model = Model(_positions, init)
    captured = capture(model, (X,))
    assert captured.verified and "aten.arange" in captured.graph_text
    assert not any(line.startswith(("buffer", "const")) for line in captured.graph_text.splitlines())
    assert list(dict(model.named_buffers())) == []


def test_a_buffer_that_each_forward_registers_anew_is_refused() -> None:
    with pytest.raises(CaptureError) as refused:
        capture(Model(_counted), (X,))
    assert refused.value.code == "SW0137" and "`count`" in refused.value.what


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(5, 8, dtype=torch.float64))
        self.k = nn.Parameter(torch.randn(8, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        def row(r: Tensor, k: Tensor) -> Tensor:
            return (torch.vmap(torch.mul, in_dims=(0, None))(r @ self.w, k[0]).tanh() * k).sum()

        return torch.func.vmap(row, in_dims=(0, None))(x, self.k).square().mean()


@pytest.mark.slow
def test_a_function_that_is_mapped_is_its_operators() -> None:
    torch.manual_seed(0)
    model = Mapped()
    captured = capture(model, (X,))
    assert captured.verified and "functorch" not in captured.graph_text
    wanted = reference(model, (X,))
    for plan in ("data:2", "replicate"):
        assert_equal(run(compile_model(model, (X,), plan=plan, devices=2)[0], model, (X,)), wanted, plan)


def test_a_constant_whose_name_is_no_place_of_the_model() -> None:
    """PyTorch names what it lifts by the modules around it, and not always by all of them."""
    module = Model(lambda m, x: ((x @ m.w) * torch.tensor(3.0)).sum())
    captured = capture(module, (X,))
    [name] = captured.constants
    other = "attentions.0.lifted_tensor_0"
    captured.constants = {other: captured.constants[name]}
    captured.graph_text = captured.graph_text.replace(f'"{name}"', f'"{other}"')
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "data", 2))
    options = lambda: {"skeleton": skeleton_of(module)}  # noqa: E731
    assert_equal(run(bundle, module, (X,), options=options), reference(module, (X,)))
