"""What a training loop does around a parallel model has the effect that it has on one device, or is refused
at the moment it is done."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import shardwright as sw
from shardwright.compiling import compile_model
from shardwright.runtime import LocalComm, ParallelModule, load_program, run_local
from shardwright.runtime.programs.regions import cut

torch.set_num_threads(1)

ROWS = 8
BATCHES = [
    tuple(torch.randn(2, ROWS, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    for seed in range(4)
]
PLANS = ["data", "megatron", "zero3"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.BatchNorm1d(8), nn.Linear(16, 8)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(torch.relu(self.up(self.norm(x)))))


class Net(nn.Module):
    doubled = 2

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.config = {"width": 8}
        self.alpha = 1.0
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 8)
        self.double()

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        out = self.head(self.blocks(x)) * self.alpha * getattr(self, "extra", 1.0)
        return {"loss": F.mse_loss(out, target), "logits": out}

    @property
    def width(self) -> int:
        return self.head.weight.shape[0]

    def count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        matrices = [p for p in self.parameters() if p.dim() >= 2]
        rest = [p for p in self.parameters() if p.dim() < 2]
        return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": rest}], lr=0.01)

    def penalty(self) -> Tensor:
        return sum(p.square().sum() for p in self.parameters())  # type: ignore[return-value]

    def generate(self, x: Tensor) -> Tensor:
        return self.blocks(x)

    def step_loss(self, x: Tensor, target: Tensor) -> Tensor:
        return self(x, target)["loss"]


Body = Callable[[Any, nn.Module], Any]


def on_ranks(body: Body, plan: str = "megatron", net: Callable[[], nn.Module] = Net, **options: Any) -> Any:
    """What `body(model, module)` gives on rank 0 of two; every rank builds a module of its own."""
    modules = [net() for _ in range(2)]

    def rank(rank: int, comm: LocalComm) -> Any:
        module = modules[rank]
        quiet: dict[str, Any] = {"cache": False, "progress": False}
        return body(sw.parallelize(module, BATCHES[0], plan=plan, comm=comm, **quiet, **options), module)

    return run_local(2, rank)[0]


def refused(code: str, body: Body, plan: str = "megatron", **options: Any) -> str:
    """The text of an error that `body` meets on every rank."""

    def meets(model: Any, module: nn.Module) -> str:
        with pytest.raises(sw.ShardwrightError) as error:
            body(model, module)
        assert error.value.code == code, error.value
        return str(error.value)

    return str(on_ranks(meets, plan, **options))


def train(
    model: Any, each: Callable[[Any, int], Any] = lambda *_: None, optimizer: Any = None
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses, and the state at the end; `each` is done before every step."""
    if isinstance(model, ParallelModule):
        optimizer = optimizer or sw.optimizer(model, torch.optim.SGD, lr=0.1)
    else:
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, batch in enumerate(BATCHES):
        each(model, step)
        loss = model(*batch)["loss"]
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    state = model.full_state_dict() if isinstance(model, ParallelModule) else model.state_dict()
    return losses, state


def assert_equal_training(found: Any, expected: Any) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-9)
    for name, value in expected[1].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-8, atol=1e-10)


# ---- what a loop changes ---------------------------------------------------------------------------


def _anneal(model: Any, step: int) -> None:
    model.alpha = 0.5 if step % 2 else 1.0
    model.counted = step


def _new_attribute(model: Any, step: int) -> None:
    if step == 2:
        model.extra = 3.0


def _momentum(model: Any, step: int) -> None:
    if step == 1:
        model.blocks[0].norm.momentum = 0.7


def _frozen_norms(model: Any, step: int) -> None:
    if step == 2:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()


def _mode_of_one(model: Any, step: int) -> None:
    model.blocks[1].norm.training = step < 2


def _unfreeze(model: Any, step: int) -> None:
    model.blocks[0].up.requires_grad_(step >= 2)


def _freeze(model: Any, step: int) -> None:
    model.head.requires_grad_(step < 2)


