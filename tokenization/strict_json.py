"""JSON text to values, fast where the text is plain and exact where it is not; equal parts are shared.

A trace repeats itself: the same tools in every line, message lists that grow by a turn. So a long line is
taken apart one level at a time without decoding (`msgspec.Raw`), and every part that was seen before is the
same Python object again. Whatever the fast way cannot vouch for goes through `_decode_exactly`, which tells
duplicate keys (the last wins, counted), NaN, lone surrogates, NUL in keys and nesting apart.
Decoded values are shared: read them, never change them. Knows nothing of files and formats.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from kvtune.tokenization.rejects import RecordError, describe

MAX_DEPTH = 500
_SHORT_LINE = 1024  # taking shorter lines apart costs more than it saves
_LONG_LINE = 8 << 20  # taking longer ones apart holds them several times
_SHORT_PART = 64
_LONG_OBJECT = 512
_UNKNOWN: Any = object()
_LOOK = 32  # lists of equal length, head and tail are likely the same list
_MOST_LISTS = 1 << 16
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)  # one that never ends runs to the end
_BRACKET = re.compile(rb"[\[\]{}]")
_QUOTE_COLON = re.compile(rb'"[ \t\r\n]*:')
_BACKSLASH = ord("\\")
_SEPARATORS = ((b": ", b", "), (b":", b","))  # as Python and as everyone else writes objects

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
        self._parts: dict[bytes, Any] = {}  # text -> value
        self._parts_bytes = 0
        self._lists_seen: set[tuple[int, bytes, bytes]] = set()

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
                raise bad_utf8(error) from None
        try:
            if not _SHORT_LINE <= len(text) <= _LONG_LINE:
                return _decode_plainly(text)
            return self._part(text, 1)
        except (msgspec.MsgspecError, RecursionError, _NotPlainError):
            value, duplicates = _decode_exactly(text)
            self.duplicate_keys += duplicates
            return value

    def _part(self, text: bytes, depth: int) -> Any:
        if len(text) < _SHORT_PART:
            if text[:1] not in b"{[":
                return _any.decode(text)
        elif text.startswith(b"{") and depth <= 2 and len(text) >= _LONG_OBJECT:
            pairs = {key: bytes(raw) for key, raw in _raw_object.decode(text).items()}
            _require_plain_object(text, pairs)
            return {key: self._part(value, depth + 1) for key, value in pairs.items()}
        elif text.startswith(b"[") and depth <= 3:
            return self._list(text, depth)
        return self._leaf(text, depth)

    def _list(self, text: bytes, depth: int) -> Any:
        # A growing message list never comes twice; one that does (tools) is worth remembering whole.
        look = (len(text), text[:_LOOK], text[-_LOOK:])
        repeats = look in self._lists_seen
        if repeats and text in self._parts:
            return self._parts[text]
        raws = _raw_list.decode(text)
        if not raws or bytes(raws[0])[:1] not in (b"{", b'"'):
            return self._leaf(text, depth)
        value = [self._leaf(bytes(raw), depth + 1) for raw in raws]
        if repeats:
            self._remember(text, value)
        elif len(self._lists_seen) < _MOST_LISTS:
            self._lists_seen.add(look)
        return value

    def _leaf(self, text: bytes, depth: int) -> Any:
        known = self._parts.get(text, _UNKNOWN)
        if known is _UNKNOWN:
            known = _decode_plainly(text, depth)
            self._remember(text, known)
        return known

    def _remember(self, text: bytes, value: Any) -> None:
        if len(text) > self._remember_bytes // 4:
            return
        self._parts_bytes += len(text)
        if self._parts_bytes > self._remember_bytes:
            self._parts.clear()
            self._parts_bytes = len(text)
        self._parts[text] = value


def _require_plain_object(text: bytes, pairs: dict[str, bytes]) -> None:
    """Raises unless `text` is exactly these pairs in this order: then no key comes twice.

    The pairs are written again and every byte compared, so a second pair of the same name cannot hide.
    """
    for colon, comma in _SEPARATORS:
        if (
            b"{%b}" % comma.join([b'"%b"%b%b' % (key.encode(), colon, value) for key, value in pairs.items()])
            == text
        ):
            return
    raise _NotPlainError


def _decode_plainly(text: bytes, depth: int = 1) -> Any:
    """The value of a text whose outermost level is the `depth`th; raises where only `_decode_exactly` can tell."""
    value = _any.decode(text)
    if b"\\" in text and b"\\u0000" in text:
        raise _NotPlainError
    objects = text.count(b"{")
    if objects + text.count(b"[") + depth > MAX_DEPTH and depth - 1 + _depth(text) > MAX_DEPTH:
        raise _NotPlainError
    if objects:
        keys = len(value) if type(value) is dict and objects == 1 else _count_keys(value)
        if _most_pairs(text) != keys and _has_duplicates(text):
            raise _NotPlainError
    return value


def _most_pairs(text: bytes) -> int:
    """At least as many key-value pairs as valid JSON text has, and hardly ever more: quotes before a colon.

    Inside a string a quote is escaped, so an odd run of backslashes stands before it and it does not count;
    what is counted in vain is the opening quote of a string that begins with a colon.
    """
    if b" :" in text or b"\t" in text or b"\n" in text or b"\r" in text:
        return sum(1 for found in _QUOTE_COLON.finditer(text) if not _is_escaped(text, found.start()))
    pairs = text.count(b'":')
    if b"\\" in text and b'\\":' in text:
        for before in text.split(b'\\":')[:-1]:
            pairs -= 1 - (len(before) - len(before.rstrip(b"\\"))) % 2
    return pairs


def _is_escaped(text: bytes, at: int) -> bool:
    start = at
    while start and text[start - 1] == _BACKSLASH:
        start -= 1
    return (at - start) % 2 == 1


def _count_keys(value: Any) -> int:
    count = 0
    todo = [value]
    while todo:
        item = todo.pop()
        if type(item) is dict:
            count += len(item)
            todo += [child for child in item.values() if type(child) is dict or type(child) is list]
        else:
            todo += [child for child in item if type(child) is dict or type(child) is list]
    return count


def _has_duplicates(text: bytes) -> bool:
    found = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len(pairs) != len({key for key, _ in pairs})

    try:
        json.loads(text, object_pairs_hook=look)
    except (ValueError, RecursionError) as error:
        raise _NotPlainError from error
    return found


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
        raise bad_utf8(error) from None
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
        require_whole_characters(value)
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


def require_whole_characters(value: Any) -> None:
    """Raises `RecordError` where a string in the value holds half a surrogate pair."""
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


def bad_utf8(error: UnicodeDecodeError) -> RecordError:
    """The error of a line that is not UTF-8."""
    return RecordError(
        "invalid_utf8",
        None,
        found=f"byte 0x{error.object[error.start]:02x} at column {error.start + 1}",
        wanted="UTF-8 (or UTF-16 with a byte-order mark)",
    )
