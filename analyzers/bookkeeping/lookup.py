"""The longest prefix that every group can serve: groups are asked in turn until none shortens the answer.

Source: `kv_cache_coordinator: HybridKVCacheCoordinator.find_longest_cache_hit`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

from kvtune.analyzers.bookkeeping.block_pool import Block
from kvtune.analyzers.bookkeeping.finders import (
    ChunkedLocalFinder,
    Finder,
    Found,
    FullFinder,
    StateFinder,
    WindowFinder,
)
from kvtune.analyzers.bookkeeping.mamba import MambaAlignManager
from kvtune.analyzers.bookkeeping.manager import AttentionManager
from kvtune.analyzers.bookkeeping.prefix_index import PrefixIndex
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import Kind
from kvtune.analyzers.profiles import ReleaseProfile
from kvtune.analyzers.resolver import ResolvedSizes

Manager = AttentionManager | MambaAlignManager

_FINDERS: dict[str, type[Finder]] = {
    "full": FullFinder,
    "mamba": StateFinder,
    "sliding_window": WindowFinder,
    "chunked_local": ChunkedLocalFinder,
}


@dataclass(slots=True)
class Hit:
    """A reconciled hit.

    Attributes:
        tokens: its length. junction: the longest single group's hit where that is longer, else 0.
        probes: positions that the engine asks its store for, one per position and set of like groups.
        blocks: per manager, what it adopts: a table of blocks, or a row of states; empty where nothing is cached.
    """

    tokens: int
    junction: int
    probes: int
    blocks: Seq[Any]


class PrefixLookup:
    """Asks the groups of one engine. Groups that are not cacheable take no part."""

    def __init__(
        self,
        managers: Seq[Manager],
        sizes: ResolvedSizes,
        profile: ReleaseProfile,
        dropping: frozenset[int],
        *,
        indexes: Seq[Seq[PrefixIndex]] | None = None,
        kinds: frozenset[Kind] | None = None,
    ) -> None:
        """`indexes`: look in these, one list per manager, instead of the managers' own. `kinds`: ask only these."""
        own = [manager.indexes for manager in managers] if indexes is None else indexes
        self._managers = managers
        self._nothing: tuple[Seq[Block | None], ...] = tuple(() for _ in managers)
        self._unit = sizes.hash_block_size
        self._past_last_token = profile.drop_reads_whole_prompt
        self._trims_every = profile.trims_every_full_group
        self._spec_managers: list[list[int]] = []
        self._finders: list[Finder] = []
        specs: dict[object, list[int]] = {}
        for place, manager in enumerate(managers):
            if manager.group.cacheable and (kinds is None or manager.group.kind in kinds):
                spec = replace(manager.group, count=1, draft=False)
                specs.setdefault((spec, manager.block_size), []).append(place)
        # Full attention first: its answer bounds all others.
        ordered = sorted(specs.values(), key=lambda places: managers[places[0]].group.kind != "full")
        grid = sizes.cache_hit_alignment
        for places in ordered:
            first = managers[places[0]]
            joint = [index for place in places for index in own[place]]
            drops = any(index.group in dropping for index in joint)
            finder = _FINDERS[first.group.kind](first.group, joint, first.block_size, self._unit, grid, drops)
            self._finders.append(finder)
            self._spec_managers.append(places)
        self._single = len(managers) == 1 and managers[0].members == 1
        self._one_pass = len(ordered) == 2 and managers[ordered[0][0]].group.kind == "full"
        self._plain_pair = self._one_pass and not any(finder.drops for finder in self._finders)

    def find(self, sequence: Sequence) -> Hit:
        """The hit of a sequence that is about to be admitted; the last token is always left to compute."""
        return self.find_up_to(sequence, sequence.num_tokens - 1)

    def find_up_to(self, sequence: Sequence, limit: int) -> Hit:
        """The hit of at most `limit` tokens."""
        finders = self._finders
        for finder in finders:
            finder.probes = 0
        if self._single:
            finder = finders[0]
            only = finder.find(sequence, limit, finder.drops)
            answers: Seq[Found | None] = (only,)
            tokens, longest = only[0], 0
        else:
            answers, tokens, longest = self._reconcile(sequence, limit)
        probes = 0
        for finder in finders:
            probes += finder.probes
        if not tokens and self._trims_every:
            return Hit(0, longest, probes, self._nothing)
        blocks: list[Seq[Block | None]] = list(self._nothing)
        for number, answer in enumerate(answers):
            assert answer is not None
            self._share_out(blocks, self._spec_managers[number], finders[number], answer, tokens)
        return Hit(tokens, longest if longest > tokens else 0, probes, blocks)

    def length_up_to(self, sequence: Sequence, limit: int) -> int:
        """The length of that hit alone."""
        return self._reconcile(sequence, limit)[1]

    def _reconcile(self, sequence: Sequence, limit: int) -> tuple[Seq[Found | None], int, int]:
        """Each finder's answer, the length that all agree on, and the longest answer."""
        finders = self._finders
        if self._plain_pair:
            # The loop below, for the common case: the second group looks no further than the first one's hit.
            first = finders[0].find(sequence, limit, False)
            second = finders[1].find(sequence, first[0], False)
            return (first, second), second[0], first[0]
        answers: list[Found | None] = [None] * len(finders)
        verified: set[int] = set()
        tokens, longest = limit, 0
        while True:
            current = tokens
            for number, finder in enumerate(finders):
                answer = answers[number]
                if answer is not None and finder.__class__ is FullFinder:
                    # What full attention has, it has up to any shorter length.
                    current = min(current, answer[0])
                    continue
                drop = finder.drops and number not in verified
                reach = current
                if drop and not finder.finds_states:
                    reach = self._with_margin(sequence, finder, current, limit)
                answer = answers[number] = finder.find(sequence, reach, drop)
                if drop:
                    verified.add(number)
                elif answer[0] < current:
                    verified.clear()
                current = answer[0]
                if current > longest:
                    longest = current
            if current >= tokens:
                break
            tokens = current
            if self._one_pass:
                break
        return answers, tokens, longest

    def _with_margin(self, sequence: Sequence, finder: Finder, length: int, limit: int) -> int:
        """A dropping group looks one unit further, so that the drop lands on `length` again."""
        fine = finder.fine and isinstance(finder, FullFinder)
        margin = self._unit if fine and finder.block_size > self._unit else finder.block_size
        bound = sequence.num_hashed_tokens(self._unit) if self._past_last_token else limit
        return min(length + margin, bound)

    def _share_out(
        self, blocks: list[Seq[Block | None]], places: list[int], finder: Finder, answer: Found, tokens: int
    ) -> None:
        """Give each manager its part of a joint answer, cut to the agreed length."""
        found = answer[1]
        if finder.finds_states:
            start = 0
            for place in places:
                manager = self._managers[place]
                end = start + len(manager.indexes)
                row = found if end - start == len(found) else found[start:end]
                start = end
                if isinstance(manager, MambaAlignManager) or not row:
                    blocks[place] = row
                else:
                    position = -(-answer[0] // manager.block_size) - 1
                    blocks[place] = [None] * position + list(row)
        elif isinstance(finder, FullFinder):
            count = -(-tokens // finder.block_size)
            trimmed = self._trims_every or finder is self._finders[0]
            for number, place in enumerate(places):
                table = found[number]
                if trimmed and count < len(table):
                    del table[count:]
                blocks[place] = table
        else:
            for place, table in zip(places, found, strict=True):
                blocks[place] = table

    def longest_by_group(self, sequence: Sequence) -> list[int]:
        """Each expanded group's own longest hit, asked alone: a diagnostic that decides nothing."""
        limit = sequence.num_tokens - 1
        lengths = [0] * sum(manager.members for manager in self._managers)
        for finder in self._finders:
            reach = limit
            if finder.drops and not finder.finds_states and self._past_last_token:
                reach = self._with_margin(sequence, finder, limit, limit)
            tokens = finder.find(sequence, reach, finder.drops)[0]
            for index in finder.indexes:
                lengths[index.group] = tokens
        return lengths
