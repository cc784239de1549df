"""What is kept between runs: files in the user's cache folder, each found by a digest of all that it depends on.

    $XDG_CACHE_HOME/kvtune/vocabularies/<key>     32 bytes: SHA-256 of the rest; then the entry
    (--cache-dir DIR: DIR/vocabularies/<key>)

An entry is written beside its place and moved there whole, so that it is there or not, whoever is killed and however
many processes write it. One that is damaged counts as missing; a folder that takes no files is done without. No prompt
is ever kept. Written here, since the packages for it (diskcache, joblib) keep pickles or a database beside the files.
Knows files and bytes; what an entry means is for who keeps it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 1 << 29
"""Of all entries; those that were not used for longest go first."""

KINDS = ("vocabularies", "step-times", "hash-costs")
"""The folders that belong to the cache. Others beside them are somebody else's."""

_DIGEST_BYTES = 32
_ABANDONED_S = 3600.0
_HIDDEN = "."


_chosen: Path | None = None


def use_folder(folder: Path | None) -> None:
    """Keep entries in this folder from now on; None: where `cache_folder` says."""
    global _chosen
    _chosen = folder


def cache_folder() -> Path:
    """The chosen folder, else `$XDG_CACHE_HOME/kvtune`, else `~/.cache/kvtune`.

    Raises:
        RuntimeError: no home directory is known.
    """
    if _chosen is not None:
        return _chosen
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvtune"


def key_of(*parts: str | bytes) -> str:
    """The name of an entry that depends on `parts`: 64 hex digits."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8) + data)
    return digest.hexdigest()


def load(kind: str, key: str) -> bytes | None:
    """An entry, None where there is none or it is damaged."""
    with suppress(OSError, RuntimeError):
        path = cache_folder() / kind / key
        if path.stat().st_size > MOST_BYTES:
            return None
        data = path.read_bytes()
        entry = data[_DIGEST_BYTES:]
        if hashlib.sha256(entry).digest() == data[:_DIGEST_BYTES]:
            with suppress(OSError):
                os.utime(path)  # used now
            return entry
    return None


def keep(kind: str, key: str, entry: bytes) -> None:
    """Put an entry in its place, if the folder takes it, and make room for it."""
    with suppress(OSError, RuntimeError):
        folder = cache_folder() / kind
        folder.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=folder, prefix=_HIDDEN)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(entry).digest() + entry)
            Path(beside).replace(folder / key)
        finally:
            Path(beside).unlink(missing_ok=True)
        _make_room()


@dataclass(frozen=True)
class CacheUse:
    """What one kind of entries takes.

    Attributes:
        kind: one of `KINDS`.
        entries: number of files.
        size: their bytes.
    """

    kind: str
    entries: int
    size: int


def cache_use() -> list[CacheUse]:
    """What the cache holds, by kind."""
    sizes = {kind: [size for _, size, _ in _files(kind)] for kind in KINDS}
    return [CacheUse(kind, len(sizes[kind]), sum(sizes[kind])) for kind in KINDS]


def clear() -> int:
    """Remove every entry, and what killed processes left; how many bytes that frees."""
    freed = 0
    for kind in KINDS:
        for path, size, _ in _files(kind):
            freed += size if _removed(path) else 0
    return freed


def _make_room() -> None:
    files = [(used, size, path) for kind in KINDS for path, size, used in _files(kind)]
    for used, _, path in files:
        if path.name.startswith(_HIDDEN) and used < time.time() - _ABANDONED_S:
            _removed(path)
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= MOST_BYTES:
            return
        if not path.name.startswith(_HIDDEN):
            total -= size if _removed(path) else 0


def _files(kind: str) -> Iterator[tuple[Path, int, float]]:
    """Path, bytes and time of last use of each file of a kind."""
    with suppress(OSError, RuntimeError), os.scandir(cache_folder() / kind) as entries:
        for entry in entries:
            with suppress(OSError):  # another process may have removed it
                if entry.is_file(follow_symlinks=False):
                    state = entry.stat()
                    yield Path(entry.path), state.st_size, state.st_mtime


def _removed(path: Path) -> bool:
    with suppress(OSError):
        path.unlink()
        return True
    return False
