"""Traces of lengths alone (BurstGPT, Azure, minimal guidellm): known, and refused.

They say when requests came and how long they were, and nothing about what they have in common.
"""

from __future__ import annotations

from kvtune.tokenization.formats.format import Format, Record

_PROMPT_LENGTHS = (
    ("Request tokens",),  # BurstGPT
    ("ContextTokens",),  # Azure LLM inference traces 2023 and 2024
    ("input_length", "output_length"),  # guidellm
    ("prompt_tokens", "output_tokens"),
)
_CONTENT = frozenset(
    {
        "hash_ids",
        "text_input",
        "messages",
        "payload",
        "prompt",
        "body",
        "text",
        "request",
        "total_hashes",
        "token_ids",
    }
)


def _recognises(record: Record) -> bool:
    return any(all(name in record for name in names) for names in _PROMPT_LENGTHS) and _CONTENT.isdisjoint(
        record
    )


FORMAT = Format(
    name="lengths",
    about="BurstGPT, Azure, minimal guidellm: lengths only, refused (they say nothing about prefixes)",
    recognised_by="prompt and answer lengths without content or hashes",
    example='{"timestamp": 0.5, "input_length": 700, "output_length": 52}',
    recognises=_recognises,
    read=None,
)
