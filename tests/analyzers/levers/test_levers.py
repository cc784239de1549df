"""Levers on traces of a few tokens, worked by hand: blocks of 8 tokens (one Mamba group, one full), unit 2.

Four prompts of 11 tokens share a head of 6. Each leaves states at 8 (its last block) and 10 (its tail), both in its
own text, so nobody hits: 44 tokens are computed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.levers.edits import Insertion, insert_requests
from kvtune.analyzers.levers.heads import find_heads
from kvtune.analyzers.levers.pad import pad, trim
from kvtune.analyzers.levers.prime import prime
from kvtune.analyzers.levers.search import find_levers
from kvtune.analyzers.levers.sharing import isolation_price, routing
from kvtune.analyzers.levers.trial import Baseline
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.replays import ReplayTask
from kvtune.analyzers.sessions import find_sessions
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.analyzers.sweep import no_progress, replay_input
from kvtune.tokenization.trace import Int32, TokenTrace
from tests.analyzers.traces import trace_of

HEAD = [1, 2, 3, 4, 5, 6]
PROMPTS = [[*HEAD, *range(100 * user, 100 * user + 5)] for user in range(1, 5)]


def baseline(
    trace: TokenTrace, *, replica: Int32 | None = None, step_cost: int = 0, **config: object
) -> Baseline:
    engine = replace(EngineConfig(parse_groups("mamba:8,full:8"), match_unit=2), **config)  # type: ignore[arg-type]
    shared = find_shared_prefixes(trace)
    return Baseline(
        trace=trace,
        config=engine,
        options=AnalyzeOptions(step_cost_tokens=step_cost),
        replica=replica,
        sessions=find_sessions(trace, shared),
        shared=shared,
        result=ReplayTask(replay_input(trace, shared), replica).run(engine),
    )


def test_the_head_is_found_with_what_it_wastes() -> None:
    base = baseline(trace_of(PROMPTS))
    assert base.result.hit_tokens.tolist() == [0, 0, 0, 0]
    shared = find_shared_prefixes(base.trace)
    (head,) = find_heads(shared.paths, base.result.hit_tokens, shared.shared)
    assert (head.owner, head.tokens, head.members.tolist()) == (0, 6, [0, 1, 2, 3])
    assert head.wasted == 18  # the second, third and fourth compute 6 tokens again


def test_priming_lets_everyone_resume_at_the_heads_end() -> None:
    # The prime is 7 tokens and leaves a state at 6; then four prompts hit 6 each: 4 * 6 - 7 = 17.
    trace = trace_of(PROMPTS)
    base = baseline(trace)
    shared = find_shared_prefixes(trace)
    (head,) = find_heads(shared.paths, base.result.hit_tokens, shared.shared)
    found = prime(base, head)
    assert found is not None
    assert found.lever.gain_tokens == 17
    assert [(request, ids.tolist()) for request, ids in found.prompts] == [(0, PROMPTS[0][:7])]
    # Prompts take 3 steps with and without (8, 10, 11 or 8, 10, 11 from 6 on); the prime takes two: 6 and 7.
    found = prime(baseline(trace, step_cost=3), head)
    assert found is not None
    assert found.lever.gain_tokens == 17 - 2 * 3


def test_padding_moves_the_head_to_where_states_are() -> None:
    # Prompts of 13 keep a state at 8, their last block boundary, and that is now the head's end: the first
    # computes 13, the others 5 each, 28 against 44.
    base = baseline(trace_of(PROMPTS))
    shared = find_shared_prefixes(base.trace)
    (head,) = find_heads(shared.paths, base.result.hit_tokens, shared.shared)
    found = pad(base, head, 8)
    assert found is not None
    assert found.lever.gain_tokens == 16
    assert "by 2 tokens" in found.lever.what
    assert pad(base, replace(head, tokens=8), 8) is None


def test_trimming_counts_only_what_the_cache_saves() -> None:
    # A head of 9 in prompts of 14: the state at 8 serves all others either way, so a cut of one token saves no
    # more than itself.
    head = [*HEAD, 7, 8, 9]
    base = baseline(trace_of([[*head, *range(100 * user, 100 * user + 5)] for user in range(1, 5)]))
    assert base.result.hit_tokens.tolist() == [0, 8, 8, 8]
    shared = find_shared_prefixes(base.trace)
    (found,) = find_heads(shared.paths, base.result.hit_tokens, shared.shared)
    assert trim(base, found, 8, most=4) is None


def test_isolation_has_a_price_and_no_advice() -> None:
    # The same 17-token prompt in two namespaces: apart nothing is reused, together the second hits 16.
    trace = trace_of([list(range(17))] * 2, namespace=np.array([0, 1], dtype=np.int32))
    (found,) = isolation_price(baseline(trace), trace)
    assert found.lever.gain_tokens == 16
    assert not found.lever.advice
    assert found.lever.flags is found.lever.change is None


def test_routing_by_prefix_over_logged_replicas() -> None:
    trace = trace_of([list(range(17))] * 4)
    replica = np.array([0, 1, 1, 0], dtype=np.int32)
    base = baseline(replace(trace, namespace=replica), replica=replica)
    assert base.result.hit_tokens.tolist() == [0, 0, 16, 16]
    (found,) = routing(base, trace)
    assert found.lever.gain_tokens == 16
    assert "prefix" in (found.lever.change or "")


def test_added_requests_are_paid_for_and_the_rest_keeps_its_place() -> None:
    trace = trace_of(PROMPTS)
    prompt = np.array([7, 7], dtype=np.uint32)
    wide = insert_requests(trace, [Insertion(3, prompt), Insertion(0, prompt)])
    assert wide.original.tolist() == [1, 2, 3, 5]
    assert wide.source.tolist() == [0, 0, 1, 2, 3, 3]
    assert wide.trace.prompt(0).tolist() == wide.trace.prompt(4).tolist() == [7, 7]
    assert [wide.trace.prompt(int(i)).tolist() for i in wide.original] == PROMPTS


def test_levers_are_ranked_and_small_ones_left_out() -> None:
    trace = trace_of(PROMPTS)
    found = [one.lever for one in find_levers(baseline(trace), trace, no_progress)]
    assert [lever.kind for lever in found] == ["prime", "pad"]
    assert all(lever.gain_tokens >= 0.001 * 44 for lever in found)
