"""A record a line: JSON objects, and lines of a server's log where a format reads those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvtune.tokenization.containers.item import Item, stream_break, timed, too_long
from kvtune.tokenization.containers.json_document import values_in
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
    begins, concatenated = True, False
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
                objects = values_in(text) if concatenated or begins else None
                for item in _objects(where, text, line, decoder, objects):
                    concatenated = concatenated or item.where != where
                    yield item
                begins = False
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


def _objects(
    where: str, text: bytes, line: bytes, decoder: StrictDecoder, objects: Iterator[bytes] | None
) -> Iterator[Item]:
    """The line's object; its objects where a sink writes them one after another without line ends."""
    try:
        yield Item(where, decoder.decode_object(text), (line,))
    except RecordError as error:
        parts = list(objects) if objects is not None and error.reason == "two_values" else []
        if len(parts) < 2 or not all(part.startswith(b"{") for part in parts):
            raise
        for number, part in enumerate(parts):
            name = f"{where}/{number}" if number else where
            try:
                yield Item(name, decoder.decode_object(part), (part,))
            except RecordError as fault:
                yield Item(name, fault, (part,))
