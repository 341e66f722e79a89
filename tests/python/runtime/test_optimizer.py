"""PyTorch's optimizers over shards: groups, schedulers, what is refused, and clipping."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

import shardwright as sw
from runtime_programs import batch, data, megatron, mlp, pipeline, zero
from shardwright import RuntimeFault
from shardwright.runtime import Comm, ParallelModule, load_program, run_local
from shardwright.runtime.optimizers.optimizer import fused_on_gpus

STATE = mlp().state_dict()
BATCHES = [batch(seed) for seed in (1, 2, 3)]

PROGRAMS = {
    "megatron": (2, megatron()),
    "data": (2, data(2)),
    "pipeline": (2, pipeline()),
    "zero": (2, zero()),
}

Grouping = Callable[[nn.Module], Any]
Make = Callable[[nn.Module, Any], Optimizer]


def parallel(name: str, comm: Comm) -> ParallelModule:
    world, files = PROGRAMS[name]
    return ParallelModule(load_program(files, world=world), comm, STATE)


def on_ranks(name: str, body: Callable[[ParallelModule], Any]) -> list[Any]:
    return run_local(PROGRAMS[name][0], lambda _, comm: body(parallel(name, comm)))


def plain_step(model: nn.Module, at: int) -> Tensor:
    loss: Tensor = model(*BATCHES[at])
    loss.backward()
    return loss.detach()


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-9, atol=1e-12)


def assert_same_state(ours: dict[str, Tensor], theirs: nn.Module) -> None:
    for name, value in theirs.state_dict().items():
        close(ours[name], value)


ELEMENTWISE: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    (torch.optim.AdamW, {"lr": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.1, "fused": True}),
    (torch.optim.AdamW, {"lr": 0.1, "foreach": True}),
    (torch.optim.Adam, {"lr": torch.tensor(0.1), "weight_decay": 0.1}),
    (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.1, "centered": True}),
    (torch.optim.NAdam, {"lr": 0.1}),
    (torch.optim.RAdam, {"lr": 0.1}),
    (torch.optim.Adadelta, {"lr": 0.1}),
    (torch.optim.Adamax, {"lr": 0.1}),
    (torch.optim.Rprop, {"lr": 0.1}),
    (torch.optim.ASGD, {"lr": 0.1}),
]


@pytest.mark.parametrize(
    ("cls", "options"), ELEMENTWISE, ids=lambda value: getattr(value, "__name__", "") or "-".join(value)
)
def test_elementwise_optimizers_equal_the_single_device(
    cls: type[Optimizer], options: dict[str, Any]
) -> None:
    plain = mlp()
    theirs = cls(plain.parameters(), **options)
    for at in range(3):
        theirs.zero_grad()
        plain_step(plain, at)
        theirs.step()

    def body(model: ParallelModule) -> dict[str, Tensor]:
        ours = sw.optimizer(model, cls, **options)
        assert isinstance(ours, cls)
        for at in range(3):
            ours.zero_grad()
            model.train_step(BATCHES[at])
            ours.step()
        return model.full_state_dict()

    for name in PROGRAMS:
        for state in on_ranks(name, body):
            assert_same_state(state, plain)


SCHEDULERS: list[Callable[[Optimizer], Any]] = [
    lambda o: lr_scheduler.LambdaLR(o, [lambda at: 0.5**at, lambda at: 1 / (1 + at)]),
    lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=8),
    lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.1),
]


def by_dims(model: nn.Module) -> Any:
    """As nanoGPT chooses what decays."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return [
        {"params": [p for _, p in named.items() if p.dim() >= 2], "weight_decay": 0.5},
        {"params": [p for _, p in named.items() if p.dim() < 2], "weight_decay": 0.0},
    ]


def by_ends_of_names(model: nn.Module) -> Any:
    named = list(model.named_parameters())
    return [
        {"params": (p for name, p in named if not name.endswith(".bias")), "weight_decay": 0.5},
        {"params": [(name, p) for name, p in named if name.endswith(".bias")], "weight_decay": 0.0},
    ]


def one_for_each_module(model: nn.Module) -> Any:
    """A rank of a pipeline has nothing for one of them."""
    named = list(model.named_parameters())
    return [{"params": [p for name, p in named if name.startswith(start)]} for start in ("up.", "down.")]


