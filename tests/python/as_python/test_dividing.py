"""Modules and functions that run as they are, divided by rules that are stated or found."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dividing_models as models
import equality
import shardwright as sw
import test_opaque
from shardwright import Graph, Plan
from shardwright._core import verify
from shardwright.cache.key import key_of
from shardwright.capture import Captured
from shardwright.errors import CheckError
from shardwright.runtime import run_local
from shardwright.start.compiling import captured_model, compile_plan
from shardwright.start.further_programs import skeleton_of

torch.set_num_threads(1)

ROWS = "b s h^ -> b s h^"


class Several(nn.Module):
    """A bias that is added once, a tensor that parts have whole, several results."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 8))

    def forward(self, x: Tensor, table: Tensor, bias: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        y = x @ self.w + table[0]
        return y if bias is None else y + bias, {"norm": self.w.pow(2).sum() * x.sum(-1)}


class Uses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.bias = nn.Linear(8, 6), nn.Parameter(torch.randn(8))
        self.table = nn.Parameter(torch.randn(2, 8))
        self.inner = sw.opaque(Several(), "b s k^, t^ n^, n^ -> b s n^, b s")

    def forward(self, x: Tensor) -> Tensor:
        y, more = self.inner(self.first(x), self.table, bias=self.bias)
        return (y * more["norm"][:, :, None]).tanh().sum(-1).mean()


@sw.opaque
class Marked(models.Ffn):
    """All modules of the class are meant."""


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "layers": lambda: models.example(sw.opaque(models.Ffn(), ROWS), sw.opaque(models.Ffn(), ROWS)),
    "experts": lambda: models.example(sw.opaque(models.Experts(), ROWS), sw.opaque(models.Experts(), ROWS)),
    "several": lambda: (Uses().double(), (torch.randn(5, 3, 8, dtype=torch.float64),)),
}


@functools.cache
def stated(name: str) -> tuple[nn.Module, tuple[Any, ...], Captured]:
    torch.manual_seed(3)
    model, args = MODELS[name]()
    return model, args, captured_model(model, args)


@functools.cache
def divided(kind: type[nn.Module], **options: Any) -> tuple[nn.Module, tuple[Any, ...], Captured]:
    torch.manual_seed(1)
    more = (torch.ones(5, 3, dtype=torch.long),) if kind is models.Longest else ()
    model, args = models.example(kind(), kind(), more=more, **options)
    return model, args, captured_model(model, args, discover=True)


def train(model: nn.Module, args: tuple[Any, ...], captured: Captured, plan: Plan) -> None:
    bundle, _ = compile_plan(captured, plan)
    options = lambda: {"skeleton": skeleton_of(model)}  # noqa: E731
    ours = equality.run(bundle, model, args, options=options)
    equality.assert_equal(ours, equality.reference(model, args))


def rules(captured: Captured) -> list[str | None]:
    targets = ("shardwright.module.default", "shardwright.function.default")
    return [one.rule for one in Graph(captured.graph_text).operators if one.target in targets]


# ---- stated --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.oldest
@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize(
    ("name", "plan"),
    [(name, plan) for name in MODELS for plan in ("data", "zero3", "data x recompute")][:-1],
)
def test_programs_train_as_one_device(name: str, plan: str, devices: int) -> None:
    model, args, captured = stated(name)
    train(model, args, captured, Plan.named(Graph(captured.graph_text), plan, devices))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", MODELS)
def test_random_plans_train_as_one_device(name: str, seed: int) -> None:
    model, args, captured = stated(name)
    train(model, args, captured, Plan.random(Graph(captured.graph_text), 3, seed))


