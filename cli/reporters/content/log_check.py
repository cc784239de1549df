"""The log's own numbers in words: how many requests agree, which differs first, and why."""

from __future__ import annotations

from kvtune.analyzers.log_check.info import Difference
from kvtune.analyzers.report import Report
from kvtune.cli.reporters.numbers import clean, count, plural

LOG_CHECK_TITLE = "The log's own numbers"
_LONGEST_ID = 60


def log_check_sentences(report: Report) -> list[str]:
    """One sentence a comparison and a cause; empty where the log has no numbers."""
    check = report.log_check
    if check is None:
        return []
    sentences = []
    if check.prompt_tokens is not None:
        lengths = check.prompt_tokens
        sentences.append(
            f"Prompt tokens: {_agreement(lengths.agree, lengths.compared)}."
            + _first(lengths.first_difference, "logged", "counted here")
        )
    if check.cached_tokens is not None:
        hits = check.cached_tokens
        totals = "" if hits.logged == hits.predicted else f", {count(hits.predicted)} predicted"
        sentences.append(
            f"Cached tokens: {_agreement(hits.agree, hits.compared)}; {count(hits.logged)} logged{totals}."
            + _first(hits.first_difference, "logged", "predicted")
        )
    return sentences + [f"Likely cause: {clean(cause.text)}" for cause in check.causes]


def short_id(name: str) -> str:
    """A request's id; gateways make some of hundreds of characters."""
    text = clean(name)
    return text if len(text) <= _LONGEST_ID else f"{text[: _LONGEST_ID - 1]}…"


def _agreement(agree: int, compared: int) -> str:
    if agree == compared:
        return f"all {plural(compared, 'request')} agree" if compared > 1 else "1 request agrees"
    return f"{count(agree)} of {plural(compared, 'request')} agree"


def _first(difference: Difference | None, logged: str, counted: str) -> str:
    if difference is None:
        return ""
    return (
        f" First that differs: {short_id(difference.id)}, {count(difference.logged)} {logged}, "
        f"{count(difference.counted)} {counted}."
    )
