"""Prompts that no API wraps: a text, or token ids, a line."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import read_completions
from kvtune.tokenization.formats.drafts import origin_of_body, read_token_ids
from kvtune.tokenization.formats.format import Draft, Format, Place, Record

_IDS = ("prompt_token_ids", "token_ids", "input_ids")


def _read_prompt(record: Record, place: Place) -> Iterable[Draft]:
    return read_completions({"prompt": record["text"]}, origin_of_body(record, place))


def _read_ids(record: Record, place: Place) -> Iterable[Draft]:
    name, ids = fields.first(record, _IDS)
    return [read_token_ids(ids, origin_of_body(record, place), name or "token_ids")]


PROMPTS = Format(
    name="prompts",
    about="plain prompts",
    recognised_by="text and none of the other formats' fields",
    example='{"text": "Once upon a time"}',
    recognises=lambda record: isinstance(record.get("text"), str),
    read=_read_prompt,
)

TOKEN_IDS = Format(
    name="token-ids",
    about="prompts as token ids",
    recognised_by="prompt_token_ids, token_ids or input_ids",
    example='{"token_ids": [1, 15043, 29892], "timestamp": 0.5}',
    recognises=lambda record: any(name in record for name in _IDS),
    read=_read_ids,
)
