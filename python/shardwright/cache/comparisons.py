"""What was compared of a model's graph at another start: for another plan it is captured again, and not
compared again."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..capture import Compared
from ..runtime.communication.messages import bytes_of
from .describe import Unknown
from .folder import Cache
from .key import key_of

_FILE = "info.json"


class Comparisons:
    """By the text and constants of a graph, and by all that the key of a program has but the plan: code,
    example, settings and versions."""

    def __init__(
        self,
        cache: Cache,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self._cache, self._of, self._options = cache, (module, args, kwargs), options

    def find(self, text: str, constants: Mapping[str, Tensor]) -> Compared | None:
        key = self._key(text, constants)
        files = None if key is None else self._cache.files(key)
        return None if files is None else Compared(**json.loads(files[_FILE])["compared"])

    def keep(self, text: str, constants: Mapping[str, Tensor], compared: Compared) -> None:
        key = self._key(text, constants)
        if key is None:
            return
        summary = {"model": f"{type(self._of[0]).__name__}, as it was compared"}
        info = {"summary": summary, "plan": "", "devices": 0, "compared": compared.plain()}
        with contextlib.suppress(OSError):  # it is compared again next time
            self._cache.keep(key, {_FILE: json.dumps(info, indent=1).encode()})

    def _key(self, text: str, constants: Mapping[str, Tensor]) -> str | None:
        digest = hashlib.sha256(text.encode())
        for name, value in sorted(constants.items()):
            digest.update(name.encode())
            digest.update(bytes_of(value))
        try:
            return key_of(*self._of, f"compared {digest.hexdigest()}", self._options)
        except (Unknown, RecursionError):
            return None
