"""The words match the numbers that they explain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvtune.analyzers.decision import Choice, Objective, Outcome
from kvtune.analyzers.decision.objective import Kind
from kvtune.analyzers.why import Setting, explain_choice

PROMPTS = np.full(10, 1000, dtype=np.int64)
AT_128 = Objective("overhead", 128)


def setting(repeated: int, *, recurrent: bool = True) -> Setting:
    return Setting(
        prompt_tokens=PROMPTS,
        repeated=np.full(10, repeated, dtype=np.int64),
        current_unit=1056,
        default_unit=1056,
        scheduler_block_size=1056,
        objective=AT_128,
        has_recurrent_state=recurrent,
    )


def outcome(unit: int, hit: int, steps: int) -> Outcome:
    return Outcome(unit, np.full(10, hit, dtype=np.int64), np.full(10, steps, dtype=np.int64))


def choice(action: str, unit: int, kind: Kind = "overhead", doubts: tuple[str, ...] = ()) -> Choice:
    return Choice(action, unit, 0, 0, (0, 0), "high", doubts, Objective(kind))  # type: ignore[arg-type]


def test_keeping_a_unit_does_not_deny_what_another_gains() -> None:
    outcomes = [outcome(1056, 500, 2), outcome(16, 500, 1)]
    doubted = choice("keep", 1056, doubts=("Match unit 16 would gain +1,280 tokens net, but ...",))
    assert explain_choice(doubted, outcomes, setting(900, recurrent=False)) == (
        "No other match unit is surely better."
    )
    text = explain_choice(choice("keep", 1056), outcomes, setting(900, recurrent=False))
    assert text == "Match unit 1,056 has the largest net gain at a step overhead of 128 tokens."


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gpu-time", "the least GPU time of prefill"),
        ("ttft", "the least time to first token"),
        ("tokens", "the fewest recomputed tokens"),
        ("worst-case", "the smallest worst loss over step overheads from 30 to 4,000 tokens"),
    ],
)
def test_what_is_minimised_is_named(kind: Kind, words: str) -> None:
    outcomes = [outcome(1056, 500, 2), outcome(16, 600, 2)]
    text = explain_choice(choice("set", 16, kind), outcomes, setting(1000))
    assert text == f"Match unit 16 has {words}."


def test_a_pool_that_nothing_fits_is_the_whole_story() -> None:
    outcomes = [outcome(1056, 0, 0), outcome(16, 0, 0)]
    text = explain_choice(choice("keep", 1056), outcomes, replace(setting(0), refused=10))
    assert text == "No request fits the pool: nothing is reused, whatever the match unit."


def test_the_finest_loses_where_its_boundary_falls_into_own_text() -> None:
    # Prompts of 1,000 of which a later one repeats 900: 352 keeps a state at 704, 16 at 992.
    outcomes = [outcome(1056, 0, 1), outcome(352, 704, 2), outcome(16, 0, 2)]
    text = explain_choice(choice("set", 352), outcomes, setting(900))
    assert (
        "with unit 352 it lies in text that a later prompt repeats for 10 of 10 prompts, with 16 for 0"
        in text
    )
    assert "(16) reuses 7,040 tokens less and takes 0 more prefill steps" in text


def test_the_finest_is_compared_by_hits_and_steps() -> None:
    outcomes = [outcome(1056, 0, 1), outcome(352, 704, 2), outcome(16, 720, 3)]
    text = explain_choice(choice("set", 352), outcomes, setting(1000))
    assert "(16) reuses 160 tokens more and takes 10 more prefill steps." in text
    fewer_steps = [outcome(1056, 0, 1), outcome(24, 980, 3), outcome(8, 710, 2)]
    text = explain_choice(choice("set", 24), fewer_steps, setting(1000))
    assert "(8) reuses 2,700 tokens less and takes 10 fewer prefill steps." in text


def test_caching_off_is_said_first() -> None:
    off = replace(setting(1000), caches=False)
    assert explain_choice(choice("cannot_help", 1056), [outcome(1056, 0, 1)], off).startswith(
        "Prefix caching is off"
    )


def test_no_talk_of_recurrent_states_without_any() -> None:
    outcomes = [outcome(1056, 0, 1), outcome(16, 992, 1)]
    assert "state" not in explain_choice(choice("set", 16), outcomes, setting(1000, recurrent=False))
