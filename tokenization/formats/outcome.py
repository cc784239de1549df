"""What became of a logged call: whether an engine computed its prompt at all, as far as a record says.

A call that failed, or that asked for something else than text, leaves nothing in a prefix cache, or nothing certain:
it is passed over and counted. One that was cancelled is kept, unless the record says that no prompt was computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FAILED = (
    "Failed requests (status 4xx or 5xx, `failure`, an error): passed over, they did not finish on the server"
)
OTHER_OPERATION = (
    "Embeddings, reranking and other operations: passed over, they share no prefixes with prompts"
)
CANCELLED = "Cancelled requests: kept, unless the log says that no prompt was computed"
NEVER_BEGUN = "Cancelled requests whose prompt was not computed: passed over"
LOGGED_TWICE = (
    "Calls logged twice (one id, a stream's start and end, or a framework and its client): counted once"
)
NO_ENGINE_FIELDS = (
    "Records of this kind hold no chat_template_kwargs and no cache_salt: rendered with the defaults"
)
NO_ENGINE = "Requests that the gateway answered from its own cache never reached an engine: left out"

_STATUS = (
    "status",
    "status_code",
    "statusCode",
    "http_status",
    "httpStatus",
    "response_status",
    "responseStatus",
    "response_status_code",
    "responseStatusCode",
    "response_code",
    "responseCode",
    "upstream_status",
    "ResponseCode",
    "BackendResponseCode",
    "httpStatusCode",
    "resultSignature",
)
_ERRORS = ("error", "error_str", "error_message", "errorMessage", "error_code", "errorCode", "exception")
_TELLING = frozenset({*_STATUS, *_ERRORS})
_FAILURES = frozenset(
    {
        "failure",
        "failed",
        "fail",
        "error",
        "errored",
        "exception",
        "rejected",
        "throttled",
        "rate_limited",
        "timeout",
    }
)
_CANCELS = frozenset(
    {"cancelled", "canceled", "aborted", "abort", "client_disconnected", "client_closed_request"}
)
_CLIENT_GONE = 499
_NO_PROMPTS = (
    "/embeddings",
    "/embed",
    "/rerank",
    "/score",
    "/pooling",
    "/classify",
    "/moderations",
    "/tokenize",
    "/detokenize",
    "/transcriptions",
    "/translations",
    "/speech",
    "/images/generations",
    "/models",
    "/health",
    "/metrics",
)
_URLS = ("url", "path", "request_path", "requestPath", "request_uri", "uri", "endpoint", "target_url")
_MOST_URL = 2048


def outcome(record: Mapping[str, Any]) -> str | None:
    """What is to be said of a record's outcome, one of the sentences above; None for a call that just went well.

    All but `CANCELLED` mean that the record is passed over.
    """
    response = record.get("response")
    response = response if isinstance(response, dict) else {}
    if _is_other_operation(record):
        return OTHER_OPERATION
    telling = [held for held in (record, response) if not _TELLING.isdisjoint(held)]
    fates = {_fate(held.get(name)) for held in telling for name in _STATUS}
    if "failed" in fates or any(_is_error(held.get(name)) for held in telling for name in _ERRORS):
        return FAILED
    body = response.get("body")
    if isinstance(body, dict) and _is_error(body.get("error")):
        return FAILED
    if "cancelled" in fates:
        return (
            NEVER_BEGUN if _says_nothing_computed(record) or _says_nothing_computed(response) else CANCELLED
        )
    return None


def _fate(value: Any) -> str | None:
    """ "failed", "cancelled", or None for a status that is neither."""
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _FAILURES:
            return "failed"
        if text in _CANCELS:
            return "cancelled"
        if len(text) != 3 or not text.isdecimal():
            return None
        value = int(text)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if value == _CLIENT_GONE:
        return "cancelled"
    return "failed" if 400 <= value < 600 else None


def _is_error(value: Any) -> bool:
    """Whether an error field says that there was one: a text or number, or an object with one in it."""
    if isinstance(value, dict):
        return any(_is_error(value.get(name)) for name in ("message", "type", "code", "detail", "error"))
    if isinstance(value, str):
        return bool(value.strip()) and value.strip().lower() not in (
            "none",
            "null",
            "nan",
            "false",
            "0",
            "{}",
        )
    return isinstance(value, int) and bool(value)


def _says_nothing_computed(held: Mapping[str, Any]) -> bool:
    usage = held.get("usage")
    return any(
        isinstance(one, dict) and one.get(name) == 0
        for one in (held, usage)
        for name in ("prompt_tokens", "input_tokens")
    )


def _is_other_operation(record: Mapping[str, Any]) -> bool:
    for name in _URLS:
        url = record.get(name)
        if isinstance(url, str) and len(url) <= _MOST_URL:
            path = url.partition("?")[0].rstrip("/")
            if path.endswith(_NO_PROMPTS):
                return True
    body = next(
        (held for held in (record.get("body"), record.get("request")) if isinstance(held, dict)), record
    )
    if "messages" in body or "prompt" in body or "type" in body:
        return False
    given = body.get("input")
    return (
        "encoding_format" in body
        or (isinstance(given, list) and bool(given) and all(isinstance(one, str) for one in given))
        or ("query" in body and ("documents" in body or "texts" in body))
    )
