"""A run's checkpoints: a folder a step, of which those that are complete have their list of contents.

A folder is written under its own name, and its list last, in one step of the file system. So a run that was
killed while it saved leaves the checkpoints before as they were.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from ..checkpoint import load, save
from ..errors import RuntimeFault
from ..runtime.communication.comm import Comm
from .config import CheckpointConfig

_NAME = re.compile(r"step-(\d+)")
# What `torch.distributed.checkpoint` writes at the end of a save.
_COMPLETE = ".metadata"
_BEST = "best.json"


class Checkpoints:
    """All ranks call its methods; rank 0 alone removes folders."""

    def __init__(self, config: CheckpointConfig, folder: Path, comm: Comm):
        self._config, self._comm = config, comm
        self._folder = None if config.folder is None else folder / config.folder
        self._behind: Any = None
        # As rank 0 finds it, and then as all ranks count it: who reads a file later may find another.
        self.best: dict[str, Any] | None = comm.all_gather_objects(self._best_before())[0]

    def is_due(self, step: int) -> bool:
        return self._folder is not None and self._config.every > 0 and step % self._config.every == 0

    def save(self, model: Any, optimizer: Any, step: int, extra: dict[str, Any]) -> Path | None:
        if self._folder is None:
            return None
        self.finish()
        target = self._folder / f"step-{step:08d}"
        if self._config.behind:
            self._behind = save(model, optimizer, target, extra, wait=False)
        else:
            save(model, optimizer, target, extra)
        self._remove_old()
        return target

    def finish(self) -> None:
        """Waits for what is being written."""
        behind, self._behind = self._behind, None
        if behind is not None:
            behind.wait()

    def note_best(self, step: int, loss: float) -> bool:
        """Whether a step is the best so far. Its checkpoint is kept then, and is to be written."""
        if self._folder is None or not self._config.best:
            return False
        if self.best is not None and self.best["loss"] <= loss:
            return False
        self.best = {"step": step, "loss": loss}
        if self._comm.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            fresh = self._folder / f".{_BEST}"
            fresh.write_text(json.dumps(self.best), encoding="utf-8")
            fresh.replace(self._folder / _BEST)
        return True

    def _best_before(self) -> dict[str, Any] | None:
        """Which step had the lowest evaluation loss, of a run that this one resumes."""
        if self._folder is None:
            return None
        try:
            before: dict[str, Any] = json.loads((self._folder / _BEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return before

    def resume(
        self, resume: str, model: Any, optimizer: Any, folder: Path
    ) -> tuple[Path, dict[str, Any]] | None:
        """From the newest that is complete, or the one that is named."""
        if resume == "never":
            return None
        place = self._newest() if resume == "auto" else folder / resume
        if place is None:
            return None
        if not (place / _COMPLETE).is_file():
            raise RuntimeFault(
                "SW0856",
                f"there is no checkpoint in {place}",
                why=f"it has no {_COMPLETE}, which a save writes last",
                fix="name the folder of a checkpoint, `.../step-00000100`; or `resume: auto`",
            )
        return place, load(model, optimizer, place)

    def _newest(self) -> Path | None:
        """As rank 0 sees it: ranks may look at a folder at different times."""
        complete = self._complete() if self._comm.rank == 0 else []
        [name, *_] = self._comm.all_gather_objects(complete[-1].name if complete else None)
        return None if name is None or self._folder is None else self._folder / name

    def _complete(self) -> list[Path]:
        if self._folder is None or not self._folder.is_dir():
            return []
        named = [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]
        return sorted((path for path in named if (path / _COMPLETE).is_file()), key=_step_of)

    def _remove_old(self) -> None:
        """What is complete and neither among the newest nor the best; and what a killed run began."""
        if self._comm.rank != 0 or not self._config.keep or self._folder is None:
            return
        complete, best = self._complete(), self.best
        kept = {_step_of(path) for path in complete[-self._config.keep :]} | (
            {best["step"]} if best else set()
        )
        for path in complete:
            if _step_of(path) not in kept:
                # First the list: what is removed in part is no checkpoint.
                (path / _COMPLETE).unlink()
                shutil.rmtree(path, ignore_errors=True)
        newest = _step_of(complete[-1]) if complete else -1
        for path in self._folder.iterdir():
            if _NAME.fullmatch(path.name) and not (path / _COMPLETE).is_file() and _step_of(path) < newest:
                shutil.rmtree(path, ignore_errors=True)


def _step_of(path: Path) -> int:
    number = _NAME.fullmatch(path.name)
    assert number is not None
    return int(number[1])
