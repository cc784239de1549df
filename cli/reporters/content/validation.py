"""What a validation measured, in words and as a table."""

from __future__ import annotations

from kvtune.analyzers.report import Report
from kvtune.analyzers.validation import RateSearch, ValidatedCandidate
from kvtune.cli.reporters.content.table import Column, Table
from kvtune.cli.reporters.numbers import clean, count, multiple, per_second, plural, seconds, signed_percent


def validation_title(report: Report) -> str:
    """What was done: units were run, or steps alone were measured."""
    found = report.validation
    return "Validated" if found is None or found.candidates else "Step times measured"


def validation_aside(report: Report) -> str:
    """On what: `L0 tiny model on cpu, 4 runs, model clock`."""
    found = report.validation
    if found is None:
        return ""
    return f"{clean(found.rung)} on {clean(found.device)}, {plural(found.runs, 'run')}, {clean(found.clock)} clock"


def validation_verdict(report: Report) -> str:
    """Whether the runs did what the replay predicted."""
    agrees = report.validation is None or report.validation.agrees
    return f"Execution {'agrees with' if agrees else 'DIFFERS from'} the prediction."


def validation_table(report: Report) -> Table | None:
    """What each unit's run measured; None where no unit was run."""
    found = report.validation
    if found is None or not found.candidates:
        return None
    compared = any(row.ttft_differs is not None for row in found.candidates)
    columns = (
        Column("unit"),
        Column("predicted", keep=4),
        Column("matched"),
        Column("recomputed", keep=6 if found.slo else 0),
        Column("copied", keep=1),
        Column("TTFT p50"),
        *([Column("change", keep=5)] if compared else []),
        Column("p99", keep=2),
        Column("end to end p50", keep=3),
        *([Column("within SLO")] if found.slo else []),
        *([Column("SLO up to")] if found.rate_search else []),
    )
    rows = tuple(
        (
            count(row.unit),
            count(row.predicted_tokens),
            count(row.matched_tokens),
            count(row.recomputed_tokens),
            count(row.copied_tokens),
            seconds(row.ttft_s.p50 if row.ttft_s else None),
            *([_change(row)] if compared else []),
            seconds(row.ttft_s.p99 if row.ttft_s else None),
            seconds(row.e2e_s.p50 if row.e2e_s else None),
            *([per_second(row.goodput_rps)] if found.slo else []),
            *([_largest_rate(row, found.rate_search)] if found.rate_search else []),
        )
        for row in found.candidates
    )
    note = "Predicted, matched, recomputed and copied in tokens."
    if any(row.ttft_differs is False for row in found.candidates):
        note += " Change of TTFT: in brackets where it may be noise."
    if found.slo:
        limits = ", ".join(f"{name} ≤ {seconds(limit)}" for name, limit in found.slo.items())
        note += f" Within SLO: requests a second that meet {limits}."
    if found.rate_search:
        note += " " + _how_rates_were_found(found.rate_search)
    return Table(columns, rows, note=note)


def _change(row: ValidatedCandidate) -> str:
    """Of TTFT against the current unit; in brackets where it is not told from noise."""
    if row.ttft_change is None or row.ttft_differs is None:
        return ""
    change = signed_percent(row.ttft_change)
    return change if row.ttft_differs else f"({change})"


def _largest_rate(row: ValidatedCandidate, search: RateSearch) -> str:
    met, missed = row.largest_rate, row.missed_rate
    if not met:
        return multiple(met)
    if missed is None:
        return f"≥ {multiple(met)}"
    if missed > met * search.resolution:
        return f"{multiple(met)} to {multiple(missed)}"
    return multiple(met)


def _how_rates_were_found(search: RateSearch) -> str:
    """What a largest rate is, which way it was found and how coarse it is."""
    way = (
        f"each rate one run on the device, at most {plural(search.runs, 'run')} a unit"
        if search.method == "executed"
        else "rehearsed: the bookkeeping alone, under the clock's step costs"
    )
    coarse, share_met = 100 * (search.resolution - 1), 100 * search.qualifying_share
    ends = "" if search.complete else " Not every search came to its end."
    return (
        f"SLO up to: the largest multiple of the trace's own arrival rate at which {share_met:.0f}% of all requests, "
        "refused and unfinished ones counted as misses, still meet the SLO (0: not even its own rate does); "
        f"{way}; to within {coarse:.0f}%, up to {multiple(search.ceiling)}.{ends}"
    )
