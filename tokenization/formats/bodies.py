"""Request bodies of OpenAI-compatible APIs to requests: the part that most log formats wrap.

What surrounds a body in a log (id, time, session, server, answer) comes as an `Origin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kvtune.tokenization.clock import Moment
from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.format import Draft, Place, Record
from kvtune.tokenization.formats.messages import checked_messages, checked_objects
from kvtune.tokenization.rejects import RecordError, describe
from kvtune.tokenization.request import Identity, Message, Request


class Origin(msgspec.Struct, frozen=True):
    """What a log says around a request: see `Request` for the fields."""

    id: str
    source: str
    time: Moment | None = None
    session: str | None = None
    parent: str | None = None
    server: str | None = None
    identity: Identity = Identity()
    output: Message | str | list[int] | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None


def origin_of(record: Record, place: Place, body: Record | None = None, **known: Any) -> Origin:
    """The usual fields of a record around a body; `known` overrides them."""
    found: dict[str, Any] = {
        "id": fields.name_in(record, fields.IDS) or place.where,
        "source": place.where,
        "session": fields.name_in(record, fields.SESSIONS),
        "server": fields.server_of(record, place),
        "identity": fields.identity_of(record if body is None else body, record, place),
    }
    if "time" not in known:
        found["time"] = fields.time_of(record)
    if "output_tokens" not in known:
        found["output_tokens"] = fields.whole_number(record, fields.OUTPUT_LENGTHS)
    return Origin(**(found | known))


def read_chat(body: Record, origin: Origin, field: str = "") -> Iterator[Draft]:
    """A body of `/v1/chat/completions`; `field` is where the body stands in the record."""
    yield _draft(
        origin,
        messages=checked_messages(body.get("messages"), _in(field, "messages")),
        tools=checked_objects(body.get("tools"), _in(field, "tools"), "tools"),
        documents=checked_objects(body.get("documents"), _in(field, "documents"), "documents"),
        chat_template=_optional(body, "chat_template", str, field),
        chat_template_kwargs=_optional(body, "chat_template_kwargs", dict, field),
        add_generation_prompt=_optional(body, "add_generation_prompt", bool, field),
        continue_final_message=_optional(body, "continue_final_message", bool, field),
        add_special_tokens=_optional(body, "add_special_tokens", bool, field),
    )


def read_completions(body: Record, origin: Origin, field: str = "") -> Iterator[Draft]:
    """A body of `/v1/completions`: a text, ids, or a list of either, each a request of its own."""
    prompt = body.get("prompt")
    name = _in(field, "prompt")
    special = _optional(body, "add_special_tokens", bool, field)
    if isinstance(prompt, list) and prompt and not _is_id(prompt[0]):
        for number, one in enumerate(prompt):
            part = msgspec.structs.replace(
                origin, id=f"{origin.id}/{number}", output=None, output_tokens=None
            )
            yield _plain_prompt(one, part, f"{name}[{number}]", special)
    else:
        yield _plain_prompt(prompt, origin, name, special)


def _plain_prompt(prompt: Any, origin: Origin, name: str, special: bool | None) -> Draft:
    if isinstance(prompt, str):
        if not prompt:
            raise RecordError("empty_prompt", name, found="an empty string", wanted="text")
        return _draft(origin, text=prompt, endpoint="completions", add_special_tokens=special)
    return _draft(origin, token_ids=checked_ids(prompt, name), endpoint="completions")


def read_token_ids(ids: Any, origin: Origin, field: str) -> Draft:
    """A prompt that is ids already."""
    return _draft(origin, token_ids=checked_ids(ids, field), endpoint="completions")


def checked_ids(ids: Any, field: str) -> list[int]:
    """Token ids as they are; raises `RecordError` where one is no id that a uint32 holds."""
    if not isinstance(ids, list):
        raise RecordError("wrong_type", field, found=describe(ids), wanted="text or a list of token ids")
    if not ids:
        raise RecordError("empty_prompt", field, found="an empty list", wanted="at least one token")
    for number, one in enumerate(ids):
        if not _is_id(one) or not 0 <= one < 1 << 32:
            raise RecordError("wrong_type", f"{field}[{number}]", found=describe(one), wanted="a token id")
    return ids


def _draft(origin: Origin, **prompt: Any) -> Draft:
    request = Request(
        id=origin.id,
        source=origin.source,
        session=origin.session,
        parent=origin.parent,
        server=origin.server,
        identity=origin.identity,
        output=origin.output,
        output_tokens=origin.output_tokens,
        prompt_tokens=origin.prompt_tokens,
        **prompt,
    )
    return Draft(request, origin.time)


def read_body(body: Any, origin: Origin, field: str, url: str | None = None) -> Iterable[Draft]:
    """A body of any endpoint: by the URL that it was sent to, else by its own fields."""
    if not isinstance(body, dict):
        raise RecordError("wrong_type", field, found=describe(body), wanted="a request body")
    path = (url or "").rstrip("/")
    if path.endswith("/chat/completions"):
        return read_chat(body, origin, field)
    if path.endswith("/completions"):
        return read_completions(body, origin, field)
    if "messages" in body:
        return read_chat(body, origin, field)
    if "prompt" in body:
        return read_completions(body, origin, field)
    raise RecordError("no_request", field, found=describe(body), wanted="messages or prompt")


def _optional(body: Record, name: str, kind: type, field: str) -> Any:
    value = body.get(name)
    if value is None or isinstance(value, kind):
        return value
    wanted = {str: "a string", dict: "an object", bool: "true or false"}[kind]
    raise RecordError("wrong_type", _in(field, name), found=describe(value), wanted=wanted)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _in(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
