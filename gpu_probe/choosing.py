"""Which units are worth executing, and what their execution does to a report.

Knows reports; neither devices nor servers.
"""

from __future__ import annotations

import msgspec

from kvtune.analyzers.report import Report
from kvtune.analyzers.validation import Validation

MOST_CANDIDATES = 4


def units_to_validate(report: Report, most: int = MOST_CANDIDATES) -> list[int]:
    """The current unit, the recommended one, then the best others by net gain; effective units, each once."""
    rows = [
        row
        for row in report.candidates
        if row.valid and row.effective_unit == row.unit and row.net_gain_tokens is not None
    ]
    current = report.candidate(report.engine.current_match_unit)
    in_force = current.effective_unit if current is not None else report.engine.current_match_unit
    best = sorted(rows, key=lambda row: (-(row.net_gain_tokens or 0), -row.unit))
    units = [in_force, report.recommendation.unit, *(row.unit for row in best)]
    return list(dict.fromkeys(units))[:most]


def flag_of(report: Report, unit: int) -> int | None:
    """How a server is started for a unit: None leaves the flag unset."""
    return None if unit in (report.engine.default_match_unit, report.engine.scheduler_block_size) else unit


def with_validation(report: Report, validation: Validation) -> Report:
    """The report with what was executed; where that differs from the prediction, the recommendation shows both."""
    recommendation = report.recommendation
    row = next((row for row in validation.candidates if row.unit == recommendation.unit), None)
    if row is not None and row.predicted_tokens is not None:
        figures = (
            f"executed ({validation.rung}): unit {row.unit:,} matched {row.matched_tokens:,} tokens of "
            f"{validation.requests:,} requests, predicted {row.predicted_tokens:,}"
        )
        recommendation = msgspec.structs.replace(
            recommendation,
            confidence=recommendation.confidence if validation.agrees else "low",
            caveats=(*recommendation.caveats, figures),
        )
    return msgspec.structs.replace(report, validation=validation, recommendation=recommendation)