CHANGES = [_anneal, _new_attribute, _momentum, _frozen_norms, _mode_of_one, _unfreeze, _freeze]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_change_between_steps_has_the_effect_that_it_has_on_one_device(change: Any) -> None:
    def net() -> nn.Module:
        made = Net()
        if change is _unfreeze:
            made.blocks[0].up.requires_grad_(False)
        return made

    expected, unchanged = train(net(), change), train(net())
    assert str(expected) != str(unchanged)
    for plan in PLANS:
        assert_equal_training(on_ranks(lambda model, _: train(model, change), plan, net), expected)


def test_the_loops_own_attributes_make_no_program() -> None:
    def body(model: Any, _: nn.Module) -> int:
        train(model, lambda model, step: setattr(model, "my_counter", step))
        return sum(map(len, model.variants._known.values()))

    assert on_ranks(body) == 1


def _set_dropout(model: Any, _: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5


def test_dropout_may_change_its_rate() -> None:
    def body(model: Any, module: nn.Module) -> tuple[float, float]:
        before = model(*BATCHES[0])["loss"].item()
        _set_dropout(model, None)
        return before, model(*BATCHES[0])["loss"].item()

    before, after = on_ranks(body)
    assert before != after


class Settings:
    def __init__(self) -> None:
        self.scale, self.steps, self.inner = 1.0, 0, {"powers": [1, 2]}

    @property
    def doubled(self) -> float:
        return 2 * self.scale


class Configured(nn.Module):
    def __init__(self, config: Settings) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net, self.config, self.history = Net(), config, [0.0]
        self.shift = {"by": torch.ones(8, dtype=torch.float64)}

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        loss = self.net(x + self.shift["by"], target)["loss"]
        return {"loss": sum(loss**power for power in self.config.inner["powers"]) * self.config.doubled}


def _of_the_model(model: Any, step: int) -> None:
    model.config.scale = 0.5 if step % 2 else 1.0


def _in_a_list(model: Any, step: int) -> None:
    if step == 2:
        model.config.inner["powers"].append(3)


def _in_a_dict(model: Any, step: int) -> None:
    model.config.inner["powers"] = [1] if step > 1 else [1, 2]


def _under_the_callers_name(model: Any, step: int) -> None:
    CALLERS.scale = 1.0 + step


CALLERS = Settings()


@pytest.mark.parametrize(
    "change", [_of_the_model, _in_a_list, _in_a_dict, _under_the_callers_name], ids=lambda c: c.__name__
)
def test_a_change_inside_of_an_attribute_has_the_effect_that_it_has_on_one_device(change: Any) -> None:
    callers = change is _under_the_callers_name

    def net() -> nn.Module:
        CALLERS.scale = 1.0
        return Configured(CALLERS if callers else Settings())

    expected, unchanged = train(net(), change), train(net())
    assert str(expected) != str(unchanged)
    assert_equal_training(on_ranks(lambda model, _: train(model, change), "megatron", net), expected)


def _note_down(model: Any, step: int) -> None:
    model.config.steps = step
    model.config.name = f"step {step}"
    model.history.append(float(step))


def test_what_the_forward_does_not_name_makes_no_program() -> None:
    def body(model: Any, _: nn.Module) -> list[str]:
        train(model, _note_down)
        return list(model.programs)

    assert len(on_ranks(body, net=lambda: Configured(Settings()))) == 1


def test_a_copy_has_what_was_changed_inside_of_the_model() -> None:
    def body(model: Any, _: nn.Module) -> list[float]:
        first = model(*BATCHES[0])["loss"].item()
        model.config.scale = 3.0
        copied = copy.deepcopy(model)
        model.config.scale = 1.0
        return [copied(*BATCHES[0])["loss"].item() / first, model(*BATCHES[0])["loss"].item() / first]

    assert on_ranks(body, net=lambda: Configured(Settings())) == pytest.approx([3.0, 1.0])


REPLACED: dict[str, Callable[[Any], object]] = {
    "config.inner": lambda m: setattr(m.config, "inner", Settings()),
    "shift['by']": lambda m: m.shift["by"].mul_(2),
}


@pytest.mark.parametrize("place", REPLACED)
def test_what_no_program_can_be_made_for_is_refused_at_the_next_call(place: str) -> None:
    def body(model: Any, _: nn.Module) -> None:
        REPLACED[place](model)
        model(*BATCHES[0])

    assert f"`{place}` was changed after" in refused("SW0811", body, net=lambda: Configured(Settings()))


REFUSED_CHANGES: dict[str, tuple[str, Body]] = {
    "a parameter": ("SW0803", lambda m, _: setattr(m.head, "weight", nn.Parameter(torch.zeros(8, 8)))),
    "a module": ("SW0803", lambda m, _: setattr(m, "head", nn.Linear(8, 8))),
    "a new module": ("SW0803", lambda m, _: setattr(m, "tail", nn.Linear(8, 8))),
    "a list": ("SW0803", lambda m, _: setattr(m, "alpha", [1.0])),
    "a tensor that the model reads": ("SW0803", lambda m, _: setattr(m, "alpha", torch.ones(()))),
    "a forward hook": ("SW0806", lambda m, _: m.head.register_forward_hook(print)),
    "a forward pre-hook": ("SW0806", lambda m, _: m.blocks.register_forward_pre_hook(print)),
    "a backward hook": ("SW0806", lambda m, _: m.blocks[0].register_full_backward_hook(print)),
    "a hook of the model under train_step": ("SW0806", lambda m, _: _hooked_step(m)),
    "a hook on a part": ("SW0807", lambda m, _: m.blocks[0].up.weight.register_hook(print)),
    "a late hook on a part": (
        "SW0807",
        lambda m, _: m.blocks[0].up.weight.register_post_accumulate_grad_hook(print),
    ),
    "another dtype": ("SW0808", lambda m, _: m.to(torch.float32)),
    "half": ("SW0808", lambda m, _: m.half()),
    "a call of a part": ("SW0805", lambda m, _: m.blocks[0](BATCHES[0][0])),
    "initialising anew": ("SW0809", lambda m, _: m.apply(_initialise)),
}


def _hooked_step(model: Any) -> None:
    model.register_forward_hook(lambda *_: None)
    model.train_step(BATCHES[0])


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.weight)


