"""All groups of one engine: look a request up, make room for it, allocate, register keys, give everything back.

    one admission: find --> [whole prompt fits?] --> release what is out of reach --> [this chunk fits?]
                   --> adopt the hit in every group --> allocate in every group --> register keys

Keys are registered when a chunk is scheduled, before it is computed. Sources: `kv_cache_manager: allocate_slots`,
`kv_cache_coordinator`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from kvtune.analyzers.bookkeeping.block_pool import BlockPool
from kvtune.analyzers.bookkeeping.checkpoint import CheckpointRules
from kvtune.analyzers.bookkeeping.full_attention import FullAttentionManager
from kvtune.analyzers.bookkeeping.lookup import Hit, Manager, PrefixLookup
from kvtune.analyzers.bookkeeping.mamba import MambaAlignManager
from kvtune.analyzers.bookkeeping.mamba_plain import MambaPlainManager
from kvtune.analyzers.bookkeeping.manager import AttentionManager, Copy, ManagerContext
from kvtune.analyzers.bookkeeping.retention import replay_boundaries
from kvtune.analyzers.bookkeeping.ring import RingManager
from kvtune.analyzers.bookkeeping.roomy_pool import RoomyPool
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.bookkeeping.sliding_window import ChunkedLocalManager, SlidingWindowManager
from kvtune.analyzers.layout import EngineConfig, KVCacheGroup
from kvtune.analyzers.profiles import ReleaseProfile
from kvtune.analyzers.resolver import ResolvedSizes
from kvtune.tokenization.errors import UnusableInputError

UNBOUNDED_LENGTH = 1 << 40


class Coordinator:
    """The cache side of one engine.

    Attributes:
        pool: shared by all groups; a `RoomyPool` if asked for. managers: one per group, or per run of like `align`
            groups. lookup: None while prefix caching is off.
        rhythms: (period, offset) of the computed tokens near which a decode step can do more than add a token.
    """

    def __init__(
        self, config: EngineConfig, profile: ReleaseProfile, sizes: ResolvedSizes, *, roomy: bool = False
    ) -> None:
        self.sizes = sizes
        self.pool = RoomyPool(config.num_blocks) if roomy else BlockPool(config.num_blocks)
        self._all_free = self.pool.num_free
        self.max_model_len = config.max_model_len or UNBOUNDED_LENGTH
        self._caching = config.enable_prefix_caching
        self._slot_lookahead = sizes.slot_lookahead_tokens
        self._reprefilled = max(0, sizes.prefill_lookahead_tokens - 1)
        self._watermark = 0 if config.num_blocks is None else int(config.watermark * config.num_blocks)
        # With sparse retention only the chunk that ends the prefill exports a state; otherwise every chunk may.
        self._knows_prefill_end = config.retention_interval == 0
        batches = 2 if config.scheduling == "async" else 1
        context = ManagerContext(
            pool=self.pool,
            profile=profile,
            checkpoints=CheckpointRules(
                profile, drop=sizes.eagle_block_drop, lookahead=sizes.hash_lookahead_tokens
            ),
            caching=config.enable_prefix_caching,
            unit=sizes.hash_block_size,
            scheduler_block=sizes.scheduler_block_size,
            grid=sizes.cache_hit_alignment,
            retention=config.retention_interval,
            drop=sizes.eagle_block_drop,
            lookahead=sizes.hash_lookahead_tokens,
            max_in_flight_tokens=batches * config.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            speculative_blocks=sizes.speculative_blocks,
            prefill_lookahead=sizes.prefill_lookahead_tokens,
            junction_checkpoint=sizes.junction_checkpoint,
        )
        groups = config.expanded()
        dropping = _spread_over_like_groups(groups, sizes)
        self.managers = _build_managers(context, groups, sizes, dropping)
        self._recycling = [
            (place, manager) for place, manager in enumerate(self.managers) if manager.recycles
        ]
        self._numbered = list(enumerate(self.managers))
        self._registering = [
            (place, manager)
            for place, manager in enumerate(self.managers)
            if manager.group.cacheable or not profile.uncacheable_groups
        ]
        self._mambas = [
            (place, manager)
            for place, manager in self._numbered
            if isinstance(manager, MambaAlignManager | MambaPlainManager)
        ]
        self._exporting = [
            (place, manager)
            for place, manager in self._numbered
            if isinstance(manager, MambaAlignManager) and manager.group.export_alignment is not None
        ]
        self.rhythms = sorted({rhythm for manager in self.managers for rhythm in manager.rhythms})
        # A running state, a copy, an export, a partly filled block and drafts' scratch come on top of whole blocks.
        self._blocks_per_token = sum(
            manager.members / manager.block_size
            for manager in self.managers
            if not isinstance(manager, RingManager)
        )
        self._blocks_besides = sum(manager.members for manager in self.managers) * (
            5 + sizes.speculative_blocks
        )
        self._floors_to = 1 if len(groups) == 1 or sizes.partial_hits else sizes.scheduler_block_size
        self._unitary = len(groups) == 1
        self._adopts_past_hit = not profile.trims_every_full_group
        self._moves_boundary = bool(sizes.dropping_groups) and profile.drop_moves_replay_boundary
        self.lookup = PrefixLookup(self.managers, sizes, profile, dropping) if self._caching else None
        self.no_hit = Hit(0, 0, 0, tuple(() for _ in self.managers))

    def begin_step(self) -> None:
        """A new step starts: states keyed in the last one exist now."""
        for _, manager in self._mambas:
            if manager.written:
                manager.written.clear()

    def find(self, sequence: Sequence) -> Hit:
        """The hit of a request that is about to be admitted."""
        if self.lookup is None or sequence.skip_reading:
            return self.no_hit
        return self.lookup.find(sequence)

    def blocks_for(self, sequence: Sequence, hit: Hit, num_tokens: int) -> int:
        """Free blocks that a waiting request takes up to `num_tokens`, if nothing is recycled on the way."""
        tokens = min(num_tokens, self.max_model_len)
        start = min(hit.tokens, self.max_model_len)
        return self._count(sequence, hit, tokens, tokens, start, True)

    def admit(self, sequence: Sequence, hit: Hit, num_new_tokens: int, *, others_run: bool) -> bool:
        """Give a waiting request its hit and the slots of its first chunk; False if that does not fit now."""
        if hit.tokens:
            for place, manager in self._mambas:
                if manager.waits_for(hit.blocks[place]):
                    return False
        self.prepare(sequence)
        watermark = self._watermark if others_run else 0
        # The bound saves counting in a roomy pool.
        at_most = sequence.num_tokens * self._blocks_per_token + self._blocks_besides
        if self.pool.num_free < watermark + at_most and (
            self.blocks_for(sequence, hit, sequence.num_tokens) + watermark > self.pool.num_free
        ):
            return False
        return self._allocate(sequence, hit, num_new_tokens, watermark)

    def prepare(self, sequence: Sequence) -> None:
        """Give a waiting request its empty state in every group."""
        if not sequence.states:
            sequence.states = [manager.new_state() for manager in self.managers]
            sequence.boundaries = replay_boundaries(
                sequence.num_prompt_tokens, self.sizes.scheduler_block_size, self._moves_boundary
            )

    def extend(self, sequence: Sequence, num_new_tokens: int) -> bool:
        """Give a running request the slots of its next chunk; False if they do not fit now."""
        computed = sequence.num_computed_tokens
        if computed > self.max_model_len:
            computed = self.max_model_len
        processed = computed - sequence.num_in_flight_tokens
        if processed > 0:
            for place, manager in self._recycling:
                manager.release_skipped(sequence.states[place], processed)
        return self._allocate(sequence, self.no_hit, num_new_tokens, 0)

    def _allocate(self, sequence: Sequence, hit: Hit, num_new_tokens: int, watermark: int) -> bool:
        states, pool, max_len = sequence.states, self.pool, self.max_model_len
        start = sequence.num_computed_tokens + hit.tokens
        main = (start if start < max_len else max_len) + num_new_tokens
        slots = main + self._slot_lookahead
        if slots > max_len:
            slots = max_len
        for place, mamba in self._exporting:
            end = sequence.prefill_end if self._knows_prefill_end else 0
            mamba.plan_export(states[place], start, main, end)
        if pool.num_free < watermark + slots * self._blocks_per_token + self._blocks_besides and (
            self._count(sequence, hit, slots, main, start, False) + watermark > pool.num_free
        ):
            return False
        evicted, handed_out = pool.evicted_blocks, pool.new_blocks
        if hit.tokens or (self._adopts_past_hit and any(hit.blocks)):
            blocks = hit.blocks
            for place, manager in self._numbered:
                manager.adopt(states[place], blocks[place], hit.tokens)
        for place, manager in self._numbered:
            state = states[place]
            if state.partial is not None:
                sequence.num_copies += manager.members
            manager.allocate(state, slots, main)
        sequence.num_evicted_blocks += pool.evicted_blocks - evicted
        sequence.num_new_blocks += pool.new_blocks - handed_out
        pinned = self._all_free - pool.num_free
        if pinned > sequence.most_pinned:
            sequence.most_pinned = pinned
        if self._caching:
            self.register(sequence, main if main < sequence.num_tokens else sequence.num_tokens)
        return True

    def _count(self, sequence: Sequence, hit: Hit, slots: int, main: int, start: int, admission: bool) -> int:
        """The exact number of free blocks, those of the hit that are free included."""
        end = sequence.prefill_end if self._knows_prefill_end else 0
        needed = 0
        for place, manager in self._numbered:
            state = sequence.states[place]
            needed += manager.blocks_needed(state, slots, main, hit.blocks[place], start, end, admission)
        return needed

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Key what `num_tokens` computed or scheduled tokens fill, in every group. Only with prefix caching."""
        boundaries = sequence.boundaries
        states = sequence.states
        if self._unitary:
            for place, manager in self._registering:
                manager.register(sequence, states[place], max(0, num_tokens - self._reprefilled), boundaries)
            return
        floor = self._floors_to
        aligned = num_tokens - num_tokens % floor
        for place, manager in self._registering:
            count = aligned
            if manager.drops and aligned > 0:
                # A dropping group looks one block past the grid.
                final = max(0, num_tokens - self._reprefilled)
                count = min(final, final - final % floor + manager.block_size)
            manager.register(sequence, states[place], count, boundaries)

    def release(self, sequence: Sequence) -> None:
        """Give back all blocks of a finished or preempted request, group by group."""
        pool = self.pool
        free = pool.num_free
        pinned = []
        states = sequence.states
        for place, manager in self._numbered if states else ():
            manager.release(states[place])
            pinned.append(pool.num_free - free)
            free = pool.num_free
        sequence.pinned_at_end = pinned
        sequence.states = []

    def take_copies(self) -> list[Copy]:
        """Block copies queued in this step. Both ends are held until they are given back to the pool."""
        copies: list[Copy] = []
        for manager in self.managers:
            if manager.copies:
                copies += manager.take_copies()
        return copies

    def free_copy_ends(self, copies: Seq[Copy]) -> None:
        """Drop the references that kept both ends of the copies alive."""
        free = self.pool.free
        for pair in copies:
            free(pair)

    @property
    def num_keys(self) -> int:
        """Keys in all groups' indexes."""
        return sum(
            len(index.blocks) * manager.members // len(manager.indexes)
            for manager in self.managers
            for index in manager.indexes
        )


