"""What of the runtime may wait for a device: each place with its reason.

Reading a tensor's value on the host waits for all that the device was given before. Tests on CPUs do not
notice, and neither do clocks around what a device does later.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import shardwright.runtime

RUNTIME = Path(shardwright.runtime.__file__).parent

METHODS = {"item", "tolist", "cpu", "numpy"}
# Of a tensor, or as functions of torch.
READ = {"nonzero", "argwhere", "unique", "masked_select", "bincount", "equal", "allclose"}
CLOCKS = {"perf_counter", "synchronize"}
TRUTHS = {"any", "all"}
VALUES = {"bool", "float", "int"}

OVERFLOW = "once a step the host decides whether float16 has an update"
EXPERTS = "once, of all sizes together: experts take their own rows, of which the host has to know how many"

# By file, function and what it calls.
EXCEPTIONS = {
    "agreement/alike.py _tensor .item()": "an argument of a call of the interface, once",
    "communication/comm.py TorchComm._summed .tolist()": "on the host anyway",
    "communication/messages.py bytes_of .cpu()": "files, messages of the host, batches of the first calls",
    "communication/messages.py _announced .tolist()": "on the host anyway",
    "communication/timed.py HostClock.now perf_counter()": "only while `sw.record` looks, on a CPU",
    "communication/timed.py StreamClock.seconds synchronize()": "after the steps that `sw.record` looked at",
    "execution/offload.py Host.settle synchronize()": "the host computes with what was sent there",
    "execution/micro_batches.py MicroBatches._counts .tolist()": "once a step, of the labels, where they are",
    "execution/outside.py _as .to(device)": "a gradient that the caller gives may be elsewhere",
    "execution/randomness.py single_device_masks.mask .to(device)": "drawn on the host, for comparisons",
    "execution/rows.py _sizes .tolist()": EXPERTS,
    "execution/run/gradients.py Gradients._taken_by_host synchronize()": "it adds up gradients there",
    "execution/scaling.py LossScaling.after_backward .any()": "stays on the device",
    "execution/scaling.py LossScaling.after_backward .item()": OVERFLOW,
    "execution/scaling.py _leave_out_together bool()": OVERFLOW,
    "guards/fixed_values.py _require equal()": "before the first step",
    "guards/fixed_values.py _require .tolist()": "before the first step",
    "opaque.py refuse_invalid .all()": "on a CPU alone",
    "opaque.py refuse_invalid int()": "an error is about to be raised",
    "opaque.py _drawn int()": "`torch.compile` has the number as a tensor on the host",
    "ops.py _checked .all()": "stays on the device, which stops itself",
    "optimizers/carrying.py carry .to(device)": "a training run is loaded",
    "optimizers/clipping.py _Total._add_up .any()": "stays on the device",
    "optimizers/clipping.py clip_grad_norm_ float()": "of the caller, or for an error",
    "optimizers/clipping.py clip_grad_norm_ bool()": "only with `error_if_nonfinite`, as with PyTorch",
    "optimizers/clipping.py _Total.over_ranks int()": "only for the norm that counts what is not zero",
    "optimizers/clipping.py _Total.over_ranks bool()": "only for the norm that counts what is not zero",
    "optimizers/clipping.py _scale .to(device)": "the norm is where gradients are, but for those on the host",
    "optimizers/groups.py _agreed .tolist()": "when an optimizer is made",
    "optimizers/reach.py _Trial.__init__.random .to(device)": "when an optimizer is made",
    "optimizers/reach.py _Trial._same float()": "when an optimizer is made",
    "rows.py dispatch int()": "an error is about to be raised; else no tensor",
    "rows.py dispatch .tolist()": EXPERTS,
    "shards/borrowing.py Borrowed._any_rank bool()": "when programs of other shapes take turns",
    "shards/borrowing.py Borrowed._any_rank .item()": "when programs of other shapes take turns",
    "shards/borrowing.py _fingerprint float()": "when programs of other shapes take turns",
    "shards/shards.py _where_it_lives .cpu()": "where parameters live on the host, once",
    "shards/state.py full_state_dict .cpu()": "asked for by the caller",
    "shards/state.py _sent_to_rank_0 .to(device)": "a whole state dict is gathered",
}
# These are of plain numbers and objects.
NO_TENSORS = {
    "agreement/trained.py Trained.has_news bool()",
    "communication/devices.py _index int()",
    "communication/places.py _number int()",
    "communication/places.py _port int()",
    "communication/places.py tasks_here int()",
    "communication/timed.py TimedWork.is_completed bool()",
    "execution/offload.py Away.pack int()",
    "execution/buckets.py _is_free bool()",
    "execution/forgotten.py _place int()",
    "execution/split_backward.py Boxes._pack bool()",
    "execution/counting.py _Words.of_kind int()",
    "execution/micro_batches.py _shares float()",
    "execution/randomness.py Numbers.into int()",
    "execution/reach.py used_anywhere int()",
    "execution/scaling.py LossScaling.load_state_dict float()",
    "execution/scaling.py LossScaling.load_state_dict int()",
    "execution/variants.py Variants._count_of_read bool()",
    "guards/own_memory.py watch bool()",
    "facade/places.py Place.__setattr__ bool()",
    "module/calls.py Calls._call bool()",
    "optimizers/clipping.py  float()",
    "optimizers/groups.py resolve bool()",
    "optimizers/wholes.py Wholes.__bool__ bool()",
    "optimizers/wholes.py Wholes._fetch_gradients int()",
    "programs/freeing.py _goes_on int()",
    "programs/program.py Program.blocks int()",
    "programs/program.py _role int()",
    "programs/program.py _rank int()",
    "programs/program.py _blocks int()",
    "shards/borrowing.py Borrowed._any_rank int()",
    "shards/own_state.py parts_known bool()",
    "shards/own_state.py is_divided bool()",
    "shards/shards.py Shards.leaves bool()",
}


def waits(call: ast.Call) -> str | None:
    """What a call is called, if it may wait for a device."""
    function = call.func
    name = getattr(function, "attr", getattr(function, "id", ""))
    if isinstance(function, ast.Name) and name in VALUES:
        return f"{name}()"
    if name in CLOCKS | READ:
        return f"{name}()" if name != "nonzero" else ".nonzero()"
    if isinstance(function, ast.Attribute) and name in METHODS:
        return f".{name}()"
    if isinstance(function, ast.Attribute) and name in TRUTHS and not call.args and not call.keywords:
        return f".{name}()"
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    elsewhere = name == "to" and any("device" in ast.unparse(argument) for argument in given)
    beside = any(keyword.arg == "non_blocking" for keyword in call.keywords)
    return ".to(device)" if elsewhere and not beside else None


def reading_places(tree: ast.AST, inside: str = "") -> Iterator[str]:
    """The places of a module: in which function, and what is called."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        name = f"{inside}.{node.name}".lstrip(".") if named else inside  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and (called := waits(node)):
            yield f"{name} {called}"
        yield from reading_places(node, name)