@pytest.mark.parametrize("scheduler", range(len(SCHEDULERS)))
@pytest.mark.parametrize("grouping", [by_dims, by_ends_of_names, one_for_each_module])
@pytest.mark.parametrize("name", PROGRAMS)
def test_groups_from_functions_and_schedulers(name: str, grouping: Grouping, scheduler: int) -> None:
    def loop(model: nn.Module, adamw: Optimizer, step: Callable[[int], Tensor]) -> list[Any]:
        schedule = SCHEDULERS[scheduler](adamw)
        rates = []
        for at in (0, 1, 2, 0):
            adamw.zero_grad()
            loss = step(at)
            adamw.step()
            is_plateau = isinstance(schedule, lr_scheduler.ReduceLROnPlateau)
            schedule.step(loss) if is_plateau else schedule.step()
            rates.append([group["lr"] for group in adamw.param_groups])
        return rates

    plain = mlp()
    adamw = torch.optim.AdamW(_unnamed(grouping(plain)), lr=0.1)
    expected = loop(plain, adamw, lambda at: plain_step(plain, at))

    def body(model: ParallelModule) -> tuple[dict[str, Tensor], list[Any]]:
        ours = sw.optimizer(model, torch.optim.AdamW, grouping(model), lr=0.1)
        rates = loop(model, ours, lambda at: model.train_step(BATCHES[at]))  # type: ignore[arg-type, return-value]
        return model.full_state_dict(), rates

    for state, rates in on_ranks(name, body):
        assert_same_state(state, plain)
        torch.testing.assert_close(torch.tensor(rates), torch.tensor(expected))


def _unnamed(groups: Any) -> Any:
    """PyTorch wants names in all groups or in none."""
    return [
        {**group, "params": [p[1] if isinstance(p, tuple) else p for p in group["params"]]}
        for group in groups
    ]


@pytest.mark.parametrize("names", [True, False])
def test_a_group_is_added_later(names: bool) -> None:
    plain = mlp()
    theirs = torch.optim.SGD([plain.up.weight, plain.up.bias], lr=0.1)
    for at in range(3):
        plain_step(plain, at)
        theirs.step()
        if at == 0:
            theirs.add_param_group({"params": plain.down.parameters(), "lr": 0.01})

    def body(model: ParallelModule) -> dict[str, Tensor]:
        named = dict(model.named_parameters())
        first: Any = ["up.*"] if names else [p for n, p in named.items() if n.startswith("up.")]
        more: Any = "down.*" if names else [p for n, p in named.items() if n.startswith("down.")]
        ours = sw.optimizer(model, torch.optim.SGD, first, lr=0.1)
        for at in range(3):
            model.train_step(BATCHES[at])
            ours.step()
            if at == 0:
                ours.add_param_group({"params": more, "lr": 0.01})
        assert [len(group["params"]) for group in ours.param_groups] == [
            len([n for n in named if n.startswith(start)]) for start in ("up.", "down.")
        ]
        return model.full_state_dict()

    for name in PROGRAMS:
        for state in on_ranks(name, body):
            assert_same_state(state, plain)


def test_original_shapes_and_names() -> None:
    original = {name: p.shape for name, p in mlp().named_parameters()}

    def body(model: ParallelModule) -> None:
        for name, part in model.named_parameters():
            assert name in original
            assert model.original_shape(part) == model.original_shape(name) == original[name]
            assert part.dim() == len(original[name])
        assert model.original_shape("down.bias") == (3,)
        with pytest.raises(RuntimeFault, match="SW0764"):
            model.original_shape("nobody")

    for name in PROGRAMS:
        on_ranks(name, body)


def test_a_second_shard_has_a_name_with_the_same_end() -> None:
    """Two parts of one parameter on one rank, as after co-sharding."""
    files = _coshard()

    def body(_: int, comm: Comm) -> tuple[list[str], dict[str, Tensor]]:
        model = ParallelModule(load_program(files, world=1), comm, STATE)
        ours = sw.optimizer(model, torch.optim.AdamW, by_ends_of_names(model), lr=0.1)
        assert {model.original_shape(p) for n, p in model.named_parameters() if "up" in n} == {(6, 4), (6,)}
        for at in range(3):
            ours.zero_grad()
            model.train_step(BATCHES[at])
            ours.step()
        return [name for name, _ in model.named_parameters()], model.full_state_dict()

    plain = mlp()
    adamw = torch.optim.AdamW(_unnamed(by_ends_of_names(plain)), lr=0.1)
    for at in range(3):
        adamw.zero_grad()
        plain_step(plain, at)
        adamw.step()
    names, state = run_local(1, body)[0]
    assert "up.__1.bias" in names
    assert_same_state(state, plain)