def test_parameters_are_whole_and_the_rule_is_said() -> None:
    _, _, captured = stated("experts")
    rule, _ = rules(captured)
    assert rule is not None and re.fullmatch(r"(held\d+\^( held\d+\^)*, )+b s h\^ -> b s h\^", rule)
    assert '"(T0) -> float64[S0,S1,8]", [], True, None, "b s h^ -> b s h^", ["b", "s"], [5, 3])' in (
        captured.graph_text
    )
    assert captured.notes == [
        "`inner.0` (Experts) and 1 more run as they are, divided by the rule that is stated for it, "
        '"b s h^ -> b s h^", 55.6% of a forward\'s operations: `shardwright.opaque` asks for it'
    ]


def test_programs_say_the_part_and_proofs_who_vouches() -> None:
    _, _, captured = stated("layers")
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "data", 2))
    program = " ".join("".join(bundle.files.values()).split())
    assert re.search(r'"\(T0\) -> float64\[S0,S1,8\]", \[\], True, None, "b s h\^ -> b s h\^"', program)
    assert "`inner.0` (stated)" in bundle.proof


@pytest.mark.parametrize(
    ("old", "new"), [("float64[S0,S1,8]", "float64[S1,S0,8]"), ("b s h^ -> b s h^", "b s^ h^ -> b s^ h^")]
)
def test_an_edited_call_is_refused(old: str, new: str) -> None:
    _, _, captured = stated("layers")
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "data", 3))
    assert verify(captured.graph_text, bundle.files)
    edited = {name: text.replace(old, new) for name, text in bundle.files.items()}
    assert edited != bundle.files
    with pytest.raises(CheckError):
        verify(captured.graph_text, edited)


def test_gradients_of_parameters_that_are_not_summed_are_refused() -> None:
    _, _, captured = stated("layers")
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "data", 2))
    edited = {
        name: text.replace("                p.inner[0].up.weight,\n", "")
        for name, text in bundle.files.items()
    }
    assert edited != bundle.files
    with pytest.raises(CheckError):
        verify(captured.graph_text, edited)


@pytest.mark.slow
def test_a_class_is_stated_once_for_all_its_modules() -> None:
    class Here(models.Ffn):
        pass

    assert sw.opaque(Here, ROWS) is Here
    model, args = models.example(Here(), Here())
    for one in model.inner:  # type: ignore[union-attr]
        vars(one).pop("_shardwright_opaque", None)
    captured = captured_model(model, args)
    assert len(rules(captured)) == 2 and None not in rules(captured)
    model, args = models.example()
    model.inner.append(Marked().double())  # type: ignore[operator, union-attr]
    assert rules(captured_model(model, args)) == [None]


@pytest.mark.slow
def test_a_size_may_be_an_argument() -> None:
    class Sizes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.inner = sw.opaque(models.Heads(), ROWS, sizes={"b": "batch"})

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.first(x), batch=len(x)).pow(2).mean()

    model, args = Sizes().double(), (torch.randn(5, 3, 8, dtype=torch.float64),)
    captured = captured_model(model, args)
    assert '"(T0, batch=S0) -> float64[S0,S1,8]"' in captured.graph_text and not captured.notes[1:]
    for plan in ("data", "replicate"):
        train(model, args, captured, Plan.named(Graph(captured.graph_text), plan, 2))


@pytest.mark.slow
def test_micro_batches_are_proved_with_rules() -> None:
    model, args = models.example(sw.opaque(models.Ffn(), ROWS), batch=8)

    def rank(rank: int, comm: Any) -> float:
        ours = sw.parallelize(
            model, args, plan="data", micro_batches=2, comm=comm, cache=False, progress=False
        )
        return float(ours.train_step(args[0]))

    [one, other] = run_local(2, rank)
    assert one == other and abs(one - float(model(*args).detach())) < 1e-12


# ---- what is refused -----------------------------------------------------------------------------


def refused(module: nn.Module, rule: str, **options: Any) -> sw.ShardwrightError:
    torch.manual_seed(1)
    with pytest.raises(sw.ShardwrightError) as error:
        captured_model(*models.example(sw.opaque(module, rule, **options)))
    return error.value


