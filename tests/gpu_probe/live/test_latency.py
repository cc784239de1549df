"""Latencies of hand-made answers. Seconds."""

from __future__ import annotations

import pytest

from kvtune.gpu_probe.live.answer import Answer
from kvtune.gpu_probe.live.latency import goodput, latency_of, percentiles

# Sent at 10, then five tokens in three events (2, 1 and 2 tokens), stream closed at 11.5.
ANSWER = Answer(sent=10.0, events=[10.5, 10.75, 11.25], finished=11.5, completion_tokens=5)


def test_one_answer() -> None:
    latency = latency_of(ANSWER)
    assert latency is not None
    assert latency.ttft == 0.5
    assert latency.itl == (0.25, 0.5)
    assert latency.tpot == pytest.approx(0.75 / 4)
    assert latency.e2e == 1.5


def test_one_token_has_no_time_per_further_token() -> None:
    latency = latency_of(Answer(sent=0.0, events=[0.2], finished=0.2, completion_tokens=1))
    assert latency is not None
    assert (latency.tpot, latency.itl) == (None, ())
    assert latency_of(Answer(sent=0.0)) is None


def test_percentiles_leave_out_what_is_missing() -> None:
    found = percentiles([1.0, None, 3.0])
    assert found is not None
    assert (found.p50, found.p90, found.p99) == (2.0, pytest.approx(2.8), pytest.approx(2.98))
    assert percentiles([None]) is None


def test_goodput_counts_requests_that_meet_every_objective() -> None:
    latency = latency_of(ANSWER)
    assert latency is not None
    assert goodput([latency] * 4, {"ttft": 0.5, "tpot": 0.2}, 2.0) == 2.0
    assert goodput([latency] * 4, {"ttft": 0.5, "tpot": 0.1}, 2.0) == 0.0
    assert goodput([latency] * 4, {}, 2.0) is None
