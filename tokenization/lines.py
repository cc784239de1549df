"""Bytes to lines: split at LF only, each at most so long; a longer one is handed on in pieces, never held whole.

U+2028, U+0085 and other characters that Unicode calls line breaks are ordinary text here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvtune.tokenization.sources import BrokenStreamError


@dataclass(frozen=True)
class OverlongLine:
    """A line over the limit; its bytes can be taken once, before the next line is asked for."""

    pieces: Iterator[bytes]


class LineSplitter:
    """Iterates over `(number, line)`, numbers from 1, lines without their LF or CRLF.

    `broken` holds the error with which the stream ended early, if it did; the bytes after the last line end
    then come as the last line.
    """

    def __init__(self, chunks: Iterable[bytes], max_line_bytes: int) -> None:
        self._chunks = iter(chunks)
        self._limit = max_line_bytes
        self._left = b""  # what followed an overlong line in its last chunk
        self._carry: list[bytes] = []  # the unfinished line, in pieces
        self._carry_bytes = 0
        self.broken: BrokenStreamError | None = None

    def __iter__(self) -> Iterator[tuple[int, bytes | OverlongLine]]:
        number = 0
        while (chunk := self._next_chunk()) is not None:
            first, *others = chunk.split(b"\n")
            self._push(first)
            for line in others:
                number += 1
                if self._carry_bytes > self._limit:
                    yield number, OverlongLine(iter(self._take()))
                else:
                    yield number, _without_cr(b"".join(self._take()))
                self._push(line)
            if self._carry_bytes > self._limit:
                number += 1
                pieces = self._rest_of_line()
                yield number, OverlongLine(pieces)
                for _ in pieces:
                    pass
        if self._carry_bytes:
            yield number + 1, _without_cr(b"".join(self._take()))

    def _rest_of_line(self) -> Iterator[bytes]:
        yield from self._take()
        while (chunk := self._next_chunk()) is not None:
            line, found, self._left = chunk.partition(b"\n")
            yield line
            if found:
                return

    def _next_chunk(self) -> bytes | None:
        if self._left:
            chunk, self._left = self._left, b""
            return chunk
        try:
            return next(self._chunks, None)
        except BrokenStreamError as error:
            self.broken = error
            return None

    def _push(self, piece: bytes) -> None:
        if piece:
            self._carry.append(piece)
            self._carry_bytes += len(piece)

    def _take(self) -> list[bytes]:
        pieces, self._carry, self._carry_bytes = self._carry, [], 0
        return pieces


def _without_cr(line: bytes) -> bytes:
    return line[:-1] if line.endswith(b"\r") else line
