"""Conservation laws of the bookkeeping, checked by tests and `--debug`. A broken one is a bug of kvtune."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kvtune.analyzers.bookkeeping.block_pool import Block
from kvtune.analyzers.bookkeeping.roomy_pool import RoomyPool
from kvtune.analyzers.bookkeeping.scheduler import Scheduler
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.bookkeeping.state_table import StateTable


class IntegrityError(RuntimeError):
    """A conservation law does not hold."""


def check_integrity(scheduler: Scheduler, sequences: Iterable[Sequence]) -> None:
    """Check every law between two steps.

    - free + referenced + null = all blocks, and no block is in two of these;
    - a block's reference count is the number of table entries that hold it;
    - every key leads to its blocks and back, and every free keyed block can be found by its key;
    - every hit lies on the hit grid and below the prompt's length.

    Raises:
        IntegrityError: naming the law and the block or request.
    """
    coordinator = scheduler.coordinator
    pool = coordinator.pool
    if isinstance(pool, RoomyPool):
        raise TypeError("a pool that only counts blocks cannot be checked")
    held: Counter[Block] = Counter()
    for sequence in scheduler.running:
        for state in sequence.states:
            if isinstance(state, StateTable):
                held.update(block for row in state.rows.values() for block in row)
            else:
                held.update(block for block in state.table if block is not None)
    for block, count in held.items():
        if block.ref_count != count:
            raise IntegrityError(f"{block} is held by {count} table entries")
    free = pool.free_blocks()
    for block in free:
        if block.ref_count or block in held:
            raise IntegrityError(f"{block} is free and referenced")
    if len(set(free)) != len(free):
        raise IntegrityError("a block is free twice")
    if len(free) + len(held) != pool.num_used_ids:
        raise IntegrityError(
            f"{pool.num_used_ids} blocks were used, {len(free)} are free, {len(held)} are held"
        )
    if pool.num_blocks is not None and pool.num_free + len(held) + 1 != pool.num_blocks:
        raise IntegrityError(f"{pool.num_free} free + {len(held)} held + 1 null is not {pool.num_blocks}")
    _check_keys(scheduler)
    grid = scheduler.sizes.cache_hit_alignment
    for sequence in sequences:
        hit = max(sequence.first_hit, 0)
        if hit % grid or hit >= sequence.num_prompt_tokens:
            raise IntegrityError(
                f"request {sequence.index} hit {hit} of {sequence.num_prompt_tokens}, grid {grid}"
            )


def _check_keys(scheduler: Scheduler) -> None:
    for manager in scheduler.coordinator.managers:
        for index in manager.indexes:
            for key, entry in index.blocks.items():
                for block in entry if isinstance(entry, dict) else (entry,):
                    if block.home is not index or (block.key != key and key not in (block.aliases or ())):
                        raise IntegrityError(
                            f"key {key} of group {index.group} leads to {block}, which lacks it"
                        )
