"""CSV: a header, then a record a row; cells that hold JSON are decoded. Quoted cells may hold line ends."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from kvtune.tokenization.containers.item import Item, stream_break, too_long
from kvtune.tokenization.lines import LineSplitter, OverlongLine
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.strict_json import StrictDecoder

_DELIMITERS = (",", ";", "\t")
_SHORTEST_NAME = 2


def is_csv(head: bytes) -> bool:
    """Whether the first line is a CSV header: at least one plain column name, and not JSON or prose."""
    line, _, rest = head.lstrip(b" \t\r\n").partition(b"\n")
    first = line.decode("utf-8", "replace").strip()
    if not first or first[0] in "{[" or rest.lstrip().startswith(b"{"):
        return False
    names = _cells(first, _delimiter(first))
    return (
        names is not None
        and all(
            len(name) <= 60 and name.replace("_", "").replace(" ", "").replace(".", "").isalnum()
            for name in names
        )
        and (
            len(names) >= _SHORTEST_NAME
            or names[0].lower() in ("request", "prompt", "messages", "body", "text")
        )
        and len(set(names)) == len(names)
        and not all(name.replace(".", "").isdecimal() for name in names)
    )


def read_csv(
    name: str, chunks: Iterable[bytes], decoder: StrictDecoder, max_line_bytes: int
) -> Iterator[Item]:
    """The rows as records, by column name; empty cells are left out."""
    csv.field_size_limit(min(max_line_bytes, sys.maxsize))
    header: list[str] | None = None
    delimiter = ","
    for number, row, error in _rows(chunks, max_line_bytes):
        where = f"{name}:{number}"
        if isinstance(row, OverlongLine) or error is not None:
            pieces = row.pieces if isinstance(row, OverlongLine) else (row,)
            yield Item(where, error or too_long(max_line_bytes), pieces)
            continue
        if not row.strip():
            continue
        try:
            text = str(row, "utf-8")
        except UnicodeDecodeError:
            bad = RecordError("invalid_utf8", None, found="bytes that are no text", wanted="UTF-8")
            yield Item(where, bad, (row,))
            continue
        if header is None:
            delimiter = _delimiter(text)
            header = _cells(text, delimiter) or []
            continue
        yield Item(where, _record(text, header, delimiter, decoder), (row,))


def _record(
    text: str, header: list[str], delimiter: str, decoder: StrictDecoder
) -> dict[str, Any] | RecordError:
    cells = _cells(text, delimiter)
    if cells is None or len(cells) != len(header):
        found = "a row that cannot be read" if cells is None else f"{len(cells)} cells"
        return RecordError("wrong_type", None, found=found, wanted=f"{len(header)} cells as in the header")
    record: dict[str, Any] = {}
    for column, cell in zip(header, cells, strict=True):
        if not cell:
            continue
        if cell[0] in "{[":
            try:
                record[column] = decoder.decode(cell.encode())
                continue
            except RecordError:
                pass  # text that merely begins like JSON
        record[column] = cell
    return record


def _rows(
    chunks: Iterable[bytes], limit: int
) -> Iterator[tuple[int, bytes | OverlongLine, RecordError | None]]:
    """Rows with the number of their first line: lines are joined while a quote is open."""
    splitter = LineSplitter(chunks, limit)
    open_lines: list[bytes] = []
    first = number = 0
    quotes = size = 0
    for number, line in splitter:
        if isinstance(line, OverlongLine):
            yield from _give_up(first, open_lines)
            open_lines, quotes, size = [], 0, 0
            yield number, line, None
            continue
        if not open_lines:
            first = number
        open_lines.append(line)
        quotes += line.count(b'"')
        size += len(line) + 1
        if quotes % 2 == 0:
            yield first, b"\n".join(open_lines), None
            open_lines, quotes, size = [], 0, 0
        elif size > limit:
            yield from _give_up(first, open_lines)
            open_lines, quotes, size = [], 0, 0
    yield from _give_up(first, open_lines)
    if splitter.broken:
        yield number + 1, b"", stream_break(splitter.broken)


def _give_up(first: int, lines: list[bytes]) -> Iterator[tuple[int, bytes, RecordError | None]]:
    """A quote that never closes spoils its own line; those after it are read as rows of their own."""
    for offset, line in enumerate(lines):
        error = None
        if line.count(b'"') % 2:
            error = RecordError("cut_line", None, found="a quote that never closes", wanted="a whole CSV row")
        yield first + offset, line, error


def _delimiter(header: str) -> str:
    return max(_DELIMITERS, key=header.count)


def _cells(text: str, delimiter: str) -> list[str] | None:
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 else None
