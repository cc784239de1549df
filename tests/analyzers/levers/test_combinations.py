"""Levers on top of one another, primes again and again, dtypes and answers: by hand, in blocks of 8 and 16 tokens."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.levers import LeverInputs, OtherServing, advise_families, find_levers
from kvtune.analyzers.levers.heads import find_heads
from kvtune.analyzers.levers.outputs import output_reuse
from kvtune.analyzers.levers.prime import prime
from kvtune.analyzers.levers.server import other_blocks, retention
from kvtune.analyzers.levers.spans import common_prefix, meet_again
from kvtune.analyzers.levers.trial import Baseline, measure
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.profiles import PROFILES
from kvtune.analyzers.report import Family, Lever
from kvtune.analyzers.sweep import no_progress
from kvtune.tokenization.trace import TokenTrace
from tests.analyzers.traces import trace_of


def base_of(trace: TokenTrace, groups: str, **config: object) -> Baseline:
    engine = replace(EngineConfig(parse_groups(groups)), **config)  # type: ignore[arg-type]
    sessions = np.arange(len(trace), dtype=np.int32)
    return measure(trace, engine, AnalyzeOptions(step_cost_tokens=0), replica=None, sessions=sessions)


def own(request: int, size: int) -> list[int]:
    """Ids that no other request has."""
    return list(range(10_000 * (request + 1), 10_000 * (request + 1) + size))


def test_a_span_is_moved_and_then_the_head_is_primed() -> None:
    # 8 tokens of head, a span of 4, 100 in common, 20 of its own. Nothing is reused: states are kept at 128, the last
    # block, and at 131 // 2 * 2. Moved, 108 are common, and nobody leaves a state there but the third, at 104, where
    # it met the second's block: with one prime of 109 all eight reuse 108.
    prompts = [[*range(8), *own(r, 4), *range(100, 200), *own(10 + r, 20)] for r in range(8)]
    base = base_of(trace_of(prompts), "mamba:8,full:8", match_unit=2)
    assert base.result.hit_tokens.tolist() == [0] * 2 + [8] * 6
    found = {one.lever.kind: one for one in find_levers(base, base.trace, no_progress)}
    moved, together = found["reorder"], found["combination"]
    assert together.lever.gain_tokens == 8 * 108 - 109 - 6 * 8
    assert moved.lever.gain_tokens < together.lever.gain_tokens
    assert "not added up" in together.lever.evidence
    assert int(together.gain.per_request.sum()) == together.lever.gain_tokens + 109


def test_a_bounded_pool_is_primed_again_after_each_eviction() -> None:
    # Five bursts of four prompts with a head of 64 in common, and between them strangers that fill the pool of 60
    # blocks. The first two of each burst compute the head (the second leaves the state for the rest); sent on its own
    # before each burst (65 tokens) it serves all four.
    prompts = []
    for burst in range(5):
        prompts += [[*range(64), *own(100 * burst + r, 40)] for r in range(4)]
        prompts += [own(100 * burst + 50 + r, 104) for r in range(10)]
    base = base_of(trace_of(prompts), "mamba:16,full:16", match_unit=2, num_blocks=60)
    assert base.result.hit_tokens.reshape(5, 14)[:, :4].tolist() == [[0, 0, 64, 64]] * 5
    (head,) = find_heads(base.shared.paths, base.result.hit_tokens, base.shared.shared)
    found = prime(base, head)
    assert found is not None
    assert found.lever.gain_tokens == 5 * (2 * 64 - 65)
    assert "5 times" in found.lever.what
    assert len(found.prompts) == 1


def test_a_dtype_is_worth_its_block() -> None:
    # Prompts share 20 tokens: none with blocks of 32, 16 with blocks of 16, for seven of eight.
    base = base_of(trace_of([[*range(20), *own(r, 30)] for r in range(8)]), "full:32")
    assert base.result.hit_tokens.sum() == 0
    other = replace(base.config, groups=parse_groups("full:16"))
    (found,) = other_blocks(
        base, [OtherServing("KV cache dtype", "--kv-cache-dtype bfloat16", other, "memory")]
    )
    assert found.lever.gain_tokens >= 7 * 16
    assert found.lever.flags is not None
    assert found.lever.flags[0] == "--kv-cache-dtype bfloat16"
    assert "blocks of 16 tokens instead of 32" in found.lever.what
    assert "at least one block of 32 tokens" in found.lever.evidence


def test_a_larger_block_is_not_said_to_help_because_blocks_are_large() -> None:
    # Prompts share 40 tokens: 32 of them are reused with blocks of 16, all with blocks of 20.
    base = base_of(trace_of([[*range(40), *own(r, 30)] for r in range(8)]), "full:16")
    other = replace(base.config, groups=parse_groups("full:20"))
    (found,) = other_blocks(base, [OtherServing("KV cache dtype", "--kv-cache-dtype fp8", other, "memory")])
    assert found.lever.gain_tokens == 7 * 8
    assert found.lever.evidence == ""


def test_answers_that_the_next_turn_repeats() -> None:
    # A prompt of 33 and an answer of 32, whose last token is never computed: the next turn reuses 64 instead of 32.
    prompt, answer = own(0, 33), own(1, 32)
    trace = trace_of([prompt, [*prompt, *answer, *own(2, 16)]], [answer, []])
    base = base_of(trace, "full:16")
    assert base.result.hit_tokens.tolist() == [0, 32]
    found = output_reuse(base)
    assert found is not None
    assert found.lever.gain_tokens == 64 - 32
    assert not found.lever.advice
    assert output_reuse(replace(base, options=replace(base.options, outputs="recorded"))) is None


def test_each_family_has_its_best_lever() -> None:
    # Four requests of `a` have 40 tokens in common behind a span; `b` shares nothing.
    first = [[*range(20), *own(r, 2), *range(100, 200), *own(r + 10, 9)] for r in range(5)]
    second = [own(50 + r, 60) for r in range(5)]
    trace = trace_of([*first, *second], families=["a"] * 5 + ["b"] * 5)
    base = base_of(trace, "full:16")
    levers = find_levers(base, trace, no_progress)
    rows = [
        Family(name=name, requests=5, prompt_tokens=500, shared_tokens=0, typical_end=0, verdict="reused")
        for name in "ab"
    ]
    told, silent = advise_families(rows, trace, levers)
    # 20 tokens are reused in blocks of 16 by four requests; moved, 120 are, 112 in blocks.
    assert told.advice == (
        f"best lever: move the varying text to the end of the prompt (+{4 * (112 - 16)} tokens here)",
    )
    assert silent.advice == ()


def test_defaults_keep_no_primes() -> None:
    LeverInputs().keep_primes([(0, np.zeros(1, dtype=np.uint32))])


def test_where_texts_meet_again() -> None:
    common = np.arange(100, 150, dtype=np.uint32)
    one = np.concatenate((np.array([1, 2, 3], dtype=np.uint32), common))
    other = np.concatenate((np.array([9], dtype=np.uint32), common, np.array([5], dtype=np.uint32)))
    meeting = meet_again(one, other)
    assert meeting is not None
    assert (meeting.first, meeting.second, meeting.run) == (3, 1, 50)
    assert meet_again(one[:34], other) is None  # 31 equal tokens are no meeting
    assert meet_again(one[:3], other) is None
    assert common_prefix(common, np.concatenate((common, one))) == 50
    assert common_prefix(one, other) == 0


def test_what_a_cut_saves_is_not_counted_together_either() -> None:
    # Two prompts with two BOS tokens and six with one: what is dropped (2 tokens) is no merit, alone or together.
    prompts = [[1] * (2 if r < 2 else 1) + [*range(100, 208), *own(r, 20)] for r in range(8)]
    base = base_of(trace_of(prompts), "mamba:16,full:16", match_unit=2)
    found = find_levers(base, base.trace, no_progress)
    cut = [one for one in found if one.lever.title.startswith("Write one BOS token")]
    assert {one.lever.kind for one in cut} == {"template", "combination"}
    for one in cut:
        assert one.gain.tokens - one.lever.gain_tokens == 2
        assert one.gain.interval[0] - one.lever.gain_ci95[0] == 2


def test_an_edit_is_tried_on_every_unit() -> None:
    # Three varying tokens ahead of 60 common ones, in prompts of 74, below the block of 128: no unit brings anything
    # (8 tokens ahead of the span are the same, and no state is kept there), and with the block of 128 neither does
    # the move. Moved, prompts share 68 tokens, and their own last boundary lies within them at units of 4 to 64.
    common = [*range(100, 160)]
    prompts = [[*range(1, 9), *own(r, 3), *common, *own(r + 40, 3)] for r in range(12)]
    base = base_of(trace_of(prompts), "mamba:128,full:128")
    lever = next(
        one for one in find_levers(base, base.trace, no_progress) if one.lever.kind == "reorder"
    ).lever
    assert base.result.hit_tokens.sum() == 0
    assert lever.flags is not None and lever.flags[0].startswith("--prefix-match-unit ")
    assert lever.title.endswith(lever.flags[0])
    assert lever.gain_tokens == 11 * 64


def test_sparse_retention_is_tried_where_the_pool_evicts_with_what_the_release_has() -> None:
    # Four prompts of 40 blocks and a window of 2, round robin, in a pool that holds one of them with all states: dense
    # evicts each before it comes again; keeping the last window only leaves room for the others.
    prompts = [[*range(1000 * r, 1000 * r + 640)] for r in range(4)] * 3
    for version, said in (("0.27.0", "VLLM_PREFIX_CACHE_RETENTION_INTERVAL=0"), ("0.33.0", None)):
        base = base_of(
            trace_of(prompts),
            "swa:16*5:window=32,full:32",
            version=version,
            retention_interval=None,
            num_blocks=330,
        )
        assert base.result.evicted_blocks.sum() > 0
        lever = next(retention(base)).lever
        assert lever.gain_tokens > 0
        if said is not None:
            assert lever.flags is None
            assert lever.change is not None and said in lever.change
        else:
            assert lever.flags == ("--prefix-cache-retention-interval 0",)


def test_no_checkpoint_flag_before_its_release() -> None:
    assert [
        PROFILES[release].junction_checkpoint_flag for release in ("0.28", "0.29", "0.30", "0.31", "0.33")
    ] == [
        None,
        None,
        "--enable-mamba-fine-grained-prefix-cache",
        "--enable-mamba-shared-prefix-checkpoint",
        "--enable-mamba-shared-prefix-checkpoint",
    ]


def test_one_head_in_two_adapters_is_one_lever() -> None:
    head = [*range(1, 400)]
    prompts = [[*head, *own(r, 40)] for r in range(16)]
    trace = trace_of(prompts, namespace=np.arange(16, dtype=np.int32) % 2)
    base = base_of(trace, "mamba:32,full:32")
    primes = [one for one in find_levers(base, trace, no_progress) if one.lever.kind == "prime"]
    assert len(primes) == 1
    assert "once in each of 2 namespaces" in primes[0].lever.what


def test_a_gain_that_may_be_none_does_not_lead() -> None:
    lever = Lever(kind="pad", what="", gain_tokens=5, gain_ci95=(0, 9), cost="none")
    assert not lever.is_proven
    assert msgspec.structs.replace(lever, gain_ci95=(1, 9)).is_proven
