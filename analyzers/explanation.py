"""`Explanation`: why one request hit what it hit; the JSON document `kvtune.explain/1`.

Knows the shape of the answer; neither how it is found nor how it is shown. Counts are tokens; positions count from
the prompt's start.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from kvtune.analyzers.layout import Kind
from kvtune.analyzers.report import Losses
from kvtune.analyzers.text_class import TextClass

SCHEMA: Final = "kvtune.explain/1"

Fate = Literal[
    "no_sharing",
    "below_floor",
    "full",
    "no_state",
    "evicted",
    "in_flight",
    "window",
    "drop",
    "grid",
    "refused",
]
"""The one rule that kept the hit from being longer; `full`: it reaches everything that is shared."""

Left = Literal["prompt tail", "block boundary", "junction", "moved copy", "block"]
"""Why a key was left: the prompt's last unit boundary, a block boundary where a chunk ended, one that was planted
where prompts part, a tail that its request moved on from, or an attention block."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request and the one it shares most with part. Text only where it was asked for."""

    position: int
    part: str
    own_class: TextClass | None = None
    other_class: TextClass | None = None
    own_text: str | None = None
    other_text: str | None = None


class GroupHit(msgspec.Struct, frozen=True, kw_only=True):
    """How far one KV cache group alone could have resumed."""

    group: int
    kind: Kind
    block_size: int
    hit_tokens: int


class StateEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that left, moved or took a state (or an attention block) of this request's prefix before it came.

    `step` counts the engine's steps from 0; `by` is the request whose step it was.
    """

    step: int
    by: str
    event: Literal["left", "moved", "overwritten", "evicted"]
    group: int
    position: int
    how: Left | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One request's fate under one setting.

    Attributes:
        unit: the grid that hits land on. shared_with: the latest earlier request that shares as much.
        junction: how far the longest-hitting group got, where another lagged; 0 where none did.
        chunk_ends: where the request's own prefill steps ended.
        most_pinned, pinned_at_end: blocks that it kept from others at most and at its end; None where requests
            overlap. minimum_pool_blocks, minimum_pool_on_hit_blocks: as in the report's footprint, for this request.
        fate, why: the rule that stopped the hit, and the story in words.
        events: what happened to states and blocks at the positions that matter, in order.
    """

    schema: Literal["kvtune.explain/1"] = SCHEMA
    kvtune_version: str
    id: str
    number: int
    prompt_tokens: int
    unit: int
    scheduler_block_size: int
    shared_tokens: int
    shared_with: str | None
    divergence: Divergence | None
    group_hits: tuple[GroupHit, ...]
    hit_tokens: int
    junction: int
    recomputed_tokens: int
    losses: Losses
    chunk_ends: tuple[int, ...]
    fate: Fate
    why: tuple[str, ...]
    events: tuple[StateEvent, ...]
    most_pinned: int | None = None
    pinned_at_end: int | None = None
    minimum_pool_blocks: int | None = None
    minimum_pool_on_hit_blocks: int | None = None
