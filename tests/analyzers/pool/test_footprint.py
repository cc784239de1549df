"""What a running request pins, against its block tables at every step; and the figures made of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtune.analyzers.bookkeeping.scheduler import make_scheduler
from kvtune.analyzers.layout import Drafter, EngineConfig, parse_groups
from kvtune.analyzers.pool.figures import Spread
from kvtune.analyzers.pool.footprint import footprints
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.replay import replay
from tests.analyzers.bookkeeping.drive import inputs_of, sequences_of
from tests.analyzers.pool.replayed import replayed


def families(seed: int, number: int = 8, longest: int = 90) -> list[list[int]]:
    random = np.random.default_rng(seed)
    prompts: list[list[int]] = []
    for _ in range(number):
        stem = prompts[random.integers(len(prompts))] if prompts else []
        stem = stem[: random.integers(len(stem) + 1)]
        prompts.append(stem + random.integers(0, 2, random.integers(1, longest)).tolist())
    return prompts


def held_by_tables(
    config: EngineConfig, prompts: list[list[int]], outputs: list[int]
) -> tuple[list[int], list[int]]:
    """Table entries, and both ends of copies under way, at most; and table entries in the last step."""
    scheduler = make_scheduler(config, profile_for(config.version).profile)
    most, last = [], []
    generated = [[9] * count for count in outputs]
    for sequence in sequences_of(scheduler, prompts, generated):
        scheduler.add_request(sequence)
        peak, held = 0, 0
        while not sequence.finished:
            plan = scheduler.schedule()
            blocks = {block for table in scheduler.tables(sequence) for block in table if block}
            copied = {end.block_id for pair in plan.copies for end in pair}
            held, peak = len(blocks), max(peak, len(blocks | copied))
            scheduler.update(plan)
        most.append(peak)
        last.append(held)
    return most, last


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(
        [
            "full:4",
            "mamba:8*3,full:8",
            "mamba:12,full:4",
            "full:4,swa:4:window=9",
            "swa:4:window=6*2,full:8,mamba:8",
            "mamba:8:export=1*2,full:8",
        ]
    ),
    st.sampled_from([2, 4, None]),
    st.sampled_from([None, None, Drafter("mtp", 2)]),
    st.sampled_from([12, 30, 8192]),
    st.sampled_from([None, 70]),
)
def test_pins_are_what_block_tables_hold(
    seed: int, groups: str, unit: int | None, drafter: Drafter | None, budget: int, num_blocks: int | None
) -> None:
    layout = parse_groups(groups)
    config = EngineConfig(
        groups=layout,
        match_unit=unit if len(layout) > 1 else None,
        drafter=drafter,
        max_num_batched_tokens=budget,
        num_blocks=num_blocks,
    )
    prompts = families(seed)
    outputs = np.random.default_rng(seed).integers(2, 9, len(prompts)).tolist()
    inputs, _ = inputs_of(prompts, outputs)
    result = replay(config, inputs)
    assert result.most_pinned is not None
    if result.refused or result.preemptions.any():
        return
    most, last = held_by_tables(config, prompts, outputs)
    assert result.most_pinned.tolist() == most
    assert sum(result.pinned_at_end.values()).tolist() == last  # type: ignore[union-attr]


def test_figures_worked_out_by_hand() -> None:
    """Prompts of 3, 20 and 20 tokens, blocks of 8, unit 4; one output token, which is never written.

    Attention holds 1, 3 and 3 blocks. The Mamba group holds one state of the first prompt. The second ends chunks at
    16 and 20 and holds both states; nothing is cached, so the smallest pool is 1 + 3 + 2. The third finds 16 tokens,
    whole blocks: it holds the state found and its own. Beside, the longest prompt could hit the first unit of 4,
    inside a block: attention copies one (4 blocks), the Mamba group holds the state, its copy and the next: 1 + 4 + 3.
    """
    inputs, _ = inputs_of([[5] * 3, [7] * 20, [7] * 18 + [1, 2]])
    config = EngineConfig(groups=parse_groups("full:8,mamba:8"))
    units = replayed(config, inputs, {8: None, 4: 4}, current=8, recommended=4)
    found = footprints(units, ["a", "b", "c"], replay_again=False)
    assert (found.longest_request, found.longest_request_tokens) == ("b", 21)
    side = found.recommended
    assert (side.unit, side.minimum_pool_blocks, side.minimum_pool_on_hit_blocks) == (4, 6, 8)
    assert side.pinned_at_end == Spread(median=5, p90=5, max=5)
    assert side.pinned_at_end_by_kind == {
        "full": Spread(median=3, p90=3, max=3),
        "mamba": Spread(median=2, p90=2, max=2),
    }
    assert found.current.minimum_pool_on_hit_blocks == 6
    assert found.smallest == 8
    assert found.enough_blocks == 6  # 5 blocks are ever handed out: unkeyed ones are used again


def test_a_given_pool_leaves_open_which_would_be_enough() -> None:
    inputs, _ = inputs_of([[5] * 3, [7] * 20])
    config = EngineConfig(groups=parse_groups("full:8,mamba:8"), num_blocks=30)
    units = replayed(config, inputs, {8: None}, current=8, recommended=8)
    assert footprints(units, ["a", "b"], replay_again=False).enough_blocks is None


def test_refused_requests_pin_nothing() -> None:
    inputs, _ = inputs_of([[5] * 100, [7] * 9])
    config = EngineConfig(groups=parse_groups("full:8,mamba:8"), num_blocks=6)
    found = footprints(
        replayed(config, inputs, {8: None}, current=8, recommended=8), ["a", "b"], replay_again=False
    )
    assert found.current.most_pinned == Spread(median=4, p90=4, max=4)
    assert found.current.minimum_pool_blocks == 1 + 13 + 2
