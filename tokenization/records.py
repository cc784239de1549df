"""A file's records, one after another: JSON lines so far; what cannot be one comes as the error that says why.

Knows how records are packed, not what is in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvtune.tokenization.formats.format import Record
from kvtune.tokenization.lines import LineSplitter, OverlongLine
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.sources import BrokenStreamError, Source
from kvtune.tokenization.strict_json import StrictDecoder


class Item(NamedTuple):
    """A record or the reason why there is none, where it stands ("file:line"), and its bytes in pieces."""

    where: str
    value: Record | RecordError
    pieces: Iterable[bytes]


def records_of(source: Source, decoder: StrictDecoder, max_line_bytes: int) -> Iterator[Item]:
    """The records of a file, in file order."""
    return _json_lines(source, decoder, max_line_bytes)


def _json_lines(source: Source, decoder: StrictDecoder, max_line_bytes: int) -> Iterator[Item]:
    lines = LineSplitter(source.chunks(), max_line_bytes)
    number = 0
    for number, line in lines:
        where = f"{source.name}:{number}"
        if isinstance(line, OverlongLine):
            yield Item(where, _too_long(max_line_bytes), line.pieces)
            continue
        text = line.strip(b" \t\r")
        if not text:
            continue
        try:
            yield Item(where, decoder.decode_object(text), (line,))
        except RecordError as error:
            if lines.broken:
                yield Item(where, _broken(lines.broken), (line,))
                return
            yield Item(where, error, (line,))
    if lines.broken:
        yield Item(f"{source.name}:{number + 1}", _broken(lines.broken), ())


def _too_long(limit: int) -> RecordError:
    return RecordError(
        "line_too_long",
        None,
        found=f"more than {limit} bytes",
        wanted=f"at most {limit} bytes (--max-line-bytes)",
    )


def _broken(error: BrokenStreamError) -> RecordError:
    return RecordError(error.reason, None, found=error.found, wanted=error.wanted)
