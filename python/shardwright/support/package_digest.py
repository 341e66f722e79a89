"""Which code this package is, for keys of what is kept."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@functools.cache
def own_digest() -> str:
    """Of all files, the extension too: the version alone would miss a change of them."""
    digest = hashlib.sha256()
    for file in sorted(_PACKAGE.rglob("*")):
        if file.suffix in (".py", ".so", ".pyd", ".dylib"):
            digest.update(str(file.relative_to(_PACKAGE)).encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
