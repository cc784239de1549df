"""One exchange as one line of the samples' own format, or the reason why it has no place in a trace.

The line: `custom_id, method, url, body` (an OpenAI Batch request), `timestamp` (seconds since the capture
started), `conversation` and `turn` (null for prompts that show no turns), `response` (assistant message,
`{"text"}`, the content blocks of `/v1/messages`, or null), `usage` as the server gave it or null, `ttft_s`,
`e2e_s`, and `complete` (false where the client or the server broke off). The body is the client's own JSON,
white space between tokens aside, without the fields that carry credentials.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvtune.tokenization.capture.answers.answer import Answer, NotUnderstoodError
from kvtune.tokenization.capture.answers.read import ENDPOINTS, read_answer
from kvtune.tokenization.capture.conversations import Conversations
from kvtune.tokenization.capture.exchange import Exchange

# Never rendered into a prompt; gateways and remote tools take them in the body.
_CREDENTIALS = frozenset(
    {
        "api_key",
        "authorization",
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "azure_ad_token",
        "extra_headers",
        "extra_query",
        "headers",
        "mcp_servers",
        "vertex_credentials",
    }
)

_NULL = msgspec.Raw(b"null")
_body_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_tools_decoder = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])
_encoder = msgspec.json.Encoder()


class Unrecordable(Exception):  # noqa: N818 - a verdict on one request, not an error
    """The exchange has no place in a trace; `reason` is one of a few fixed texts, fit for counting."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw
    timestamp: float
    conversation: str | None
    turn: int | None
    response: dict[str, Any] | None
    usage: dict[str, Any] | None
    ttft_s: float | None
    e2e_s: float
    complete: bool


def recordable(method: str, path: str) -> bool:
    """Whether a request to this endpoint holds a prompt that the samples' format has a place for."""
    return method == "POST" and path.endswith(tuple(ENDPOINTS))


def to_line(exchange: Exchange, conversations: Conversations) -> tuple[bytes, bool]:
    """The line with its newline, and whether the answer in it could be read (or there was none to read).

    Raises:
        Unrecordable: the memory bound was hit, the server refused, or the body is no request of its
            endpoint.
    """
    if exchange.overflowed:
        raise Unrecordable("memory bound reached")
    if exchange.status >= 300:
        raise Unrecordable("answered with an error")
    if exchange.request_encoded:
        raise Unrecordable("compressed request body")
    body = _fields(exchange.body)
    name, turn = _place(body, conversations)
    answer, understood = _answer(exchange)
    line = _Line(
        custom_id=name if turn is None else f"{name}/{turn}",
        method="POST",
        url=exchange.path,
        body=msgspec.Raw(msgspec.json.format(_encoder.encode(_without_credentials(body)), indent=-1)),
        timestamp=round(exchange.arrival_s, 6),
        conversation=None if turn is None else name,
        turn=turn,
        response=answer.message,
        usage=answer.usage,
        ttft_s=None if exchange.ttft_s is None else round(exchange.ttft_s, 6),
        e2e_s=round(exchange.e2e_s, 6),
        complete=exchange.complete,
    )
    return _encoder.encode(line) + b"\n", understood


def _fields(body: bytearray) -> dict[str, msgspec.Raw]:
    try:
        body.decode()  # a Raw value is not checked for this
        return _body_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unrecordable("body is no JSON object") from None


def _place(body: dict[str, msgspec.Raw], conversations: Conversations) -> tuple[str, int | None]:
    if "messages" not in body:
        if body.keys().isdisjoint(("prompt", "input")):
            raise Unrecordable("body holds no prompt")
        return conversations.unnamed(), None
    try:
        return conversations.place(bytes(body.get("model", _NULL)), _raw_list.decode(body["messages"]))
    except (msgspec.MsgspecError, RecursionError):
        raise Unrecordable("messages is no list of messages") from None


def _without_credentials(body: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    kept = {key: value for key, value in body.items() if key.lower() not in _CREDENTIALS}
    tools = kept.get("tools", _NULL)
    if b"mcp" in bytes(tools):
        kept["tools"] = _without_server_headers(tools)
    return kept


def _without_server_headers(tools: msgspec.Raw) -> msgspec.Raw:
    """A remote MCP server's entry carries the headers to call it with; a function's schema is left alone."""
    try:
        entries = _tools_decoder.decode(tools)
    except msgspec.MsgspecError:
        raise Unrecordable("tools is no list of objects") from None
    for entry in entries:
        if bytes(entry.get("type", _NULL)) == b'"mcp"':
            for key in [key for key in entry if key.lower() in _CREDENTIALS]:
                del entry[key]
    return msgspec.Raw(_encoder.encode(entries))


def _answer(exchange: Exchange) -> tuple[Answer, bool]:
    if not exchange.answer:
        return Answer(), True
    if not exchange.complete and not exchange.streamed:
        return Answer(), True  # half a JSON value says nothing
    if exchange.answer_encoded:
        return Answer(), False
    try:
        return read_answer(exchange.path, bytes(exchange.answer), streamed=exchange.streamed), True
    except NotUnderstoodError:
        return Answer(), False
