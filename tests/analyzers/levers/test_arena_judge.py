"""A real trace whose prompts share one system prompt, from its prefix structure: 1,000 judge prompts, 361 in common.

Blocks of 528 (three Mamba groups, one full): before anything is changed 850 prompts reuse nothing, since a head of
361 ends inside the first block.
"""

from __future__ import annotations

import numpy as np
import pytest

from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.levers import find_levers
from kvtune.analyzers.levers.heads import find_heads
from kvtune.analyzers.levers.pad import pad
from kvtune.analyzers.levers.prime import prime
from kvtune.analyzers.levers.server import legal_units
from kvtune.analyzers.levers.trial import Baseline, measure
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.sessions import find_sessions
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.analyzers.sweep import no_progress
from tests.analyzers.structures import DATA
from tests.analyzers.traces import trace_of


@pytest.fixture(scope="module")
def base() -> Baseline:
    """Prompts with the trace's lengths and shared prefixes, of ids that nobody else has where nothing is shared."""
    with np.load(DATA / "prefix-structure" / "arena-judge.npz") as file:
        rows = zip(*(file[name].tolist() for name in ("prompt_tokens", "shared", "shared_with")), strict=True)
        prompts: list[list[int]] = []
        fresh = 1
        for length, shared, peer in rows:
            head = prompts[peer][:shared] if shared else []
            prompts.append([*head, *range(fresh, fresh + length - shared)])
            fresh += length - shared
    trace = trace_of(prompts)
    sessions = find_sessions(trace, find_shared_prefixes(trace))
    config = EngineConfig(parse_groups("mamba:528*3,full:528"))
    return measure(trace, config, AnalyzeOptions(), replica=None, sessions=sessions)


def hits(base: Baseline) -> dict[int, int]:
    """Requests by their hit tokens."""
    return dict(
        zip(*(row.tolist() for row in np.unique(base.result.hit_tokens, return_counts=True)), strict=True)
    )


def test_before(base: Baseline) -> None:
    assert hits(base) == {0: 850, 528: 119, 1056: 22, 1584: 2, 2112: 5, 2640: 2}
    assert base.result.hit_tokens.sum() == 119 * 528 + 22 * 1056 + 2 * 1584 + 5 * 2112 + 2 * 2640 == 105_072
    assert base.result.prefill_steps.sum() == 2_109


def test_padding_the_system_prompt_to_a_block(base: Baseline) -> None:
    (head,) = find_heads(base.shared.paths, base.result.hit_tokens, base.shared.shared)
    assert (head.tokens, len(head.members)) == (361, 1_000)
    found = pad(base, head, 528)
    assert found is not None
    assert found.gain.after is not None
    # The first prompt computes the head, the second leaves a state where they part, at 528: 998 reuse it or more.
    assert hits(found.gain.after) == {0: 2, 528: 929, 1056: 58, 1584: 5, 2112: 4, 2640: 2}
    assert found.gain.after.result.hit_tokens.sum() == 573_408
    # 468,336 tokens more are reused; each prompt is 167 longer; 180 prefill steps at 128 tokens are saved.
    assert found.gain.after.result.prefill_steps.sum() == 2_109 - 180
    assert found.lever.gain_tokens == 468_336 - 1_000 * 167 + 180 * 128 == 324_376
    low, high = found.lever.gain_ci95
    assert 0 < low < 324_376 < high


def test_priming_the_system_prompt_with_a_unit_that_lands_in_it(base: Baseline) -> None:
    (head,) = find_heads(base.shared.paths, base.result.hit_tokens, base.shared.shared)
    assert prime(base, head) is None  # hits land on multiples of 528, and the head ends at 361
    found = prime(base, head, legal_units(base.config))
    assert found is not None
    assert found.gain.after is not None
    assert found.lever.flags == ("--prefix-match-unit 176",)
    # 176 is the coarsest unit that lands near the head's end: twice 176 is 352. Every prompt reuses at least that.
    after = hits(found.gain.after)
    assert after == {0: 1, 352: 850, 528: 118, 880: 1, 1056: 22, 1584: 2, 2112: 5, 2640: 2}
    assert found.gain.after.result.hit_tokens.sum() == 105_072 + 850 * 352 + 880 - 528 == 404_624
    # Tails of a unit cost 1,167 steps more; the prime itself is 362 tokens.
    assert found.gain.after.result.prefill_steps.sum() == 2_109 + 1_167
    assert found.lever.gain_tokens == 404_624 - 105_072 - 1_167 * 128 - 362 == 149_814
    assert [len(ids) for _, ids in found.prompts] == [362]


def test_both_are_found_and_ranked(base: Baseline) -> None:
    found = [one.lever for one in find_levers(base, base.trace, no_progress)]
    assert [(lever.kind, lever.gain_tokens) for lever in found if lever.kind in ("pad", "prime")] == [
        ("pad", 324_376),
        ("prime", 149_814),
    ]
    assert found[0].kind == "combination"
    assert found[0].gain_tokens > 324_376
    assert [lever.gain_tokens for lever in found] == sorted(
        (lever.gain_tokens for lever in found), reverse=True
    )
