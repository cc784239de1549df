"""mini-swe-agent trajectories, versions 1 and 2: a request for each of the model's messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvtune.tokenization.clock import Moment, moment
from kvtune.tokenization.formats import fields
from kvtune.tokenization.formats.conversations import expand
from kvtune.tokenization.formats.drafts import origin_of
from kvtune.tokenization.formats.format import Draft, Format, Place, Record
from kvtune.tokenization.formats.parts import function_tool
from kvtune.tokenization.rejects import RecordError, describe

_EXIT = "exit"  # what the agent writes last is its own, no message of the model's
_BASH = function_tool(
    "bash",
    "Execute a bash command",
    {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The bash command to execute"}},
        "required": ["command"],
    },
)


def _read(record: Record, place: Place) -> Iterable[Draft]:
    held = record["messages"]
    if not isinstance(held, list):
        raise RecordError("wrong_type", "messages", found=describe(held), wanted="a list of messages")
    messages = [one for one in held if not (isinstance(one, dict) and one.get("role") == _EXIT)]
    calls = any(isinstance(one, dict) and one.get("tool_calls") for one in messages)
    config = fields.dig(record, "info.config.model")
    model = fields.name_in(config, ("model_name",)) if isinstance(config, dict) else None
    name = fields.name_in(record, ("instance_id",)) or place.where
    origin = origin_of(record, place, {"model": model}, id=name, session=name)
    sent = [_as_sent(one) for one in messages]
    drafts = list(expand(sent, origin, "messages", tools=[_BASH] if calls else None, unanswered=False))
    answers = [one for at, one in enumerate(messages) if at and one.get("role") == "assistant"]
    times = [_time(answer) for answer in answers]
    if None in times:  # version 1 has none, version 2 some: the order of messages says more
        return drafts
    return [draft._replace(time=time) for draft, time in zip(drafts, times, strict=True)]


def _as_sent(one: Any) -> Any:
    """A message without the agent's own notes."""
    if not isinstance(one, dict):
        return one
    return {name: value for name, value in one.items() if name not in ("extra", "timestamp")}


def _time(answer: Record) -> Moment | None:
    extra = answer.get("extra")
    held = extra if isinstance(extra, dict) and "timestamp" in extra else answer
    return moment(held.get("timestamp"), "timestamp")


FORMAT = Format(
    name="mini-swe-agent",
    about="mini-swe-agent trajectories, versions 1 and 2",
    recognised_by="trajectory_format mini-swe-agent, or messages and info.model_stats",
    example='{"info": {"model_stats": {}}, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", '
    '"content": "Hello"}], "trajectory_format": "mini-swe-agent-1"}',
    recognises=lambda record: (
        "messages" in record
        and (
            str(record.get("trajectory_format", "")).startswith("mini-swe-agent")
            or isinstance(fields.dig(record, "info.model_stats"), dict)
        )
    ),
    read=_read,
)