def _spread_over_like_groups(groups: tuple[KVCacheGroup, ...], sizes: ResolvedSizes) -> frozenset[int]:
    """Groups whose hits drop a unit: those that do, and every group of the same spec, as all are looked up at once."""
    if len(groups) == 1:
        return sizes.dropping_groups
    specs = {replace(groups[place], draft=False) for place in sizes.dropping_groups}
    return frozenset(place for place, group in enumerate(groups) if replace(group, draft=False) in specs)


def _build_managers(
    context: ManagerContext, groups: tuple[KVCacheGroup, ...], sizes: ResolvedSizes, dropping: frozenset[int]
) -> list[Manager]:
    managers: list[Manager] = []
    place = 0
    while place < len(groups):
        group, block_size, drops = groups[place], sizes.group_block_sizes[place], place in dropping
        if group.kind == "mamba" and group.mode in (None, "align"):
            members = 1
            while place + members < len(groups) and groups[place + members] == group:
                members += 1
            managers.append(
                MambaAlignManager(context, group, place, block_size, drops=drops, members=members)
            )
            place += members
            continue
        managers.append(_MANAGERS[_manager_kind(group)](context, group, place, block_size, drops=drops))
        place += 1
    return managers


_MANAGERS: dict[str, type[AttentionManager]] = {
    "full": FullAttentionManager,
    "mamba": MambaPlainManager,
    "sliding_window": SlidingWindowManager,
    "chunked_local": ChunkedLocalManager,
    "ring": RingManager,
}


def _manager_kind(group: KVCacheGroup) -> str:
    if group.kind not in _MANAGERS:
        raise UnusableInputError(
            "the kinds of the groups are needed to predict hits",
            field="--groups",
            found=f"a bare block size {group.block_size}",
            wanted="full:SIZE, mamba:SIZE, swa:SIZE:window=W, chunked:SIZE:window=W or ring:SIZE for each group",
        )
    return group.kind
