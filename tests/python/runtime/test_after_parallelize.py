"""What a training loop changes of a parallel model has the effect that it has on one device, or is refused
at the moment it is done."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shardwright as sw
from a_loop import BATCHES, PLANS, Body, Net, assert_equal_training, on_ranks, refused, train
from shardwright.runtime import LocalComm, ParallelModule, load_program, run_local
from shardwright.start.compiling import compile_model

torch.set_num_threads(1)


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
