"""Request bodies of LLM APIs to requests: the part that most log formats wrap.

What surrounds a body in a log (id, time, session, server, answer) comes as an `Origin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kvtune.tokenization.formats.anthropic import chat_of_anthropic, is_anthropic
from kvtune.tokenization.formats.drafts import Origin, checked_ids, draft, is_id
from kvtune.tokenization.formats.fields import dig
from kvtune.tokenization.formats.format import Draft, Record
from kvtune.tokenization.formats.langchain_messages import is_langchain, openai_messages
from kvtune.tokenization.formats.messages import checked_messages, checked_objects
from kvtune.tokenization.formats.responses import chat_of_responses
from kvtune.tokenization.formats.tools import openai_tools
from kvtune.tokenization.rejects import RecordError, describe
from kvtune.tokenization.request import Message

_RARE = frozenset(
    {
        "documents",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "reasoning_effort",
    }
)


def read_chat(body: Record, origin: Origin, field: str = "") -> Iterator[Draft]:
    """A body of `/v1/chat/completions`; `field` is where the body stands in the record."""
    sent = body.get("messages")
    sent = openai_messages(sent) if is_langchain(sent) else sent
    messages = checked_messages(sent, _in(field, "messages"))
    tools = openai_tools(body.get("tools"), _in(field, "tools"), strict=False)
    choice = "none" if body.get("tool_choice") == "none" else None
    if _RARE.isdisjoint(body):
        yield draft(origin, messages=messages, tools=tools, tool_choice=choice)
        return
    yield draft(
        origin,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        documents=checked_objects(body.get("documents"), _in(field, "documents"), "documents"),
        chat_template=_optional(body, "chat_template", str, field),
        chat_template_kwargs=template_kwargs(body, body.get("reasoning_effort"), field),
        add_generation_prompt=_optional(body, "add_generation_prompt", bool, field),
        continue_final_message=_optional(body, "continue_final_message", bool, field),
        add_special_tokens=_optional(body, "add_special_tokens", bool, field),
    )


def template_kwargs(body: Record, effort: Any, field: str) -> dict[str, Any] | None:
    """What the engine hands the template beside the conversation (vLLM 0.26 to 0.33): the request's own variables, its
    reasoning effort, and whether that asks for thinking, unless the request says so itself."""
    given: dict[str, Any] | None = _optional(body, "chat_template_kwargs", dict, field)
    if not isinstance(effort, str):
        return given
    own = given or {}
    return (
        own
        | {"reasoning_effort": effort}
        | ({} if "enable_thinking" in own else {"enable_thinking": effort != "none"})
    )


def _converted(
    origin: Origin,
    body: Record,
    chat: tuple[list[Message], list[dict[str, Any]] | None],
    endpoint: str,
    field: str,
) -> Draft:
    """A request of another API's body, as chat."""
    effort = dig(body, "reasoning.effort" if endpoint == "responses" else "output_config.effort")
    messages, tools = chat
    kwargs = template_kwargs(body, effort, field)
    choice = "none" if body.get("tool_choice") in ("none", {"type": "none"}) else None
    return draft(
        origin,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        endpoint=endpoint,
        chat_template_kwargs=kwargs,
    )


def read_completions(body: Record, origin: Origin, field: str = "") -> Iterator[Draft]:
    """A body of `/v1/completions`: a text, ids, or a list of either, each a request of its own."""
    prompt = body.get("prompt")
    name = _in(field, "prompt")
    special = _optional(body, "add_special_tokens", bool, field)
    if isinstance(prompt, list) and prompt and not is_id(prompt[0]):
        for number, one in enumerate(prompt):
            part = origin.renamed(f"{origin.id}/{number}", output=None, output_tokens=None)
            yield _plain_prompt(one, part, f"{name}[{number}]", special)
    else:
        yield _plain_prompt(prompt, origin, name, special)


def _plain_prompt(prompt: Any, origin: Origin, name: str, special: bool | None) -> Draft:
    if isinstance(prompt, str):
        if not prompt:
            raise RecordError("empty_prompt", name, found="an empty string", wanted="text")
        return draft(origin, text=prompt, endpoint="completions", add_special_tokens=special)
    return draft(origin, token_ids=checked_ids(prompt, name), endpoint="completions")


def read_body(body: Any, origin: Origin, field: str, url: str | None = None) -> Iterable[Draft]:
    """A body of any endpoint: by the URL that it was sent to, else by its own fields."""
    if not isinstance(body, dict):
        raise RecordError("wrong_type", field, found=describe(body), wanted="a request body")
    path = (url or "").rstrip("/")
    if isinstance(body.get("stream"), bool):
        origin = origin.renamed(origin.id, stream=body["stream"])
    if path.endswith("/chat/completions"):
        return read_chat(body, origin, field)
    if path.endswith("/responses"):
        return [_converted(origin, body, chat_of_responses(body, field), "responses", field)]
    if path.endswith("/completions"):
        return read_completions(body, origin, field)
    if path.endswith("/messages") or ("messages" in body and is_anthropic(body)):
        return [_converted(origin, body, chat_of_anthropic(body, field), "messages", field)]
    if "messages" in body:
        return read_chat(body, origin, field)
    if "prompt" in body:
        return read_completions(body, origin, field)
    if "input" in body:
        return [_converted(origin, body, chat_of_responses(body, field), "responses", field)]
    raise RecordError("no_request", field or None, found=describe(body), wanted="messages, prompt or input")


def _optional(body: Record, name: str, kind: type, field: str) -> Any:
    value = body.get(name)
    if value is None or isinstance(value, kind):
        return value
    wanted = {str: "a string", dict: "an object", bool: "true or false"}[kind]
    raise RecordError("wrong_type", _in(field, name), found=describe(value), wanted=wanted)


def _in(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