@functools.cache
def _coshard() -> dict[str, str]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 6).double(), nn.Linear(6, 3).double()

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return torch.nn.functional.mse_loss(self.down(torch.relu(self.up(x))), t)

    def plan(graph: sw.Graph, draft: sw.Draft) -> None:
        for op in graph.operators:
            split = [dim for dim, size in op.dims.items() if size == 6 and op.target == "aten.linear.default"]
            for part in draft.trans(op, split[0], 2) if split else draft.single(op):
                draft.assign(part, 0)

    bundle, _ = sw.compile_model(Model(), BATCHES[0], plan=plan, devices=1)
    return bundle.files


# ---- what does not treat each element by itself --------------------------------------------


class Lamb(Optimizer):
    """Each tensor's step is scaled by the ratio of its norms."""

    def __init__(self, params: Any, lr: float = 0.1, adapt: bool = True):
        super().__init__(params, {"lr": lr, "adapt": adapt})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    ratio = p.norm() / p.grad.norm() if group["adapt"] else 1.0
                    p.sub_(group["lr"] * ratio * p.grad.sign())


class Global(Optimizer):
    """All tensors' steps are scaled by one norm."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        learning = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in learning]).norm()  # type: ignore[union-attr]
        for p in learning:
            p.sub_(0.1 * p.grad / norm)  # type: ignore[operator]


class Lion(Optimizer):
    """An elementwise one that PyTorch does not have."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    momentum.lerp_(p.grad, 0.1)
                    p.sub_(group["lr"] * momentum.sign())


class Strange(Optimizer):
    def __init__(self, params: Any):
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is None:
            raise TypeError("a closure is needed")