def test_what_may_wait_for_a_device_is_listed() -> None:
    places = {
        f"{path.relative_to(RUNTIME).as_posix()} {place}"
        for path in sorted(RUNTIME.rglob("*.py"))
        for place in reading_places(ast.parse(path.read_text()))
    }
    known = {*EXCEPTIONS, *NO_TENSORS}
    assert sorted(places - known) == [], "list each with its reason, or do without"
    assert sorted(known - places) == [], "these are gone"


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("x.item()", ".item()"),
        ("x.tolist()", ".tolist()"),
        ("x.cpu()", ".cpu()"),
        ("bool(x)", "bool()"),
        ("if x.any(): pass", ".any()"),
        ("torch.nonzero(x)", ".nonzero()"),
        ("x.to(comm.device)", ".to(device)"),
        ("x.to(device=y.device, dtype=y.dtype)", ".to(device)"),
        ("time.perf_counter()", "perf_counter()"),
    ],
)
def test_each_kind_is_seen(text: str, called: str) -> None:
    assert list(reading_places(ast.parse(f"def f(x):\n    {text}"))) == [f"f {called}"]


@pytest.mark.parametrize(
    "text", ["x.to(comm.device, non_blocking=True)", "x.to(dtype)", "x.any(1)", "any(xs)"]
)
def test_what_does_not_wait_is_not_seen(text: str) -> None:
    assert list(reading_places(ast.parse(f"def f(x):\n    {text}"))) == []
