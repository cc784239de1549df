"""The report as a JSON document, and back: what a file must be to be one. Knows JSON; no figure of the report."""

from __future__ import annotations

import msgspec

from kvtune.analyzers.report import SCHEMA, Report
from kvtune.tokenization.errors import UnusableInputError


def encode_report(report: Report) -> bytes:
    """The document, indented, with a final newline. Maps keep the order in which they were built."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def decode_report(data: bytes, source: str) -> Report:
    """The report in a stored document; `source` names it in errors. Unknown fields are passed over.

    Raises:
        UnusableInputError: the bytes are no JSON, another schema, or a field is missing or of another type.
    """
    try:
        schema = schema_of(data)
        if schema != SCHEMA:
            raise UnusableInputError(
                "is a document of another kind",
                where=source,
                field="schema",
                found=repr(schema)[:80],
                wanted=SCHEMA,
            )
        return msgspec.json.decode(data, type=Report)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnusableInputError(
            f"is no {SCHEMA} document: {error}",
            where=source,
            way_out="write one with `kvtune analyze --json FILE`",
        ) from error


def schema_of(data: bytes) -> str | None:
    """The schema that a JSON document names; None where it names none.

    Raises:
        msgspec.DecodeError: no JSON object.
        RecursionError: nested too deeply.
    """
    return msgspec.json.decode(data, type=_Header).schema


class _Header(msgspec.Struct):
    schema: str | None = None
