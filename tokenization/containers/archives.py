"""Tar and zip archives: the files in them, one after another, each of whatever kind; nothing is ever written out.

A member's name is shown and used for nothing else. Sizes and numbers are bounded, whatever the archive claims.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kvtune.tokenization.containers.item import Item, stream_break
from kvtune.tokenization.errors import KvtuneError
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.sources import CHUNK_BYTES, BrokenStreamError, compression_of, measured, unpacked

ZIP_MAGIC = b"PK\x03\x04"
_TAR_MARK = b"ustar"
_TAR_MARK_AT = 257
_MOST_MEMBERS = 1_000_000
_MOST_EXPANSION = 1000
_LONGEST_READ = 64 << 20  # of a header; contents are read in chunks
_LONGEST_NAME = 100
_PIECE = 64 << 10  # of a member that is cut, what is lost at most
_NOT_LOGS = ("__MACOSX/", ".DS_Store")

ReadStream = Callable[[str, Iterator[bytes]], Iterator[Item]]


class _Member(NamedTuple):
    name: str
    chunks: Iterator[bytes]


_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    OSError,
    EOFError,
)
"""What the libraries raise for an archive that is damaged or locked."""


def is_tar(head: bytes) -> bool:
    """Whether a file that begins like this is a tar archive."""
    return head[_TAR_MARK_AT : _TAR_MARK_AT + len(_TAR_MARK)] == _TAR_MARK


def read_tar(name: str, chunks: Iterable[bytes], read: ReadStream) -> Iterator[Item]:
    """The records of each file in a tar archive, in its order; `read` reads one file."""
    return _read_members(name, _tar_members(chunks), read)


def read_zip(name: str, chunks: Iterable[bytes], read: ReadStream) -> Iterator[Item]:
    """The records of each file in a zip archive, in its order; `read` reads one file."""
    return _read_members(name, _zip_members(chunks), read)


def _read_members(name: str, members: Iterator[_Member], read: ReadStream) -> Iterator[Item]:
    try:
        for number, member in enumerate(members):
            if number >= _MOST_MEMBERS:
                raise BrokenStreamError(
                    "decompression_bomb",
                    "more files than that",
                    f"at most {_MOST_MEMBERS} files in an archive",
                )
            if member.name.startswith(_NOT_LOGS) or member.name.rpartition("/")[2].startswith("."):
                continue
            where = f"{name}!{_shown(member.name)}"
            try:
                yield from read(where, _unpacked(member.chunks))
            except KvtuneError as error:  # one file of many: the others are read on
                yield Item(
                    f"{where}:1",
                    RecordError(
                        "unknown_format", None, found=error.found or error.what, wanted="a trace file"
                    ),
                    (),
                )
    except BrokenStreamError as error:
        yield Item(f"{name}:1", stream_break(error), ())
    except _BROKEN as error:
        yield Item(f"{name}:1", stream_break(_broken(error)), ())


def _shown(name: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in name[-_LONGEST_NAME:])


def _unpacked(chunks: Iterator[bytes]) -> Iterator[bytes]:
    head = b""
    chunks = _guarded(chunks)
    for chunk in chunks:
        head += chunk
        if len(head) >= 16:
            break
    return unpacked(_chain(head, chunks), compression_of(head))


def _guarded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same chunks; where the archive breaks, the error of every broken stream: whoever reads on knows that one."""
    try:
        yield from chunks
    except _BROKEN as error:
        raise _broken(error) from error


def _broken(error: Exception) -> BrokenStreamError:
    return BrokenStreamError("corrupt_compression", type(error).__name__, "a whole archive without password")


def _chain(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest


def _tar_members(chunks: Iterable[bytes]) -> Iterator[_Member]:
    with tarfile.open(fileobj=_Stream(iter(chunks)), mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() and not member.issparse() else None
            if file is not None:
                yield _Member(member.name, iter(lambda file=file: file.read(_PIECE), b""))  # type: ignore[misc]


class _Stream(io.RawIOBase):
    """Chunks as a file that is read once, never more than so much at a time."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, fewer at the end."""
        if not 0 <= size <= _LONGEST_READ:
            raise BrokenStreamError(
                "decompression_bomb", "a header of that length", f"at most {_LONGEST_READ} bytes"
            )
        pieces = [self._left]
        missing = size - len(self._left)
        while missing > 0:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            pieces.append(chunk)
            missing -= len(chunk)
        whole = b"".join(pieces)
        self._left = whole[size:]
        return whole[:size]


def _zip_members(chunks: Iterable[bytes]) -> Iterator[_Member]:
    # The list of files stands at a zip archive's end; the stream is copied so that stdin and the digest work.
    with tempfile.TemporaryFile() as copy:
        for chunk in chunks:
            copy.write(chunk)
        with zipfile.ZipFile(copy) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                with archive.open(info) as file:
                    pieces = iter(lambda file=file: file.read(CHUNK_BYTES), b"")  # type: ignore[misc]
                    yield _Member(info.filename, measured(pieces, [info.compress_size], _MOST_EXPANSION))
