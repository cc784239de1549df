"""Block hashes as published traces give them: one id per block of the prompt, text withheld."""

from __future__ import annotations

import hashlib
from typing import Any

from kvtune.tokenization.formats.drafts import Origin, draft
from kvtune.tokenization.formats.format import Draft
from kvtune.tokenization.rejects import RecordError, describe

_LOGGED_LIMIT = 1 << 64


def read_blocks(
    hashes: Any,
    prompt_tokens: int | None,
    block_size: int,
    origin: Origin,
    *,
    field: str = "hash_ids",
    scope: str | None = None,
) -> Draft:
    """A request of block hashes.

    `scope` names what ids are unique within (a conversation); None: the whole trace. A trailing part of a
    block for which the log has no id gets one of its own, which matches nothing.
    Raises `RecordError` where the ids are none or do not cover the prompt.
    """
    if not isinstance(hashes, list):
        raise RecordError("wrong_type", field, found=describe(hashes), wanted="a list of block ids")
    ids = _as_numbers(hashes, field)
    length = len(ids) * block_size if prompt_tokens is None else prompt_tokens
    if length < 1:
        raise RecordError(
            "empty_prompt", field, found=describe(hashes), wanted="a prompt of at least one token"
        )
    if not length // block_size <= len(ids) <= -(-length // block_size):
        raise RecordError(
            "inconsistent_blocks",
            field,
            found=f"{len(ids)} blocks for {length} tokens",
            wanted=f"{-(-length // block_size)} of {block_size} tokens",
        )
    if scope is not None:
        offset = _made_id("scope", scope)
        ids = [offset + one for one in ids]
    if len(ids) * block_size < length:
        ids = [*ids, _made_id("tail", f"{origin.source} {origin.id}")]
    return draft(origin, block_hashes=ids, hash_block_size=block_size, prompt_tokens=length)


def _as_numbers(hashes: list[Any], field: str) -> list[int]:
    """Ids as they are; names of blocks (hex digests) become numbers, equal names equal numbers."""
    if not hashes or (
        set(map(type, hashes)) == {int} and -_LOGGED_LIMIT < min(hashes) <= max(hashes) < _LOGGED_LIMIT
    ):
        return hashes
    for position, one in enumerate(hashes):
        if not isinstance(one, str) or not one:
            raise RecordError("wrong_type", f"{field}[{position}]", found=describe(one), wanted="a block id")
    return [_made_id("block", one) for one in hashes]


def _made_id(kind: str, name: str) -> int:
    """A number that no log holds, the same wherever in the trace this name of this kind comes up."""
    digest = hashlib.sha256(f"{kind}\0{name}".encode("utf-8", "surrogatepass")).digest()
    return _LOGGED_LIMIT << 1 | int.from_bytes(digest[:16], "big") << 66
