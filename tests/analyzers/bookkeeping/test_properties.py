"""Properties of the whole bookkeeping, on token sequences that share prefixes at random."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvtune.analyzers.bookkeeping.scheduler import Scheduler
from kvtune.analyzers.layout import Drafter, EngineConfig, KVCacheGroup, parse_groups
from kvtune.analyzers.losses import losses_by_request
from kvtune.analyzers.replay import replay
from tests.analyzers.bookkeeping.drive import inputs_of
from tests.analyzers.bookkeeping.slow_model import SlowPrefixCache, chained_hashes


@st.composite
def families(draw: st.DrawFn, longest: int = 90) -> list[list[int]]:
    """Prompts of two kinds of token that branch off one another, so that most share something."""
    prompts: list[list[int]] = []
    for _ in range(draw(st.integers(1, 9))):
        stem: list[int] = []
        if prompts:
            other = draw(st.sampled_from(prompts))
            stem = other[: draw(st.integers(0, len(other)))]
        tail = draw(st.lists(st.integers(0, 1), min_size=0 if stem else 1, max_size=longest))
        prompts.append(stem + tail)
    return prompts


LAYOUTS = st.sampled_from(
    [
        "full:4",
        "full:8,mamba:8",
        "mamba:8*3,full:8",
        "mamba:12,full:4",
        "full:4,swa:4:window=9",
        "swa:4:window=6*2,full:8,mamba:8",
        "mamba:8:export=1*2,full:8",
        "full:8,mamba:8,full:8",
    ]
)


@st.composite
def engines(draw: st.DrawFn) -> EngineConfig:
    groups = parse_groups(draw(LAYOUTS))
    sizes = [group.block_size for group in groups]
    unit = None
    if len(groups) > 1 or groups[0].count > 1:
        unit = draw(st.sampled_from([None, 2, 4]))
    drafter = draw(st.sampled_from([None, None, Drafter("mtp", 2), Drafter("eagle", 1, 1, True)]))
    retention = draw(st.sampled_from([0, None]))
    return EngineConfig(
        groups=groups,
        match_unit=unit,
        num_blocks=draw(st.sampled_from([None, 60, 90])),
        max_num_batched_tokens=draw(st.sampled_from([max(sizes), 30, 8192])),
        retention_interval=retention,
        drafter=drafter,
        scheduling=draw(st.sampled_from(["sync", "async"])),
    )


@settings(max_examples=150, deadline=None)
@given(families(), engines(), st.lists(st.integers(1, 12), min_size=9, max_size=9))
def test_the_conservation_laws_hold_after_every_request(
    prompts: list[list[int]], config: EngineConfig, outputs: list[int]
) -> None:
    """Blocks, reference counts, keys both ways, hits on their grid and below the prompt: see `check_integrity`."""
    inputs, shared = inputs_of(prompts, outputs[: len(prompts)])
    result = replay(config, inputs, check=True)
    assert (result.hit_tokens <= shared).all()
    assert (result.hit_tokens % result.sizes.cache_hit_alignment == 0).all()


@settings(max_examples=100, deadline=None)
@given(families(), engines())
@example(  # the last whole block of r3 is hashed with its answer, which r5 does not share
    [[0] * length for length in (2, 1, 10, 12, 1, 13, 1)],
    EngineConfig(groups=parse_groups("full:4"), drafter=Drafter("mtp", 2), max_num_batched_tokens=4),
)
def test_losses_sum(prompts: list[list[int]], config: EngineConfig) -> None:
    inputs, shared = inputs_of(prompts)
    losses, result = losses_by_request(config, inputs, None, shared), replay(config, inputs)
    assert all((loss >= 0).all() for loss in losses.values())
    np.testing.assert_array_equal(sum(losses.values()) + result.hit_tokens, shared)
    without_record = losses_by_request(config, inputs, None, shared, result=result)
    for name, loss in losses.items():
        np.testing.assert_array_equal(without_record[name], loss, err_msg=name)
    kinds = {group.kind for group in config.groups}
    if config.num_blocks is None:
        assert not losses["evicted"].any()
    if "mamba" not in kinds:
        assert not losses["no_recurrent_state"].any()
    if "sliding_window" not in kinds:
        assert not losses["window"].any()
    if config.drafter is None:
        assert not losses["speculative_drop"].any()
    assert not losses["in_flight"].any()


@settings(max_examples=120, deadline=None)
@given(families(), engines())
def test_a_counted_pool_is_a_queued_pool(prompts: list[list[int]], config: EngineConfig) -> None:
    """`replay` counts blocks until one would be evicted, a checked replay tells them apart from the start."""
    inputs, _ = inputs_of(prompts)
    fast, slow = replay(config, inputs), replay(config, inputs, check=True)
    for name in ("hit_tokens", "junction", "prefill_steps", "copies", "evicted_blocks", "new_blocks"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name))
    assert (fast.refused, fast.num_keys) == (slow.refused, slow.num_keys)


@settings(max_examples=100, deadline=None)
@given(families(), st.integers(1, 7), st.integers(1, 40), st.sampled_from([5, 16, 64]))
def test_one_group_is_plain_prefix_caching(
    prompts: list[list[int]], block: int, spare: int, budget: int
) -> None:
    """Against a model with a list of free blocks and chained SHA-256: hits, steps and evictions."""
    num_blocks = 1 + -(-max(map(len, prompts)) // block) + spare
    config = EngineConfig(
        groups=(KVCacheGroup("full", block),), num_blocks=num_blocks, max_num_batched_tokens=budget
    )
    inputs, _ = inputs_of(prompts)
    result = replay(config, inputs)
    slow = SlowPrefixCache(num_blocks, block, budget)
    expected = [slow.run(prompt) for prompt in prompts]
    found = zip(
        result.hit_tokens.tolist(), result.prefill_steps.tolist(), result.evicted_blocks.tolist(), strict=True
    )
    assert list(found) == expected


@settings(max_examples=60, deadline=None)
@given(families(), st.sampled_from(["full:6", "mamba:6*2,full:6", "full:6,swa:6:window=7"]))
def test_with_dense_states_and_room_hits_reach_the_prefix_tree_bound(
    prompts: list[list[int]], groups: str
) -> None:
    """If every block boundary ends a chunk and nothing is thinned out or evicted, only the grid is lost."""
    inputs, shared = inputs_of(prompts)
    config = EngineConfig(groups=parse_groups(groups), max_num_batched_tokens=6)
    config = EngineConfig(
        groups=config.groups,
        max_num_batched_tokens=6,
        retention_interval=None if len(config.groups) > 1 else 0,
    )
    np.testing.assert_array_equal(replay(config, inputs).hit_tokens, shared // 6 * 6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=8, max_size=40), st.integers(1, 5), LAYOUTS)
def test_the_same_span_at_another_offset_shares_nothing(span: list[int], offset: int, groups: str) -> None:
    shifted = [60 + place for place in range(offset)] + span
    inputs, shared = inputs_of([span, shifted])
    assert shared.tolist() == [0, 0]
    assert replay(EngineConfig(groups=parse_groups(groups)), inputs).hit_tokens.tolist() == [0, 0]
    assert not set(chained_hashes(span, 4)) & set(chained_hashes(shifted, 4))


@settings(max_examples=60, deadline=None)
@given(families())
def test_keys_are_names_of_prefixes_as_chained_hashes_are(prompts: list[list[int]]) -> None:
    inputs, _ = inputs_of(prompts)
    names: dict[int, bytes] = {}
    for path, prompt in zip(inputs.paths, prompts, strict=True):
        for place, digest in enumerate(chained_hashes(prompt, 1)):
            assert names.setdefault(path.key(place + 1), digest) == digest
    assert len(set(names.values())) == len(names)


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_sequential_hits_do_not_depend_on_async_scheduling(scheduling: str) -> None:
    """One output token: nothing overlaps, so both schedulers do the same."""
    prompts = [[7] * 30, [7] * 30 + [1] * 9, [7] * 21 + [2] * 9]
    inputs, _ = inputs_of(prompts)
    config = EngineConfig(groups=parse_groups("mamba:8,full:8"), match_unit=4, scheduling=scheduling)  # type: ignore[arg-type]
    assert replay(config, inputs, check=True).hit_tokens.tolist() == [0, 28, 0]


@settings(max_examples=120, deadline=None)
@given(
    families(),
    st.sampled_from(["full:32", "mamba:32*2,full:32", "full:24,swa:24:window=31", "mamba:48,full:24"]),
    st.sampled_from([None, 24, 40]),
    st.sampled_from(["sync", "async"]),
    st.lists(st.integers(1, 200), min_size=9, max_size=9),
    st.lists(st.floats(0, 0.5), min_size=9, max_size=9),
)
def test_decode_steps_taken_at_once_change_nothing(
    prompts: list[list[int]],
    groups: str,
    num_blocks: int | None,
    scheduling: Literal["sync", "async"],
    outputs: list[int],
    gaps: list[float],
) -> None:
    """By timestamps, with many generated tokens: every figure and every time as without the shortcut."""
    config = EngineConfig(groups=parse_groups(groups), num_blocks=num_blocks, scheduling=scheduling)
    base, _ = inputs_of(prompts, outputs[: len(prompts)])
    inputs = replace(base, arrival=np.cumsum(gaps[: len(prompts)]))
    quick = replay(config, inputs, arrivals="trace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "quiet_decode_steps", lambda _: 0)
        slow = replay(config, inputs, arrivals="trace", check=True)
    for name in (
        "hit_tokens",
        "junction",
        "prefill_steps",
        "preemptions",
        "copies",
        "evicted_blocks",
        "new_blocks",
    ):
        np.testing.assert_array_equal(getattr(quick, name), getattr(slow, name))
    assert (quick.refused, quick.num_steps, quick.num_keys) == (slow.refused, slow.num_steps, slow.num_keys)
    for name in ("first_token_s", "finished_s"):
        np.testing.assert_allclose(getattr(quick, name), getattr(slow, name), rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(families(), engines(), st.lists(st.integers(1, 20), min_size=9, max_size=9))
def test_overlapping_requests_keep_the_laws_and_lose_in_flight_at_most(
    prompts: list[list[int]], config: EngineConfig, outputs: list[int]
) -> None:
    """All at once: what sharers miss because the first has not run yet is called in flight, and all sums."""
    base, shared = inputs_of(prompts, outputs[: len(prompts)])
    inputs = replace(base, arrival=np.zeros(len(prompts)))
    result = replay(config, inputs, arrivals="trace", check=True)
    assert (result.hit_tokens % result.sizes.cache_hit_alignment == 0).all()
    losses = losses_by_request(config, inputs, None, shared, "trace")
    np.testing.assert_array_equal(sum(losses.values()) + result.hit_tokens, shared)
