"""SWE-agent trajectories: a request for each step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.conversations import expand
from kvtune.tokenization.formats.drafts import Origin, chat_draft, origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.messages import checked_messages
from kvtune.tokenization.formats.parts import message
from kvtune.tokenization.rejects import RecordError, describe


def _read(record: Record, place: Place) -> Iterable[Draft]:
    """One request for each step, by its `query`, which is the whole prompt; else from the history."""
    steps = record["trajectory"]
    origin = origin_of(
        record,
        place,
        id=_instance(record) or place.where,
        session=fields.name_in(record, ("instance_id",)) or place.where,
    )
    drafts = []
    for number, step in enumerate(steps):
        if not isinstance(step, dict):
            raise RecordError("wrong_type", f"trajectory[{number}]", found=describe(step), wanted="a step")
        query = step.get("query")
        if isinstance(query, list) and query:
            drafts.append(_step(origin, query, step, number))
    if drafts:
        return drafts
    if record.get("history") is None:
        raise RecordError("no_request", "trajectory", found="steps without query", wanted="query or history")
    return list(expand(record["history"], origin, "history", unanswered=False))


def _step(origin: Origin, query: list[Any], step: Record, number: int) -> Draft:
    response = step.get("response")
    answer = message("assistant", response) if isinstance(response, str) and response else None
    field = f"trajectory[{number}].query"
    return chat_draft(origin.renamed(f"{origin.id}/{number}", output=answer), checked_messages(query, field))


def _instance(record: Record) -> str | None:
    return fields.name_in(record, ("instance_id", "environment"))


FORMAT = Format(
    name="swe-agent",
    about="SWE-agent .traj files",
    recognised_by="trajectory",
    example='{"environment": "e", "trajectory": [{"query": [{"role": "user", "content": "Hi"}], "response": "Hello"}]}',
    recognises=lambda record: isinstance(record.get("trajectory"), list),
    read=_read,
)
