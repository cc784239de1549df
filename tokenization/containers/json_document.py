"""JSON documents: an array of records, one record over many lines, or several one after another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from kvtune.tokenization.containers.item import Item, stream_break, too_long
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.sources import BrokenStreamError
from kvtune.tokenization.strict_json import StrictDecoder

_elements = msgspec.json.Decoder(list[msgspec.Raw])
LF = b"\n"
_WIDEST_MARGIN = 200
_BETWEEN = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")


def is_document(head: bytes) -> bool:
    """Whether a file that begins like this holds documents and not a record a line.

    `head` is the file's beginning: its first line, and as much of the second as fits.
    """
    start = head.lstrip(b" \t\r\n")
    first, newline, rest = start.partition(b"\n")
    if start[:1] == b"[":
        holds_records = start[1:].lstrip()[:1] in (b"{", b"]", b"")
        return holds_records and not (newline and rest.strip() and _is_whole(first))
    if start[:1] != b"{" or not newline:
        return False
    following = rest.lstrip(b"\r\n")
    unfinished = first.rstrip().endswith((b"{", b"[", b",", b":"))
    return unfinished and not following.startswith(b"{") and not _is_whole(first)


def _is_whole(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def read_document(name: str, chunks: Iterable[bytes], decoder: StrictDecoder, limit: int) -> Iterator[Item]:
    """The records of a document of at most `limit` bytes; of a broken array, those before the break."""
    pieces: list[bytes] = []
    size = 0
    broken: BrokenStreamError | None = None
    rest = iter(chunks)
    try:
        for chunk in rest:
            pieces.append(chunk)
            size += len(chunk)
            if size > limit:
                everything = _again(pieces, rest)
                yield Item(f"{name}:1", too_long(limit), everything)
                for _ in everything:
                    pass
                return
    except BrokenStreamError as error:
        broken = error
    whole = b"".join(pieces)
    pieces.clear()
    text = whole.strip(b" \t\r\n")
    line = 1 + whole.count(b"\n", 0, whole.find(text))
    told = False
    for item in _records(name, text, line, decoder):
        if broken and isinstance(item.value, RecordError):
            item, told = item._replace(value=stream_break(broken)), True
        yield item
    if broken and not told:
        yield Item(f"{name}:{line + text.count(LF)}", stream_break(broken), ())


def _again(pieces: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    yield from pieces
    with suppress(BrokenStreamError):  # it is rejected already
        yield from rest


def _records(name: str, text: bytes, line: int, decoder: StrictDecoder) -> Iterator[Item]:
    at = 0
    for part in _parts(text):
        begin = text.find(part, at)
        line += text.count(LF, at, begin)
        where = f"{name}:{line}"
        try:
            yield Item(where, decoder.decode_object(part), (part,))
        except RecordError as error:
            yield Item(where, error, (part,))
        line += text.count(LF, begin, begin + len(part))
        at = begin + len(part)


def _parts(text: bytes) -> Iterable[bytes]:
    """The texts of an array's elements, or of values that follow one another."""
    if text[:1] == b"[":
        try:
            return [bytes(raw) for raw in _elements.decode(text)]
        except (msgspec.MsgspecError, RecursionError):
            return _salvaged(text, 1)
    return [text] if _is_whole(text) else _salvaged(text, 0)


def values_in(text: bytes) -> Iterator[bytes]:
    """The values that follow one another in a text."""
    return _salvaged(text, 0)


def _salvaged(text: bytes, at: int) -> Iterator[bytes]:
    """The values that follow one another from `at` on; from one that cannot be read on, by their lines."""
    string = text.decode("utf-8", "surrogateescape")
    is_array = text[:1] == b"["
    decode = json.JSONDecoder().raw_decode
    margin: str | None = None
    while True:
        gap = _BETWEEN.match(string, at)
        at = gap.end() if gap else at
        if at == len(string):
            if is_array:
                yield b""  # the closing bracket is missing: rejected by name like any other cut
            return
        if is_array and string[at] == "]" and at + 1 == len(string):
            return
        before = string[string.rfind("\n", max(0, at - _WIDEST_MARGIN), at) + 1 : at]
        if string[at] == "{" and (margin is None or not before.strip()):
            margin = before
        try:
            _, end = decode(string, at)
        except (ValueError, RecursionError):
            yield from _by_margin(string[at:], margin, is_array)
            return
        yield string[at:end].encode("utf-8", "surrogateescape")
        at = end


def _by_margin(string: str, margin: str | None, is_array: bool) -> Iterator[bytes]:
    """Splits at lines that open an object where the objects before began: no string holds such a line end."""
    if margin is None or margin.strip():
        yield string.encode("utf-8", "surrogateescape")
        return
    first, *others = string.split(f"\n{margin}{{")
    for part in (first, *(f"{{{other}" for other in others)):
        whole = part.rstrip(", \t\r\n")
        if is_array and whole.endswith("]"):
            whole = whole[:-1].rstrip(", \t\r\n")
        yield whole.encode("utf-8", "surrogateescape")
