"""What happened to every key, and what each lookup would have found had a limit not been there.

A recorder watches one engine through its indexes' listeners and the scheduler's calls; an engine without one pays
nothing. It keeps a second set of keys per group, from which evictions never take anything, and asks it at every
first admission.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kvtune.analyzers.bookkeeping.block_pool import Block
from kvtune.analyzers.bookkeeping.coordinator import Coordinator
from kvtune.analyzers.bookkeeping.lookup import Hit, PrefixLookup
from kvtune.analyzers.bookkeeping.prefix_index import KeyEvent, KeySet
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.layout import Kind
from kvtune.analyzers.profiles import ReleaseProfile

if TYPE_CHECKING:
    from kvtune.analyzers.bookkeeping.step_plan import StepPlan

WINDOW_KINDS: frozenset[Kind] = frozenset({"sliding_window", "chunked_local"})


class KeyLogEntry(NamedTuple):
    """One change of one key. `request` is the one whose chunk made it; `step` counts scheduler steps from 0."""

    step: int
    request: int
    event: KeyEvent
    group: int
    key: int


class ChunkLogEntry(NamedTuple):
    """One scheduled chunk: tokens [start, end) of the request."""

    step: int
    start: int
    end: int


@dataclass
class LookupRecord:
    """A request's first admission. Tokens.

    Attributes:
        step: when. hit: reconciled. junction: the longest single group's hit where longer. group_hits: each expanded
            group's own longest hit. without_drop: had no unit been dropped. without_evictions: nor anything evicted.
        within_windows: what sliding windows and local chunks alone would have allowed, nothing evicted.
    """

    step: int
    hit: int
    junction: int
    group_hits: tuple[int, ...]
    without_drop: int
    without_evictions: int
    within_windows: int


@dataclass
class EngineLog:
    """Everything recorded, in order. `chunks` by request; `first_key_by`: group and key -> the first request, of
    those that still counted at the end, that had it keyed."""

    keys: list[KeyLogEntry] = field(default_factory=list)
    chunks: dict[int, list[ChunkLogEntry]] = field(default_factory=dict)
    lookups: dict[int, LookupRecord] = field(default_factory=dict)
    first_key_by: dict[tuple[int, int], int] = field(default_factory=dict)


class Recorder:
    """Watches one engine. `log` grows as it runs."""

    def __init__(self, coordinator: Coordinator, profile: ReleaseProfile) -> None:
        self.log = EngineLog()
        self._step = 0
        self._request = -1
        self._indexes = [index for manager in coordinator.managers for index in manager.indexes]
        self._kept = [[KeySet(index) for index in manager.indexes] for manager in coordinator.managers]
        self._kept_of = {kept.group: kept for sets in self._kept for kept in sets}
        self._index_of = {index.group: index for index in self._indexes}
        for index in self._indexes:
            index.listener = self._heard
        nobody: frozenset[int] = frozenset()
        managers, sizes = coordinator.managers, coordinator.sizes
        self._lookup = coordinator.lookup
        self._undropped = PrefixLookup(managers, sizes, profile, nobody)
        self._unevicted = PrefixLookup(managers, sizes, profile, nobody, indexes=self._kept)
        self._windows = PrefixLookup(managers, sizes, profile, nobody, indexes=self._kept, kinds=WINDOW_KINDS)

    def _heard(self, event: KeyEvent, group: int, block: Block, key: int) -> None:
        self.log.keys.append(KeyLogEntry(self._step, self._request, event, group, key))
        kept = self._kept_of[group]
        if event == "overwritten":
            if self._index_of[group].first(key) is None:
                kept.discard(key)
                self.log.first_key_by.pop((group, key), None)
        elif event != "evicted":
            kept.add(key)
            before = self.log.first_key_by.get((group, key))
            if before is None or self._request < before:
                self.log.first_key_by[group, key] = self._request

    def acts_for(self, sequence: Sequence) -> None:
        """What happens from now on is done for this request."""
        self._request = sequence.index

    def looked_up(self, sequence: Sequence, hit: Hit) -> None:
        """A waiting request was looked up; the last time before it is admitted counts."""
        self._request = sequence.index
        if self._lookup is None or sequence.first_hit >= 0:
            return
        limit = sequence.num_tokens - 1
        self.log.lookups[sequence.index] = LookupRecord(
            step=self._step,
            hit=hit.tokens,
            junction=hit.junction,
            group_hits=tuple(self._lookup.longest_by_group(sequence)),
            without_drop=max(hit.tokens, self._undropped.length_up_to(sequence, limit)),
            without_evictions=max(hit.tokens, self._unevicted.length_up_to(sequence, limit)),
            within_windows=self._windows.length_up_to(sequence, limit),
        )

    def planned(self, plan: StepPlan) -> None:
        """A step was planned; the next one begins."""
        for chunk in plan.chunks:
            entry = ChunkLogEntry(self._step, chunk.start, chunk.start + chunk.num_tokens)
            self.log.chunks.setdefault(chunk.sequence.index, []).append(entry)
        self._step += 1

    def once_all_earlier_had_run(self, sequences: Seq[Sequence]) -> list[int]:
        """Per request, in order of their numbers: its longest hit with every key that an earlier request ever left
        and nobody overwrote, whether it was there in time or not. Sets the undisturbed keys aside."""
        by_request: dict[int, list[tuple[int, int]]] = {}
        for place, request in self.log.first_key_by.items():
            by_request.setdefault(request, []).append(place)
        for kept in self._kept_of.values():
            kept.clear()
        lengths = []
        for sequence in sequences:
            lengths.append(self._unevicted.length_up_to(sequence, sequence.num_prompt_tokens - 1))
            for group, key in by_request.get(sequence.index, ()):
                self._kept_of[group].add(key)
        return lengths
