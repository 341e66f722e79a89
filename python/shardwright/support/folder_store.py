"""The folder of entries: written in one step, bounded, and nothing damaged is ever taken from it.

An entry is a folder named by its key, with a manifest that has the digest of each of its files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FORMAT = "1"
# Above this the entries that were not used for longest go.
MOST_BYTES = 1 << 30
_MANIFEST = "manifest.json"
_TEMPORARY = ".new-"
# A folder of a process that died while it wrote.
_STALE = 24 * 3600.0


def cache_folder() -> Path | None:
    """`$SHARDWRIGHT_CACHE`, or the platform's folder for caches; `None` where it is `off`."""
    named = os.environ.get("SHARDWRIGHT_CACHE", "")
    if named.lower() in ("off", "0", "no", "false"):
        return None
    if named:
        return Path(named).expanduser()
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "shardwright"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "shardwright" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "shardwright"


def open_store() -> Store | None:
    try:
        folder = cache_folder()
    except RuntimeError:  # there is no home
        return None
    return None if folder is None else Store(folder)


@dataclass(frozen=True)
class Listed:
    key: str
    model: str
    plan: str
    devices: int
    bytes: int
    used: float


class Store:
    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES):
        self.folder = folder / f"v{FORMAT}"
        self.most_bytes = most_bytes

    def path(self, key: str) -> Path:
        return self.folder / key

    def files(self, key: str) -> dict[str, bytes] | None:
        """Those of an entry, if it is there and as it was written; a damaged one is removed."""
        target = self.path(key)
        if not target.is_dir():
            return None
        try:
            files = _checked(target, key)
        except Exception:  # whatever is wrong with it, it is made anew
            self.drop(key)
            return None
        with contextlib.suppress(OSError):  # a cache that is only read
            os.utime(target / _MANIFEST)
        return files

    def drop(self, key: str) -> None:
        shutil.rmtree(self.path(key), ignore_errors=True)

    def keep(self, key: str, files: Mapping[str, bytes]) -> Path:
        """Writes an entry in one step. Raises `OSError` where the disk does not take it."""
        files = {**files, _MANIFEST: _manifest(key, files)}
        size = sum(map(len, files.values()))
        if size > self.most_bytes:
            raise OSError(f"it has {size >> 20} MiB, the cache takes {self.most_bytes >> 20}")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.folder))
        try:
            for name, data in files.items():
                (fresh / name).parent.mkdir(exist_ok=True)
                (fresh / name).write_bytes(data)
            _move(fresh, self.path(key))
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        self._make_room(keep=key)
        return self.path(key)

    def entries(self) -> list[Listed]:
        """The entries, the latest used first; what cannot be read has no model."""
        entries = []
        for target in self._folders():
            try:
                info = json.loads((target / "info.json").read_text())
                used, summary = (target / _MANIFEST).stat().st_mtime, info["summary"]
                model, plan, devices = str(summary["model"]), str(info["plan"]), int(info["devices"])
            except (OSError, ValueError, KeyError, TypeError):
                model, plan, devices, used = "", "", 0, 0.0
            entries.append(Listed(target.name, model, plan, devices, _size(target), used))
        return sorted(entries, key=lambda entry: (-entry.used, entry.key))

    def clear(self) -> int:
        """Removes all entries; how many there were."""
        folders = self._folders()
        for target in folders:
            shutil.rmtree(target)
        self._sweep(0.0)
        return len(folders)

    def _folders(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return [path for path in sorted(self.folder.iterdir()) if not path.name.startswith(_TEMPORARY)]

    def _make_room(self, keep: str) -> None:
        self._sweep(_STALE)
        entries = self.entries()
        total = sum(entry.bytes for entry in entries)
        for entry in reversed(entries):
            if total > self.most_bytes and entry.key != keep:
                shutil.rmtree(self.path(entry.key), ignore_errors=True)
                total -= entry.bytes

    def _sweep(self, age: float) -> None:
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            try:
                if time.time() - path.stat().st_mtime >= age:
                    shutil.rmtree(path, ignore_errors=True)
            except OSError:
                continue


def _manifest(key: str, files: Mapping[str, bytes]) -> bytes:
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    body = json.dumps({"format": FORMAT, "key": key, "files": digests})
    return json.dumps({"digest": hashlib.sha256(body.encode()).hexdigest(), "body": body}).encode()


def _checked(target: Path, key: str) -> dict[str, bytes]:
    """The files of an entry, each as it was written."""
    manifest = json.loads((target / _MANIFEST).read_bytes())
    if hashlib.sha256(manifest["body"].encode()).hexdigest() != manifest["digest"]:
        raise ValueError("the manifest is not as it was written")
    body = json.loads(manifest["body"])
    if (body["format"], body["key"]) != (FORMAT, key):
        raise ValueError("the entry is another one")
    files = {}
    for name, digest in body["files"].items():
        files[name] = (target / name).read_bytes()
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise ValueError(f"{name} is not as it was written")
    return files


def _move(fresh: Path, target: Path) -> None:
    """Another process may have written the same entry meanwhile: then that one stays."""
    try:
        fresh.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