class HybridAdamW(torch.optim.AdamW):
    """A subclass may do anything."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                p.div_(p.norm())


Case = tuple[str, Any, Any, dict[str, Any], str | None]
CASES: list[Case] = [
    ("megatron", torch.optim.Adafactor, None, {}, "SW0715"),
    ("megatron", torch.optim.Adafactor, ["down.bias"], {}, None),
    ("data", torch.optim.Adafactor, None, {}, None),
    ("pipeline", torch.optim.Adafactor, None, {}, None),
    ("megatron", torch.optim.Muon, ["*.weight"], {}, "SW0715"),
    ("data", torch.optim.Muon, ["*.weight"], {}, None),
    ("data", torch.optim.LBFGS, None, {}, None),
    ("pipeline", torch.optim.LBFGS, None, {}, "SW0715"),
    ("megatron", Lamb, None, {}, "SW0715"),
    ("megatron", Lamb, None, {"adapt": False}, None),
    ("megatron", Lamb, [{"params": ["*"], "adapt": False}], {}, None),
    ("megatron", functools.partial(Lamb, adapt=True), None, {}, "SW0715"),
    ("megatron", Lamb, None, {"elementwise": True}, None),
    ("pipeline", Lamb, None, {}, None),
    ("data", Lamb, None, {}, None),
    ("pipeline", Global, None, {}, "SW0715"),
    ("data", Global, None, {}, None),
    ("megatron", Lion, None, {}, None),
    ("megatron", Strange, None, {}, "SW0760"),
    ("data", Strange, None, {}, None),
    ("megatron", HybridAdamW, None, {}, "SW0715"),
]


@pytest.mark.parametrize(("name", "cls", "params", "options", "code"), CASES)
def test_what_looks_at_more_than_an_element(
    name: str, cls: Any, params: Any, options: dict[str, Any], code: str | None
) -> None:
    """All ranks refuse, also those that hold nothing of the parameters in question."""

    def body(model: ParallelModule) -> str | None:
        try:
            sw.optimizer(model, cls, params, **options)
        except RuntimeFault as error:
            return error.code
        return None

    assert on_ranks(name, body) == [code, code]


def test_the_refusal_names_parameters() -> None:
    with pytest.raises(RuntimeFault) as caught:
        on_ranks("megatron", lambda model: sw.optimizer(model, Lamb))
    assert str(caught.value) == (
        "error[SW0715]: Lamb does not work on parts of a tensor\n"
        "  why: its step needs the whole tensor, and the plan shards 'up.weight', 'up.bias',"
        " 'down.weight' among the ranks\n"
        '  help: let the plan compute their updates whole, with " x whole-updates" behind its name or the'
        ' line `param "up.weight": update whole` in its file; or take an elementwise optimizer for these'
        " parameters, or a plan that does not shard them"
    )


def test_a_group_that_is_added_is_looked_at_too() -> None:
    def body(model: ParallelModule) -> None:
        ours = sw.optimizer(model, Lamb, ["down.bias"])
        ours.add_param_group({"params": ["up.weight"]})

    with pytest.raises(RuntimeFault, match=r"SW0715.*Lamb"):
        on_ranks("megatron", body)


def test_the_trial_leaves_the_random_stream_alone() -> None:
    class Noisy(Lion):
        def step(self, closure: Any = None) -> None:
            torch.randn(3)
            super().step()

    torch.manual_seed(5)
    expected = torch.randn(2)
    torch.manual_seed(5)
    on_ranks("megatron", lambda model: sw.optimizer(model, Noisy))
    assert torch.equal(torch.randn(2), expected)


# ---- groups that are refused ---------------------------------------------------------------


def by_elements(model: nn.Module) -> Any:
    """Differs between the ranks: `up.weight` has 18 elements here and 6 there."""
    parts = list(model.parameters())
    return [
        {"params": [p for p in parts if p.numel() > 9]},
        {"params": [p for p in parts if p.numel() <= 9]},
    ]


def another_number_of_groups(model: nn.Module) -> Any:
    groups = one_for_each_module(model)
    assert isinstance(model, ParallelModule)
    return groups if model.comm.rank else groups[:1]


REFUSED: list[tuple[str, Grouping, str]] = [
    ("zero", by_elements, "SW0761.*'up.weight' into different"),
    ("data", another_number_of_groups, "SW0835[^|]*the number of groups: rank 0: 1; rank 1: 2"),
    ("data", lambda model: [nn.Parameter(torch.zeros(3))], "SW0716.*not parameters of this model"),
    ("data", lambda model: ["up.nothing"], "SW0716.*'up.nothing'"),
    ("data", lambda model: [{"params": ["up.*"]}, {"params": ["*.bias"]}], "SW0716.*'up.bias' is in groups"),
    ("data", lambda model: [3], "SW0716.*holds 3"),
]


@pytest.mark.parametrize(("name", "grouping", "message"), REFUSED)
def test_groups_that_mean_nothing_are_refused(name: str, grouping: Grouping, message: str) -> None:
    def body(model: ParallelModule) -> None:
        with pytest.raises(RuntimeFault, match=message):
            sw.optimizer(model, torch.optim.AdamW, grouping(model))

    on_ranks(name, body)


def test_on_gpus_a_step_is_fused_unless_somebody_chose() -> None:
    def on(device: str, dtype: torch.dtype = torch.float32) -> Any:
        return SimpleNamespace(device=torch.device(device), is_floating_point=lambda: dtype.is_floating_point)

    adamw, gpu = torch.optim.AdamW, [on("cuda"), on("cuda")]
    assert fused_on_gpus(adamw, {"lr": 1.0}, gpu) == {"lr": 1.0, "fused": True}
    assert fused_on_gpus(adamw, {"foreach": None}, gpu) == {"foreach": None, "fused": True}
    for options in ({"foreach": True}, {"fused": False}, {"capturable": True}):
        assert fused_on_gpus(adamw, options, gpu) == options
    assert fused_on_gpus(torch.optim.RMSprop, {}, gpu) == {}
    assert fused_on_gpus(adamw, {}, []) == {}
    assert fused_on_gpus(adamw, {}, [*gpu, on("cpu")]) == {}
    assert fused_on_gpus(adamw, {}, [on("cuda", torch.complex64)]) == {}
