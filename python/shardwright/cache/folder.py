"""The entries of compilations, in the folder of everything that is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..support.folder_store import Store, open_store
from .entry import Entry


class Cache(Store):
    def get(self, key: str, forward: Callable[..., Any]) -> Entry | None:
        files = self.files(key)
        if files is None:
            return None
        try:
            return Entry.read(files, forward)
        except Exception:  # whatever is wrong with it, it is made anew
            self.drop(key)
            return None

    def put(self, key: str, entry: Entry) -> Path:
        return self.keep(key, entry.write())


def open_cache(wanted: bool = True) -> Cache | None:
    store = open_store() if wanted else None
    return None if store is None else Cache(store.folder.parent, store.most_bytes)
