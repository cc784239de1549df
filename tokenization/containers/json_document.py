"""One JSON document for a whole file: an array of records, one record, or an object around a list of records."""

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
_WRAPPERS = ("data", "rows", "items", "observations")  # pages of an API's answer
_BETWEEN = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")


def is_document(head: bytes) -> bool:
    """Whether a file that begins like this is one JSON document and not a record a line.

    `head` is the file's beginning: its first line, and as much of the second as fits.
    """
    start = head.lstrip(b" \t\r\n")
    first, newline, rest = start.partition(b"\n")
    if start[:1] == b"[":
        return not (newline and rest.strip() and _is_whole(first))
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
                whole = _again(pieces, rest)
                yield Item(f"{name}:1", too_long(limit), whole)
                for _ in whole:
                    pass
                return
    except BrokenStreamError as error:
        broken = error
    text = b"".join(pieces).strip(b" \t\r\n")
    pieces.clear()
    if text[:1] == b"[":
        yield from _array(name, text, decoder, broken)
    else:
        yield from _object(name, text, decoder, broken)


def _again(pieces: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    yield from pieces
    with suppress(BrokenStreamError):  # it is rejected already
        yield from rest


def _object(
    name: str, text: bytes, decoder: StrictDecoder, broken: BrokenStreamError | None
) -> Iterator[Item]:
    where = f"{name}:1"
    try:
        record = decoder.decode_object(text)
    except RecordError as error:
        yield Item(where, stream_break(broken) if broken else error, (text,))
        return
    for wrapper in _WRAPPERS:
        inner = record.get(wrapper)
        if isinstance(inner, list) and inner and all(isinstance(one, dict) for one in inner):
            for one in inner:
                yield Item(where, one, (msgspec.json.encode(one),))
            return
    yield Item(where, record, (text,))


def _array(
    name: str, text: bytes, decoder: StrictDecoder, broken: BrokenStreamError | None
) -> Iterator[Item]:
    try:
        elements: Iterable[bytes] = (bytes(raw) for raw in _elements.decode(text))
    except (msgspec.MsgspecError, RecursionError):
        elements = _salvaged(text)
    at = 0
    line = 1
    for element in elements:
        begin = text.find(element, at)
        line += text.count(b"\n", at, begin)
        at = begin
        try:
            yield Item(f"{name}:{line}", decoder.decode_object(element), (element,))
        except RecordError as error:
            yield Item(f"{name}:{line}", stream_break(broken) if broken else error, (element,))
        line += text.count(b"\n", at, at + len(element))
        at += len(element)


def _salvaged(text: bytes) -> Iterator[bytes]:
    """The elements of a broken array up to the break, then all the rest as one."""
    string = text.decode("utf-8", "surrogateescape")
    decode = json.JSONDecoder().raw_decode
    at = 1
    while True:
        gap = _BETWEEN.match(string, at)
        at = gap.end() if gap else at
        if string[at : at + 1] in ("", "]"):
            rest = string[at + 1 :] if string[at : at + 1] else ""
            if rest.strip():
                yield rest.encode("utf-8", "surrogateescape")
            elif not string[at:]:
                yield b"["  # the closing bracket is missing: rejected by name like any other cut
            return
        try:
            _, end = decode(string, at)
        except (ValueError, RecursionError):
            yield string[at:].encode("utf-8", "surrogateescape")
            return
        yield string[at:end].encode("utf-8", "surrogateescape")
        at = end
