"""ShareGPT: whole conversations, a request for each turn."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.conversations import expand
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.parts import message
from kvtune.tokenization.rejects import RecordError, describe, describe_name
from kvtune.tokenization.request import Message

_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}


def _read(record: Record, place: Place) -> Iterable[Draft]:
    turns = record["conversations"]
    messages: list[Message] = []
    system = record.get("system")
    if isinstance(system, str) and system:
        messages.append(message("system", system))
    for number, turn in enumerate(turns):
        field = f"conversations[{number}]"
        if not isinstance(turn, dict):
            raise RecordError(
                "wrong_type", field, found=describe(turn), wanted="an object with from and value"
            )
        speaker = turn.get("from")
        role = _SPEAKERS.get(speaker.lower()) if isinstance(speaker, str) else None
        if role is None:
            wanted = "human, gpt, system or tool"
            raise RecordError("unknown_role", f"{field}.from", found=describe_name(speaker), wanted=wanted)
        messages.append(message(role, turn.get("value")))
    origin = origin_of(record, place, session=fields.name_in(record, ("id",)) or place.where)
    return list(expand(messages, origin, "conversations"))


FORMAT = Format(
    name="sharegpt",
    about="ShareGPT conversations",
    recognised_by="conversations, a list of from and value",
    example='{"id": "c1", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}',
    recognises=lambda record: isinstance(record.get("conversations"), list),
    read=_read,
)
