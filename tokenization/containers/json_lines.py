"""A record a line: JSON objects, and lines of a server's log where a format reads those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvtune.tokenization.containers.item import Item, stream_break, timed, too_long
from kvtune.tokenization.containers.server_log import LogLines
from kvtune.tokenization.lines import LineSplitter, OverlongLine
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.strict_json import StrictDecoder


def read_lines(
    name: str, chunks: Iterable[bytes], decoder: StrictDecoder, max_line_bytes: int
) -> Iterator[Item]:
    """The records of a file of lines; blank lines are passed over."""
    lines = LineSplitter(chunks, max_line_bytes)
    log = LogLines(max_line_bytes)
    number = 0
    for number, line in lines:
        where = f"{name}:{number}"
        if isinstance(line, OverlongLine):
            yield Item(where, too_long(max_line_bytes), line.pieces)
            continue
        text = line.strip(b" \t\r")
        if not text:
            continue
        try:
            if text[:1] == b"{":
                yield Item(where, decoder.decode_object(text), (line,))
                continue
            taken = log.take(line)
            if taken.record is None:
                yield Item(where, timed(decoder.decode_object(taken.text), taken.time), (line,))
            elif taken.record:
                yield Item(where, taken.record, (line,))
        except RecordError as error:
            if lines.broken:
                yield Item(where, stream_break(lines.broken), (line,))
                return
            yield Item(where, error, (line,))
    if lines.broken:
        yield Item(f"{name}:{number + 1}", stream_break(lines.broken), ())
