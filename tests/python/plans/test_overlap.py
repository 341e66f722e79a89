"""A large message of a backward travels while gradients of parameters are computed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import models
from late import late
from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import Captured, capture
from shardwright.report.progress import Progress
from shardwright.runtime.execution.local_code import LocalCode
from shardwright.runtime.execution.run import Run, current_run
from shardwright.runtime.execution.split_backward import Left

torch.set_num_threads(1)

# What is printed of one: where the gradient of a call's inputs is summed, the second half follows.
BESIDE = re.compile(
    r"(\w+_part\w*) = run\.grad_inputs\((?P<function>\w+), [^)]*?(?P<at>(?:, at=[^)]+)?)\)\n"
    r"(?: *#.*\n)? *\w+ = run\.(?P<kind>\w+)\(\1, .*async_op=True\).*\n"
    r" *run\.grad_weights\((?P=function)(?P=at)\)\n"
)


def gpt() -> tuple[nn.Module, tuple[Tensor, ...], Captured]:
    module, args = models.gpt(batch=4, time=8, vocabulary=32, width=16, dropout=0.1)
    return module, args, capture(module, args)


def bundle(captured: Captured, plan: str, devices: int = 2) -> Bundle:
    compiled = compile(Plan.named(Graph(captured.graph_text), plan, devices))
    return Bundle(dict(compiled.files), compiled.digest, plan, devices, captured, "", captured.graph_text)


def printed(made: Bundle) -> str:
    return "".join(text for name, text in made.files.items() if name.endswith(".py"))


@pytest.mark.parametrize(
    ("plan", "kinds"),
    [
        ("megatron x overlap", {"all_reduce"}),
        ("megatron-sp x overlap", {"reduce_scatter"}),
        ("megatron x recompute x overlap", {"all_reduce"}),
        ("megatron", set()),
        ("megatron x overlap:never", set()),
    ],
)
def test_which_messages_overlap(plan: str, kinds: set[str]) -> None:
    text = printed(bundle(gpt()[2], plan))
    overlapping = [match["kind"] for match in BESIDE.finditer(text)]
    assert set(overlapping) == kinds and len(overlapping) == text.count("async_op=True") == text.count(
        "grad_inputs("
    )


@pytest.mark.slow
def test_large_messages_overlap_where_a_plan_says_nothing() -> None:
    def text(width: int) -> str:
        with torch.device("meta"):
            module, args = models.gpt(batch=8, time=1024, vocabulary=32, width=width)
        return printed(bundle(capture(module, args), "megatron"))

    # In float64 a message has 16 MiB where the width is 256.
    assert "async_op=True" in text(256) and "async_op=True" not in text(128)


def steps(module: nn.Module, args: Any, made: Bundle, **how: Any) -> Any:
    batches = equality.micro_batches(args, 2)
    return equality.run_steps(made, module, batches, 1, **{"options": lambda: {"seed": 1}, **how})


@pytest.mark.slow
def test_parameters_learn_while_a_message_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it brings is not there before."""
    module, args, captured = gpt()
    under_way: list[int] = []

    def backward(self: Left, original: Callable[[Left], None] = Left.backward) -> None:
        under_way.append(len(current_run()._in_flight))
        original(self)

    monkeypatch.setattr(Left, "backward", backward)
    actual = steps(module, args, bundle(captured, "megatron x overlap"), local=late())
    assert set(under_way) == {1}
    equality.assert_equal(actual, steps(module, args, bundle(captured, "megatron")))


def test_a_message_that_nobody_waits_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module, args, captured = gpt()
    monkeypatch.setattr(Run, "_later", lambda self, async_op: [] if async_op else None)
    with pytest.raises(AssertionError, match="nobody has waited for"):
        steps(module, args, bundle(captured, "megatron x overlap"), local=late())


@pytest.mark.slow
def test_what_is_compiled_computes_all_gradients_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module, args, captured = gpt()
    plans = {plan: bundle(captured, plan) for plan in ("megatron x overlap", "megatron")}
    split: list[int] = []

    def compiled() -> dict[str, Any]:
        return {"seed": 1, "local": LocalCode(Progress(False), "eager")}

    monkeypatch.setattr(Left, "backward", lambda self: split.append(1))
    actual = [steps(module, args, made, options=compiled) for made in plans.values()]
    assert not split
    equality.assert_equal(actual[0], actual[1])


def test_a_plan_file_says_from_which_size_on() -> None:
    graph = Graph(gpt()[2].graph_text)

    def plan(line: str) -> Plan:
        return Plan.parse(graph, f'shardwright-plan 1\ndevices 2\nuse "megatron"\n{line}\n')

    for line in ("overlap 2KiB", "overlap never", "overlap 0"):
        made = plan(line)
        assert f"\n{line}\n" in made.text and f"\n{line}\n" in made.folded
        assert Plan.parse(graph, made.text).text == made.text
    # A message is of 4 times 8 rows of 16 values in float64, for each of two micro-batches less.
    texts = ["".join(compile(plan(f"overlap {size}")).files.values()) for size in ("4KiB", "5KiB")]
    assert "async_op=True" in texts[0] and "async_op=True" not in texts[1]


def test_nothing_comes_between_a_message_and_what_runs_beside_it() -> None:
    """What is brought back from the host a call before it is read is no part of the order."""
    made = bundle(gpt()[2], "megatron x offload:activations x overlap")
    assert printed(made).count("async_op=True") == len(BESIDE.findall(printed(made))) > 0
