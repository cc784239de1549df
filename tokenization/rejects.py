"""What a rejected record looks like: where, which field, found, wanted, and the record itself, whole.

Knows no format. Texts describe values by kind and size and never quote them: they may be prompt content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_SHOWN_NAME_LENGTH = 40


@dataclass(frozen=True)
class Rejection:
    """One record that cannot be used.

    Attributes:
        where: "file:line", lines from 1.
        reason: a word of the closed list in `REASONS`; what `trace.rejected_by` counts by.
        field: dotted path of the field at fault, None where the record as a whole is.
        found, wanted: in words, without content.
        pieces: the record's bytes (UTF-8, without its line end), in pieces to be written one after another;
            read at most once, while the callback runs.
    """

    where: str
    reason: str
    field: str | None
    found: str
    wanted: str
    pieces: Iterable[bytes] = ()

    def __str__(self) -> str:
        field = f"{self.field}: " if self.field else ""
        return f"{self.where}: {field}{REASONS[self.reason]} (found {self.found}, wanted {self.wanted})"


OnReject = Callable[[Rejection], None]

REASONS = {
    "cut_line": "the line is cut off",
    "invalid_json": "not JSON",
    "two_values": "more than one value on the line",
    "not_an_object": "not a JSON object",
    "invalid_utf8": "not UTF-8",
    "lone_surrogate": "half a surrogate pair",
    "nul_in_key": "a NUL character in a key",
    "nested_too_deep": "nested too deep",
    "line_too_long": "the line is too long",
    "truncated_gzip": "the compressed file is cut off",
    "corrupt_compression": "the compressed data is damaged",
    "decompression_bomb": "the file expands beyond all measure",
    "unknown_format": "no known trace format",
    "wrong_format": "not of the format asked for",
    "lengths_only": "lengths only, which say nothing about prefixes",
    "no_request": "no request in the record",
    "missing_field": "a field is missing",
    "wrong_type": "a field of the wrong kind",
    "not_a_number": "not a number",
    "not_a_time": "not a time",
    "null_messages": "messages is null",
    "unknown_role": "an unknown role",
    "empty_prompt": "an empty prompt",
    "truncated_prompt": "the log cut the prompt off",
    "stateful": "the prompt cannot be rebuilt from this record alone",
    "inconsistent_blocks": "block hashes and prompt length disagree",
    "template_refused": "the chat template refuses the conversation",
    "too_long": "too long for the server",
}


class RecordError(Exception):
    """Raised by a format's reader; `read_trace` adds the place and makes it a `Rejection`.

    `hint`: what to do about it, said once for a file in which nothing can be used.
    """

    def __init__(
        self, reason: str, field: str | None, *, found: str, wanted: str, hint: str | None = None
    ) -> None:
        if reason not in REASONS:
            raise ValueError(f"no such reason: {reason}")
        self.reason = reason
        self.field = field
        self.found = found
        self.wanted = wanted
        self.hint = hint
        super().__init__(reason)

    def at(self, where: str, pieces: Iterable[bytes]) -> Rejection:
        """The rejection of the record at `where`."""
        return Rejection(where, self.reason, self.field, self.found, self.wanted, pieces)


def describe(value: Any) -> str:
    """What a JSON value is, in words: its kind and size, never its content (numbers are shown)."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "a number of more than 20 digits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return f"a string of {len(value)} characters" if value else "an empty string"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, dict):
        return f"an object of {len(value)} keys" if value else "an empty object"
    return type(value).__name__


def describe_name(value: Any) -> str:
    """Like `describe`, but shows a string that looks like an identifier (a role, a part's type)."""
    if (
        isinstance(value, str)
        and len(value) <= _SHOWN_NAME_LENGTH
        and value.replace("_", "").replace("-", "").isalnum()
    ):
        return f'"{value}"'
    return describe(value)
