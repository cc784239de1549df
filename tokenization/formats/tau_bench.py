"""tau-bench: episodes of an assistant with tools and a simulated user."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.conversations import expand
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.messages import checked_objects


def _read(record: Record, place: Place) -> Iterable[Draft]:
    """One request for each message of the assistant; what the user says last was never sent."""
    task = fields.name_in(record, ("task_id",))
    trial = fields.name_in(record, ("trial",))
    name = place.where if task is None else f"{task}-{trial or 0}"
    tools = checked_objects(record.get("tools"), "tools", "tools")
    return list(
        expand(
            record["traj"],
            origin_of(record, place, id=name, session=name),
            "traj",
            tools=tools,
            unanswered=False,
        )
    )


FORMAT = Format(
    name="tau-bench",
    about="tau-bench episodes (a list of them in one file)",
    recognised_by="traj and task_id",
    example='{"task_id": 0, "trial": 0, "reward": 1.0, "traj": [{"role": "user", "content": "Hi"}, '
    '{"role": "assistant", "content": "Hello"}]}',
    recognises=lambda record: isinstance(record.get("traj"), list),
    read=_read,
)
