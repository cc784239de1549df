"""What a running server may do wrong, and what is said about it. Hits are the bookkeeping's, or the script's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from kvtune.analyzers.layout import parse_groups
from kvtune.analyzers.sizing.sources import SizeSources
from kvtune.gpu_probe.live import isolation, load
from kvtune.gpu_probe.live.options import Listener, LiveOptions, Subject
from kvtune.gpu_probe.live.prediction import trace_of
from kvtune.gpu_probe.live.validate import LiveResult, validate_endpoint
from kvtune.tokenization.errors import KvtuneError, MissingDependencyError, UnusableInputError
from kvtune.tokenization.request import Request
from kvtune.tokenization.trace import TokenTrace
from tests.gpu_probe.live.scripted_server import CONFIG, GROUPS_SPEC, Script, ScriptedServer, running

SOURCES = SizeSources(groups=parse_groups(GROUPS_SPEC))


@pytest.fixture(autouse=True)
def short_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "QUIET_S", 0.05)


def trace() -> TokenTrace:
    """190 tokens in common, then tails that differ: a junction, tails and blocks all come up."""
    random = np.random.default_rng(3)
    common = random.integers(1, 5_000, 190)
    return trace_of(
        [np.concatenate((common, random.integers(1, 5_000, tail))) for tail in (40, 30, 0, 70, 70, 5)]
    )


WORKED_BY_HAND = [0, 0, 128, 176, 176, 176]
"""Blocks of 64, unit 16. The first prompt (230) keeps its last states only, at 192 and 224, past what is shared. The
second finds attention up to 128 and no state there, and ends a chunk at that junction; the third (190) resumes at 128
and keeps its own tail, 176, the last multiple of 16 below its end, which all later ones hit."""


def validate(server: ScriptedServer, subject: TokenTrace | None = None, **options: object) -> LiveResult:
    requests = options.pop("requests", None)
    said = options.pop("said", [])
    return validate_endpoint(
        Subject(subject or trace(), SOURCES, requests),  # type: ignore[arg-type]
        server.url,
        lambda config: (),
        LiveOptions(runs=1, **options),  # type: ignore[arg-type]
        Listener(note=said.append, log_line=lambda text: None, progress=lambda name, done, total: None),  # type: ignore[attr-defined]
    )


def refusal(script: Script, **options: object) -> KvtuneError:
    with running(script) as server, pytest.raises(KvtuneError) as caught:
        validate(server, **options)
    assert "\n" not in str(caught.value)
    assert "secret words" not in str(caught.value)
    return caught.value


def test_a_server_that_does_what_its_release_does() -> None:
    said: list[str] = []
    with running(Script()) as server:
        result = validate(server, said=said)
    (run,) = result.runs
    assert run.hits.tolist() == WORKED_BY_HAND
    assert result.validation.agrees
    assert "6 of 6 requests hit exactly what was predicted" in result.verdict
    assert run.probe.grid == 16
    assert "the cache was emptied by reset, and the probe prompt is gone" in said
    assert result.validation.candidates[0].unit == 16


def test_a_reset_that_lies_is_found_out_and_a_salt_is_used() -> None:
    said: list[str] = []
    with running(Script(reset="lies")) as server:
        result = validate(server, said=said)
        again = validate(server)
    assert result.validation.agrees
    assert (
        again.validation.agrees
    )  # although everything is in the cache already, unsalted and under another salt
    assert any("cache_salt of its own" in text for text in said)
    salts = {body.get("cache_salt") for body in server.sent} - {None}
    assert len(salts) == 2


def test_a_server_without_reset() -> None:
    with running(Script(reset="absent")) as server:
        assert validate(server).validation.agrees


def test_a_cache_that_can_neither_be_emptied_nor_set_apart() -> None:
    error = refusal(Script(reset="lies", honours_salt=False))
    assert error.exit_code == 4
    assert "can be neither emptied nor set apart" in str(error)


def test_other_traffic_is_refused_unless_it_is_allowed() -> None:
    error = refusal(Script(foreign=1))
    assert error.exit_code == 4
    assert "others are using this server" in str(error)
    assert "--allow-traffic" in str(error)
    with running(Script(foreign=1)) as server:
        result = validate(server, allow_traffic=True)
    assert not result.validation.agrees  # the counters hold more than was sent
    assert any("finished requests" in text for text in result.validation.differences)


def test_renamed_metrics_are_named() -> None:
    error = refusal(Script(renamed={"vllm:prompt_tokens_by_source_total": "vllm:tokens_by_origin_total"}))
    assert error.exit_code == 4
    assert "vllm:prompt_tokens_by_source_total" in str(error)


def test_counters_that_do_not_add_up() -> None:
    with running(Script()) as server:
        server.counts["vllm:prompt_tokens_cached_total"] = 0
        original = server._count

        def count(prompt: int, hit: int, generated: int) -> None:
            original(prompt, hit, generated)
            server.counts["vllm:prompt_tokens_cached_total"] += 7

        server._count = count  # type: ignore[method-assign]
        result = validate(server)
    assert not result.validation.agrees
    assert any(
        text.startswith("unit 16: cached tokens against the answers' own")
        for text in result.validation.differences
    )
    assert "no evidence" in result.verdict


def test_a_stream_that_breaks_off() -> None:
    error = refusal(Script(cut_at=5))
    assert error.exit_code == 4
    assert "broke off after 1 events" in str(error)


def test_pages_are_asked_for_again_and_completions_never() -> None:
    with running(Script(drop_pages=2)) as server:
        assert validate(server).validation.agrees
    with running(Script(cut_at=5)) as server:
        with pytest.raises(MissingDependencyError):
            validate(server)
        assert len(server.sent) == 6


def test_an_error_inside_a_stream() -> None:
    error = refusal(Script(error_at=5))
    assert error.exit_code == 4
    assert "EngineDead" in str(error)


def test_an_internal_error_of_the_server() -> None:
    error = refusal(Script(status_at={5: 500}))
    assert error.exit_code == 4
    assert "HTTP 500" in str(error)


def test_a_request_that_the_server_refuses_is_left_out_of_both_sides() -> None:
    with running(
        Script(status_at={4: 400})
    ) as server:  # the probe prompt sent three prompts: this is the trace's second
        result = validate(server)
    (run,) = result.runs
    assert run.run.refused == [(1, "HTTP 400: BadRequestError, prompt")]
    assert len(run.hits) == 5
    assert run.comparison.exact
    assert any("1 requests were refused" in text for text in result.validation.differences)


def test_an_endpoint_that_does_not_say_what_was_cached() -> None:
    error = refusal(Script(details=False))
    assert error.exit_code == 4
    assert "--enable-prompt-tokens-details" in str(error)


def test_releases_that_leave_out_a_zero() -> None:
    with running(Script(zero_left_out=True)) as server:
        assert validate(server).validation.agrees


def test_a_missing_key_and_a_wrong_one() -> None:
    for key in (None, "another"):
        error = refusal(Script(api_key="right"), api_key=key)
        assert error.exit_code == 4
        assert "KVTUNE_API_KEY" in str(error)
        assert "another" not in str(error).replace("another API key", "")
    with running(Script(api_key="right")) as server:
        assert validate(server, api_key="right").validation.agrees


def test_a_release_without_the_flag() -> None:
    error = refusal(Script(version="0.25.1"))
    assert error.exit_code == 4
    assert "0.25.1" in str(error)
    assert "0.26" in str(error)


def test_nobody_there() -> None:
    with running(Script()) as server:
        url = server.url
    with pytest.raises(MissingDependencyError, match="does not answer") as caught:
        validate_endpoint(
            Subject(trace(), SOURCES),
            url,
            lambda config: (),
            LiveOptions(),
            Listener(
                note=lambda text: None, log_line=lambda text: None, progress=lambda name, done, total: None
            ),
        )
    assert "Connection refused" in str(caught.value)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://user:secret@host", "http://host/?q=1", ""]
)
def test_no_url(url: str) -> None:
    with pytest.raises(UnusableInputError) as caught:
        validate_endpoint(Subject(trace(), SOURCES), url, lambda config: (), LiveOptions(), None)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_a_trailing_v1_is_taken_off() -> None:
    with running(Script()) as server:
        server.url += "/v1"
        assert validate(server).validation.agrees


class TestVerdict:
    """A server that does something else, and the rule that is named for it."""

    def differences(self, script: Script) -> str:
        with running(script) as server:
            result = validate(server)
        assert not result.validation.agrees
        return " | ".join(result.validation.differences)

    def test_a_flag_without_effect(self) -> None:
        said = self.differences(Script(config=replace(CONFIG, match_unit=None)))
        assert "every request hits what an unset match unit (the flag has no effect) would give" in said
        assert "hits land on multiples of 64, not of 16" in said  # the probe prompt

    def test_another_unit(self) -> None:
        assert "every request hits what match unit 32 would give" in self.differences(
            Script(config=replace(CONFIG, match_unit=32))
        )

    def test_caching_that_is_off(self) -> None:
        said = self.differences(Script(config=replace(CONFIG, enable_prefix_caching=False)))
        assert "nothing hit at all" in said

    def test_a_hit_between_boundaries(self) -> None:
        said = self.differences(Script(wrong_at={6: 133}))
        assert "hits land on multiples of 16" in said

    def test_a_hit_that_nobody_sent_before(self) -> None:
        said = self.differences(Script(wrong_at={3: 32}))
        assert "the cache was not empty" in said

    def test_a_hit_of_the_whole_prompt(self) -> None:
        said = self.differences(Script(wrong_at={5: 190}))
        assert "the last token of a prompt is always computed" in said

    def test_a_difference_that_nothing_explains(self) -> None:
        said = self.differences(Script(wrong_at={6: 16}))
        assert "the first that did not is 3 (260 tokens: predicted 176, measured 16)" in said
        assert (
            "no single other setting explains it: 1 requests hit less than predicted, 0 more, all of them multiples"
            in said
        )


class TestAsChat:
    """Three chats; the server has ids of its own for each."""

    OURS = ([1, 2, 3, 4] * 40, [1, 2, 3, 4] * 40 + [5], [9] * 100)

    @pytest.fixture
    def requests(self) -> list[Request]:
        return [Request(id=str(n), messages=[{"role": "user", "content": f"text {n}"}]) for n in range(3)]

    @pytest.fixture(params=[True, False], ids=["returned", "tokenized"])
    def script(self, request: pytest.FixtureRequest) -> Iterator[Script]:
        ids = {f"text {n}": list(tokens) for n, tokens in enumerate(self.OURS)}
        yield Script(chat_ids=ids, returns_ids=request.param)

    def run(self, script: Script, requests: list[Request]) -> LiveResult:
        ours = trace_of([np.array(tokens, dtype=np.int64) for tokens in self.OURS])
        with running(script) as server:
            return validate(server, ours, requests=requests, as_chat=True)

    def test_equal_ids(self, script: Script, requests: list[Request]) -> None:
        result = self.run(script, requests)
        assert result.validation.agrees
        assert result.runs[0].hits.tolist() == [0, 144, 0]

    def test_a_token_in_the_middle(self, script: Script, requests: list[Request]) -> None:
        script.chat_ids["text 1"][30] = 77
        result = self.run(script, requests)
        assert not result.validation.agrees
        assert result.validation.differences == (
            "request 1 is other tokens on the server: at position 30 (user) token 3 here, token 77 there; "
            "a user message is rendered differently: the content format (--chat-template-content-format)",
        )
        assert "with its own tokens, 3 of 3 requests hit exactly what was predicted" in result.verdict

    def test_a_token_in_front(self, script: Script, requests: list[Request]) -> None:
        script.chat_ids["text 0"].insert(0, 11)
        assert "(BOS)" in self.run(script, requests).validation.differences[0]

    def test_an_ending_that_is_missing(self, script: Script, requests: list[Request]) -> None:
        del script.chat_ids["text 2"][-3:]
        said = self.run(script, requests).validation.differences[0]
        assert "at position 97 (user) token 9 here, the end there" in said
        assert "generation prompt" in said

    def test_a_request_without_messages(self, script: Script, requests: list[Request]) -> None:
        requests[1] = Request(id="1", text="plain", source="log:2")
        with pytest.raises(UnusableInputError, match="log:2"):
            self.run(script, requests)


class TestOpenLoop:
    def test_by_time(self) -> None:
        timed = replace(trace(), arrival=np.arange(6) * 0.1)
        with running(Script()) as server:
            result = validate(server, timed, arrivals="trace")
        run = result.runs[0].run
        sent = [answer.sent for answer in run.answers if answer]
        assert np.all(np.array(sent) - sent[0] >= timed.arrival - 0.02)  # late on a busy machine, early never
        assert run.wall_s >= 0.5

    def test_hits_that_timing_explains_are_tolerated_and_impossible_ones_are_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(load, "LATE_S", 60.0)
        timed = replace(trace(), arrival=np.arange(6) * 0.05)
        with running(Script(wrong_at={6: 16})) as server:
            result = validate(server, timed, arrivals="trace")
        assert result.validation.agrees
        assert "5 of 6 requests hit exactly what was predicted, and no hit is impossible" in result.verdict
        with running(Script(wrong_at={6: 15})) as server:
            assert not validate(server, timed, arrivals="trace").validation.agrees

    def test_late_requests_make_a_run_void(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(load, "LATE_S", -1.0)
        timed = replace(trace(), arrival=np.zeros(6))
        with running(Script()) as server:
            result = validate(server, timed, arrivals="trace")
        assert not result.validation.agrees
        assert any(
            "the run is void: 6 of 6 requests left late" in text for text in result.validation.differences
        )

    def test_a_trace_without_times(self) -> None:
        with running(Script()) as server, pytest.raises(UnusableInputError, match="without a time"):
            validate(server, arrivals="trace")


def test_outputs_of_a_stated_length_and_their_latencies() -> None:
    lengths = np.array([3, 1, 2, 5, 1, 4])
    with running(Script(event_delay_s=0.01)) as server:
        result = validate(
            server, replace(trace(), output_tokens=lengths), outputs="length", slo={"ttft": 30.0}
        )
    assert [body["max_tokens"] for body in server.sent[3:]] == lengths.tolist()
    assert [len(answer.events) for answer in result.runs[0].run.answers if answer] == lengths.tolist()
    row = result.validation.candidates[0]
    assert row.tpot_s is not None
    assert row.tpot_s.p50 >= 0.01
    assert row.goodput_rps == pytest.approx(6 / result.runs[0].run.wall_s)


def test_recorded_outputs_cannot_be_forced_on_a_server() -> None:
    with running(Script()) as server, pytest.raises(UnusableInputError, match="recorded"):
        validate(server, outputs="recorded")


def test_namespaces_are_kept_apart_by_salts() -> None:
    apart = replace(trace(), namespace=np.array([0, 1, 0, 1, 0, 1], dtype=np.int32))
    with running(Script()) as server:
        assert validate(server, apart).validation.agrees
    assert {body.get("cache_salt") for body in server.sent[3:]} == {None, "kvtune-1"}
