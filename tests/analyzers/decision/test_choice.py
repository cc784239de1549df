"""The contract's rules of choice, on outcomes small enough to add up by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvtune.analyzers.decision import Choice, Evidence, Objective, Outcome, choose, net_gain
from kvtune.analyzers.decision.choice import Cap
from kvtune.tokenization.trace import Float64, Int32

AT_128 = Objective("overhead", 128)


def outcome(
    unit: int, hit: int, steps: int = 1, requests: int = 20, prefill_s: Float64 | None = None
) -> Outcome:
    return Outcome(
        unit, np.full(requests, hit, dtype=np.int64), np.full(requests, steps, dtype=np.int64), prefill_s
    )


def evidence(
    requests: int = 20, prompt: int = 2000, sessions: Int32 | None = None, distinct: int | None = None
) -> Evidence:
    """Every prompt shares all but its last token with an earlier one."""
    lengths = np.full(requests, prompt, dtype=np.int64)
    own = np.arange(requests, dtype=np.int32)
    return Evidence(
        lengths,
        lengths - 1,
        own if sessions is None else sessions,
        np.zeros(requests, dtype=np.int32),
        requests if distinct is None else distinct,
    )


def pick(outcomes: list[Outcome], current: int, default: int = 1024, **settings: Any) -> Choice:
    known = {"objective": AT_128, "evidence": evidence(len(outcomes[0].hit_tokens))} | settings
    return choose(outcomes, current_unit=current, default_unit=default, **known)


def test_steps_cost_tokens() -> None:
    # 20 requests gain 500 each and take one step more each: 20 * (500 - 128).
    assert net_gain(outcome(16, 500, 2), outcome(1024, 0), 128) == 7440


def test_of_a_tie_the_coarsest_wins() -> None:
    # 1,000 and 996 differ by 0.4%: the coarser. 994 is 0.6% below: not tied.
    current = outcome(1024, 0)
    free = Objective("overhead", 0)
    assert free.best([current, outcome(16, 1000), outcome(32, 996)], current, 0).unit == 32
    assert free.best([current, outcome(16, 1000), outcome(32, 994)], current, 0).unit == 16


def test_one_replayed_unit_of_several_is_kept_and_doubted() -> None:
    alone = [outcome(1024, 500)]
    assert pick(alone, 1024).action == "cannot_help"
    choice = pick(alone, 1024, others_left_out=True)
    assert (choice.action, choice.unit) == ("keep", 1024)
    assert choice.doubts == ("No other match unit was replayed, though the engine accepts some.",)


def test_set_with_a_gain_in_every_session() -> None:
    choice = pick([outcome(1024, 0), outcome(16, 500, 2)], current=1024)
    assert (choice.action, choice.unit, choice.gain_tokens, choice.net_gain_tokens) == (
        "set",
        16,
        10_000,
        7_440,
    )
    assert choice.interval == (10_000, 10_000)
    assert choice.gain_interval == (7_440, 7_440)
    assert choice.confidence == "high"
    assert choice.doubts == ()


@pytest.mark.parametrize(("hit", "action"), [(9, "keep"), (10, "set")])
def test_a_net_gain_below_half_a_per_cent_is_not_advised(hit: int, action: str) -> None:
    """Of 20 prompts of 2,000 tokens 0.5% are 200: 20 hits of 9 are 180, of 10 are 200."""
    choice = pick([outcome(1024, 0), outcome(16, hit)], current=1024)
    assert choice.action == action
    if action == "keep":
        assert choice.doubts[0] == (
            "Match unit 16 would gain +180 tokens net (0.45% of all prompt tokens): less than 0.5%, not worth a change."
        )


def test_a_net_gain_of_320_tokens_of_millions_is_not_advised() -> None:
    """Two of 20 requests of 340,000 tokens gain 160 each, 0.005%: that was once a reason to set."""
    hits = np.zeros(20, dtype=np.int64)
    hits[:2] = 160
    choice = pick(
        [outcome(1024, 0), Outcome(16, hits, np.ones(20, dtype=np.int64))],
        current=1024,
        evidence=evidence(prompt=340_000),
    )
    assert (choice.action, choice.net_gain_tokens) == ("keep", 0)


def test_the_gain_of_each_half() -> None:
    hits = np.repeat(np.array([400, 600], dtype=np.int64), 10)
    choice = pick([outcome(1024, 0), Outcome(16, hits, np.ones(20, dtype=np.int64))], current=1024)
    assert choice.gain_by_half == (0.2, 0.3)


def test_room_for_shared_prefixes_is_said_and_graded() -> None:
    """All 20 prompts share 361 tokens with unit 352: 9 tokens of room, then 352 of 2,000 tokens are gone."""
    short = evidence()
    short = Evidence(short.prompt_tokens, np.full(20, 361), short.sessions, short.families, 20)
    choice = pick([outcome(1056, 0), outcome(352, 352)], 1056, 1056, evidence=short)
    assert (choice.action, choice.unit, choice.confidence) == ("set", 352, "low")
    assert choice.regret is not None
    assert choice.regret.margin == 9
    assert choice.doubts == (
        "If shared prefixes change by 8 to 32 tokens, this choice may lose up to 16.0% (estimated). It holds while "
        "they shrink by at most 9 tokens.",
    )


def test_requests_that_never_fit_the_pool_are_doubted() -> None:
    outcomes = [outcome(1024, 0), outcome(16, 500, 2)]
    choice = pick(outcomes, 1024, refused=3)
    assert (choice.action, choice.confidence) == ("set", "medium")
    assert "3 of 20 requests never fit the pool: the choice rests on the others." in choice.doubts
    assert pick([outcome(1024, 0), outcome(16, 0)], 1024, refused=20).confidence == "low"


def test_unset_where_the_default_is_best() -> None:
    assert pick([outcome(1024, 500), outcome(16, 0)], current=16).action == "unset"


def test_keep_when_steps_eat_the_gain() -> None:
    choice = pick([outcome(1024, 0), outcome(16, 100, 2)], current=1024)
    assert (choice.action, choice.unit, choice.gain_tokens) == ("keep", 1024, 0)


def test_keep_when_one_session_made_the_gain() -> None:
    # One of 20 sessions gains; it is missing from about a third of the resamples: the interval touches zero.
    hits = np.zeros(20, dtype=np.int64)
    hits[3] = 2000
    lucky = Outcome(16, hits, np.ones(20, dtype=np.int64))
    choice = pick([outcome(1024, 0), lucky], current=1024)
    assert choice.action == "keep"
    assert "touches zero" in choice.doubts[0]


def test_a_coarser_unit_wins_where_it_saves_more_steps_than_it_loses_hits() -> None:
    # 20 requests lose 100 each and take a step less each: 20 * (128 - 100) = 560 of 40,000.
    choice = pick([outcome(1024, 400, 1), outcome(16, 500, 2)], current=16)
    assert (choice.action, choice.gain_tokens, choice.net_gain_tokens) == ("unset", -2000, 560)
    assert choice.interval == (-2000, -2000)


def test_few_conversations_and_few_prompts_are_never_high() -> None:
    outcomes = [outcome(1024, 100), outcome(16, 500)]
    one = np.zeros(20, dtype=np.int32)
    choice = pick(outcomes, 1024, evidence=evidence(sessions=one))
    assert choice.confidence == "medium"
    assert "The trace holds only 1 independent conversation." in choice.doubts
    choice = pick(outcomes, 1024, evidence=evidence(distinct=1))
    assert choice.confidence == "low"
    assert "The trace holds only 1 different prompt." in choice.doubts


def test_one_conversation_has_no_interval_without_width() -> None:
    hits = np.arange(20, dtype=np.int64) * 50
    choice = pick(
        [outcome(1024, 0), Outcome(16, hits, np.ones(20, dtype=np.int64))],
        1024,
        evidence=evidence(sessions=np.zeros(20, dtype=np.int32)),
    )
    low, high = choice.interval
    assert low < hits.sum() < high


def test_what_else_is_known_caps_the_confidence_or_decides() -> None:
    outcomes = [outcome(1024, 0), outcome(16, 500)]
    choice = pick(outcomes, 1024, caps=[Cap("medium", "Two requests differ.")])
    assert (choice.action, choice.confidence) == ("set", "medium")
    assert choice.doubts[0] == "Two requests differ."
    choice = pick(outcomes, 1024, caps=[Cap("low", "Most requests differ.", decides=True)])
    assert (choice.action, choice.unit, choice.gain_tokens) == ("cannot_help", 1024, 0)


def test_time_decides_where_it_is_known() -> None:
    """Unit 16 reuses more tokens and takes longer: 20 requests of 1.0 s against 1.1 s."""
    slow, fast = np.full(20, 1.1), np.full(20, 1.0)
    outcomes = [outcome(1024, 0, prefill_s=fast), outcome(16, 500, 2, prefill_s=slow)]
    assert pick(outcomes, 1024).action == "set"
    timed = Objective("gpu-time", 128, token_s=1e-3)
    assert pick(outcomes, 1024, objective=timed).action == "keep"
    back = pick(outcomes, 16, objective=timed)
    assert (back.action, back.unit) == ("unset", 1024)
    assert back.gain == pytest.approx(2.0)
    assert back.gain_fraction == pytest.approx(0.1 / 1.1)


@pytest.mark.parametrize(("slowest", "action"), [(1.0, "set"), (1.2, "set"), (2.0, "keep")])
def test_a_change_is_no_greater_risk_than_staying(slowest: float, action: str) -> None:
    """Prompts of 2,000 tokens at 1 ms: recomputing all takes 2 s and 0.1 s a step, unit 16 saves 500 tokens and takes
    four steps more: 1.5 + 0.45 s. Steps of 1.2 times their overhead: 2.12 against 2.04; of twice: 2.2 against 2.4. So
    the change loses 0.2 s there, 10% of the prompt; staying loses 0.15 s, 7.5%, as predicted."""
    outcomes = [
        outcome(1024, 0, prefill_s=np.full(20, 2.1)),
        outcome(16, 500, 5, prefill_s=np.full(20, 1.95)),
    ]
    timed = Objective("gpu-time", 128, token_s=1e-3, range=(1.0, slowest))
    choice = pick(outcomes, 1024, objective=timed)
    assert choice.action == action
    if action == "keep":
        assert "if steps take 1 to 2 times what was predicted, it loses up to 10.0%" in choice.doubts[0]
        assert "the current one 7.5%" in choice.doubts[0]


def test_less_than_half_a_per_cent_of_prefill_time_is_not_advised() -> None:
    outcomes = [
        outcome(1024, 0, prefill_s=np.full(20, 1.0)),
        outcome(16, 500, prefill_s=np.full(20, 0.996)),
        outcome(32, 500, prefill_s=np.full(20, 0.994)),
    ]
    timed = Objective("gpu-time", 128, token_s=1e-3)
    assert pick(outcomes[:2], 1024, objective=timed).action == "keep"
    assert pick(outcomes, 1024, objective=timed).unit == 32


def test_without_hardware_the_smallest_worst_loss_decides() -> None:
    """Prompts of 2,000, overheads from 30 to 4,000 tokens: unit 16 (1,900 hits, 2 steps) costs 100 + 2 p, the default
    (no hits, 1 step) 2,000 + p. At 30 the default costs 2,030 against 160; at 4,000 unit 16 costs 8,100 against 6,000.
    The smaller worst loss is 35%: unit 16. Another unit is best somewhere, so it is never of high confidence."""
    choice = pick([outcome(1024, 0), outcome(16, 1900, 2)], 1024, objective=Objective())
    assert (choice.action, choice.unit) == ("set", 16)
    assert choice.confidence != "high"
    assert any("Step overhead not known" in doubt for doubt in choice.doubts)


def test_noise_is_no_reason_to_change() -> None:
    """Gains drawn around zero: a 95% interval lets 2.5% through."""
    changed = 0
    for seed in range(200):
        noise = np.random.default_rng(seed).normal(0, 300, 60).astype(np.int64)
        noisy = Outcome(16, 1000 + noise, np.ones(60, dtype=np.int64))
        choice = pick([outcome(1024, 1000, requests=60), noisy], current=1024)
        changed += choice.action != "keep"
    assert changed <= 10
