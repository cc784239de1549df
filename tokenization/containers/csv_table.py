"""CSV: a header, then a record a row; cells that hold JSON are decoded. Quoted cells may hold line ends."""

from __future__ import annotations

import ast
import csv
import io
import re
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from kvtune.tokenization.containers.item import Item, stream_break, too_long
from kvtune.tokenization.lines import LineSplitter, OverlongLine
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.sources import BrokenStreamError
from kvtune.tokenization.strict_json import StrictDecoder, bad_utf8

_DELIMITERS = (",", ";", "\t")
_SHORTEST_NAME = 2
_PUNCTUATION = re.compile(r"[_ .()\[\]/:@#-]")
_UNIT = re.compile(r"\s*[(\[][^()\[\]]*[)\]]$")  # "prompt (text)"


def is_csv(head: bytes) -> bool:
    """Whether the first line is a CSV header: at least one plain column name, and not JSON or prose."""
    line, _, rest = head.lstrip(b" \t\r\n").partition(b"\n")
    first = line.decode("utf-8", "replace").strip()
    if not first or first[0] in "{[" or rest.lstrip().startswith(b"{"):
        return False
    names = _cells(first.encode(), _delimiter(first))
    if names and not names[0]:
        names = names[1:]  # a data frame's index has no name
    return (
        bool(names)
        and names is not None
        and all(len(name) <= 60 and _PUNCTUATION.sub("", name).isalnum() for name in names)
        and (
            len(names) >= _SHORTEST_NAME
            or names[0].lower() in ("request", "prompt", "messages", "body", "text")
        )
        and len(set(names)) > len(names) // 2  # a data frame's index may be a column again
        and not all(name.replace(".", "").isdecimal() for name in names)
    )


def read_csv(
    name: str, chunks: Iterable[bytes], decoder: StrictDecoder, max_line_bytes: int
) -> Iterator[Item]:
    """The rows as records, by column name; empty cells are left out.

    A quote that never closes spoils its own line only: what follows it is read anew.
    """
    csv.field_size_limit(min(max_line_bytes, sys.maxsize))
    lines = _Lines(LineSplitter(chunks, max_line_bytes))
    header: list[str] = []
    delimiter = ","
    for number, line in lines:
        where = f"{name}:{number}"
        if isinstance(line, OverlongLine):
            yield Item(where, too_long(max_line_bytes), line.pieces)
            continue
        row = _with_open_quotes(line, number, lines, max_line_bytes)
        text = b"\n".join(row)
        if not text.strip():
            continue
        if not header:
            delimiter = _delimiter(text.decode("utf-8", "replace"))
            header = _plain_names(_cells(text.decode("utf-8", "replace").encode(), delimiter) or [""])
            continue
        record = _record(text, header, delimiter, decoder)
        if isinstance(record, RecordError) and line.count(b'"') % 2:
            lines.put_back([(number + offset, later) for offset, later in enumerate(row)][1:])
            record = RecordError(
                "cut_line", None, found="a quote that never closes", wanted="a whole CSV row"
            )
            text = line
        yield Item(where, record, (text,))
    if lines.broken:
        yield Item(f"{name}:{lines.last + 1}", stream_break(lines.broken), ())


def _plain_names(header: list[str]) -> list[str]:
    """Column names without units in brackets, and with underscores for hyphens, unless two would be one."""
    plain = [_UNIT.sub("", name).replace("-", "_").strip() for name in header]
    return plain if len(set(plain)) == len(set(header)) else header


def _with_open_quotes(line: bytes, number: int, lines: _Lines, limit: int) -> list[bytes]:
    """The line, and those after it while a quote is open, up to the limit."""
    row = [line]
    quotes, size = line.count(b'"'), len(line)
    while quotes % 2 and size <= limit:
        follows = next(lines, None)
        if follows is None:
            break
        number, more = follows
        if isinstance(more, OverlongLine):
            lines.put_back([(number, more)])
            break
        row.append(more)
        quotes += more.count(b'"')
        size += len(more) + 1
    return row


class _Lines(Iterator[tuple[int, bytes | OverlongLine]]):
    """Numbered lines, some of which can be put back and come again."""

    def __init__(self, splitter: LineSplitter) -> None:
        self._splitter = splitter
        self._fresh = iter(splitter)
        self._again: deque[tuple[int, bytes | OverlongLine]] = deque()
        self.last = 0

    def __next__(self) -> tuple[int, bytes | OverlongLine]:
        line = self._again.popleft() if self._again else next(self._fresh)
        self.last = line[0]
        return line

    def put_back(self, lines: Sequence[tuple[int, bytes | OverlongLine]]) -> None:
        """These come next, in this order."""
        self._again.extendleft(reversed(lines))

    @property
    def broken(self) -> BrokenStreamError | None:
        """The error with which the stream ended early."""
        return self._splitter.broken


def _record(
    text: bytes, header: list[str], delimiter: str, decoder: StrictDecoder
) -> dict[str, Any] | RecordError:
    try:
        cells = _cells(text, delimiter)
    except RecordError as error:
        return error
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
                record[column] = _literal(cell)  # or text that merely begins like JSON
                continue
        record[column] = cell
    return record


_PYTHON = re.compile(r"[\[{]\s*(?:[\[{]\s*)?'")
_LONGEST_LITERAL = 16 << 20


def _literal(cell: str) -> Any:
    """What Python wrote as a list or dict (a data frame's cell in CSV); other texts as they are."""
    if len(cell) > _LONGEST_LITERAL or _PYTHON.match(cell) is None:
        return cell
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes that Python knows not
            value = ast.literal_eval(cell)
        msgspec.json.encode(value)  # plain data, and no half characters
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return cell
    return value


def _delimiter(header: str) -> str:
    return max(_DELIMITERS, key=header.count)


def _cells(row: bytes, delimiter: str) -> list[str] | None:
    """The cells of a row, None where it is none; raises `RecordError` where it is not UTF-8."""
    try:
        text = str(row, "utf-8")
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except UnicodeDecodeError as error:
        raise bad_utf8(error) from None
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 else None
