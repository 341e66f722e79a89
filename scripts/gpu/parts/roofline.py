"""Operators in real sizes: how fast they are, and what the cost model says of the device."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import building
import timing
import traces
from finding import Finding, Setting, Table

# Aims: of the median, and of any.
MEDIAN, WORST = 0.2, 2.0
COLUMNS = ["operator", "pass", "told us", "measured us", "told/measured", "reached", "kernel"]
# What is timed at once, so that starting it takes no time of its own.
CALLS = 8
# Of these it is told which kernel runs longest.
NAMED = ("attention", "8B up (")
DTYPES = {torch.bfloat16: "bf16", torch.float32: "f32"}


@dataclass(frozen=True)
class Operator:
    """As the graph has it, and as PyTorch calls it."""

    name: str
    target: str
    # What it is called with after its tensors.
    rest: str
    # What it reads: a shape, and where these are integers, below what they are.
    reads: Sequence[tuple[tuple[int, ...], int]]
    result: tuple[int, ...]
    call: Callable[..., Tensor]
    gives: torch.dtype | None = None
    multiplies: bool = False
    backward: bool = True
    dtype: torch.dtype = torch.bfloat16


def run(setting: Setting, finding: Finding) -> None:
    small = setting.dry or setting.planted
    cluster = building.cluster(setting.device, 1)
    table = finding.table(f"Operators beside what the cost model says of {cluster}", COLUMNS)
    table.note(
        "Told is that of an operator in a simulated step; measured the median of several calls at once."
        " Reached are TFLOP/s of what multiplies, else TB/s, of the bytes that the cost model counts."
    )
    ratios: dict[str, float] = {}
    for operator in _operators(small):
        with finding.trying(operator.name):
            for way, ratio in _both_ways(setting, finding, table, cluster, operator):
                ratios[f"{operator.name}, {way}"] = ratio
    for fused in (False, True):
        with finding.trying(f"AdamW, fused={fused}"):
            ratios[f"AdamW, fused={fused}"] = _adamw(setting, table, cluster, fused, small)
    finding.values["told/measured"] = ratios
    if ratios:
        _judge(setting, finding, table, ratios)


def _judge(setting: Setting, finding: Finding, table: Table, ratios: dict[str, float]) -> None:
    """An error is how many times too much or too little, less one."""
    errors = {name: max(ratio, 1 / ratio) - 1 for name, ratio in ratios.items()}
    median, worst = statistics.median(errors.values()), max(errors, key=lambda name: errors[name])
    table.note(f"Of {len(ratios)}: median error {median:.0%}, worst {errors[worst]:.0%} ({worst}).")
    finding.values["median"], finding.values["worst"] = median, errors[worst]
    if setting.dry or setting.planted:
        return
    finding.expect(median <= MEDIAN, f"the median error is {median:.0%}, more than {MEDIAN:.0%}")
    for name, error in errors.items():
        finding.expect(error + 1 <= WORST, f"{name}: told is {ratios[name]:.2f} of measured")


def _operators(small: bool) -> Iterator[Operator]:
    rows = 64 if small else 8192
    yield from _products(rows, small)
    yield from _attention(small)
    wide = (rows, 64 if small else 4096)
    inner = (rows, 128 if small else 14336)
    thin = (rows, 32 if small else 768)
    words = 96 if small else 128256
    for name, at in (("RMSNorm", wide), ("RMSNorm, float32", wide)):
        kept = torch.float32 if "float32" in name else torch.bfloat16
        yield Operator(
            name, "aten.rms_norm.default", f", [{at[1]}]", [(at, 0)], at,
            lambda x: F.rms_norm(x, x.shape[-1:]), dtype=kept,
        )  # fmt: skip
    for at in (wide, thin):
        yield Operator(
            f"LayerNorm of {at[1]}", "aten.layer_norm.default", f", [{at[1]}]", [(at, 0)], at,
            lambda x: F.layer_norm(x, x.shape[-1:]),
        )  # fmt: skip
    yield Operator("silu", "aten.silu.default", "", [(inner, 0)], inner, F.silu)
    yield Operator("gelu", "aten.gelu.default", "", [(inner, 0)], inner, F.gelu)
    yield Operator("mul", "aten.mul.Tensor", "", [(inner, 0)] * 2, inner, torch.mul)
    yield Operator("add", "aten.add.Tensor", "", [(wide, 0)] * 2, wide, torch.add)
    yield Operator(
        "pow", "aten.pow.Tensor_Scalar", ", 2", [(wide, 0)], wide, lambda x: x.pow(2), dtype=torch.float32
    )
    yield Operator(
        "mean", "aten.mean.dim", ", [-1], True", [(wide, 0)], (wide[0], 1), _mean, dtype=torch.float32
    )
    yield Operator("clone", "aten.clone.default", "", [(inner, 0)], inner, torch.clone)
    yield Operator("to float32", "aten.to.dtype", ", f32", [(wide, 0)], wide, _wider, gives=torch.float32)
    yield Operator("softmax", "aten.softmax.int", ", -1", [(inner, 0)], inner, lambda x: x.softmax(-1))
    for kept in (torch.bfloat16, torch.float32):
        yield Operator(
            f"cross entropy, {DTYPES[kept]}", "aten.cross_entropy_loss.default", "",
            [((rows, words), 0), ((rows,), words)], (), F.cross_entropy, dtype=kept,
        )  # fmt: skip
    yield Operator(
        "embedding", "aten.embedding.default", "", [((words, wide[1]), 0), ((rows,), words)], wide,
        lambda w, at: F.embedding(at, w),
    )  # fmt: skip


def _mean(x: Tensor) -> Tensor:
    return x.mean([-1], True)


def _wider(x: Tensor) -> Tensor:
    return x.to(torch.float32)


def _products(rows: int, small: bool) -> Iterator[Operator]:
    """Rows by what they are turned into: Llama's at 8B, a rank's of 8 there, at 1B, and GPT-2's."""
    shapes = {
        "8B q": (4096, 4096), "8B k": (4096, 1024), "8B up": (4096, 14336), "8B down": (14336, 4096),
        "8B head": (4096, 128256), "8B q of 8": (4096, 512), "8B up of 8": (4096, 1792),
        "8B down of 8": (1792, 4096), "1B q": (2048, 2048), "1B up": (2048, 8192),
        "1B down": (8192, 2048), "GPT-2 up": (768, 3072),
    }  # fmt: skip
    for name, (width, out) in shapes.items():
        wide, long = (width // 64, out // 64) if small else (width, out)
        yield Operator(
            f"{name} ({rows}x{wide} to {long})", "aten.linear.default", "",
            [((rows, wide), 0), ((long, wide), 0)], (rows, long), F.linear, multiplies=True,
        )  # fmt: skip


def _attention(small: bool) -> Iterator[Operator]:
    shapes = {"8B": (1, 32, 8192, 128), "1B": (4, 32, 2048, 64), "GPT-2": (8, 12, 1024, 64)}
    for name, full in shapes.items():
        at = (1, 2, 32, 16) if small else full
        yield Operator(
            f"attention of {name} ({'x'.join(map(str, at))}, causal)",
            "aten.scaled_dot_product_attention.default", ", None, 0.0, True", [(at, 0)] * 3, at,
            partial(F.scaled_dot_product_attention, is_causal=True), multiplies=True,
        )  # fmt: skip


def _both_ways(
    setting: Setting, finding: Finding, table: Table, cluster: str, operator: Operator
) -> Iterator[tuple[str, float]]:
    device = setting.device
    predicted, counted = _told(cluster, operator), _counted(operator)
    if setting.planted:
        counted = [2 * number for number in counted]
    operands = [_operand(operator, shape, below, device) for shape, below in operator.reads]
    leaves = [x for x in operands if x.requires_grad]
    made = operator.call(*operands)
    seed = torch.ones_like(made)
    with FlopCounterMode(display=False) as counter:
        result = operator.call(*operands)
        forward = counter.get_total_flops()
        torch.autograd.grad(result, leaves, torch.ones_like(result))
    operations = forward, counter.get_total_flops() - forward
    if operator.target == "aten.linear.default":
        finding.expect(
            [float(number) for number in operations] == counted[:2],
            f"{operator.name}: {counted[:2]} operations are told, PyTorch counts {list(operations)}",
        )

    def there() -> None:
        with torch.no_grad():
            operator.call(*operands)

    def back() -> None:
        torch.autograd.grad(made, leaves, seed, retain_graph=True)

    for at, (way, work) in enumerate((("forward", there), ("backward", back))):
        takes = _seconds(work, device)
        effort = counted[at] if operator.multiplies else counted[2 + at]
        unit = "TFLOP/s" if operator.multiplies else "TB/s"
        name = _longest(work, device) if operator.name.startswith(NAMED) else ""
        table.row(
            operator.name, way, predicted[at] * 1e6, takes * 1e6, f"{predicted[at] / takes:.2f}",
            f"{effort / takes / 1e12:.3g} {unit}", name[:60],
        )  # fmt: skip
        yield way, predicted[at] / takes


def _operand(operator: Operator, shape: tuple[int, ...], below: int, device: torch.device) -> Tensor:
    if below:
        return torch.randint(below, shape, device=device)
    return torch.randn(shape, device=device, dtype=operator.dtype).requires_grad_()


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of one call on the device."""
    if device.type != "cuda":
        return timing.repeated(work, device, warm=1, times=3)
    for _ in range(3):
        work()
    return statistics.median(_behind(work) for _ in range(5))


def _behind(work: Callable[[], object]) -> float:
    """The device waits for a moment, in which the host orders several calls."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000)
    start.record()
    for _ in range(CALLS):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / CALLS


def _longest(work: Callable[[], object], device: torch.device) -> str:
    kernels = traces.kernels(traces.traced(work, device))
    return max(kernels, key=lambda event: event.seconds).name if kernels else ""


def _graph(operator: Operator, *, alone: bool = False) -> str:
    """A graph of the operator and a sum, which gives it a backward; or of the sum alone."""
    kept, gives = DTYPES[operator.dtype], DTYPES[operator.gives or operator.dtype]
    lines = ["shardwright-graph 1", 'model "Probe"', 'module "" "Probe"']
    place = 'in "" at "probe.py:1"'
    if alone:
        lines.append(f'param %y {gives}{_list(operator.result)} "y"')
    else:
        inputs = [(at, shape) for at, (shape, below) in enumerate(operator.reads) if below]
        lines += [f"input %x{at} i64{_list(shape)} {number}" for number, (at, shape) in enumerate(inputs)]
        params = [(at, shape) for at, (shape, below) in enumerate(operator.reads) if not below]
        lines += [f'param %x{at} {kept}{_list(shape)} "x{at}"' for at, shape in params]
        operands = ", ".join(f"%x{at}" for at in range(len(operator.reads)))
        call = f"{operator.target}({operands}{operator.rest}) {place}"
        lines.append(f"op %y {gives}{_list(operator.result)} = {call}")
    if operator.result:
        lines.append(f"op %l {gives}[] = aten.sum.default(%y) {place}")
    lines.append("output %l" if operator.result else "output %y")
    return "\n".join(lines) + "\n"


def _list(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _told(cluster: str, operator: Operator) -> list[float]:
    """Seconds forward and backward, in a step of it alone."""
    whole = _lane(cluster, _graph(operator))
    rest = (
        _lane(cluster, _graph(operator, alone=True)) if operator.result else {"forward": 0.0, "backward": 0.0}
    )
    return [whole[way] - rest[way] for way in ("forward", "backward")]


def _lane(cluster: str, text: str, optimizer: str = "none") -> dict[str, float]:
    from shardwright._core import Graph, Plan, compile, simulate_step

    plan = Plan.named(Graph(text), "replicate", 1)
    return simulate_step(plan, compile(plan), cluster, optimizer=optimizer).ranks[0]


def _counted(operator: Operator) -> list[float]:
    """Operations forward and backward, and bytes."""
    from shardwright._core import Graph

    cost = Graph(_graph(operator)).operators[0].cost
    return [float(x) for x in (cost.flops, sum(cost.gradients), sum(cost.forward), sum(cost.backward))]


def _adamw(setting: Setting, table: Table, cluster: str, fused: bool, small: bool) -> float:
    """Half a billion parameters in 32 tensors."""
    device, each = setting.device, (16, 64) if small else (4096, 4096)
    tensors = [torch.randn(each, device=device, dtype=torch.bfloat16).requires_grad_() for _ in range(32)]
    for x in tensors:
        x.grad = torch.ones_like(x)
    optimizer = torch.optim.AdamW(tensors, lr=1e-4, fused=fused, foreach=not fused)
    one = Operator("", "aten.mul.Tensor", "", [], (32 * each[0], each[1]), torch.mul)
    predicted = _lane(cluster, _graph(one, alone=True), "adamw")["update"]
    takes = timing.repeated(optimizer.step, device, warm=2, times=5)
    # Parameter, gradient and two states are read, and all but the gradient written.
    moved = 7 * sum(x.nbytes for x in tensors)
    name = "AdamW fused" if fused else "AdamW foreach"
    reached = f"{moved / takes / 1e12:.3g} TB/s"
    table.row(name, "step", predicted * 1e6, takes * 1e6, f"{predicted / takes:.2f}", reached, "")
    return predicted / takes
