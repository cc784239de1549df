"""`Report` → one HTML page. Shapes values for the template; Jinja escapes every one of them."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from kvtune.analyzers.report import Candidate, Losses, Report
from kvtune.cli.reporters.html.charts import (
    LOSS_NAMES,
    capacity_chart,
    histogram_chart,
    units_chart,
    waterfall_chart,
    windows_chart,
)

_HERE = Path(__file__).parent
_LARGE_FAMILIES = 6

HEADLINES = {
    "set": "Set prefix_match_unit to {unit:,}",
    "unset": "Leave prefix_match_unit unset",
    "keep": "Leave it as it is",
    "cannot_help": "The match unit cannot help here",
}

ACTION_NAMES = {"set": "change", "unset": "change", "keep": "keep", "cannot_help": "keep"}


def render_html(report: Report) -> str:
    """The page, complete: styles and charts inside, nothing to fetch."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = lambda value: "" if value is None else f"{value:,}"
    environment.filters["signed"] = lambda value: "" if value is None else f"{value:+,}"
    environment.filters["percent"] = lambda value: "" if value is None else f"{value:.1%}"
    recommendation = report.recommendation
    replayed = [row for row in report.candidates if row.engine_hit_tokens is not None]
    return environment.get_template("page.html.j2").render(
        report=report,
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
        headline=HEADLINES[recommendation.action].format(unit=recommendation.unit),
        action=ACTION_NAMES[recommendation.action],
        token_hit_rate=_rate(report, recommendation.unit),
        current_hit_rate=_rate(report, recommendation.current_unit),
        replayed=replayed,
        struck=[row for row in report.candidates if row.engine_hit_tokens is None],
        histogram=histogram_chart(
            report.shared.histogram,
            recommendation.unit,
            "Where shared prefixes end, modulo the scheduler block",
        ),
        families=report.families,
        family_charts=[
            (
                family.name,
                histogram_chart(family.histogram, recommendation.unit, f"Ends in family {family.name}"),
            )
            for family in report.families[:_LARGE_FAMILIES]
            if family.histogram is not None and len(report.families) > 1
        ],
        units=units_chart(report.candidates, recommendation.unit, recommendation.current_unit)
        if replayed
        else None,
        waterfalls=[
            (title, waterfall_chart(losses, report.shared.tokens, f"From shared to reused tokens, {title}"))
            for title, losses in _settings(report)
        ],
        capacity=capacity_chart(report.capacity) if report.capacity else None,
        windows=windows_chart(report.windows) if report.windows else None,
        parts=[
            (name, getattr(report.shared.ends_in, name))
            for name in report.shared.ends_in.__struct_fields__
            if getattr(report.shared.ends_in, name).requests
        ],
        loss_names=LOSS_NAMES,
    )


def _settings(report: Report) -> list[tuple[str, Losses]]:
    current, recommended = report.losses.current, report.losses.recommended
    settings = [(f"today, unit {current.unit:,}", current)]
    if recommended.unit != current.unit:
        settings.append((f"recommended, unit {recommended.unit:,}", recommended))
    return settings


def _rate(report: Report, unit: int) -> float | None:
    row: Candidate | None = report.candidate(unit)
    if row is None or row.engine_hit_tokens is None:
        return None
    return row.engine_hit_tokens / max(report.trace.prompt_tokens, 1)
