"""Token ids of many sequences in one growing array; a large one lies in a file that has no name."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np

from kvtune.tokenization.errors import KvtuneError
from kvtune.tokenization.trace import Int64, UInt32

MOST_IN_MEMORY = 1 << 27
"""Bytes of ids that are held in memory; from there on they are in a temporary file, and the system pages them."""

_PAGE_BYTES = 1 << 26


class NoRoomError(KvtuneError):
    """Temporary files find no room: nothing is wrong with the request at hand."""


class TokenBuffer:
    """Appends uint32 sequences; amortised constant time, and an eighth of the memory spare at most."""

    def __init__(self) -> None:
        self._data = bytearray()  # grows in place where the system can map its pages elsewhere
        self._file: BinaryIO | None = None
        self._ends: list[int] = [0]

    def append(self, ids: UInt32) -> None:
        """Add one sequence.

        Raises:
            NoRoomError: the folder for temporary files (TMPDIR) is full or takes no files.
        """
        data = np.ascontiguousarray(ids, dtype=np.uint32).data
        if self._file is None and len(self._data) + ids.nbytes <= MOST_IN_MEMORY:
            self._data += data
        else:
            with _room_in_tmpdir():
                if self._file is None:
                    self._file = tempfile.TemporaryFile(prefix="kvtune-")  # noqa: SIM115
                    self._file.write(self._data)
                    self._data = bytearray()
                self._file.write(data)
        self._ends.append(self._ends[-1] + len(ids))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def arrays(self) -> tuple[UInt32, Int64]:
        """(ids uint32[T], offsets int64[n + 1]), for reading. The buffer is done with after this.

        Raises:
            NoRoomError: as `append`.
        """
        ends = np.array(self._ends, dtype=np.int64)
        if self._file is None:
            return np.frombuffer(self._data, dtype=np.uint32), ends
        with _room_in_tmpdir(), self._file as file:
            file.flush()
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint32), ends


@contextmanager
def _room_in_tmpdir() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NoRoomError(
            "no room for token IDs",
            where=tempfile.gettempdir(),
            found=error.strerror or type(error).__name__,
            wanted="4 bytes for each prompt token",
            way_out="set TMPDIR to a folder on a larger disk",
        ) from error


def in_one(sequences: Iterable[UInt32]) -> tuple[UInt32, Int64]:
    """Many sequences one after another, as `TokenBuffer.arrays` gives them."""
    buffer = TokenBuffer()
    for ids in sequences:
        buffer.append(ids)
    return buffer.arrays()


class SpillingArrays:
    """Keeps many arrays: in memory, and from `MOST_IN_MEMORY` on in pages of temporary files without a name."""

    def __init__(self) -> None:
        self._bytes = 0
        self._page = np.zeros(0, dtype=np.uint32)
        self._used = 0  # elements of the page

    def keep(self, ids: UInt32) -> UInt32:
        """The same ids, to be held in place of `ids`. Raises as `TokenBuffer.append`."""
        self._bytes += ids.nbytes
        if self._bytes <= MOST_IN_MEMORY or not len(ids):
            return ids
        if self._used + len(ids) > len(self._page):
            size = max(_PAGE_BYTES, ids.nbytes)
            with _room_in_tmpdir(), tempfile.TemporaryFile(prefix="kvtune-") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(
                        file.fileno(), 0, size
                    )  # a full disk fails here, not when a page is written
                else:
                    file.truncate(size)
                self._page = np.frombuffer(mmap.mmap(file.fileno(), size), dtype=np.uint32)
            self._used = 0
        kept = self._page[self._used : self._used + len(ids)]
        kept[:] = ids
        self._used += len(ids)
        return kept
