"""Every template of emitted code computes what its operator computes.

The rows are those of `crates/emit/src/templates/table.rs`, by way of a snapshot that a Rust test keeps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

SNAPSHOT = Path(__file__).parents[3] / "crates/emit/tests/snapshots/all__templates__table.snap"


def rows() -> list[tuple[str, str]]:
    text = SNAPSHOT.read_text().split("\n---\n", 1)[1]
    pairs = [line.split(" -> ") for line in text.strip().splitlines()]
    return [(operator, python) for operator, python in pairs]


def _rand(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.25


def _ints(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(high))


X, Y = _rand(3, 4), _rand(3, 4).flip(0) * 2
B = X > 0.7
I3 = _ints(3, 3, 4)
QKV = [_rand(2, 3, 5, 4).transpose(1, 2).contiguous().transpose(1, 2) for _ in range(3)]
IMAGE = _rand(2, 4, 6, 6)

WINDOWS = ("hann", "hamming", "blackman", "bartlett", "kaiser")

# The positional arguments of each operator, one list or several; a name given twice is run with the
# arguments cut to what a row takes.
ARGS: dict[str, list[Any]] = {
    "linear": [X, _rand(5, 4), _rand(5)],
    "layer_norm": [X, [4], _rand(4), _rand(4), 1e-3, False],
    "rms_norm": [X, [4], _rand(4), 1e-3],
    "group_norm": [_rand(2, 4, 3), 2, _rand(4), _rand(4), 1e-3, False],
    "embedding": [_rand(7, 3), _ints(7, 2, 4), 2],
    "conv1d": [_rand(2, 4, 9), _rand(6, 2, 3), _rand(6), [2], [1], [1], 2],
    "conv2d": [IMAGE, _rand(6, 2, 3, 3), _rand(6), [2, 1], [1, 0], [1, 1], 2],
    "conv3d": [_rand(1, 2, 4, 4, 4), _rand(3, 2, 2, 2, 2), _rand(3), [1, 1, 1], [0, 0, 0], [1, 1, 1], 1],
    "conv_transpose1d": [_rand(2, 4, 5), _rand(4, 3, 3), _rand(3), [2], [1], [1], 1, [1]],
    "conv_transpose2d": [IMAGE, _rand(4, 3, 3, 3), _rand(3), [2, 2], [1, 1], [1, 1], 1, [1, 1]],
    "max_pool2d": [IMAGE, [2, 2], [2, 1], [1, 1], [1, 1], True],
    "avg_pool2d": [IMAGE, [2, 2], [2, 1], [1, 1], True, False, 3],
    "adaptive_avg_pool2d": [IMAGE, [2, 3]],
    "dropout": [X, 0.5, False],
    "pad": [X, [1, 2], "constant", 2.0],
    "constant_pad_nd": [X, [1, 2], 2.0],
    "one_hot": [I3, 5],
    "pixel_shuffle": [IMAGE, 2],
    "pixel_unshuffle": [IMAGE, 2],
    "scaled_dot_product_attention": [*QKV, _rand(5, 5), 0.0, False],
    "cross_entropy_loss": [_rand(6, 5), _ints(5, 6), None, 1, 2, 0.1],
    "elu": [X - 0.7, 0.5],
    "leaky_relu": [X - 0.7, 0.2],
    "softplus": [X, 2.0, 1.5],
    "hardtanh": [X, 0.3, 0.8],
    "glu": [X, 1],
    "softmax": [X, 1, torch.float32],
    "log_softmax": [X, 1, torch.float32],
    "matmul": [X, _rand(4, 2)],
    "mm": [X, _rand(4, 2)],
    "bmm": [_rand(2, 3, 4), _rand(2, 4, 5)],
    "addmm": [_rand(3, 2), X, _rand(4, 2)],
    "baddbmm": [_rand(2, 3, 5), _rand(2, 3, 4), _rand(2, 4, 5)],
    "outer": [_rand(3), _rand(4)],
    "einsum": ["ij,ik->jk", X, Y],
    "bitwise_not": [B], "logical_not": [B],
    "bitwise_and": [B, I3 > 0], "bitwise_or": [B, I3 > 0],
    "logical_and": [B, I3 > 0], "logical_or": [B, I3 > 0],
    "to": [X, torch.float32],
    "masked_fill.Scalar": [X, B, -1.0],
    "masked_fill.Tensor": [X, B, torch.tensor(2.0, dtype=torch.float64)],
    "where.self": [B, X, Y], "where.ScalarOther": [B, X, 0.0], "where.ScalarSelf": [B, 0.0, Y],
    "pow.Scalar": [2, X],
    "view": [X, [2, 6]], "reshape": [X.t(), [2, 6]],
    "flatten": [_rand(2, 3, 4), 1, 2], "unflatten": [X, 1, [2, 2]],
    "transpose": [X, 0, 1], "permute": [_rand(2, 3, 4), [2, 0, 1]],
    "expand": [_rand(3, 1), [3, 5]], "expand_as": [_rand(3, 1), X], "repeat": [X, [2, 1]],
    "repeat_interleave": [X, 2, 1], "unsqueeze": [X, 1],
    "squeeze.default": [_rand(3, 1)], "squeeze.dim": [_rand(3, 1), 1],
    "squeeze.dims": [_rand(3, 1, 1), [1, 2]],
    "select": [X, 1, 2], "split": [X, 3, 1], "split_with_sizes": [_rand(4, 4), [1, 3], 1],
    "chunk": [X, 2, 1], "unbind": [X, 1], "cat": [[X, Y], 1], "stack": [[X, Y], 1],
    "roll": [X, [1], [0]], "flip": [X, [0]], "tril": [X, 1], "triu": [X, 1],
    "gather": [X, 1, I3], "index_select": [X, 1, _ints(3, 2)],
    "view_as_complex": [_rand(3, 2)], "view_as_real": [torch.complex(X, Y)],
    "conj_physical": [torch.complex(X, Y)],
    "sum.dim_IntList": [X, [1], True], "mean.dim": [X, [1], True], "amax": [X, [1], True],
    "amin": [X, [1], True],
    "logsumexp": [X, [1], True], "argmax": [X, 1, True], "cumsum": [X, 1],
    "arange.default": [5], "arange.start": [1, 5], "arange.start_step": [1, 9, 2],
    "eye.default": [3], "eye.m": [3, 2], "linspace": [1, 2.5, 4], "logspace": [1, 2.5, 4, 2.0],
    **{f"{name}_window.default": [5] for name in WINDOWS},
    **{f"{name}_window.periodic": [5, False] for name in WINDOWS}, "kaiser_window.beta": [5, True, 9.0],
    "tril_indices": [3, 4, 1], "triu_indices": [3, 4, -1], "fft_fftfreq": [5, 0.5],
    "fft_rfftfreq": [5, 0.5],
    "zeros": [[2, 3]], "ones": [[2, 3]], "empty": [[0, 3]], "full": [[2, 3], 1.5], "scalar_tensor": [2.5],
    "full_like": [X, 2.0], "new_zeros": [X, [2]], "new_ones": [X, [2]],
    "_to_copy": [X], "clamp": [X, 0.5, 0.8],
}  # fmt: skip
ENTRY = re.compile(r"\{(\*?)(\w+)(?::(\w))?\}")
KWARGS: dict[str, dict[str, Any]] = {
    "gelu": {"approximate": "tanh"},
    "addmm": {"alpha": 2, "beta": 3},
    "baddbmm": {"alpha": 2, "beta": 3},
    "scaled_dot_product_attention": {"scale": 0.3},
    "sum": {"dtype": torch.float32},
    "mean": {"dtype": torch.float32},
    "cumsum": {"dtype": torch.float32},
    "arange": {"dtype": torch.float64},
    "empty": {"dtype": torch.float64},
    "eye": {"dtype": torch.float64},
    "linspace": {"dtype": torch.float64},
    "logspace": {"dtype": torch.float64},
    **{f"{name}_window": {"dtype": torch.float64} for name in WINDOWS},
    "tril_indices": {"dtype": torch.int32},
    "triu_indices": {"dtype": torch.int32},
    "fft_fftfreq": {"dtype": torch.float64},
    "fft_rfftfreq": {"dtype": torch.float64},
    "zeros": {"dtype": torch.float64},
    "ones": {"dtype": torch.float64},
    "full": {"dtype": torch.float64},
    "scalar_tensor": {"dtype": torch.float64},
    "zeros_like": {"dtype": torch.float32},
    "ones_like": {"dtype": torch.float32},
    "full_like": {"dtype": torch.float32},
    "new_zeros": {"dtype": torch.float32},
    "new_ones": {"dtype": torch.float32},
}
NAMED = {"alpha": 2, "mode": "floor", "dtype": torch.float32, "scale": 0.3}


def cases() -> list[Any]:
    params = []
    for operator, python in rows():
        target = operator.split("(")[0]
        rest = re.search(r"[(, ]\*(\d)", operator)
        count = len(_args(operator))
        for number in _counts(rest, operator, count):
            for named in (False, True) if "**" in operator else (False,):
                name = f"{operator}-{number}{'-named' if named else ''}"
                params.append(pytest.param(target, operator, python, number, named, id=name))
    return params


def _counts(rest: re.Match[str] | None, operator: str, count: int) -> list[int]:
    """How many positional arguments a row is run with."""
    if rest is None:
        return [0]
    most = min(int(rest[1]), count)
    return [3, most] if "dot_product" in operator else [most]


def _args(operator: str) -> list[Any]:
    target = operator.split("(")[0]
    _, name, overload = target.split(".")
    known = ARGS.get(f"{name}.{overload}", ARGS.get(name))
    if known is not None:
        return known
    # Arithmetic and functions of each element; scalars where the row wants one.
    return [X, 2] if re.search(r"\{1:n\}", operator) else [X, Y]


def _fill(template: str, args: list[Any], count: int, named: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The text with a variable in each place, and the variables."""
    scope: dict[str, Any] = {"torch": torch, "F": F}

    def place(match: re.Match[str]) -> str:
        splat, key, _ = match.groups()
        name = f"v_{key}"
        scope[name] = args[int(key)] if key.isdigit() else NAMED[key]
        return splat + name

    rest = re.search(r"\*(\d)", template)
    text = ENTRY.sub(place, template)
    if rest:
        scope |= {f"v_{at}": args[at] for at in range(count)}
        text = re.sub(r"\*\d", ", ".join(f"v_{at}" for at in range(count)), text)
    scope["named"] = named
    return text.replace("**)", "**named)"), scope


