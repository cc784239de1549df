"""Every cause that is named is named for a log of just that server, and a log that agrees names none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvtune.analyzers.analysis import find
from kvtune.analyzers.decision.choice import Cap
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.log_check.check import LogChecked, check_log
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.replay import ReplayInput
from kvtune.analyzers.replays import ReplayTask
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.analyzers.sweep import no_progress, replay_input
from kvtune.tokenization.trace import TokenTrace
from tests.analyzers.traces import trace_of

CONFIG = EngineConfig(groups=parse_groups("mamba:64*3,full:64"))


def conversations(requests: int = 60, seed: int = 3) -> TokenTrace:
    """Prompts of three apps with a common beginning each, of 150, 200 and 330 tokens, and own ends."""
    random = np.random.default_rng(seed)
    common = [random.integers(0, 50_000, length).tolist() for length in (150, 200, 330)]
    prompts = [
        common[number % 3] + random.integers(0, 50_000, int(random.integers(20, 200))).tolist()
        for number in range(requests)
    ]
    return trace_of(prompts, arrival=np.arange(requests, dtype=np.float64) * 10)


def repeated(lengths: list[int], times: int = 3) -> TokenTrace:
    random = np.random.default_rng(9)
    prompts = [random.integers(0, 50_000, length).tolist() for length in lengths]
    return trace_of([prompt for prompt in prompts for _ in range(times)])


def served(trace: TokenTrace, config: EngineConfig, **task: object) -> np.ndarray:
    """What a server like that would log."""
    inputs: ReplayInput = replay_input(trace, find_shared_prefixes(trace))
    return ReplayTask(inputs, **task).run(config).hit_tokens  # type: ignore[arg-type]


def logged(trace: TokenTrace, cached: np.ndarray | None, lengths: np.ndarray | None = None) -> TokenTrace:
    return replace(
        trace,
        logged_prompt_tokens=trace.prompt_tokens.copy() if lengths is None else lengths,
        logged_cached_tokens=cached,
    )


def checked(trace: TokenTrace, config: EngineConfig = CONFIG, **options: object):
    return find(trace, config, AnalyzeOptions(**options), no_progress)  # type: ignore[arg-type]


def names(trace: TokenTrace, config: EngineConfig = CONFIG, **options: object) -> list[str]:
    found = checked(trace, config, **options).log_check
    assert found is not None
    return [cause.name for cause in found.causes]


def test_a_log_of_this_server_agrees() -> None:
    trace = conversations()
    found = checked(logged(trace, served(trace, CONFIG)))
    assert found.log_check.prompt_tokens.compared == found.log_check.prompt_tokens.agree == 60
    assert found.log_check.cached_tokens.compared == found.log_check.cached_tokens.agree == 60
    assert found.log_check.cached_tokens.logged == found.log_check.cached_tokens.predicted > 0
    assert found.log_check.causes == ()
    assert found.log_check.cached_tokens.first_difference is None


def test_a_log_without_numbers_is_not_compared() -> None:
    assert checked(conversations()).log_check is None


def test_another_unit() -> None:
    trace = repeated([150, 200, 330])
    found = checked(logged(trace, served(trace, replace(CONFIG, match_unit=16))))
    [cause] = found.log_check.causes
    assert cause.name == "match_unit"
    assert "--match-unit 16" in cause.text
    assert found.choice.confidence != "high"
    assert found.choice.doubts[0].endswith(cause.text)


def test_other_block_sizes() -> None:
    trace = conversations()
    cached = served(trace, EngineConfig(groups=parse_groups("mamba:48*3,full:48")))
    found = checked(logged(trace, cached)).log_check
    alignment = next(cause for cause in found.causes if cause.name == "alignment")
    assert "multiples of 48;" in alignment.text


def test_another_release() -> None:
    """A prompt that ends on a block and is sent again: since 0.32 it hits from the third time on."""
    trace = repeated([128, 192, 256, 320, 384])
    old, new = (served(trace, replace(CONFIG, version=version)) for version in ("0.31.0", "0.33.0"))
    assert (old[:3].tolist(), new[:3].tolist()) == ([0, 0, 64], [0, 64, 64])
    found = checked(logged(trace, old)).log_check
    assert [cause.name for cause in found.causes] == ["release"]
    assert "vLLM 0.31 (--engine-version), or 0.30" in found.causes[0].text
    assert "15 of 15 requests agree then, instead of 10" in found.causes[0].text


def test_a_smaller_pool() -> None:
    """Twelve prompts, each sent twice at once and once more after all others."""
    random = np.random.default_rng(9)
    prompts = [random.integers(0, 50_000, 400).tolist() for _ in range(12)]
    trace = trace_of([prompt for prompt in prompts for _ in range(2)] + prompts)
    config = EngineConfig(groups=parse_groups("full:16"))
    small = replace(config, num_blocks=80)
    assert served(trace, config)[24:].tolist() == [384] * 12
    assert served(trace, small)[24:].tolist() == [0] * 12
    assert names(logged(trace, served(trace, small)), config) == ["smaller_pool"]


def test_hits_that_get_lost_late_where_no_trial_fits() -> None:
    trace = conversations(80)
    cached = served(trace, CONFIG)
    late = np.flatnonzero(cached > 0)[40:]
    cached[late[::2]] = 0
    cached[late[1::2]] -= 64
    assert names(logged(trace, cached)) == ["smaller_pool"]


def test_several_servers() -> None:
    trace = conversations(90)
    turns = np.arange(90, dtype=np.int32) % 4
    assert names(logged(trace, served(trace, CONFIG, replica=turns))) == ["other_replica"]


def test_prefix_caching_off() -> None:
    trace = conversations()
    assert names(logged(trace, np.zeros(60, dtype=np.int64))) == ["caching_off"]


def test_traffic_that_is_not_in_the_log() -> None:
    """The server was warm when the log begins: the first request of each app hits already."""
    trace = conversations(60)
    cached = served(trace, CONFIG)[30:]
    rest = trace.select(np.arange(60) >= 30)
    found = checked(logged(rest, cached)).log_check
    cause = next(cause for cause in found.causes if cause.name == "unlogged_traffic")
    assert cause.text.startswith("3 requests hit more")


def test_requests_that_overlap() -> None:
    """The second of three starts when the first has prefilled a step's worth."""
    config = replace(CONFIG, long_prefill_token_threshold=1_024)
    arrival = np.add.outer(np.arange(6) * 500.0, [0.0, 0.0, 250.0]).ravel()
    trace = replace(repeated([6_000] * 6, 3), arrival=arrival)
    inputs = replay_input(trace, find_shared_prefixes(trace))
    live = ReplayTask(inputs, arrivals="trace").run(replace(config, scheduling="async")).hit_tokens
    assert (live != served(trace, config)).any()
    assert names(logged(trace, live), config) == ["overlapping_requests"]