def test_a_rule_that_is_none_is_shown_where_it_is_stated() -> None:
    with pytest.raises(sw.ShardwrightError) as error:
        sw.opaque(models.Ffn(), "b s h -> b s+ h")
    assert error.value.code == "SW0320"
    lines = [line.strip() for line in str(error.value.why).splitlines()]
    assert lines == ["b s h -> b s+ h", "^ a reduced dim appears in an output"]
    assert str(error.value.place).startswith(__file__)


def test_a_rule_that_does_not_fit_is_shown() -> None:
    error = refused(models.Ffn(), "b h^ -> b h^")
    assert error.code == "SW0320" and "of `inner.0`" in error.what
    assert [line.strip() for line in str(error.why).splitlines()] == [
        "b h^ -> b h^",
        "^^^^ 2 dims, where its tensor is [5, 3, 8]",
    ]
    assert str(error.place).startswith(__file__)
    error = refused(models.Ffn(), "b s h^, n^ -> b s h^")
    assert "operands: 2, where the operator has 1" in str(error.why)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (models.Updates, "it updates its buffer `seen`, which each part would update by its own share"),
        (models.Draws, "it draws random numbers, and parts would draw others"),
    ],
)
def test_what_updates_or_draws_is_not_divided(kind: type[nn.Module], why: str) -> None:
    error = refused(kind(), ROWS)
    assert error.code == "SW0175" and error.why == why and str(error.place).startswith(__file__)
    _, _, captured = divided(kind)
    assert rules(captured) == [None, None] and f"as no rule was found: {why}" in captured.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (models.Ffn, "b s h -> b s h"),
        (models.Large, ROWS),
        (models.Capacity, ROWS),
        (models.Normed, ROWS),
        (models.Places, ROWS),
        (models.Sized, ROWS),
        (models.Hidden, ROWS),
        (models.Ffn, ROWS + " ; linear 0"),
    ],
)
def test_a_rule_that_does_not_hold_is_refused(kind: type[nn.Module], rule: str) -> None:
    error = refused(kind(), rule)
    assert error.code == "SW0138" and "the rule of `inner.0` does not hold" in error.what
    assert "correct what is stated at" in str(error.fix)


def test_what_is_no_module_is_refused() -> None:
    for wrong in (3, models.selected):
        with pytest.raises(sw.PlanError, match="SW0337"):
            sw.opaque(wrong)  # type: ignore[type-var]
    with pytest.raises(sw.PlanError, match="no rule that names these"):
        sw.opaque(models.Heads(), sizes={"b": "batch"})


def test_nobody_states_that_a_rule_was_found() -> None:
    with pytest.raises(sw.ShardwrightError, match="only a rule that is found by trying says so"):
        sw.opaque(models.Ffn(), ROWS + " ; found")


# ---- found ---------------------------------------------------------------------------------------

FOUND = {
    models.Ffn: "a b c^ -> a b c^",
    models.Experts: "a b c^ -> a b c^",
    models.Harmless: "a b c^ -> a b c^",
    models.Calls: "a b c -> a b c",
}
TREACHEROUS = {
    models.Large: "a^ b c^ -> a^ b c^",
    models.Capacity: None,
    models.Normed: None,
    models.Places: "a^ b c^ -> a^ b c^ ; linear 0",
    models.Sized: "a^ b c^ -> a^ b c^",
    models.Mean: None,
    models.Stops: None,
    models.Hidden: "a^ b c^ -> a^ b c^",
    models.Rare: None,
    models.Longest: None,
}


