"""The key of a compilation: everything that the program depends on."""

from __future__ import annotations

import platform
import sys
from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .._core import Plan
from ..as_python import Registered, all_registered
from ..capture.spec import CallSpec
from ..capture.state.memory import has_no_value
from ..capture.verify.against_module import can_verify
from ..errors import ShardwrightError
from ..runtime.communication.messages import bytes_of
from ..support.package_digest import own_digest
from .code import Reach
from .describe import Describer, Unknown


def key_of(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    plan: Any,
    options: Mapping[str, Any],
) -> str:
    """Of a model, an example, a plan and all else that was asked for.

    Raises `Unknown` where something cannot be described. Values of parameters and buffers do not
    matter: a program is made without them. Rules that are looked for are tried on them.
    """
    reach = Reach()
    to = Describer(reach)
    to.put("shardwright", own_digest(), torch.__version__, str(torch.version.git_version), sys.version)
    to.put(platform.system(), platform.machine())
    _settings(to)
    to.named("model", module)
    _example(to, module, args, kwargs or {})
    if options.get("discover"):
        _values(to, module, args, kwargs or {})
    _plan(to, plan)
    to.named("options", dict(sorted(options.items())))
    to.named("registered", sorted((_described(one) for one in all_registered()), key=lambda one: str(one[0])))
    reach.finish(to)
    return to.digest()


def _described(one: Registered) -> tuple[Any, ...]:
    """A rule that someone has registered, but for where."""
    return one.name, one.rule, dict(one.sizes), one.fake, one.inputs


def further_key(
    first: str, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> str:
    """Of a further program of a model, under the plan of the first."""
    return key_of(module, args, kwargs, f"as {first}", options)


def key_of_read(key: str, read: Hashable) -> str:
    """Of the program for a call of which the one with this key reads something else than it is for."""
    return sha256(f"{key} {read}".encode()).hexdigest()


def _settings(to: Describer) -> None:
    """What PyTorch is told globally, and capture sees."""
    for device in ("cpu", "cuda"):
        to.put(str(torch.is_autocast_enabled(device)), str(torch.get_autocast_dtype(device)))
    to.put(
        str(torch.get_default_dtype()),
        str(torch.get_default_device()),
        str(torch.is_inference_mode_enabled()),
        str(torch.is_grad_enabled()),
        str(torch.are_deterministic_algorithms_enabled()),
        str(torch.cuda.is_available()),
    )


def _example(to: Describer, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        call = CallSpec.of_call(module.forward, args, kwargs)
        bound = call.bind(args, kwargs)
        text = call.text()
    except ShardwrightError as error:  # compiling says it better
        raise Unknown(error.what) from None
    to.put("example", text, str(call.signature))
    for leaf in pytree.tree_leaves((bound.args, bound.kwargs)):
        if isinstance(leaf, Tensor):
            to.kind(leaf)
            to.put("value is known", str(not has_no_value(leaf)))
    # A program that was never compared with the model is no answer where it can be.
    to.put("verified", str(can_verify(module, bound)))


def _values(to: Describer, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    for tensor in (*module.parameters(), *module.buffers(), *given):
        if not has_no_value(tensor):
            to.put("value", bytes_of(tensor))


def _plan(to: Describer, plan: Any) -> None:
    if isinstance(plan, Plan):
        to.put("plan", plan.text)
    elif isinstance(plan, Path) or (isinstance(plan, str) and (plan.endswith(".plan") or "/" in plan)):
        try:
            to.put("plan file", Path(plan).read_bytes())
        except OSError as error:
            raise Unknown(f"the plan file {plan} cannot be read") from error
    else:
        to.named("plan", plan)
