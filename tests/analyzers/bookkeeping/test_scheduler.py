"""The scheduler step by step, as an executor sees it: plans, tables, copies, preemption, admission."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvtune.analyzers.bookkeeping.engine_loop import EngineLoop
from kvtune.analyzers.bookkeeping.integrity import check_integrity
from kvtune.analyzers.bookkeeping.scheduler import make_scheduler
from kvtune.analyzers.layout import Drafter, EngineConfig, parse_groups
from kvtune.analyzers.profiles import NEWEST, profile_for
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.replay import ReplayInput, replay
from kvtune.analyzers.resolver import resolve_sizes
from tests.analyzers.bookkeeping.drive import inputs_of, sequences_of


def stream(number: int, length: int) -> list[int]:
    return [number * 1000 + place for place in range(length)]


def test_a_hybrid_request_from_its_first_chunk_to_a_partial_hit() -> None:
    """Blocks of 8, unit 4. Prompt of 22: chunks end at 16, 20 and 22; the tail state at 20 moves to a copy."""
    scheduler = make_scheduler(
        EngineConfig(groups=parse_groups("mamba:8*2,full:8"), match_unit=4, num_blocks=40), NEWEST
    )
    first, second = sequences_of(scheduler, [stream(1, 22), stream(1, 22) + stream(2, 9)], [[7, 8], [9]])
    scheduler.add_request(first)

    plan = scheduler.schedule()
    [chunk] = plan.chunks
    assert (chunk.start, chunk.num_tokens, chunk.samples) == (0, 16, False)
    # Two Mamba groups with a state after 16 tokens (position 1), then full attention's two blocks.
    assert scheduler.tables(first) == [[0, 1], [0, 2], [3, 4]]
    scheduler.update(plan)

    plan = scheduler.schedule()
    assert (plan.chunks[0].start, plan.chunks[0].num_tokens) == (16, 4)
    assert scheduler.tables(first) == [[0, 1, 5], [0, 2, 6], [3, 4, 7]]
    assert plan.copies == []
    scheduler.update(plan)

    plan = scheduler.schedule()
    assert (plan.chunks[0].start, plan.chunks[0].num_tokens, plan.chunks[0].samples) == (20, 2, True)
    # The request goes on in blocks 5 and 6; the state at 20 is copied to fresh blocks, which take the keys.
    copies = [(source.block_id, target.block_id) for source, target in plan.copies]
    assert copies == [(5, 8), (6, 9)]
    assert scheduler.tables(first)[0] == [0, 0, 5]  # the state at 16 was given back
    assert scheduler.update(plan) == []
    check_integrity(scheduler, [first])

    plan = scheduler.schedule()
    assert (plan.chunks[0].start, plan.chunks[0].num_tokens) == (22, 1)  # decode
    assert scheduler.update(plan) == [first]

    scheduler.add_request(second)
    plan = scheduler.schedule()
    [chunk] = plan.chunks
    assert chunk.hit is not None
    assert (chunk.hit.tokens, chunk.start, chunk.num_tokens) == (20, 20, 4)
    # All three groups go on inside a block: each gets a private copy of it.
    assert [(source.block_id) for source, _ in plan.copies] == [8, 9, 7]
    check_integrity(scheduler, [first, second])


def test_a_state_written_in_this_step_is_not_hit_in_it() -> None:
    scheduler = make_scheduler(EngineConfig(groups=parse_groups("mamba:8,full:8")), NEWEST)
    twins = sequences_of(scheduler, [stream(1, 20), stream(1, 20)])
    for sequence in twins:
        scheduler.add_request(sequence)
    loop = EngineLoop(scheduler)
    admissions = []
    while loop.has_work:
        plan, _ = loop.step()
        assert plan is not None
        admissions.append([(chunk.sequence.index, chunk.hit.tokens) for chunk in plan.chunks if chunk.hit])
    assert admissions[:2] == [[(0, 0)], [(1, 16)]]


def test_the_last_running_request_is_preempted_and_comes_back() -> None:
    config = EngineConfig(groups=parse_groups("full:4"), num_blocks=8, max_num_batched_tokens=32)
    scheduler = make_scheduler(config, NEWEST)
    sequences = sequences_of(scheduler, [stream(1, 11), stream(2, 11)], [stream(3, 8), stream(4, 8)])
    for sequence in sequences:
        scheduler.add_request(sequence)
    loop = EngineLoop(scheduler)
    preempted = []
    while loop.has_work:
        plan, _ = loop.step()
        if plan is not None:
            preempted += [sequence.index for sequence in plan.preempted]
        check_integrity(scheduler, sequences)
    assert preempted == [1]
    assert [sequence.num_preemptions for sequence in sequences] == [0, 1]
    assert all(sequence.finished for sequence in sequences)


def test_a_prompt_that_can_never_fit_is_refused_and_the_rest_goes_on() -> None:
    inputs, _ = inputs_of([stream(1, 30), stream(2, 300), stream(1, 30)])
    config = EngineConfig(groups=parse_groups("mamba:8*3,full:8"), num_blocks=20)
    result = replay(config, inputs, check=True)
    # 301 tokens: 38 blocks of full attention, and one running state in each of three Mamba groups.
    assert result.refused == (1,)
    assert result.hit_tokens.tolist() == [0, 0, 24]


def test_the_watermark_keeps_blocks_free_beside_running_requests() -> None:
    def admitted(watermark: float) -> int:
        config = EngineConfig(groups=parse_groups("full:4"), num_blocks=21, watermark=watermark)
        scheduler = make_scheduler(config, NEWEST)
        for sequence in sequences_of(scheduler, [stream(1, 30), stream(2, 30)]):
            scheduler.add_request(sequence)
        return len(scheduler.schedule().chunks)

    assert admitted(0.0) == 2
    assert admitted(0.25) == 1  # 5 of 21 blocks stay free: 12 left, 8 needed, but not 8 + 5


def test_max_num_seqs_and_the_budget_bound_a_step() -> None:
    config = EngineConfig(groups=parse_groups("full:4"), max_num_seqs=2, max_num_batched_tokens=25)
    scheduler = make_scheduler(config, NEWEST)
    for sequence in sequences_of(scheduler, [stream(number, 20) for number in range(3)]):
        scheduler.add_request(sequence)
    assert [(chunk.sequence.index, chunk.num_tokens) for chunk in scheduler.schedule().chunks] == [
        (0, 20),
        (1, 5),
    ]


@pytest.mark.parametrize(
    ("release", "method", "first_chunk", "tokens"),
    [
        ("0.33.0", "draft_model", 24, 48),  # 25 rows: 24 tokens and the draft pass's row; 49 for two requests
        ("0.33.0", "dflash", 25, 50),
        ("0.32.0", "dflash", 22, 44),  # three drafts, three rows
        (
            "0.27.0",
            "draft_model",
            23,
            23,
        ),  # a row for each of the two requests that a step may hold, in every step
        ("0.27.0", "dflash", 21, 21),  # two rows for each of them
    ],
)
def test_draft_rows_take_of_the_step_budget(release: str, method: str, first_chunk: int, tokens: int) -> None:
    config = EngineConfig(
        groups=parse_groups("full:4"),
        version=release,
        max_num_batched_tokens=25,
        max_num_seqs=2,
        drafter=Drafter(method, 3),
    )
    profile = profile_for(release).profile
    scheduler = make_scheduler(config, profile)
    for sequence in sequences_of(scheduler, [stream(1, 100)]):
        scheduler.add_request(sequence)
    assert [chunk.num_tokens for chunk in scheduler.schedule().chunks] == [first_chunk]

    both = replace(config, max_num_batched_tokens=50 if profile.draft_rows_by_request else 25)
    scheduler = make_scheduler(both, profile)
    for sequence in sequences_of(scheduler, [stream(1, first_chunk), stream(2, 100)]):
        scheduler.add_request(sequence)
    assert sum(chunk.num_tokens for chunk in scheduler.schedule().chunks) == tokens


def test_drafts_may_leave_nothing_of_the_step_budget() -> None:
    config = EngineConfig(
        groups=parse_groups("full:4"),
        version="0.26.0",
        max_num_batched_tokens=2048,
        drafter=Drafter("draft_model", 8, parallel_drafting=True),
    )
    with pytest.raises(EngineRefusal, match="leave nothing of the step budget of 2048"):
        make_scheduler(config, profile_for("0.26.0").profile)


def test_a_prompt_shorter_than_the_lookahead_leaves_no_key() -> None:
    """Three tokens and one generated, hashes that look four tokens ahead: no hash exists."""
    config = EngineConfig(
        groups=parse_groups("full:100:draft,mamba:100"),
        match_unit=50,
        drafter=Drafter("multi_module_mtp", 4, accept=2),
    )
    sizes = resolve_sizes(config, NEWEST)
    assert sizes.hash_lookahead_tokens == 4
    scheduler = make_scheduler(config, NEWEST, sizes)
    [sequence] = sequences_of(scheduler, [stream(1, 3)], [[7]])
    scheduler.add_request(sequence)
    assert sequence.num_hashed_tokens(50) == 0
    loop = EngineLoop(scheduler)
    while loop.has_work:
        loop.step()
    assert scheduler.coordinator.num_keys == 0


def test_an_async_scheduler_runs_one_step_ahead() -> None:
    config = EngineConfig(groups=parse_groups("full:4"), scheduling="async")
    scheduler = make_scheduler(config, NEWEST)
    [sequence] = sequences_of(scheduler, [stream(1, 6)], [[5, 5, 5]])
    scheduler.add_request(sequence)
    first = scheduler.schedule()
    second = scheduler.schedule()  # before the first one's output is known
    assert [(chunk.start, chunk.num_tokens) for chunk in first.chunks + second.chunks] == [(0, 6), (6, 1)]
    assert sequence.num_output_placeholders == 2
    assert scheduler.update(first) == []
    third = scheduler.schedule()
    assert [chunk.start for chunk in third.chunks] == [7]
    assert scheduler.update(second) == []
    assert scheduler.schedule().chunks == []  # the step in flight gives the last token
    assert scheduler.update(third) == [sequence]


def test_accepted_drafts_shorten_the_decode() -> None:
    config = EngineConfig(groups=parse_groups("full:4:draft"), drafter=Drafter("eagle", 2))
    scheduler = make_scheduler(config, NEWEST)
    [sequence] = sequences_of(scheduler, [stream(1, 6)], [stream(9, 6)])
    scheduler.add_request(sequence)
    plan = scheduler.schedule()
    scheduler.update(plan)
    plan = scheduler.schedule()
    [chunk] = plan.chunks
    assert (chunk.start, chunk.num_tokens, chunk.num_drafts) == (6, 3, 2)
    scheduler.update(plan, [3])  # one token and both drafts
    assert (sequence.num_tokens, sequence.num_computed_tokens) == (10, 9)
    plan = scheduler.schedule()
    scheduler.update(plan, [1])  # both drafts rejected
    assert (sequence.num_tokens, sequence.num_computed_tokens) == (11, 10)


def test_requests_need_not_be_given_arrays_of_their_own_length() -> None:
    inputs, _ = inputs_of([stream(1, 9), stream(1, 9), stream(2, 9)])
    part = inputs.subset(np.array([0, 2]))
    assert isinstance(part, ReplayInput)
    assert replay(EngineConfig(groups=parse_groups("full:4")), part).hit_tokens.tolist() == [0, 0]
