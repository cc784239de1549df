"""Opening a trace: path, URL or stdin, compressed by content, byte-order marks, UTF-16, a digest of the raw bytes.

Gives UTF-8 in chunks of bounded size, whatever the file does; knows nothing of lines, JSON and formats.
"""

from __future__ import annotations

import codecs
import hashlib
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.remote import open_remote

STDIN = "-"
CHUNK_BYTES = 1 << 20
_GZIP_PIECE_BYTES = 16 << 10
_ZSTD_PIECE_BYTES = 2048  # 2 KiB of zstd expand to 64 MiB at the very most
_FREE_BYTES = 64 << 20  # below this much output no ratio is suspicious
_MOST_EXPANSION = {
    "gzip": 500,
    "zstd": 1000,
    "bzip2": 1000,
    "xz": 1000,
}  # chat logs: about 200, a long window
_XZ_MEMORY = 256 << 20

_UNREADABLE = (
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"SQLite format 3\x00", "an SQLite database"),
)

Progress = Callable[[int, int | None], None]
"""Called with the raw bytes read so far and the file's size (None for stdin)."""


class BrokenStreamError(Exception):
    """The compressed stream ends or breaks here; what came before is good."""

    def __init__(self, reason: str, found: str, wanted: str) -> None:
        self.reason = reason
        self.found = found
        self.wanted = wanted
        super().__init__(reason)


class RawFile:
    """A file's bytes as they are stored, in chunks; opened at the first, closed after the last.

    No generator: one that a broken decompressor leaves half read would be closed with it, and the digest must
    still come to cover the whole file.

    Attributes:
        bytes_read: so far.
        digest: SHA-256 so far.
    """

    def __init__(self, name: str, stdin: BinaryIO | None = None, progress: Progress | None = None) -> None:
        self.name = name
        self.bytes_read = 0
        self.digest = hashlib.sha256()
        self._stdin = stdin
        self._progress = progress
        self._file: BinaryIO | None = None
        self._size: int | None = None
        self._done = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._done:
            raise StopIteration
        try:
            if self._file is None:
                self._open()
            chunk = self._file.read(CHUNK_BYTES) if self._file else b""
        except OSError as error:
            raise UnusableInputError(
                "cannot be read",
                where=self.name,
                found=error.strerror or type(error).__name__,
                wanted="a readable file",
            ) from error
        if not chunk:
            self._close()
            raise StopIteration
        self.bytes_read += len(chunk)
        self.digest.update(chunk)
        if self._progress:
            self._progress(self.bytes_read, self._size)
        return chunk

    def _open(self) -> None:
        if self.name == STDIN:
            self._file = self._stdin or sys.stdin.buffer
            return
        if "://" in self.name:
            self._file = open_remote(self.name)
            return
        path = Path(self.name)
        self._file = path.open("rb", buffering=0)
        self._size = path.stat().st_size

    def _close(self) -> None:
        self._done = True
        if self._file and self.name != STDIN:
            self._file.close()


class Source:
    """One trace file, read once from front to end.

    Attributes:
        name: the path as given, or "-".
        compression: "gzip", "zstd", "bzip2", "xz" or None, known once reading began.
        encoding: "utf-8", "utf-16" or "utf-32", known once reading began.
    """

    def __init__(self, name: str, *, stdin: BinaryIO | None = None, progress: Progress | None = None) -> None:
        self.name = name
        self.compression: str | None = None
        self.encoding = "utf-8"
        self._raw = RawFile(name, stdin, progress)

    @property
    def bytes_read(self) -> int:
        """Raw bytes read so far."""
        return self._raw.bytes_read

    def whole_digest(self) -> bytes:
        """SHA-256 over the file's raw bytes; what is left of a file that broke off is read for it."""
        for _ in self._raw:
            pass
        return self._raw.digest.digest()

    def chunks(self) -> Iterator[bytes]:
        """UTF-8 text in chunks; raises `BrokenStreamError` where compressed data ends too early or is absurd.

        Raises `UnusableInputError` where the file cannot be opened or is of a kind that is not read.
        """
        return _to_utf8(self._decompressed(), self)

    def _decompressed(self) -> Iterator[bytes]:
        head = b""
        for chunk in self._raw:
            head += chunk
            if len(head) >= 16:
                break
        self._refuse_archives(head)
        self.compression = compression_of(head)
        return unpacked(_chain(head, self._raw), self.compression)

    def _refuse_archives(self, head: bytes) -> None:
        for magic, what in _UNREADABLE:
            if head.startswith(magic):
                raise UnusableInputError(
                    "not a trace file",
                    where=self.name,
                    found=what,
                    wanted="text, gzip, zstd, bzip2, xz, tar, zip or Parquet",
                    way_out="unpack or export it first",
                )


def compression_of(head: bytes) -> str | None:
    """How a file that begins like this is compressed, None where it is not."""
    return next((name for magic, name in _COMPRESSED if head.startswith(magic)), None)


_COMPRESSED = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
)


def unpacked(chunks: Iterator[bytes], compression: str | None) -> Iterator[bytes]:
    """The chunks, decompressed; raises `BrokenStreamError` where the data breaks or expands beyond all measure."""
    if compression is None:
        return chunks
    taken = [0]
    unpack = {"gzip": _gunzip, "zstd": _unzstd, "bzip2": _unbzip2, "xz": _unxz}[compression]
    return measured(unpack(_counted(chunks, taken)), taken, _MOST_EXPANSION[compression])


