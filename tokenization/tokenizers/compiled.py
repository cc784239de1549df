"""What of a `tokenizer.json` is found out once and kept: its parts, its added tokens, its tokens by rank.

Found in the cache by the file's SHA-256, the tokens that `tokenizer_config.json` adds, and the library's version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import msgspec

from kvtune.tokenization import cache
from kvtune.tokenization.tokenizers.cut_rules import flat, known_pattern
from kvtune.tokenization.tokenizers.rank_order import NotProvenError, RankOrder, rank_order
from kvtune.tokenization.tokenizers.vocabulary import claimable

_FORM = "2"
"""Of what is kept; another one finds nothing of this one's."""

_OTHER_PATTERN = "words by a pattern that is not known"

Part = dict[str, Any]


class _File(msgspec.Struct):
    pre_tokenizer: Part | None = None


class Added(msgspec.Struct, frozen=True):
    """An added token, as `tokenizers.AddedToken`."""

    content: str
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


class Compiled(msgspec.Struct, frozen=True):
    """Attributes:
    size: the first id above every token's.
    added: added tokens by id.
    normalizer: as `tokenizer.json` describes it.
    pre_tokenizer: as `tokenizer.json` describes it.
    post_processor: as `tokenizer.json` describes it.
    decoder: as `tokenizer.json` describes it.
    order: the tokens by rank; None where ranks are not proven to give the same ids.
    why_not: why there is no order; None where there is one.
    """

    size: int
    added: dict[int, Added]
    normalizer: Part | None
    pre_tokenizer: Part | None
    post_processor: Part | None
    decoder: Part | None
    order: RankOrder | None = None
    why_not: str | None = None


def described(tokenizer: Any) -> Compiled:
    """What a `tokenizers.Tokenizer` says of itself; no ranks."""
    added = tokenizer.get_added_tokens_decoder()
    return Compiled(
        max(tokenizer.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1),
        {
            number: Added(token.content, token.single_word, token.lstrip, token.rstrip, token.normalized)
            for number, token in added.items()
        },
        _state(tokenizer.normalizer),
        _state(tokenizer.pre_tokenizer),
        _state(tokenizer.post_processor),
        _state(tokenizer.decoder),
    )


def order_of(data: bytes) -> RankOrder | str:
    """The tokens of a `tokenizer.json` by rank, or why they are not known by it."""
    try:
        if known_pattern(msgspec.json.decode(data, type=_File).pre_tokenizer) is None:
            return _OTHER_PATTERN
        return rank_order(data)
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return "no tokenizer"
    except NotProvenError as error:
        return str(error)


def with_ranks(compiled: Compiled, order: RankOrder | str) -> Compiled:
    """The same with its tokens by rank, where nothing else keeps them from being used."""
    why_not = _why_not(compiled) or (order if isinstance(order, str) else None)
    if why_not is None and isinstance(order, RankOrder):
        return msgspec.structs.replace(compiled, order=order)
    return msgspec.structs.replace(compiled, why_not=why_not)


def recall(key: str) -> Compiled | None:
    """What an earlier run kept; None where it is unusable."""
    kept = cache.load("vocabularies", key)
    try:
        return msgspec.msgpack.decode(kept, type=Compiled) if kept is not None else None
    except msgspec.MsgspecError:
        return None


def keep(key: str, compiled: Compiled) -> None:
    """For later runs."""
    cache.keep("vocabularies", key, msgspec.msgpack.encode(compiled))


def key_of(data: bytes, added_tokens: Mapping[str, Any]) -> str:
    """Where it is kept."""
    return cache.key_of(_FORM, version("tokenizers"), data, json.dumps(added_tokens, sort_keys=True))


def _why_not(compiled: Compiled) -> str | None:
    """Why ranks cannot give the same ids, whatever the model is."""
    tokens = compiled.added.values()
    if known_pattern(compiled.pre_tokenizer) is None:
        return _OTHER_PATTERN
    if [part["type"] for part in flat(compiled.normalizer)] not in ([], ["NFC"]):
        return "a normalizer other than NFC"
    if any(token.single_word or token.lstrip or token.rstrip or token.normalized for token in tokens):
        return "an added token that looks at its surroundings"
    contents = [token.content for token in tokens]
    if not contents or "" in contents or claimable(contents):
        return "added tokens of which one is found in another"
    return None


def _state(part: Any) -> Part | None:
    """A part's description, in the terms of `tokenizer.json`."""
    if part is None:
        return None
    state: Part = json.loads(part.__getstate__())
    return state
