"""Shared prefixes, sessions, intervals, families and hash counts, worked by hand."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from kvtune.analyzers.decision import session_interval
from kvtune.analyzers.families import RequestFamily, family_rows, spread_of_ends, typical_end, verdict_of
from kvtune.analyzers.hash_cost import hash_positions, measure_hash_cost
from kvtune.analyzers.loss_kinds import LOSS_KINDS, VERDICT_WORDS
from kvtune.analyzers.prefix_tree import KEY_SHIFT
from kvtune.analyzers.report import Losses, Verdict
from kvtune.analyzers.sessions import find_sessions
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.analyzers.why import useful_tails
from kvtune.tokenization.errors import UnusableInputError
from tests.analyzers.traces import trace_of

TURNS = [[1, 2, 3], [1, 2, 3, 10, 11, 4], [1, 2, 3], [1, 2, 9]]
ANSWERS = [[10, 11], [12], [13], [14]]


def test_a_resend_shares_all_but_its_last_token() -> None:
    shared = find_shared_prefixes(trace_of(TURNS))
    assert shared.shared.tolist() == [0, 3, 2, 2]
    assert shared.shared_with.tolist() == [-1, 0, 1, 2]
    assert shared.output_tokens.tolist() == [1, 1, 1, 1]


def test_recorded_outputs_can_be_shared() -> None:
    shared = find_shared_prefixes(trace_of(TURNS, ANSWERS), "recorded")
    assert shared.shared.tolist() == [0, 5, 2, 2]  # the second turn repeats the first answer


def test_outputs_by_length_match_nothing() -> None:
    shared = find_shared_prefixes(trace_of(TURNS, ANSWERS), "length")
    assert shared.shared.tolist() == [0, 3, 2, 2]
    assert shared.output_tokens.tolist() == [2, 1, 1, 1]
    assert shared.paths[0].key(5) == (0 << KEY_SHIFT) + 5
    assert shared.paths[1].key(5) == (1 << KEY_SHIFT) + 5
    assert shared.paths[2].key(4) == (2 << KEY_SHIFT) + 4


@pytest.mark.parametrize("outputs", ["recorded", "length"])
def test_outputs_that_the_trace_lacks_are_refused(outputs: str) -> None:
    with pytest.raises(UnusableInputError, match="--outputs"):
        find_shared_prefixes(trace_of(TURNS), outputs)  # type: ignore[arg-type]


def test_sessions_by_name_then_by_extension() -> None:
    named = trace_of(TURNS, sessions=["a", "b", None, "a"])
    assert find_sessions(named, find_shared_prefixes(named)).tolist() == [0, 1, 2, 0]
    # Without names the second extends the first; the resend shares less than the second's whole prompt.
    bare = trace_of(TURNS)
    assert find_sessions(bare, find_shared_prefixes(bare)).tolist() == [0, 0, 1, 2]


def test_a_session_name_in_two_namespaces_is_two_sessions() -> None:
    trace = trace_of(TURNS, sessions=["a"] * 4, namespace=np.array([0, 0, 1, 1], dtype=np.int32))
    assert find_sessions(trace, find_shared_prefixes(trace)).tolist() == [0, 0, 1, 1]


def test_interval_resamples_sessions_not_requests() -> None:
    # Two sessions with 100 and 300: a resample holds 200, 400 or 600 with odds 1:2:1.
    gains = np.array([50, 50, 300], dtype=np.int64)
    assert session_interval(gains, np.array([0, 0, 1], dtype=np.int32)) == (200, 600)
    assert session_interval(np.zeros(3, dtype=np.int64), np.array([0, 0, 1], dtype=np.int32)) == (0, 0)


def test_hash_positions_and_their_cost() -> None:
    trace = trace_of([[1] * 131_072])
    assert hash_positions(trace.prompt_tokens, 1024) == 128
    assert hash_positions(trace.prompt_tokens, 32) == 4096
    ticks = iter(range(10_000))
    cost = measure_hash_cost(trace, [32], clock=lambda: float(next(ticks)))[32]
    assert (cost.samples, cost.seconds) == (4096, 1.0)  # one sweep, one tick, all positions
    assert measure_hash_cost(trace_of([[1, 2]]), [16])[16].samples == 0


def test_useful_tails() -> None:
    # Prompts of 100; a later prompt repeats 90, 95 and nothing. Tails: 96 at 16 and 32, 64 at 64.
    lengths, repeated = np.array([100, 100, 100]), np.array([90, 97, 0])
    assert [useful_tails(lengths, repeated, unit) for unit in (16, 64, 128)] == [1, 2, 0]


def test_verdicts() -> None:
    family = RequestFamily("all", np.arange(2))
    shared, none = np.array([0, 600]), np.array([0, 0])

    def verdict(shared: np.ndarray, hits: np.ndarray, **losses: int) -> str:
        arrays = {kind: np.array([0, tokens]) for kind, tokens in losses.items()}
        return verdict_of(family, shared, hits, 528, arrays)

    assert verdict(none, none) == "no_sharing"
    assert verdict(np.array([0, 500]), none, granularity=500) == "below_floor"
    assert verdict(shared, none, no_recurrent_state=528, granularity=72) == "not_kept"
    assert verdict(shared, none, evicted=528, granularity=72) == "evicted"
    assert verdict(shared, np.array([0, 528]), granularity=72) == "reused"
    assert verdict(shared, none, granularity=400, evicted=100, no_recurrent_state=100) == "below_alignment"
    assert verdict(shared, none, window=400, in_flight=200) == "outside_window"
    assert verdict(shared, none, in_flight=400, window=200) == "in_flight"
    assert verdict(shared, none, speculative_drop=528, granularity=72) == "dropped"
    assert typical_end(family, shared) == 600


def test_each_loss_is_called_one_thing() -> None:
    # The field of the report, the words of tables and families, and the verdict: one list, in the report's order.
    fields = [name for name in Losses.__struct_fields__ if name not in ("unit", "hit_tokens")]
    assert [kind.name for kind in LOSS_KINDS] == fields
    assert {VERDICT_WORDS[kind.verdict] for kind in LOSS_KINDS} == {kind.words for kind in LOSS_KINDS}
    assert set(VERDICT_WORDS) == set(get_args(Verdict))


def test_no_warm_up_is_advised_where_no_states_are_kept() -> None:
    # Two prompts of 100 that share 20, blocks of 32: too little. An attention-only model keeps no states to warm up.
    trace = trace_of([[1] * 100, [1] * 100])
    for keeps_states in (True, False):
        row = family_rows(
            trace,
            np.array([0, 20]),
            {32: np.array([0, 0])},
            recommended=32,
            losses={"granularity": np.array([0, 20])},
            minimum_shared=32,
            modulo=32,
            bin_width=None,
            keeps_states=keeps_states,
        )[0]
        assert row.verdict == "below_floor"
        assert ("on its own" in row.advice[0]) is keeps_states


def test_ends_of_a_family_are_spread() -> None:
    # Ten ends from 100 to 1,000: their 10th percentile is 190, the 90th 910; requests that share nothing do not count.
    shared = np.array([0, *range(100, 1_001, 100)])
    assert spread_of_ends(RequestFamily("all", np.arange(11)), shared) == (190, 910)
    assert spread_of_ends(RequestFamily("one", np.arange(1)), shared) is None
