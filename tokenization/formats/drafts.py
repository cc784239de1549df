"""From what a log says around a prompt, and the prompt, to a request."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtune.tokenization.clock import Moment
from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.answers import Output, answer_tokens, output_of
from kvtune.tokenization.formats.format import Draft, Place, Record
from kvtune.tokenization.formats.usage import NO_USAGE, Usage, usage_of
from kvtune.tokenization.rejects import RecordError, describe
from kvtune.tokenization.request import Identity, Message, Request

_TRUNCATED = (
    "Requests with truncate_prompt_tokens, of which the engine keeps the end of the prompt only: read whole"
)


class Origin(msgspec.Struct, frozen=True):
    """What a log says around a request: see `Request` for the fields."""

    id: str
    source: str
    time: Moment | None = None
    session: str | None = None
    parent: str | None = None
    server: str | None = None
    identity: Identity = Identity()
    output: Output = None
    output_tokens: int | None = None
    stream: bool | None = None
    usage: Usage = NO_USAGE

    def renamed(self, id: str, **changes: Any) -> Origin:
        """The same for another request of the same record, to which a usage of the whole does not belong."""
        usage = self.usage if id == self.id else NO_USAGE
        return msgspec.structs.replace(self, id=id, **({"usage": usage} | changes))


def origin_of(
    record: Record, place: Place, body: Record | None = None, response: Any = None, **known: Any
) -> Origin:
    """The usual fields of a record around a body, and the answer in `response`; `known` overrides them."""
    output, output_tokens = output_of(response)
    if (record if body is None else body).get("truncate_prompt_tokens") is not None:
        place.file.note(_TRUNCATED)
    found: dict[str, Any] = {
        "id": fields.name_in(record, fields.IDS) or place.where,
        "source": place.where,
        "session": fields.name_in(record, fields.SESSIONS),
        "server": fields.server_of(record, place),
        "identity": fields.identity_of(record if body is None else body, record, place),
        "output": output,
        "usage": usage_of(record, response),
    }
    if "time" not in known:
        found["time"] = fields.time_of(record)
    if "output_tokens" not in known:
        logged = fields.whole_number(record, fields.OUTPUT_LENGTHS)
        lengths = (logged, output_tokens, answer_tokens(record))
        found["output_tokens"] = next((length for length in lengths if length is not None), None)
    return Origin(**(found | known))


def origin_of_body(record: Record, place: Place) -> Origin:
    """The origin of a record that is itself a body, its answer beside it or merged in."""
    return origin_of(record, place, response=record.get("response", record if "choices" in record else None))


def draft(origin: Origin, **prompt: Any) -> Draft:
    """A request with this prompt (`messages`, `text`, `token_ids` or `block_hashes`, and what goes with it)."""
    request = Request(
        id=origin.id,
        source=origin.source,
        session=origin.session,
        parent=origin.parent,
        server=origin.server,
        identity=origin.identity,
        output=origin.output,
        output_tokens=origin.output_tokens,
        cached_tokens=origin.usage.cached_tokens,
        **({"prompt_tokens": origin.usage.prompt_tokens} | prompt),
    )
    return Draft(request, origin.time, origin.stream)


def chat_draft(
    origin: Origin, messages: list[Message], tools: list[dict[str, Any]] | None = None, endpoint: str = "chat"
) -> Draft:
    """A request of checked messages."""
    return draft(origin, messages=messages, tools=tools, endpoint=endpoint)


def read_token_ids(ids: Any, origin: Origin, field: str) -> Draft:
    """A prompt that is ids already."""
    return draft(origin, token_ids=checked_ids(ids, field), endpoint="completions")


def checked_ids(ids: Any, field: str) -> list[int]:
    """Token ids as they are; raises `RecordError` where one is no id that a uint32 holds."""
    if not isinstance(ids, list):
        raise RecordError("wrong_type", field, found=describe(ids), wanted="text or a list of token ids")
    if not ids:
        raise RecordError("empty_prompt", field, found="an empty list", wanted="at least one token")
    for number, one in enumerate(ids):
        if not is_id(one) or not 0 <= one < 1 << 32:
            raise RecordError("wrong_type", f"{field}[{number}]", found=describe(one), wanted="a token id")
    return ids


def is_id(value: Any) -> bool:
    """Whether a value could be a token id: a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)
