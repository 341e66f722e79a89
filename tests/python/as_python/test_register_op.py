"""Functions with a rule that someone has registered: split like other operators."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import registering
import shardwright as sw
from shardwright import Graph, Plan
from shardwright.as_python import registry
from shardwright.cache.key import key_of
from shardwright.capture import Captured, capture
from shardwright.start.compiling import captured_model, compile_plan

torch.set_num_threads(1)

FUNCTION = "shardwright.function.default"


@functools.cache
def whole() -> tuple[nn.Module, tuple[Tensor, ...], Captured]:
    torch.manual_seed(3)
    model, x = registering.Registering().double(), torch.randn(4, 6, 8, dtype=torch.float64)
    return model, (x,), captured_model(model, (x,))


def rules() -> dict[str, str | None]:
    lines = [line for line in whole()[2].graph_text.splitlines() if FUNCTION in line]
    names = [re.findall(r'"([^"]*)"', line)[0] for line in lines]
    operators = [one for one in Graph(whole()[2].graph_text).operators if one.target == FUNCTION]
    return {name: one.rule for name, one in zip(names, operators, strict=True)}


@pytest.mark.slow
@pytest.mark.oldest
def test_all_kinds_of_functions_have_their_rule() -> None:
    captured = whole()[2]
    assert captured.verified and not captured.notes
    assert rules() == {
        "registering:attend": "b s^ (h d^), b t^ (h d^), b t^ (h e^) -> b s^ (h e^) ; size d=2",
        "registering:project": "_0 _1 k+, n k+, !n -> _0 _1 n ; linear 0",
        "torch:ops.registering.swish.default": "_0 _1 _2 -> _0 _1 _2, _0 _1 _2",
        "registering:Stretch": "d0 d1 d2^ -> d0 d1 d2^",
    }


PLANS = ("data", "megatron", "zero3", "coshard", "data x recompute")


@pytest.mark.oldest
@pytest.mark.parametrize("plan", PLANS)
def test_programs_train_as_one_device(plan: str) -> None:
    model, args, captured = whole()
    expected = equality.reference(model, args)
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), plan, 2))
    equality.assert_equal(equality.run(bundle, model, args), expected)


@pytest.mark.parametrize("seed", range(6))
def test_random_plans_train_as_one_device(seed: int) -> None:
    model, args, captured = whole()
    expected = equality.reference(model, args)
    bundle, _ = compile_plan(captured, Plan.random(Graph(captured.graph_text), 3, seed))
    equality.assert_equal(equality.run(bundle, model, args), expected)


def test_parts_are_given_sizes_and_operands_of_their_own() -> None:
    _, _, captured = whole()
    bundle, _ = compile_plan(captured, Plan.named(Graph(captured.graph_text), "megatron", 2))
    program = "".join(bundle.files.values())
    assert re.search(r'"registering:attend",.*?\["h"\],\s*\(2,\),', program, re.DOTALL)
    assert "`registering:attend` (registered)" in bundle.proof


def test_bias_is_given_to_one_part_only() -> None:
    graph = Graph(whole()[2].graph_text)
    operator = next(one for one in graph.operators if one.rule and "!n" in one.rule)
    draft = sw.Draft(graph, "split", 2)
    for one in graph.operators:
        draft.trans(one, "k.0" if one.name == operator.name else "replicate", 2)
        draft.place(one, [0, 1])
    model, args, captured = whole()
    bundle, _ = compile_plan(captured, draft.finish())
    equality.assert_equal(equality.run(bundle, model, args), equality.reference(model, args))
    assert "None]" in "".join(bundle.files.values())


def test_a_model_runs_as_ever_around_capture() -> None:
    model, args, _ = whole()
    before = model(*args)
    code = registering.attend.__code__
    capture(model, args)
    assert torch.equal(model(*args), before) and registering.attend.__code__ is code


# ---- Rules that do not hold --------------------------------------------------------------------


@pytest.fixture
def register() -> Iterator[Callable[..., Any]]:
    """Registers for one test."""
    before = dict(registry._ALL)
    yield sw.register_op
    registry._ALL.clear()
    registry._ALL.update(before)


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList([torch.rand(shape, dtype=torch.float64) for shape in shapes])

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.weights)


def compiled(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Captured:
    first, *others = shapes
    return captured_model(Calls(function, *others), (torch.rand(first, dtype=torch.float64),))


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("product", "a k+, k n -> a n ; linear 0 ; linear 1", "a k+, k n -> a n ; linear 0 1"),
        ("normal", "a b^ -> a b^", "a b -> a b"),
        ("running", "a b^ -> a b^", "a b -> a b"),
        ("largest", "a b> -> a", "a b+ -> a"),
        ("numbered", "a b^ -> a b^", "a b -> a b"),
        ("affine", "a b, b -> a b ; linear 0 1", "a b, b -> a b ; linear 0"),
        ("Averaging", "a^ b, b -> a^ b", "a b, b -> a b"),
        ("late", "a b^ -> a b^", "a b -> a b"),
    ],
)
def test_wrong_rules_are_caught(register: Any, name: str, right: str, wrong: str) -> None:
    """Sums that are none, dims that must stay whole, offsets, gradients that are no sums, not linear."""
    function = getattr(registering, name)
    called = getattr(function, "apply", function)
    shapes = {"product": ((4, 6), (6, 5)), "affine": ((4, 6), (6,)), "Averaging": ((4, 6), (6,))}
    register(right)(function)
    assert not compiled(called, *shapes.get(name, ((4, 6),))).notes
    register(wrong)(function)
    with pytest.raises(sw.CaptureError, match=f"the rule of `registering:{name}` does not hold") as error:
        compiled(called, *shapes.get(name, ((4, 6),)))
    assert error.value.code == "SW0138"
    assert "test_register_op.py:" in str(error.value.fix)


@pytest.mark.slow
def test_large_calls_are_compared_in_small(register: Any) -> None:
    register("a b^ -> a b^")(registering.normal)
    assert not compiled(registering.normal, (2**22, 3)).notes
    register("a^ b -> a^ b")(registering.normal)
    with pytest.raises(sw.CaptureError, match="SW0138"):
        compiled(registering.normal, (3, 2**22))


@pytest.mark.slow
def test_what_cannot_be_compared_is_warned_of(register: Any) -> None:
    register("a^ b -> a^ b")(registering.numbered)
    with pytest.warns(UserWarning, match="the rule of `registering:numbered` was not compared: it has"):
        captured = compiled(registering.numbered, (2**20, 8))
    assert len(captured.notes) == 1


@pytest.mark.slow
def test_a_function_that_takes_no_random_numbers_is_given_its_own(register: Any) -> None:
    options: Any = {"fake": lambda x: x.new_empty(x.shape[:1])}

    def calls(function: Any) -> Captured:
        return captured_model(Calls(function), (torch.rand(4, 6, dtype=torch.float64) + 60,))

    register("a b+ -> a", **options)(registering.picky)
    with pytest.warns(UserWarning, match="was not compared: it does not run on random operands"):
        calls(registering.picky)
    options["inputs"] = lambda x: [(x.detach().abs() + 100).requires_grad_(x.requires_grad)]
    register("a b+ -> a", **options)(registering.picky)
    assert not calls(registering.picky).notes
    register("a b+ -> a", **options)(registering.picky_mean)
    with pytest.raises(sw.CaptureError, match="SW0138"):
        calls(registering.picky_mean)


@pytest.mark.slow
def test_a_maximum_is_only_over_parts_where_there_is_no_gradient(register: Any) -> None:
    register("a b> -> a")(registering.largest)
    rule = lambda captured: Graph(captured.graph_text).operators[0].rule  # noqa: E731
    assert rule(compiled(registering.largest, (4, 6))) == "a b> -> a"
    learning = torch.rand(4, 6, dtype=torch.float64, requires_grad=True)
    assert rule(captured_model(Calls(registering.largest), (learning,))) == "a b^ -> a"
    register("a b> -> a")(registering.total)
    with pytest.raises(sw.CaptureError, match="SW0138"):
        compiled(registering.total, (4, 6))


def test_a_kept_program_is_of_the_rules_that_it_was_made_with(register: Any) -> None:
    def key() -> str:
        return key_of(Calls(registering.normal), (torch.rand(4, 6, dtype=torch.float64),), None, "data", {})

    keys = [key()]
    for options in ({}, {"sizes": {"a": "x"}}, {"fake": torch.empty_like}, {"inputs": registering.total}):
        register("a b^ -> a b^", **options)(registering.normal)
        keys += [key(), key()]
    register("a^ b^ -> a^ b^")(registering.normal)
    keys.append(key())
    register(lambda x: "a b^ -> a b^")(registering.normal)
    keys.append(key())
    assert keys[1::2][:4] == keys[2::2][:4] and len(set(keys)) == 7


# ---- Bad input ---------------------------------------------------------------------------------


def refused(register: Callable[[], object], code: str) -> str:
    with pytest.raises(sw.ShardwrightError) as error:
        register()
    assert error.value.code == code
    return str(error.value)


def test_a_text_that_is_no_rule_is_shown(register: Any) -> None:
    said = refused(lambda: register("a (b c -> a b")(registering.normal), "SW0320")
    assert "the rule of `registering:normal` is not valid" in said and "test_register_op.py:" in said
    assert "  why: a (b c -> a b\n         ^ parentheses do not match" in said


def test_a_rule_that_contradicts_shapes_is_shown_where_it_is_called(register: Any) -> None:
    calls = functools.partial(compiled, registering.product, (4, 6), (6, 5))
    register("a^ b^ c^, c^ n -> a^ n")(registering.product)
    said = refused(calls, "SW0320")
    assert "return self.function(x, *self.weights)" in said
    assert "a^ b^ c^, c^ n -> a^ n\n       ^^^^^^^^ 3 dims, where its tensor is [4, 6]" in said
    register("a k^ -> a k^")(registering.product)
    assert "operands: 1, where the operator has 2" in refused(calls, "SW0320")
    register(lambda x, w: f"a k+, k n -> n a ; size k={x.shape[1]}")(registering.product)
    assert "a dim has two different sizes, 5 and 4" in refused(calls, "SW0320")


def test_what_cannot_be_registered(register: Any) -> None:
    def inner(x: Tensor) -> Tensor:
        return x

    assert "does not stand at the top of a module" in refused(lambda: register("a -> a")(inner), "SW0337")
    assert "not a function, a" in refused(lambda: register("a -> a")(3), "SW0337")
    said = refused(lambda: register("a -> a", sizes={"a": "many"})(registering.normal), "SW0337")
    assert "it has no argument `many`" in said and "name one of x" in said
    register("a b^ -> a b^", sizes={"a": "by"})(registering.scaled)
    said = refused(lambda: compiled(lambda x: registering.scaled(x, by=2.5), (4, 6)), "SW0337")
    assert "`by`, the size of `a`, is 2.5" in said


def test_a_function_that_ranks_do_not_find_is_no_operator(register: Any) -> None:
    register("a b -> a b")(registering.hidden)
    said = refused(lambda: compiled(registering.hidden, (4, 6)), "SW0103")
    assert "other ranks do not find `registering_elsewhere:hidden`" in said


def test_a_function_that_needs_values_needs_a_fake(register: Any) -> None:
    register("a b^ -> a b^")(registering.kernel)
    said = refused(lambda: compiled(registering.kernel, (4, 6)), "SW0140")
    assert "register it with `fake=`" in said
    register("a b^ -> a b^", fake=torch.empty_like)(registering.kernel)
    assert compiled(registering.kernel, (4, 6)).verified


def test_an_operator_that_changes_its_operand_is_refused(register: Any) -> None:
    register("a^ b^ ->")(registering.doubled)
    said = refused(lambda: compiled(registering.in_place, (4, 6)), "SW0103")
    assert "it changes a tensor that it is given" in said
