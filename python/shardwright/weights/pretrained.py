"""What methods of the model's own class write: `save_pretrained`, `push_to_hub`.

A model of Transformers is written tensor by tensor, and its class writes all but the weights. What another
class writes, or that one with other options, only its own code knows (an adapter alone, a folder for each
module): it runs on rank 0, on the plain model with the values of all ranks.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..errors import RuntimeFault
from ..runtime import ParallelModule
from ..runtime.agreement.together import each
from ..runtime.shards.state import gather_to_rank_0
from .files import INDEX, SINGLE
from .writing import explained, save_safetensors

SIZE = "max_shard_size"
# What says only how files are laid out, as they are here.
_SAID_ANYWAY = {"safe_serialization": True}


def save_pretrained(
    model: ParallelModule, method: str, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:
    """All ranks call this. What comes back is the folder, or on rank 0 what the class's own method gives."""
    skeleton = model.variants.skeleton
    if skeleton is None or not callable(getattr(skeleton, method, None)):
        raise RuntimeFault(
            "SW0753",
            f"{model.program.model} has no `{method}` of its own",
            why="the program came without the model" if skeleton is None else "its class has none",
            fix="use `shardwright.save_safetensors`",
        )
    if method == "save_pretrained" and _is_plain(skeleton):
        args, options = _named(args, options)
        kept = {key: value for key, value in options.items() if _SAID_ANYWAY.get(key) is not value}
        if len(args) == 1 and not kept.keys() - {SIZE}:
            return _by_tensors(model, skeleton, Path(args[0]), kept.get(SIZE, "5GB"))
    plain = _plain_on_rank_0(model, skeleton)
    return each(model.comm, lambda: None if plain is None else getattr(plain, method)(*args, **options))


def _named(args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """A size may stand behind the folder, where Transformers have a condition."""
    if len(args) == 2 and isinstance(args[1], (int, str)) and not isinstance(args[1], bool):
        return args[:1], {SIZE: args[1], **options}
    return args, options


def _is_plain(skeleton: nn.Module) -> bool:
    """Whether Transformers' own code writes it, weights under their names and nothing else."""
    transformers = sys.modules.get("transformers")
    known: Any = getattr(transformers, "PreTrainedModel", None)
    return (
        known is not None
        and isinstance(skeleton, known)
        and type(skeleton).save_pretrained is known.save_pretrained
        and not getattr(skeleton, "_hf_peft_config_loaded", False)
        and getattr(skeleton, "hf_quantizer", None) is None
    )


def _by_tensors(model: ParallelModule, skeleton: Any, target: Path, max_shard_size: int | str) -> Path:
    tied = set(getattr(skeleton, "all_tied_weights_keys", None) or ())
    ignored = set(getattr(skeleton, "_keys_to_ignore_on_save", None) or ())

    def choose(names: Sequence[str]) -> str | None:
        kept = [name for name in names if name not in ignored]
        return next((name for name in kept if name not in tied), kept[0] if kept else None)

    save_safetensors(model, target, max_shard_size, names=choose)
    each(model.comm, lambda: _save_configuration(skeleton, target) if model.comm.rank == 0 else None)
    return target


def _save_configuration(skeleton: Any, target: Path) -> None:
    """All that the model's own class writes, but for the weights."""
    with explained(target), tempfile.TemporaryDirectory(prefix=".configuration.", dir=target) as beside:
        skeleton.save_pretrained(beside, state_dict={}, save_original_format=False)
        for file in Path(beside).iterdir():
            if file.is_file() and file.name not in (SINGLE, INDEX):
                os.replace(file, target / file.name)


def _plain_on_rank_0(model: ParallelModule, skeleton: nn.Module) -> nn.Module | None:
    """A copy of the model as it was written, with the values of all ranks."""
    plain = copy.deepcopy(skeleton) if model.comm.rank == 0 else None
    for tensor in [tensor for tensor in model.program.tensors.values() if tensor.held]:
        value = gather_to_rank_0(model.shards, model.comm, tensor, cpu=True)
        if plain is not None and value is not None:
            made = nn.Parameter(value, not tensor.frozen) if tensor.kind == "param" else value
            for name in model.names_of(tensor):
                _put(plain, name, made)
    return plain


def _put(plain: nn.Module, name: str, value: Tensor) -> None:
    path, _, last = name.rpartition(".")
    place = plain.get_submodule(path)
    table = place._parameters if isinstance(value, nn.Parameter) else place._buffers
    table[last] = value  # type: ignore[assignment]
