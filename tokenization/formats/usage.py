"""What the server counted: prompt tokens and cached tokens, under every name that logs give them.

One place for all formats. Names differ in what they count: Anthropic's `input_tokens` and Langfuse's `input` leave
cached tokens out, all others include them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kvtune.tokenization.formats.fields import dig
from kvtune.tokenization.formats.nested import as_json

_MOST_TOKENS = 1 << 32

_PROMPT = (
    "prompt_tokens",  # OpenAI, vLLM, LiteLLM
    "promptTokens",  # Vercel AI SDK, Helicone
    "promptTokenCount",  # Gemini, Vertex
    "prompt_token_count",
    "inputTokenCount",  # Bedrock's invocation log
)
_INPUT = ("input_tokens", "inputTokens")  # Responses, LangChain; Anthropic without cached tokens
_CACHED = (
    "prompt_tokens_details.cached_tokens",
    "prompt_token_details.cached_tokens",
    "input_tokens_details.cached_tokens",
    "input_token_details.cache_read",
    "promptTokensDetails.cachedTokens",
    "inputTokenDetails.cacheReadTokens",
    "cached_tokens",
    "cachedInputTokens",
    "cachedContentTokenCount",
    "cached_content_token_count",
    "prompt_cache_hit_tokens",
    "promptCacheReadTokens",
    "prompt_cache_read_tokens",
)
_CACHE_READ = (
    "cache_read_input_tokens",
    "cacheReadInputTokens",
    "cacheReadInputTokenCount",
)
_CACHE_WRITTEN = (
    "cache_creation_input_tokens",
    "cacheCreationInputTokens",
    "cacheWriteInputTokens",
    "cacheWriteInputTokenCount",
)
_LANGFUSE_CACHED = ("input_cached_tokens", "input_cache_read", "cache_read_input_tokens", "input_cached")
_DETAILS = ("prompt_tokens_details", "input_tokens_details", "input_token_details")

_ATTRIBUTES_PROMPT = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.token_count.prompt",
    "llm.usage.prompt_tokens",
    "ai.usage.promptTokens",
    "ai.usage.inputTokens",
)
_ATTRIBUTES_CACHED = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.input_tokens.cached",
    "gen_ai.usage.details.cache_read_tokens",
    "llm.token_count.prompt_details.cache_read",
    "llm.usage.cache_read_input_tokens",
    "ai.usage.cachedInputTokens",
)

_PLACES = (
    "usage",
    "response.usage",
    "response.body.usage",
    "response_body.usage",
    "responseBody.usage",
    "usage_details",
    "usageDetails",
    "usage_metadata",
    "usageMetadata",
    "response.usageMetadata",
    "metadata.usage_object",
    "output.usage",
    "outputs.usage_metadata",
    "outputs.usage",
    "outputs.llm_output.token_usage",
    "token_usage",
    "tokenUsage",
)
_HEADS = tuple((place, place.partition(".")[0]) for place in (*_PLACES, ""))
"""Each place with its first step, the record itself last."""

_NESTED = ("response", "response_body", "responseBody", "metadata", "output", "outputs", "body")


class Usage(NamedTuple):
    """A request's tokens by the server's count: those of its prompt, and of these the cached; None where not logged."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None


NO_USAGE = Usage()


def usage_of(record: Mapping[str, Any], response: Any = None) -> Usage:
    """The usage in a response, or in a record around or beside one; the first place that counts the prompt and
    what of it was cached, else the first that counts the prompt.

    Takes bodies, spans' attributes (dotted names), and objects that are JSON in a string. A value that is no count is
    not logged; never raises.
    """
    best = NO_USAGE
    for root in _roots(record, response):
        for place, head in _HEADS:
            if place and root.get(head) is None:
                continue
            held = as_json(dig(root, place) if place else root)
            if not isinstance(held, dict):
                continue
            usage = _counted(held, alone=bool(place))
            if usage.cached_tokens is not None:
                return usage
            if best.prompt_tokens is None:
                best = usage
    return best if best.prompt_tokens is not None else usage_of_attributes(record)


def usage_of_attributes(attributes: Mapping[str, Any]) -> Usage:
    """The usage in a span's attributes: GenAI conventions old and new, OpenInference, Vercel AI SDK."""
    prompt = _first(attributes, _ATTRIBUTES_PROMPT)
    if prompt is None:
        return NO_USAGE
    return _consistent(prompt, _first(attributes, _ATTRIBUTES_CACHED))


def _roots(record: Mapping[str, Any], response: Any) -> Iterable[Any]:
    held = response[0] if isinstance(response, list) and len(response) == 1 else response
    if isinstance(held, dict):
        yield held
        if isinstance(held.get("body"), dict):
            yield held["body"]
    opened = {name: as_json(record[name]) for name in _NESTED if isinstance(record.get(name), str)}
    yield {**record, **opened} if opened else record


def _counted(usage: Mapping[str, Any], *, alone: bool) -> Usage:
    """A usage object's counts; `alone`: it stands where only a usage stands, so that short names count."""
    prompt = _first(usage, _PROMPT)
    if prompt is not None:
        return _consistent(prompt, _cached(usage))
    base = _first(usage, _INPUT)
    if base is not None:
        read, written = _first(usage, _CACHE_READ), _first(usage, _CACHE_WRITTEN)
        if (read is None and written is None) or any(name in usage for name in _DETAILS):
            return _consistent(base, _cached(usage))
        return _consistent(base + (read or 0) + (written or 0), read or 0)
    base = _count(usage.get("input")) if alone else None
    if base is None:
        return NO_USAGE
    parts = [
        _count(value) or 0
        for name, value in usage.items()
        if name.startswith(("input_", "cache_")) and name not in _INPUT
    ]
    return _consistent(base + sum(parts), _first(usage, _LANGFUSE_CACHED))


def _cached(usage: Mapping[str, Any]) -> int | None:
    for name in (*_CACHED, *_CACHE_READ):
        value = _count(dig(usage, name) if "." in name else usage.get(name))
        if value is not None:
            return value
    return None


def _consistent(prompt: int, cached: int | None) -> Usage:
    if prompt < 1:
        return NO_USAGE
    return Usage(prompt, cached if cached is not None and cached <= prompt else None)


def _first(record: Mapping[str, Any], names: Iterable[str]) -> int | None:
    for name in names:
        value = _count(record.get(name))
        if value is not None:
            return value
    return None


def _count(value: Any) -> int | None:
    """A count of tokens, also as digits in a string or a whole float."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 10:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_TOKENS:
        return None
    return value