@pytest.mark.parametrize(("target", "operator", "python", "count", "named"), cases())
def test_template(target: str, operator: str, python: str, count: int, named: bool) -> None:
    args = _args(operator)
    kwargs = KWARGS.get(target.split(".")[1], {}) if named else {}
    left, scope = _fill(operator, args, count, kwargs)
    expected = eval(f"torch.ops.{left}", scope)
    right, scope = _fill(python, args, count, kwargs)
    got = eval(right, scope)
    expected, got = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (expected, got))
    assert len(expected) == len(got)
    for a, b in zip(expected, got, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


def test_operators_that_give_lists_are_those_whose_signatures_say_so() -> None:
    """Those of PyTorch's newest version: an older one may lack some."""
    giving_lists = {
        name
        for name, schema in _schemas()
        if [str(value.type) for value in schema.returns] == ["List[Tensor]"]
        and not name.startswith("_foreach")
    }
    assert giving_lists <= _listed("lists")


def test_operators_that_are_told_the_device_are_those_that_make_a_tensor_of_numbers() -> None:
    """Of those whose bounds are tensors these do not say where the result is."""
    creating = set()
    for name, schema in _schemas():
        tensors = [argument for argument in schema.arguments if "Tensor" in str(argument.type)]
        of_numbers = not tensors or name.startswith(("linspace.", "logspace."))
        made = any("Tensor" in str(value.type) for value in schema.returns)
        if made and of_numbers and any(argument.name == "device" for argument in schema.arguments):
            creating.add(name)
    assert creating <= _listed("created")


def _schemas() -> Iterator[tuple[str, Any]]:
    """Of all operators that can be called by their names."""
    for schema in torch._C._jit_get_all_schemas():
        name, overload = schema.name.removeprefix("aten::"), schema.overload_name or "default"
        if schema.name.startswith("aten::") and hasattr(getattr(torch.ops.aten, name, None), overload):
            yield f"{name}.{overload}", schema


def _listed(file: str) -> set[str]:
    text = (Path(__file__).parents[3] / f"crates/emit/src/templates/{file}.rs").read_text()
    return set(re.findall(r'"([\w.]+)"', text))