def test_null_means_nothing_cached_where_the_server_names_others() -> None:
    """Older releases write no zero."""
    trace = conversations()
    cached = served(trace, CONFIG)
    found = checked(logged(trace, np.where(cached == 0, -1, cached))).log_check
    assert found.cached_tokens.compared == found.cached_tokens.agree == 60
    assert checked(logged(trace, np.full(60, -1))).log_check.cached_tokens is None


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda counted: counted + 1, "template"),
        (lambda counted: counted + 12, "template"),
        (lambda counted: np.rint(counted * 1.31).astype(np.int64), "tokenizer"),
        (lambda counted: np.full_like(counted, 100), "placeholder"),
        (lambda counted: counted + 3 * (np.arange(len(counted)) % 7 + 1), "template"),
    ],
)
def test_other_prompt_lengths_can_not_be_advised_on(change, cause: str) -> None:
    trace = conversations()
    found = checked(logged(trace, None, change(trace.prompt_tokens)))
    assert [one.name for one in found.log_check.causes] == [cause]
    assert found.choice.action == "cannot_help"
    assert found.choice.unit == found.setting.current_unit
    assert found.log_check.prompt_tokens.first_difference.id == "r0"
    assert found.log_check.causes[0].text in found.choice.doubts[0]


def test_only_requests_with_tools() -> None:
    trace = conversations()
    tools = np.arange(60) % 2 == 0
    trace = replace(trace, tool_sets=["t" if has else None for has in tools])
    assert names(logged(trace, None, trace.prompt_tokens + 40 * tools)) == ["tools"]


def test_only_requests_with_media() -> None:
    trace = conversations()
    images = np.arange(60) % 2
    trace = replace(trace, media_items=images)
    assert names(logged(trace, None, trace.prompt_tokens + 1_000 * images)) == ["media_length"]


def test_only_later_turns() -> None:
    random = np.random.default_rng(5)
    prompts = []
    for _ in range(10):
        turn = random.integers(0, 50_000, 100).tolist()
        prompts += [turn, turn + random.integers(0, 50_000, 90).tolist()]
    trace = trace_of(prompts, sessions=[f"s{number // 2}" for number in range(20)])
    later = np.arange(20) % 2
    assert names(logged(trace, None, trace.prompt_tokens - (11 + np.arange(20)) * later)) == ["history"]


@pytest.mark.parametrize(("differing", "action"), [(3, None), (4, "cannot_help")])
def test_one_in_twenty_may_differ(differing: int, action: str | None) -> None:
    """Of 60: 3 are 5%, 4 are more."""
    trace = conversations()
    lengths = trace.prompt_tokens + 5 * (np.arange(60) < differing)
    found = checked(logged(trace, None, lengths))
    assert (found.choice.action == "cannot_help") == (action == "cannot_help")
    assert found.choice.confidence != "high"


def caps(agree: int) -> tuple[Cap, ...]:
    trace = conversations(10)
    cached = served(trace, CONFIG)
    cached[agree:] += 1
    found: LogChecked | None = check_log(
        logged(trace, cached),
        served(trace, CONFIG),
        shared=trace.prompt_tokens,
        sessions=np.arange(10, dtype=np.int32),
        alignment=64,
    )
    assert found is not None
    return found.caps


@pytest.mark.parametrize(("agree", "grade"), [(10, None), (9, "medium"), (5, "medium"), (4, "low")])
def test_differing_hits_cap_the_confidence(agree: int, grade: str | None) -> None:
    assert [cap.confidence for cap in caps(agree)] == ([] if grade is None else [grade])
    assert not any(cap.decides for cap in caps(agree))


def test_a_request_that_was_given_its_logged_length_is_not_compared() -> None:
    trace = replace(conversations(), trusted_lengths=np.arange(60) < 20)
    assert checked(logged(trace, None)).log_check.prompt_tokens.compared == 40