def own_part(rule: str | None) -> str | None:
    """Of a module's rule what is found: that of what it is given."""
    return rule and re.sub(r"^((held\d+\^ ?)+, )*", "", rule).replace(" ; found", "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOUND)
def test_what_is_found_is_used_and_said(kind: type[nn.Module]) -> None:
    model, args, captured = divided(kind)
    assert {own_part(rule) for rule in rules(captured)} == {FOUND[kind]}
    for plan in ("data", "data x recompute"):
        for devices in (2, 3):
            train(model, args, captured, Plan.named(Graph(captured.graph_text), plan, devices))
    train(model, args, captured, Plan.random(Graph(captured.graph_text), 3, 1))
    state = "register_op(" if kind is models.Calls else "opaque(module, "
    said = f'divided by a rule that was found, "{FOUND[kind]}", tried on 9 inputs and not proved'
    assert f'{said} (`sw.{state}"{FOUND[kind]}")` states it), ' in captured.notes[0]
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "data", 2))
    assert "(found by trying)" in bundle.proof


@pytest.mark.parametrize("kind", TREACHEROUS)
def test_a_batch_that_decides_together_is_not_divided(kind: type[nn.Module]) -> None:
    _, _, captured = divided(kind)
    expected = TREACHEROUS[kind]
    shifted = expected and expected.replace("linear 0", "linear 1")
    assert {own_part(rule) for rule in rules(captured)} == {shifted}
    assert expected or "as no rule was found: " in captured.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [models.Large, models.Sized])
def test_a_batch_that_decides_by_its_size_is_not_divided(kind: type[nn.Module]) -> None:
    """Where the example is too small to show it, other sizes do."""
    _, _, captured = divided(kind, batch=3)
    assert {own_part(rule) for rule in rules(captured)} == {"a^ b c^ -> a^ b c^"}


def test_a_branch_that_no_number_takes_is_made_to_be_taken() -> None:
    _, _, captured = divided(models.Stops)
    assert re.search(
        r"where dividing_models.py:\d+ reads True in a part and not in the whole, it gives something else",
        captured.notes[0],
    )


@pytest.mark.slow
def test_ints_that_belong_together_are_drawn_by_rows() -> None:
    torch.manual_seed(1)
    ids = torch.tensor([[1, 7, 2], [7, 3, 1], [2, 2, 7], [0, 7, 8], [7, 1, 1]])
    model, args = models.example(models.Marks(), more=(ids,))
    captured = captured_model(model, args, discover=True)
    assert list(map(own_part, rules(captured))) == ["a b^ c^, a b^ -> a b^ c^"]
    train(model, args, captured, Plan.named(Graph(captured.graph_text), "data", 2))
    model, args = models.example(models.Marks(), more=(ids[:1].expand(5, 3).clone(),))
    captured = captured_model(model, args, discover=True)
    assert "all rows of tensor 1 are alike in the example" in captured.notes[0]


@pytest.mark.slow
def test_modules_of_one_class_may_have_different_rules() -> None:
    torch.manual_seed(1)
    model, args = models.example(models.Large(100), models.Large(4), models.Large(100))
    captured = captured_model(model, args, discover=True)
    assert list(map(own_part, rules(captured))) == [
        "a b c^ -> a b c^",
        "a^ b c^ -> a^ b c^",
        "a b c^ -> a b c^",
    ]


@pytest.mark.slow
def test_what_is_stated_is_not_looked_for() -> None:
    model, args = models.example(sw.opaque(models.Ffn(), "b s^ h^ -> b s^ h^"), models.Ffn())
    captured = captured_model(model, args, discover=True)
    assert list(map(own_part, rules(captured))) == ["b s^ h^ -> b s^ h^", "a b c^ -> a b c^"]


def test_nothing_is_looked_for_unasked() -> None:
    model, args = models.example(models.Ffn())
    captured = captured_model(model, args)
    assert rules(captured) == [None] and "whole on each device" in captured.notes[0]


