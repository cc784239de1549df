"""JSON text to values, fast where the text is plain and exact where it is not; equal parts are shared.

A trace repeats itself: the same tools in every line, message lists that grow by a turn. So a long line is
taken apart one level at a time without decoding (`msgspec.Raw`), and every part that was seen before is the
same Python object again. Whatever the fast way cannot vouch for goes through `_decode_exactly`, which tells
duplicate keys (the last wins, counted), NaN, lone surrogates, NUL in keys and nesting apart.
Decoded values are shared: read them, never change them. Knows nothing of files and formats.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

from kvtune.tokenization.rejects import RecordError, describe

MAX_DEPTH = 500
_SHORT_LINE = 1024  # taking shorter lines apart costs more than it saves
_SHORT_PART = 64
_LONG_OBJECT = 512
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_SPACED_COLON = re.compile(rb'"[ \t\r\n]+:')
_AFTER_KEY = (b": ", b":")
_BETWEEN = (b", ", b",")

_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])
_any = msgspec.json.Decoder()


class _NotPlainError(Exception):
    """The fast way cannot vouch for this text."""


class StrictDecoder:
    """Decodes JSON objects one after another and remembers their parts, at most `remember_bytes` of them.

    Attributes:
        duplicate_keys: how many key-value pairs lost to a later one of the same name, so far.
    """

    def __init__(self, remember_bytes: int = 32 << 20) -> None:
        self.duplicate_keys = 0
        self._remember_bytes = remember_bytes
        self._parts: dict[bytes, tuple[Any, int]] = {}  # text -> value, duplicate keys in it
        self._parts_bytes = 0
        self._lists_seen: set[int] = set()

    def decode_object(self, text: bytes) -> dict[str, Any]:
        """The object that `text` holds; raises `RecordError` where it is anything else."""
        value = self.decode(text)
        if not isinstance(value, dict):
            raise RecordError("not_an_object", None, found=describe(value), wanted="a JSON object")
        return value

    def decode(self, text: bytes) -> Any:
        """The value that `text` holds; raises `RecordError` (reason, found, wanted) where it is not one."""
        if not text.isascii():
            try:
                str(text, "utf-8")
            except UnicodeDecodeError as error:
                raise _bad_utf8(error) from None
        before = self.duplicate_keys
        try:
            if len(text) < _SHORT_LINE:
                value, duplicates = _decode_plainly(text)
                self.duplicate_keys += duplicates
                return value
            return self._part(text, 1)
        except (msgspec.MsgspecError, RecursionError, _NotPlainError):
            value, duplicates = _decode_exactly(text)
            self.duplicate_keys = before + duplicates
            return value

    def _part(self, text: bytes, depth: int) -> Any:
        first = text[:1]
        if first == b"{" and depth <= 2 and len(text) >= _LONG_OBJECT:
            pairs = {key: bytes(raw) for key, raw in _raw_object.decode(text).items()}
            _require_plain_object(text, pairs)
            return {key: self._part(value, depth + 1) for key, value in pairs.items()}
        if first == b"[" and depth <= 3 and len(text) >= _SHORT_PART:
            return self._list(text, depth)
        return self._leaf(text, depth)

    def _list(self, text: bytes, depth: int) -> Any:
        known = self._parts.get(text)
        if known is not None:
            self.duplicate_keys += known[1]
            return known[0]
        raws = _raw_list.decode(text)
        if not raws or bytes(raws[0])[:1] not in (b"{", b'"'):
            return self._leaf(text, depth)
        before = self.duplicate_keys
        value = [self._leaf(bytes(raw), depth + 1) for raw in raws]
        # A growing message list never comes twice; one that does (tools) is worth remembering whole.
        if hash(text) in self._lists_seen:
            self._remember(text, value, self.duplicate_keys - before)
        elif len(self._lists_seen) < 1 << 16:
            self._lists_seen.add(hash(text))
        return value

    def _leaf(self, text: bytes, depth: int) -> Any:
        if len(text) < _SHORT_PART and text[:1] not in (b"{", b"["):
            return _any.decode(text)
        known = self._parts.get(text)
        if known is None:
            known = _decode_plainly(text, depth)
            self._remember(text, *known)
        self.duplicate_keys += known[1]
        return known[0]

    def _remember(self, text: bytes, value: Any, duplicates: int) -> None:
        if len(text) > self._remember_bytes // 4:
            return
        self._parts_bytes += len(text)
        if self._parts_bytes > self._remember_bytes:
            self._parts.clear()
            self._parts_bytes = len(text)
        self._parts[text] = (value, duplicates)


def _require_plain_object(text: bytes, pairs: dict[str, bytes]) -> None:
    """Raises unless `text` is exactly these pairs in this order: then no key comes twice.

    The text is walked by the pairs themselves, every byte compared, so a second pair of the same name cannot
    hide: it would stand where another key or the end must be.
    """
    at = 1
    last = len(pairs) - 1
    for number, (key, value) in enumerate(pairs.items()):
        name = b'"%b"' % key.encode()
        if not text.startswith(name, at) or "\0" in key:
            raise _NotPlainError
        at = _skip(text, at + len(name), _AFTER_KEY)
        if not text.startswith(value, at):
            raise _NotPlainError
        at += len(value)
        if number < last:
            at = _skip(text, at, _BETWEEN)
    if text[at:].rstrip(b" \t\r\n") != b"}":
        raise _NotPlainError


def _skip(text: bytes, at: int, choices: tuple[bytes, ...]) -> int:
    for choice in choices:
        if text.startswith(choice, at):
            return at + len(choice)
    raise _NotPlainError


def _decode_plainly(text: bytes, depth: int = 1) -> tuple[Any, int]:
    """The value and its duplicate keys; raises where only `_decode_exactly` can tell."""
    value = _any.decode(text)
    if b"\\u0000" in text:
        raise _NotPlainError
    if text.count(b"{") + text.count(b"[") + depth > MAX_DEPTH and depth - 1 + _depth(text) > MAX_DEPTH:
        raise _NotPlainError
    if b"{" not in text:
        return value, 0
    # Inside a string every quote is escaped, so `":` that is not `\":` ends a key.
    if b'\\":' in text or _SPACED_COLON.search(text):
        return value, _count_duplicates(text)
    return value, text.count(b'":') - _count_keys(value)


def _count_keys(value: Any) -> int:
    count = 0
    todo = [value]
    while todo:
        item = todo.pop()
        if type(item) is dict:
            count += len(item)
            todo += [child for child in item.values() if type(child) is dict or type(child) is list]
        elif type(item) is list:
            todo += [child for child in item if type(child) is dict or type(child) is list]
    return count


def _count_duplicates(text: bytes) -> int:
    duplicates = 0

    def lost(pairs: list[tuple[str, Any]]) -> None:
        nonlocal duplicates
        duplicates += len(pairs) - len({key for key, _ in pairs})

    try:
        json.loads(text, object_pairs_hook=lost)
    except ValueError as error:
        raise _NotPlainError from error
    return duplicates


def _depth(text: bytes) -> int:
    """The deepest nesting of brackets outside strings."""
    deepest = depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", text)):
        if bracket in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


def _decode_exactly(text: bytes) -> tuple[Any, int]:
    """The slow way: every oddity is told by name. NaN and Infinity pass; who needs a number refuses them."""
    try:
        string = str(text, "utf-8")
    except UnicodeDecodeError as error:
        raise _bad_utf8(error) from None
    depth = _depth(text)
    if depth > MAX_DEPTH:
        raise RecordError("nested_too_deep", None, found=f"{depth} levels", wanted=f"at most {MAX_DEPTH}")
    duplicates = 0

    def gather(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal duplicates
        value = dict(pairs)
        duplicates += len(pairs) - len(value)
        if any("\0" in key for key in value):
            raise RecordError("nul_in_key", None, found="a key with a NUL", wanted="keys without NUL")
        return value

    try:
        value = json.loads(string, object_pairs_hook=gather)
    except json.JSONDecodeError as error:
        raise _explain(error, string) from None
    except (ValueError, RecursionError):  # a number of more digits than the interpreter converts
        raise RecordError("invalid_json", None, found="a number too long to read", wanted="JSON") from None
    if "\\u" in string:
        _require_whole_characters(value)
    return value, duplicates


def _explain(error: json.JSONDecodeError, string: str) -> RecordError:
    where = f"an error at column {error.pos + 1} of {len(string)}"
    if error.msg == "Extra data":
        try:
            json.JSONDecoder().raw_decode(string, error.pos)
        except (ValueError, RecursionError):
            return RecordError("invalid_json", None, found=where, wanted="one JSON object a line")
        return RecordError(
            "two_values", None, found=f"a second value at column {error.pos + 1}", wanted="one"
        )
    if error.pos >= len(string.rstrip()) or error.msg.startswith("Unterminated string"):
        return RecordError(
            "cut_line", None, found=f"the end at column {len(string)}", wanted="a whole JSON object"
        )
    return RecordError("invalid_json", None, found=where, wanted="one JSON object a line")


def _require_whole_characters(value: Any) -> None:
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo += item.keys()
            todo += item.values()
        elif isinstance(item, list):
            todo += item
        elif isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError as error:
                code = ord(item[error.start])
                raise RecordError(
                    "lone_surrogate", None, found=f"\\u{code:04x} alone", wanted="surrogates in pairs"
                ) from None


def _bad_utf8(error: UnicodeDecodeError) -> RecordError:
    return RecordError(
        "invalid_utf8",
        None,
        found=f"byte 0x{error.object[error.start]:02x} at column {error.start + 1}",
        wanted="UTF-8 (or UTF-16 with a byte-order mark)",
    )


def is_number(value: Any) -> bool:
    """Whether a decoded value is a finite number (and not a boolean)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
