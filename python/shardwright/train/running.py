"""Starts a run: on local processes, on those of torchrun, or without any, to look at what it would be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import RuntimeFault
from .config import Config
from .reading import read


def start(file: str, overrides: Sequence[str], processes: int | None, profiled: int | None) -> int:
    _require_yaml()
    config = read(file, overrides)
    folder = Path(file).absolute().parent
    if processes is None:
        return _on_this_rank(0, config, folder, profiled)
    from ..runtime.communication.launch import launch

    return launch(_on_this_rank, devices=processes, args=(config, folder, profiled))


def _on_this_rank(rank: int, config: Config, folder: Path, profiled: int | None) -> int:
    from .loop import train
    from .profiled import profile

    return train(config, folder) if profiled is None else profile(config, folder, profiled)


def check(file: str, overrides: Sequence[str], devices: int | None) -> int:
    """Everything but the training: no process group, and no device."""
    _require_yaml()
    config = read(file, overrides)
    from .checked import lines_of

    lines, status = lines_of(config, Path(file).absolute().parent, devices)
    print("\n".join(lines))
    return status


def without_file() -> RuntimeFault:
    return RuntimeFault(
        "SW0850",
        "there is no file of a run",
        why="`shardwright train` reads what to train from a YAML file",
        fix="`shardwright train run.yaml`; `shardwright train --schema` says what it may have",
    )


def _require_yaml() -> None:
    try:
        import yaml  # noqa: F401
    except ImportError:
        raise RuntimeFault(
            "SW0850",
            "`shardwright train` needs PyYAML",
            why="its file is YAML, and the package does not ask for it otherwise",
            fix="pip install 'shardwright[train]'",
        ) from None