@pytest.mark.parametrize("case", REFUSED_CHANGES)
def test_a_change_without_effect_is_refused_when_it_is_made(case: str) -> None:
    code, body = REFUSED_CHANGES[case]
    assert "help: " in refused(code, body)


def test_ranks_that_change_different_things_are_told() -> None:
    def body(model: Any, _: nn.Module) -> None:
        if model.comm.rank == 1:
            model.alpha = 7.0
        model(*BATCHES[0])

    text = refused("SW0781", body)
    assert "rank 0: none of these | rank 1: alpha = 7.0" in text


def test_a_program_without_its_model_cannot_train_what_was_frozen() -> None:
    module = Net()
    module.head.requires_grad_(False)
    bundle, _ = compile_model(module, BATCHES[0], plan="replicate", devices=1)

    def rank(_: int, comm: LocalComm) -> None:
        program = load_program(bundle.files, digest=bundle.digest, world=1)
        model = ParallelModule(program, comm, module.state_dict(), bundle.captured)
        model(*BATCHES[0])
        model.head.requires_grad_(True)
        with pytest.raises(sw.RuntimeFault, match="SW0804"):
            model(*BATCHES[0])

    run_local(1, rank)


# ---- hooks of parameters ---------------------------------------------------------------------------


class _Double:
    """After the gradient is there, doubles it: by another way than a hook's result."""

    def __call__(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(2)


def _clip(grad: Tensor) -> Tensor:
    return grad * (0.01 / grad.norm())


HOOKS: list[tuple[str, Any]] = [("register_hook", _clip), ("register_post_accumulate_grad_hook", _Double())]


@pytest.mark.parametrize(("register", "hook"), HOOKS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_of_whole_parameters_run(register: str, hook: Any, when: str) -> None:
    def add(model: Any) -> None:
        for parameter in (model.blocks[0].norm.weight, model.blocks[1].down.bias):
            if parameter.numel():
                getattr(parameter, register)(hook)

    def net() -> nn.Module:
        made = Net()
        if when == "before":
            add(made)
        return made

    def body(model: Any, _: nn.Module) -> Any:
        if when == "after":
            add(model)
        return train(model)

    plain = net()
    if when == "after":
        add(plain)
    expected = train(plain)
    assert expected[0] != train(Net())[0]
    assert_equal_training(on_ranks(body, "data", net), expected)


@pytest.mark.parametrize(("register", "hook"), HOOKS)
def test_hooks_see_each_micro_batch_of_a_step(register: str, hook: Any) -> None:
    def net() -> nn.Module:
        made = Net()
        getattr(made.blocks[0].norm.weight, register)(hook)
        return made

    plain = net()
    for batch in BATCHES[:2]:
        (plain(*batch)["loss"] / 2).backward()

    def body(model: Any, _: nn.Module) -> dict[str, Tensor | None]:
        model.train_step(BATCHES[:2])
        return {name: p.grad for name, p in model.named_parameters()}

    found = on_ranks(body, "data", net)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_a_hook_on_what_the_plan_divides_is_refused_at_parallelize() -> None:
    def net() -> nn.Module:
        made = Net()
        made.blocks[0].up.weight.register_hook(_clip)
        return made

    with pytest.raises(sw.RuntimeFault, match=r"SW0807.*'blocks.0.up.weight'"):
        on_ranks(lambda *_: None, "megatron", net)


def test_a_hook_that_reads_the_module_is_refused() -> None:
    def net() -> nn.Module:
        made = Net()
        weight = made.head.weight
        weight.register_hook(lambda grad: grad + weight.detach())
        return made

    with pytest.raises(sw.RuntimeFault, match=r"SW0807.*reads 'head.weight'"):
        on_ranks(lambda *_: None, "data", net)


def test_a_late_hook_that_returns_something_is_pytorchs_own_error() -> None:
    def body(model: Any, _: nn.Module) -> None:
        model.head.bias.register_post_accumulate_grad_hook(lambda p: p.grad * 3)
        with pytest.raises(RuntimeError, match="hooks should return None"):
            model(*BATCHES[0])["loss"].backward()

    body(Net(), nn.Module())
    on_ranks(body, "data")


# ---- gradients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS)
def test_autograd_grad_gives_the_gradients_of_this_ranks_parts(plan: str) -> None:
    plain = Net()
    grads = torch.autograd.grad(plain(*BATCHES[0])["loss"], [*plain.parameters()])
    expected = dict(zip(dict(plain.named_parameters()), grads, strict=True))

    def body(model: Any, _: nn.Module) -> None:
        found = torch.autograd.grad(model(*BATCHES[0])["loss"], [*model.parameters()])
        assert all(p.grad is None for p in model.parameters())
        shards = {id(shard.data): shard for shard in model.shards.held}
        for parameter, grad in zip(model.parameters(), found, strict=True):
            shard = shards[id(parameter)]
            part = cut(expected[shard.tensor.names[0]], shard.tensor.factors, shard.region)
            torch.testing.assert_close(grad, part)

    on_ranks(body, plan)


def test_gradients_of_gradients_are_refused() -> None:
    refused("SW0810", lambda m, _: m(*BATCHES[0])["loss"].backward(create_graph=True))


def test_parameters_that_change_between_forward_and_backward_are_pytorchs_own_error() -> None:
    def body(model: Any, _: nn.Module) -> None:
        loss = model(*BATCHES[0])["loss"]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        loss.backward()

    for plan in PLANS:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            on_ranks(body, plan)


NORMS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda grads: sum(g.norm() ** 2 for g in grads),
    "norm of data": lambda grads: sum(g.detach().data.norm(2).item() ** 2 for g in grads),
    "squares": lambda grads: sum((g**2).sum() for g in grads),
    "stacked": lambda grads: torch.stack([torch.linalg.vector_norm(g) for g in grads]),
    "foreach": lambda grads: torch._foreach_norm(grads),
    "one vector": lambda grads: torch.cat([g.flatten() for g in grads]).norm(),
    "largest": lambda grads: max(g.abs().max() for g in grads),
    "of float": lambda grads: sum(g.float().pow(2).sum() for g in grads),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("step", ["train_step", "backward"])
def test_norms_of_parts_of_gradients_are_refused(norm: str, step: str) -> None:
    def grads(model: Any) -> list[Tensor]:
        if step == "train_step":
            model.train_step(BATCHES[0])
        else:
            model(*BATCHES[0])["loss"].backward()
        return [p.grad for p in model.parameters()]

    assert "sw.clip_grad_norm_" in refused("SW0762", lambda m, _: NORMS[norm](grads(m)))
    on_ranks(lambda m, _: NORMS[norm](grads(m)), "data")


def test_what_treats_each_element_of_a_gradient_by_itself_works_on_parts() -> None:
    def scale(model: Any) -> None:
        for parameter in model.parameters():
            parameter.grad = parameter.grad.clamp(-1e-3, 1e-3) * 2
            assert parameter.grad.isfinite().all()
            parameter.grad.mul_(0.5)

    def loop(model: Any) -> Any:
        cls = torch.optim.SGD
        options: dict[str, Any] = {"lr": 1.0, "momentum": 0.9}
        parallel = isinstance(model, ParallelModule)
        optimizer = sw.optimizer(model, cls, **options) if parallel else cls(model.parameters(), **options)
        for batch in BATCHES:
            model(*batch)["loss"].backward()
            scale(model)
            optimizer.step()
            optimizer.zero_grad()
        assert all(type(x) is Tensor for s in optimizer.state.values() for x in s.values())
        return [], model.full_state_dict() if parallel else model.state_dict()

    assert_equal_training(on_ranks(lambda model, _: loop(model)), loop(Net()))


# ---- optimizers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_optimizer_of_the_original_module_is_refused_at_its_step(when: str) -> None:
    modules: dict[int, torch.optim.Optimizer] = {}

    def net() -> nn.Module:
        made = Net()
        if when == "before":
            modules[id(made)] = torch.optim.AdamW(made.parameters())
        return made

    def body(model: Any, module: nn.Module) -> None:
        optimizer = modules.get(id(module)) or torch.optim.AdamW(module.parameters())
        model(*BATCHES[0])["loss"].backward()
        optimizer.step()

    assert "sw.optimizer(model, torch.optim.AdamW, ...)" in refused("SW0801", body, net=net)


def test_the_original_module_may_be_trained_by_itself() -> None:
    on_ranks(lambda model, module: (train(model), train(module)))


def _muon(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Muon([p for p in parameters if p.dim() == 2], lr=0.01)


DIRECT: dict[str, Any] = {
    "Adafactor": torch.optim.Adafactor,
    "LBFGS": torch.optim.LBFGS,
    **({"Muon": _muon} if hasattr(torch.optim, "Muon") else {}),
}


@pytest.mark.parametrize("name", DIRECT)
def test_optimizers_that_look_at_whole_tensors_are_refused_at_their_step(name: str) -> None:
    def body(model: Any, _: nn.Module) -> None:
        optimizer = DIRECT[name](model.parameters())
        model.train_step(BATCHES[0])
        optimizer.step(lambda: 0.0)

    assert f"{name} does not work on parts of a tensor" in refused("SW0715", body)
    on_ranks(body, "data")


def test_elementwise_optimizers_may_be_made_by_their_constructor() -> None:
    expected = train(Net(), optimizer=None)
    found = on_ranks(lambda m, _: train(m, optimizer=torch.optim.SGD(m.parameters(), lr=0.1)))
    assert_equal_training(found, expected)


# ---- saving ----------------------------------------------------------------------------------------


def _saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


SAVES: dict[str, Body] = {
    "the state dict": lambda m, _: _saved(m.state_dict()),
    "in a dict": lambda m, _: _saved({"model": {k: v.cpu() for k, v in m.state_dict().items()}}),
    "in an ordinary model": lambda m, _: _saved(nn.ModuleDict({"inner": m}).state_dict()),
    "the model": lambda m, _: _saved(m),
    "parameters": lambda m, _: _saved(dict(m.named_parameters())),
    "the optimizer": lambda m, _: _saved({"o": sw.optimizer(m, torch.optim.AdamW).state_dict()}),
}


@pytest.mark.parametrize("what", SAVES)
def test_parts_are_not_saved_under_the_models_names(what: str) -> None:
    text = refused("SW0800", SAVES[what])
    assert "full_state_dict()" in text and "sw.save" in text


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_part_of_a_gradient_is_one_and_may_be_saved_as_a_plain_tensor(copied: Any) -> None:
    def body(model: Any, _: nn.Module) -> None:
        model.train_step(BATCHES[0])
        grad = model.blocks[0].up.weight.grad
        found = copied(grad)
        assert torch.equal(found, grad) and (found.data_ptr() == grad.data_ptr()) == (copied is copy.copy)
        with pytest.raises(sw.RuntimeFault, match="SW0762"):
            found.norm()
        file = io.BytesIO()
        torch.save(found.as_subclass(Tensor), file)
        file.seek(0)
        assert torch.equal(torch.load(file), grad)

    on_ranks(body)


def test_a_model_that_is_whole_on_every_rank_has_the_plain_state_dict() -> None:
    def body(model: Any, module: nn.Module) -> None:
        train(model)
        plain = Net()
        plain.load_state_dict(torch.load(_saved(model.state_dict())))
        assert torch.equal(plain.head.weight, model.head.weight)
        _saved(sw.optimizer(model, torch.optim.AdamW).state_dict())

    on_ranks(body, "data")


@pytest.mark.parametrize("plan", PLANS)
def test_a_model_takes_the_single_devices_state_dict(plan: str) -> None:
    other = Net()
    with torch.no_grad():
        other.head.weight.add_(1)
    part = {"head.weight": other.head.weight.detach() * 3, "unknown": torch.zeros(1)}

    def body(model: Any, _: nn.Module) -> None:
        model.load_state_dict(other.state_dict())
        full = model.full_state_dict()
        assert all(torch.equal(full[name], value) for name, value in other.state_dict().items())
        found = model.load_state_dict(part, strict=False)
        assert found.unexpected_keys == ["unknown"] and "head.bias" in found.missing_keys
        assert torch.equal(model.full_state_dict()["head.weight"], part["head.weight"])
        with pytest.raises(sw.RuntimeFault, match="SW0710"):
            model.load_state_dict(part)

    on_ranks(body, plan)


# ---- outputs that do not leave ---------------------------------------------------------------------

USES: list[Callable[[Any], Any]] = [
    lambda x: x[0], lambda x: x + 1, lambda x: 1 - x, lambda x: x.argmax(-1), lambda x: x.shape,
    lambda x: bool(x), lambda x: list(x), lambda x: len(x), lambda x: float(x), lambda x: F.softmax(x, -1),
    lambda x: torch.stack([x]), lambda x: x @ torch.ones(8), lambda x: torch.ones(8) + x, lambda x: x > 0,
    lambda x: x(), lambda x: -x,
]  # fmt: skip


def test_an_output_that_does_not_leave_says_what_to_write() -> None:
    def body(model: Any, _: nn.Module) -> None:
        out = model(*BATCHES[0])
        assert out["loss"].dim() == 0 and "logits" in repr(out["logits"])
        for use in USES:
            with pytest.raises(sw.RuntimeFault, match="`logits` is used") as error:
                use(out["logits"])
            assert error.value.code == "SW0802" and 'outputs=["logits"]' in str(error.value)
        copy.deepcopy(out["logits"])

    on_ranks(body, "data")


# ---- copies, methods, compile ----------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS)
def test_a_copy_is_another_model_with_the_same_values(plan: str) -> None:
    expected = train(Net())

    def body(model: Any, _: nn.Module) -> Any:
        copied = copy.deepcopy(model)
        first = train(model)
        second = train(copied)
        assert copied.head.weight.data_ptr() != model.head.weight.data_ptr()
        assert model.train_step(BATCHES[0]) == copied.train_step(BATCHES[0])
        assert_equal_training(first, expected)
        return second

    assert_equal_training(on_ranks(body, plan), expected)


@pytest.mark.parametrize("plan", PLANS)
def test_averaged_weights_are_those_of_one_device(plan: str) -> None:
    def loop(model: Any) -> tuple[list[float], dict[str, Tensor]]:
        averaged: Any = AveragedModel(model)
        losses, _ = train(model, lambda model, _: averaged.update_parameters(model))
        inner = averaged.module.eval()
        with torch.no_grad():
            losses.append(averaged(*BATCHES[0])["loss"].item())
        parallel = isinstance(inner, ParallelModule)
        return losses, inner.full_state_dict() if parallel else inner.state_dict()

    assert_equal_training(on_ranks(lambda model, _: loop(model), plan), loop(Net()))


def test_one_rank_may_copy_alone() -> None:
    def body(model: Any, _: nn.Module) -> float:
        if model.comm.rank == 0:
            copy.deepcopy(model)
        return float(model.train_step(BATCHES[0]))

    assert on_ranks(body) == pytest.approx(Net()(*BATCHES[0])["loss"].item())


def test_the_models_own_attributes_and_methods_are_there() -> None:
    plain = Net()

    def body(model: Any, _: nn.Module) -> Any:
        assert model.config == {"width": 8} and model.doubled == 2 and model.alpha == 1.0
        assert model.width == plain.width
        # A rank does not have what others add once, such as the bias after a sum.
        assert model.comm.rank > 0 or model.count() == plain.count()
        assert isinstance(model.blocks[0].norm, nn.BatchNorm1d) and model.blocks[0].norm.momentum == 0.1
        assert [type(m).__name__ for m in model.blocks] and len(model.blocks) == 2
        assert model.step_loss(*BATCHES[0]).item() == model(*BATCHES[0])["loss"].item()
        with pytest.raises(AttributeError):
            _ = model.nothing_of_this_name
        return train(model, optimizer=model.configure_optimizers())

    before = copy.deepcopy(plain)
    before(*BATCHES[0]), before(*BATCHES[0])
    expected = train(before, optimizer=before.configure_optimizers())
    assert_equal_training(on_ranks(body), expected)


@pytest.mark.parametrize("method", ["penalty", "generate"])
def test_methods_that_compute_are_answered_with_what_to_write(method: str) -> None:
    args = () if method == "penalty" else BATCHES[0][:1]
    text = refused("SW0809", lambda model, _: getattr(model, method)(*args))
    assert f"plain.load_state_dict(model.full_state_dict()); plain.{method}(...)" in text


def test_a_compiled_model_is_the_model() -> None:
    """Its program is compiled already, and runs as it was proved: nothing of it is compiled once more."""
    expected, _ = train(Net())
    torch._dynamo.utils.counters.clear()

    def body(model: Any, _: nn.Module) -> list[float]:
        optimizer, compiled = sw.optimizer(model, torch.optim.SGD, lr=0.1), torch.compile(model)
        losses = []
        for batch in BATCHES:
            losses.append(compiled(*batch)["loss"])
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        return [loss.item() for loss in losses]

    assert on_ranks(body, "data") == pytest.approx(expected, rel=1e-9)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0
