"""Whole conversations to the requests they were made of: one for each answer, with all that came before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvtune.tokenization.formats.drafts import Origin, chat_draft
from kvtune.tokenization.formats.format import Draft
from kvtune.tokenization.formats.messages import checked_messages
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.request import Message


def expand(
    messages: Any,
    origin: Origin,
    field: str,
    *,
    tools: list[dict[str, Any]] | None = None,
    unanswered: bool = True,
) -> Iterator[Draft]:
    """A request for each assistant message that follows something, its answer that message.

    `unanswered`: messages after the last answer were sent too, and make one more request.
    Ids are the origin's with the number of the request behind a slash.
    """
    checked = checked_messages(messages, field)
    ends = [at for at, message in enumerate(checked) if at and message["role"] == "assistant"]
    if unanswered and checked[-1]["role"] != "assistant":
        ends.append(len(checked))
    if not ends:
        raise RecordError(
            "no_request", field, found="no answer and nothing to answer", wanted="a user's message"
        )
    for number, end in enumerate(ends):
        answer: Message | None = checked[end] if end < len(checked) else None
        one = origin.renamed(f"{origin.id}/{number}", output=answer)
        yield chat_draft(one, checked[:end], tools)
