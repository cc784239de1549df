"""The words match the numbers that they explain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvtune.analyzers.decision import Choice, Outcome
from kvtune.analyzers.why import Setting, explain_choice

PROMPTS = np.full(10, 1000, dtype=np.int64)


def setting(repeated: int, *, recurrent: bool = True) -> Setting:
    return Setting(
        prompt_tokens=PROMPTS,
        repeated=np.full(10, repeated, dtype=np.int64),
        current_unit=1056,
        default_unit=1056,
        scheduler_block_size=1056,
        step_cost=128,
        has_recurrent_state=recurrent,
    )


def outcome(unit: int, hit: int, steps: int) -> Outcome:
    return Outcome(unit, np.full(10, hit, dtype=np.int64), np.full(10, steps, dtype=np.int64))


def choice(action: str, unit: int) -> Choice:
    return Choice(action, unit, 0, 0, (0, 0), "high", ())  # type: ignore[arg-type]


def test_keeping_a_unit_does_not_deny_what_another_gains() -> None:
    outcomes = [outcome(1056, 500, 2), outcome(16, 500, 1)]
    text = explain_choice(choice("keep", 1056), outcomes, setting(900, recurrent=False))
    assert text.endswith("that unit 16 gains more (1,280 net of its steps) is not certain.")
    worse = [outcome(1056, 500, 2), outcome(16, 400, 2)]
    text = explain_choice(choice("keep", 1056), worse, setting(900, recurrent=False))
    assert text.endswith("no other gains more, net of its steps.")


def test_a_pool_that_nothing_fits_is_the_whole_story() -> None:
    outcomes = [outcome(1056, 0, 0), outcome(16, 0, 0)]
    text = explain_choice(choice("keep", 1056), outcomes, replace(setting(0), refused=10))
    assert text == "No request fits the pool: nothing is reused, whatever the unit."


def test_the_finest_loses_where_its_boundary_falls_into_own_text() -> None:
    # Prompts of 1,000 of which a later one repeats 900: 352 keeps a state at 704, 16 at 992.
    outcomes = [outcome(1056, 0, 1), outcome(352, 704, 2), outcome(16, 0, 2)]
    text = explain_choice(choice("set", 352), outcomes, setting(900))
    assert "at 352 it lies in text which a later prompt repeats for 10 of 10 prompts, at 16 for none" in text
    assert "(16) reuses 0 tokens and loses 1,280 net" in text


def test_the_finest_loses_by_its_steps() -> None:
    outcomes = [outcome(1056, 0, 1), outcome(352, 704, 2), outcome(16, 720, 3)]
    text = explain_choice(choice("set", 352), outcomes, setting(1000))
    assert "(16) reuses 7,200 tokens but takes 10 more prefill steps than 352" in text


def test_fewer_hits_and_fewer_steps_are_said_as_such() -> None:
    more_steps = [outcome(1056, 0, 1), outcome(24, 720, 2), outcome(8, 710, 3)]
    text = explain_choice(choice("set", 24), more_steps, setting(1000))
    assert "(8) reuses 7,100 tokens and takes 10 more prefill steps than 24" in text
    fewer_steps = [outcome(1056, 0, 1), outcome(24, 980, 3), outcome(8, 710, 2)]
    text = explain_choice(choice("set", 24), fewer_steps, setting(1000))
    assert "(8) reuses 7,100 tokens and takes 10 fewer prefill steps than 24" in text


def test_a_finer_unit_that_gains_hardly_more_is_said_to_be_tied() -> None:
    outcomes = [outcome(1056, 0, 1), outcome(12, 720, 2), outcome(8, 722, 2)]
    text = explain_choice(choice("set", 12), outcomes, setting(1000))
    assert "net, too little more for the finer unit." in text


def test_the_finest_wins() -> None:
    outcomes = [outcome(1056, 0, 1), outcome(16, 992, 2)]
    text = explain_choice(choice("set", 16), outcomes, setting(1000))
    assert "the finest unit replayed is also the best" in text
    assert "where none is reused with today's unit (1,056)" in text


def test_keep_says_that_hits_already_end_inside_blocks() -> None:
    outcomes = [outcome(1056, 0, 1), outcome(16, 0, 2)]
    assert "other" in explain_choice(choice("keep", 1056), outcomes, setting(0))


def test_caching_off_is_said_first() -> None:
    off = replace(setting(1000), caches=False)
    assert explain_choice(choice("cannot_help", 1056), [outcome(1056, 0, 1)], off).startswith(
        "Prefix caching is off"
    )


def test_no_talk_of_recurrent_states_without_any() -> None:
    outcomes = [outcome(1056, 0, 1), outcome(16, 992, 1)]
    assert "state" not in explain_choice(choice("set", 16), outcomes, setting(1000, recurrent=False))
