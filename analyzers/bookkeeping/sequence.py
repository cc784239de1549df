"""One request as the scheduler sees it: lengths, progress, its prefix names, and its state in every group."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from kvtune.analyzers.prefix_tree import KEY_SHIFT, PrefixPath

OWN_TOKENS = 1 << 31
"""Owners from here on name generated tokens that no path covers; owners in paths are request numbers."""


class Sequence:
    """A request. Counts are tokens.

    `path` names the prefixes of the prompt followed by the outputs that are known in advance. Generated tokens
    beyond it are this request's own: they match nothing.

    Attributes:
        index: the request's number, unique in its engine; it owns the prefixes beyond its path.
        num_prompt_tokens, max_output_tokens: the request ends after that many generated tokens.
        num_output_tokens: generated so far. num_computed_tokens: computed or scheduled to be.
        num_in_flight_tokens: scheduled and not handed back. num_output_placeholders: sampled, but not yet known
            (async scheduling). num_stale_tokens: in flight when it was preempted.
        num_draft_tokens: drafts to be verified in the next step.
        junction: how far the longest group's hit got where another group lagged, at the last lookup; 0 if none.
        is_prefill_chunk: the last scheduled chunk did not reach the end, so it samples nothing.
        skip_reading: never looks the prefix cache up.
        num_vain_preemptions, furthest_alone: how often it preempted itself with nobody else running, got no further
            than before, and how far that was.
        boundaries: positions that retention always keeps for it.
        states: its state in every group manager, by the manager's place.

    Counted for the replay:
        first_hit, first_junction: what its first admission found; -1 and 0 before. num_prefill_steps: chunks that
        began inside the prompt. num_copies, num_new_blocks, num_evicted_blocks: taken by its chunks. num_probes:
        positions that its lookups asked for. most_pinned: the most blocks that were not free when it had got some; and
        pinned_at_end: blocks that became free with it, manager by manager. Both are its own where it runs alone.
    """

    __slots__ = (
        "_block_keys",
        "bases",
        "boundaries",
        "ends",
        "finished",
        "first_hit",
        "first_junction",
        "furthest_alone",
        "index",
        "is_prefill_chunk",
        "junction",
        "lookahead",
        "max_output_tokens",
        "most_pinned",
        "num_computed_tokens",
        "num_copies",
        "num_draft_tokens",
        "num_evicted_blocks",
        "num_in_flight_tokens",
        "num_new_blocks",
        "num_output_placeholders",
        "num_output_tokens",
        "num_preemptions",
        "num_prefill_steps",
        "num_probes",
        "num_prompt_tokens",
        "num_stale_tokens",
        "num_tokens",
        "num_vain_preemptions",
        "pinned_at_end",
        "skip_reading",
        "states",
    )

    def __init__(
        self,
        index: int,
        path: PrefixPath,
        num_prompt_tokens: int,
        max_output_tokens: int = 1,
        *,
        lookahead: int = 0,
        skip_reading: bool = False,
        block_keys: dict[int, list[int]] | None = None,
    ) -> None:
        """`block_keys`: what an earlier run of the same request, with the same lookahead, found out about its keys."""
        self.index = index
        self.num_prompt_tokens = num_prompt_tokens
        self.max_output_tokens = max_output_tokens
        self.skip_reading = skip_reading
        self.lookahead = lookahead
        self.ends = path.ends
        self.bases = path.bases
        total = num_prompt_tokens + max_output_tokens
        if not self.ends or self.ends[-1] < total:
            self.ends = [*path.ends, total]
            self.bases = [*path.bases, (OWN_TOKENS + index) << KEY_SHIFT]
        self._block_keys = block_keys if block_keys is not None else {}
        self.num_output_tokens = 0
        self.num_tokens = num_prompt_tokens
        self.num_computed_tokens = 0
        self.num_in_flight_tokens = 0
        self.num_output_placeholders = 0
        self.num_stale_tokens = 0
        self.num_draft_tokens = 0
        self.num_preemptions = 0
        self.junction = 0
        self.is_prefill_chunk = True
        self.finished = False
        self.boundaries: tuple[int, ...] = ()
        self.states: list[Any] = []
        self.first_hit = -1
        self.first_junction = 0
        self.num_prefill_steps = 0
        self.num_copies = 0
        self.num_new_blocks = 0
        self.num_evicted_blocks = 0
        self.num_probes = 0
        self.num_vain_preemptions = 0
        self.furthest_alone = -1
        self.most_pinned = 0
        self.pinned_at_end: list[int] = []

    def key(self, position: int) -> int:
        """The name of the prefix of `position` tokens, with the tokens that its hash looks ahead."""
        position += self.lookahead
        return self.bases[bisect_left(self.ends, position)] + position

    def block_keys(self, block_size: int, count: int) -> list[int]:
        """At least `count` keys of the whole blocks of `block_size`: `[key(block_size), key(2 * block_size), …]`.

        The list grows as it is asked for and is shared between groups of one block size.
        """
        keys = self._block_keys.get(block_size)
        if keys is None:
            keys = self._block_keys[block_size] = []
        if len(keys) < count:
            self._extend(keys, block_size, count)
        return keys

    def _extend(self, keys: list[int], block_size: int, count: int) -> None:
        ends, bases = self.ends, self.bases
        first = (len(keys) + 1) * block_size + self.lookahead
        last = count * block_size + self.lookahead
        segment = bisect_left(ends, first)
        end, base = ends[segment], bases[segment]
        for position in range(first, last + 1, block_size):
            while end < position:
                segment += 1
                end, base = ends[segment], bases[segment]
            keys.append(base + position)

    def num_hashed_tokens(self, unit: int) -> int:
        """Tokens of the prefix for which hashes of `unit` tokens exist."""
        return max(0, self.num_tokens - self.lookahead) // unit * unit

    @property
    def prefill_end(self) -> int:
        """Where prefill ends: the prompt, or after a preemption all that is known but the last token."""
        return max(self.num_prompt_tokens, self.num_tokens - 1)
