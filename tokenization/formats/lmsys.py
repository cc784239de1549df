"""LMSYS-Chat-1M and WildChat: whole conversations, a request for each turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.clock import moment
from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.conversations import expand
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record


def _read(record: Record, place: Place) -> Iterable[Draft]:
    turns: list[Any] = record["conversation"]
    name = fields.name_in(record, ("conversation_id", "conversation_hash")) or place.where
    origin = origin_of(record, place, id=name, session=name)
    # WildChat's turns say where their author sat; no template asks for that.
    said = [
        {key: turn.get(key) for key in ("role", "content")} if isinstance(turn, dict) else turn
        for turn in turns
    ]
    return [_timed(draft, turns) for draft in expand(said, origin, "conversation")]


def _timed(draft: Draft, turns: list[Any]) -> Draft:
    """WildChat has a time for every turn: the request came with the last message before the answer."""
    last = turns[len(draft.request.messages or ()) - 1]
    time = last.get("timestamp")
    return draft if time is None else draft._replace(time=moment(time, "conversation.timestamp"))


FORMAT = Format(
    name="lmsys",
    about="LMSYS-Chat-1M, WildChat",
    recognised_by="conversation, a list of messages",
    example='{"conversation_id": "c1", "model": "m", "conversation": [{"role": "user", "content": "Hi"}, '
    '{"role": "assistant", "content": "Hello"}]}',
    recognises=lambda record: isinstance(record.get("conversation"), list),
    read=_read,
)