@pytest.mark.slow
def test_a_module_in_single_precision_is_tried_in_double() -> None:
    class Casts(models.Ffn):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float().to(torch.float32))

    torch.manual_seed(1)
    model, args = models.example(Casts())
    model, args = model.float(), (args[0].float(),)
    assert list(map(own_part, rules(captured_model(model, args, discover=True)))) == ["a b c^ -> a b c^"]


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes_and_leaves_the_model() -> None:
    model, args, captured = divided(models.Experts)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    again = captured_model(model, args, discover=True)
    assert again.graph_text == captured.graph_text and again.notes == captured.notes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


# ---- what is kept --------------------------------------------------------------------------------


def key(model: nn.Module, args: tuple[Any, ...], **options: Any) -> str:
    return key_of(model, args, None, "data", options)


def test_a_kept_program_is_of_the_rules_that_it_was_made_with() -> None:
    model, args = models.example(models.Ffn())
    keys = [key(model, args), key(model, args, discover=True)]
    assert keys == [key(model, args), key(model, args, discover=True)]
    sw.opaque(model.inner[0], ROWS)  # type: ignore[index]
    keys.append(key(model, args))
    sw.opaque(model.inner[0], "b s^ h^ -> b s^ h^")  # type: ignore[index]
    keys.append(key(model, args))
    assert len(set(keys)) == 4


def test_rules_that_are_found_are_of_the_values_that_they_were_tried_on() -> None:
    model, args = models.example(models.Ffn())
    before = key(model, args), key(model, args, discover=True)
    with torch.no_grad():
        model.last.weight.mul_(2)  # type: ignore[union-attr, operator]
    assert key(model, args) == before[0] and key(model, args, discover=True) != before[1]


@pytest.mark.slow
def test_starting_takes_what_was_found_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    torch.manual_seed(1)
    model, args = models.example(models.Ffn())

    def start() -> list[float]:
        def rank(rank: int, comm: Any) -> float:
            ours = sw.parallelize(model, args, plan="data", discover=True, comm=comm, progress=rank == 0)
            return float(ours(*args).detach())

        return run_local(2, rank)

    first = start()
    said = capsys.readouterr()
    assert start() == first and abs(first[0] - float(model(*args).detach())) < 1e-12
    again = capsys.readouterr()
    assert "from the cache" in again.err + again.out and "from the cache" not in said.err + said.out
    for text in (said.err + said.out, again.err + again.out):
        assert "divided by a rule that was found" in text


@pytest.mark.slow
def test_commands_find_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shardwright.cli import main

    file = tmp_path / "model.py"
    file.write_text(
        "import dividing_models as models\ndef small():\n    return models.example(models.Ffn())\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["plan", f"{file}:small", "--plan", "data", "--devices", "2", "--discover"]) == 0
    said = capsys.readouterr()
    assert "divided by a rule that was found" in said.err + said.out


@pytest.mark.slow
def test_functions_of_autograd_are_tried_too() -> None:
    torch.manual_seed(3)
    model, args = test_opaque.Functions().double(), (torch.randn(4, 8, dtype=torch.float64),)
    captured = captured_model(model, args, discover=True)
    assert None not in rules(captured) and "a b^, b^ c^ -> a c^, a ; found" in captured.graph_text
    assert captured.notes[0] == (
        '`test_opaque:Straight` (a function) runs as it is, divided by a rule that was found, "a b -> a b",'
        ' tried on 9 inputs and not proved (`sw.register_op("a b -> a b")` states it)'
    )
    for plan in (
        Plan.named(Graph(captured.graph_text), "data", 3),
        Plan.random(Graph(captured.graph_text), 3, 5),
    ):
        train(model, args, captured, plan)


@pytest.mark.slow
def test_gradients_inside_of_a_forward_are_of_each_sample() -> None:
    torch.manual_seed(3)
    model, args = test_opaque.Forces().double(), (torch.randn(4, 8, dtype=torch.float64),)
    captured = captured_model(model, args, discover=True)
    assert list(map(own_part, rules(captured))) == ["a b^ -> a b^"] * 2
    train(model, args, captured, Plan.named(Graph(captured.graph_text), "data", 3))