def _counted(chunks: Iterator[bytes], taken: list[int]) -> Iterator[bytes]:
    for chunk in chunks:
        taken[0] += len(chunk)
        yield chunk


def measured(chunks: Iterator[bytes], taken: Sequence[int], most: int) -> Iterator[bytes]:
    """Passes chunks on until they are more than `most` times the bytes `taken` so far."""
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > _FREE_BYTES and total > most * taken[0]:
            raise BrokenStreamError(
                "decompression_bomb",
                f"{total >> 20} MiB out of {taken[0]} bytes",
                f"at most {most} times the compressed size",
            )
        yield chunk


def combined_digest(digests: Sequence[bytes]) -> str:
    """One hex digest for a trace: the file's own SHA-256 where there is one file, else that of the digests in order."""
    if len(digests) == 1:
        return digests[0].hex()
    return hashlib.sha256(b"".join(digests)).hexdigest()


def digest_of_files(names: Iterable[str]) -> str:
    """The digest that reading these files would give, without reading them as a trace."""
    return combined_digest([Source(name).whole_digest() for name in names])


def _chain(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest


def _gunzip(raw: Iterator[bytes]) -> Iterator[bytes]:
    """All members of a gzip file; zero padding after the last is let pass."""
    inflate = zlib.decompressobj(wbits=31)
    started = False
    for piece in _pieces(raw, _GZIP_PIECE_BYTES):
        data = piece
        while data:
            if not started:
                data = data.lstrip(b"\0")
                if not data:
                    break
            started = True
            try:
                out = inflate.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                raise BrokenStreamError("corrupt_compression", "damaged gzip data", "valid gzip") from error
            if out:
                yield out
            data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            if inflate.eof:
                inflate = zlib.decompressobj(wbits=31)
                started = False
    if started:
        raise BrokenStreamError(
            "truncated_gzip", "the end of the file inside a gzip stream", "a whole gzip file"
        )


def _unzstd(raw: Iterator[bytes]) -> Iterator[bytes]:
    """All frames of a zstd file."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    started = False
    for piece in _pieces(raw, _ZSTD_PIECE_BYTES):
        data = piece
        while data:
            started = True
            try:
                out = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise BrokenStreamError("corrupt_compression", "damaged zstd data", "valid zstd") from error
            if out:
                yield out
            data = b""
            if frame.eof:
                data = frame.unused_data
                frame = decompressor.decompressobj()
                started = False
    if started:
        raise BrokenStreamError(
            "truncated_gzip", "the end of the file inside a zstd stream", "a whole zstd file"
        )


def _unbzip2(raw: Iterator[bytes]) -> Iterator[bytes]:
    """All streams of a bzip2 file."""
    import bz2

    return _streams(raw, bz2.BZ2Decompressor, "bzip2", OSError)


def _unxz(raw: Iterator[bytes]) -> Iterator[bytes]:
    """All streams of an xz file."""
    import lzma

    return _streams(raw, lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY), "xz", lzma.LZMAError)


def _streams(
    raw: Iterator[bytes], new: Callable[[], Any], name: str, failure: type[Exception]
) -> Iterator[bytes]:
    """Decompresses stream after stream, a bounded piece of output at a time."""
    stream = new()
    started = False
    for piece in _pieces(raw, _GZIP_PIECE_BYTES):
        data = piece
        while data or (started and not stream.needs_input):
            if not started:
                data = data.lstrip(b"\0")
                if not data:
                    break
            started = True
            try:
                out = stream.decompress(data, CHUNK_BYTES)
            except failure as error:
                raise BrokenStreamError(
                    "corrupt_compression", f"damaged {name} data", f"valid {name}"
                ) from error
            if out:
                yield out
            data = b""
            if stream.eof:
                data = stream.unused_data
                stream = new()
                started = False
    if started:
        raise BrokenStreamError(
            "truncated_gzip", f"the end of the file inside a stream of {name}", f"a whole {name} file"
        )


def _pieces(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in small pieces: what a decompressor hands back is copied, and may be nearly all of a piece."""
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]


_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _to_utf8(chunks: Iterator[bytes], source: Source) -> Iterator[bytes]:
    """Drops a byte-order mark; recodes UTF-16 and UTF-32 that carry one.

    What those cannot decode becomes bytes that are no UTF-8, so the line that holds them is rejected by name.
    """
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= 4:
            break
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            source.encoding = encoding
            if encoding == "utf-8":
                head = head[len(mark) :]
            break
    if source.encoding == "utf-8":
        yield from _chain(head, chunks)
        return
    decoder = codecs.getincrementaldecoder(source.encoding)("surrogatepass")
    for chunk in _chain(head, chunks):
        yield _recode(decoder, chunk, final=False)
    yield _recode(decoder, b"", final=True)


def _recode(decoder: codecs.IncrementalDecoder, chunk: bytes, *, final: bool) -> bytes:
    try:
        return decoder.decode(chunk, final).encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        decoder.reset()
        return b"\xff"
