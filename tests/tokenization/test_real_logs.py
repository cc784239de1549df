"""Logs that real software wrote, against the bodies that the server received at that time: the table of all readers.

`data/logs/real/SOURCE.md` names the software. A log may hold less than the bodies (tracing SDKs know nothing of
`chat_template_kwargs`, LiteLLM's spend log cuts texts); then what is left must be right and the rest rejected by name.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

from kvtune.tokenization.reading import ReadResult
from kvtune.tokenization.rejects import Rejection
from tests.tokenization.logged_prompts import equal_prompts, read_log


class Row(NamedTuple):
    """A log, its truth, and what is expected: requests read, of them equal, rejected by reason."""

    log: str
    truth: str
    requests: int
    equal: int
    rejected: dict[str, int] | None = None


TABLE = (
    Row("litellm-slp.jsonl", "litellm.jsonl", 48, 47),
    Row("litellm-slp-two-teams.jsonl", "litellm.jsonl", 45, 45),
    Row("litellm-kvtune-cb.jsonl", "litellm.jsonl", 48, 47),
    Row("litellm-spend.jsonl", "litellm.jsonl", 3, 3, {"truncated_prompt": 45}),
    Row("litellm-spendlogs-psql.csv", "litellm.jsonl", 3, 3, {"truncated_prompt": 45}),
    Row("litellm-spendlogs-api.json", "litellm.jsonl", 3, 3, {"truncated_prompt": 45}),
    Row("litellm-spendlogs-ui.json", "litellm.jsonl", 3, 3, {"truncated_prompt": 45}),
    Row("l2-slp.jsonl", "l2.jsonl", 5, 5, {"truncated_prompt": 1}),
    Row("l2-spend.jsonl", "l2.jsonl", 6, 6),
    Row("ov2.jsonl", "ov2.jsonl", 48, 0),
    Row("tl.jsonl", "tl.jsonl", 47, 45, {"no_request": 1}),
    Row("tlo.jsonl", "tlo.jsonl", 28, 26, {"truncated_prompt": 20}),
    Row("oi.jsonl", "oi.jsonl", 33, 32, {"truncated_prompt": 15}),
    Row("otlp-oi.jsonl", "otlp-oi.jsonl", 33, 32, {"truncated_prompt": 15}),
    Row("otlp-batch-one-bad.json", "otlp-oi.jsonl", 45, 0, {"no_request": 1}),
    Row("phoenix-spans.jsonl", "px.jsonl", 48, 47),
    Row("phoenix-spans.csv", "px.jsonl", 48, 47),
    Row("logfire-stream.jsonl", "lgf-s.jsonl", 48, 47),
    Row("phoenix-api-spans.json", "px.jsonl", 48, 47),
    Row("langfuse-api-v1-compact.json", "lf.jsonl", 49, 48),
    Row("langfuse-api-v1-pretty.json", "lf.jsonl", 49, 48),
    Row("langfuse-trace-download.json", "lf.jsonl", 49, 48),
    Row("langfuse-ui-export.csv", "lf.jsonl", 49, 48),
    Row("langfuse-blob-obs_v2.jsonl", "lf.jsonl", 49, 48),
    Row("langsmith-runs.jsonl", "ls.jsonl", 49, 49),
    Row("langsmith-runs-query.json", "ls.jsonl", 49, 49),
    Row("ls-raw.jsonl", "ls.jsonl", 49, 49),
    Row("mlflow.jsonl", "mlf.jsonl", 48, 48),
    Row("mlflow-search-traces.jsonl", "mlf.jsonl", 48, 48),
    Row("mlflow-search-traces.csv", "mlf.jsonl", 48, 48),
)


def read(log: str) -> tuple[ReadResult, list[Rejection]]:
    found: list[Rejection] = []
    return read_log(f"real/{log}.zst", on_reject=found.append), found


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.log)
def test_a_log_gives_the_prompts_that_the_server_received(row: Row) -> None:
    result, _ = read(row.log)
    assert result.stats.rejected_by == (row.rejected or {})
    assert len(result.requests) == row.requests
    assert equal_prompts(result, read_log(f"truth/{row.truth}.zst")) == row.equal


def test_a_body_with_cache_control_is_read_as_what_it_is() -> None:
    log, _ = read("cache-control-openai-body.jsonl")
    truth, _ = read("cache-control-truth.jsonl")
    assert equal_prompts(log, truth) == len(log.requests) == 2
    assert all(request.tools for request in log.requests)


def test_newest_first_is_the_same_trace_as_oldest_first() -> None:
    newest, _ = read("newest-first-request_time.jsonl")
    oldest, _ = read("oldest-first-timestamp.jsonl")
    assert [one.messages for one in newest.requests] == [one.messages for one in oldest.requests]
    assert newest.stats.reordered > 0


@pytest.mark.parametrize(
    ("log", "variable"),
    [
        ("litellm-spend.jsonl", "MAX_STRING_LENGTH_PROMPT_IN_DB"),
        ("tlo.jsonl", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"),
        ("otlp-oi.jsonl", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"),
    ],
)
def test_a_cut_log_names_the_variable_to_set(log: str, variable: str) -> None:
    _, rejected = read(log)
    assert all(variable in str(one) for one in rejected if one.reason == "truncated_prompt")


def test_lost_tools_are_a_doubt_that_decides() -> None:
    (doubt,) = read("ov2.jsonl")[0].stats.doubts
    assert (doubt.kind, doubt.requests, doubt.decides) == ("tools", 40, True)
    assert [one.kind for one in read("oi.jsonl")[0].stats.doubts] == ["cut"]
    assert read("litellm-slp.jsonl")[0].stats.doubts == []


def test_failed_requests_and_other_operations_are_passed_over_and_counted() -> None:
    result, _ = read("l2-slp.jsonl")
    assert sum("Failed requests" in note and "(3 records)" in note for note in result.stats.notes) == 1


def test_teams_share_a_cache_unless_they_are_isolated() -> None:
    shared, _ = read("litellm-slp-two-teams.jsonl")
    assert len({request.identity for request in shared.requests}) == 1
    assert any("teams" in note for note in shared.stats.notes)


def test_conversations_are_found_by_messages_where_ids_change_with_every_call() -> None:
    result, _ = read("litellm-slp.jsonl")
    named = Counter(request.session for request in result.requests)
    assert sorted(count for name, count in named.items() if name is not None) == [15, 30]


@pytest.mark.parametrize(
    ("log", "says"), [("tl.jsonl", True), ("litellm-slp.jsonl", True), ("l2-spend.jsonl", False)]
)
def test_what_a_log_cannot_hold_is_a_caveat(log: str, says: bool) -> None:
    assert any("chat_template_kwargs" in note for note in read(log)[0].stats.notes) == says
