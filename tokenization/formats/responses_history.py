"""The history behind `previous_response_id`, where the log holds the responses that it names.

As vLLM rebuilds it: the earlier input and the messages of the earlier answer, without the earlier instructions.
"""

from __future__ import annotations

from typing import Any

from kvtune.tokenization.formats.format import Place, Record


def with_history(body: Any, response: Any, place: Place) -> Any:
    """A Responses body with its whole input, if the file told of all that it continues; else the body as it is."""
    if not isinstance(body, dict) or "input" not in body or "messages" in body:
        return body
    known: dict[str, list[Any]] = place.file.memory.setdefault("responses", {})
    items = body["input"]
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    previous = body.get("previous_response_id")
    if isinstance(items, list) and isinstance(previous, str) and previous in known:
        items = [*known[previous], *items]
        body = {name: value for name, value in body.items() if name != "previous_response_id"} | {
            "input": items
        }
    held = response.get("body", response) if isinstance(response, dict) else None
    whole = isinstance(items, list) and body.get("previous_response_id") is None
    if whole and isinstance(held, dict) and isinstance(held.get("id"), str):
        known[held["id"]] = [*items, *_messages(held)]
    return body


def _messages(response: Record) -> list[Any]:
    output = response.get("output")
    return (
        [one for one in output if isinstance(one, dict) and one.get("type") == "message"]
        if isinstance(output, list)
        else []
    )
