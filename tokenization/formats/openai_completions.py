"""Bodies of `/v1/completions`, plain prompts and token ids: prompts that no template touches."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.bodies import Origin, origin_of, read_completions, read_token_ids
from kvtune.tokenization.formats.format import Draft, Format, Place, Record

_IDS = ("prompt_token_ids", "token_ids", "input_ids")


def _origin(record: Record, place: Place) -> Origin:
    output, output_tokens = fields.output_of(record.get("response", record if "choices" in record else None))
    if output_tokens is None:
        return origin_of(record, place, output=output)
    return origin_of(record, place, output=output, output_tokens=output_tokens)


def _read_completions(record: Record, place: Place) -> Iterable[Draft]:
    return read_completions(record, _origin(record, place))


def _read_prompt(record: Record, place: Place) -> Iterable[Draft]:
    return read_completions({"prompt": record["text"]}, _origin(record, place))


def _read_ids(record: Record, place: Place) -> Iterable[Draft]:
    name, ids = fields.first(record, _IDS)
    return [read_token_ids(ids, _origin(record, place), name or "token_ids")]


COMPLETIONS = Format(
    name="openai-completions",
    about="bodies of /v1/completions: text, token ids, or a list of either",
    recognised_by="prompt",
    example='{"model": "m", "prompt": "Once upon a time"}',
    recognises=lambda record: "prompt" in record,
    read=_read_completions,
)

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
