"""`Report` → one HTML page. The words and tables are those of every view; Jinja escapes each of them."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from msgspec.structs import replace

from kvtune.analyzers.report import Losses, Report
from kvtune.cli.reporters import content
from kvtune.cli.reporters.html.charts import (
    capacity_chart,
    histogram_chart,
    units_chart,
    waterfall_chart,
    windows_chart,
)
from kvtune.cli.reporters.html.decision import decision_chart
from kvtune.cli.reporters.numbers import clean, interval, percent, signed

_HERE = Path(__file__).parent


def render_html(report: Report) -> str:
    """The page, complete: styles and charts inside, nothing to fetch."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    unit = report.recommendation.unit
    page = environment.get_template("page.html.j2").render(
        report=report,
        content=content,
        style=(_HERE / "page.css").read_text(encoding="utf-8"),
        numbers=_numbers(report),
        struck=content.struck_units(report),
        histogram=histogram_chart(report.shared.histogram, unit, "Where shared prefixes end"),
        family_charts=[
            (
                clean(family.name),
                histogram_chart(family.histogram, unit, f"Ends in family {clean(family.name)}"),
            )
            for family in report.families
            if family.histogram is not None and len(report.families) > 1
        ],
        part_charts=_part_charts(report),
        decision=decision_chart(
            report.decision_line,
            report.engine.default_match_unit,
            report.step_times.overhead_tokens if report.step_times is not None else None,
        ),
        units=units_chart(report.candidates, unit, report.recommendation.current_unit, report.capacity),
        waterfalls=[
            (title, waterfall_chart(losses, report.shared.tokens, f"From shared to reused tokens, {title}"))
            for title, losses in _settings(report)
            if report.engine.enable_prefix_caching
        ],
        capacity=capacity_chart(report.capacity, content.capacity_units(report))
        if content.capacity_units(report)
        else None,
        windows=windows_chart(report.windows) if report.windows else None,
    )
    return page.lstrip()


def _part_charts(report: Report) -> list[tuple[str, Markup]]:
    """A histogram for each part of the prompt in which shared prefixes end, where there are several."""
    ends, whole = report.shared.ends_in, report.shared.histogram
    parts = [(name, getattr(ends, name).counts) for name in ends.__struct_fields__]
    found = [
        (
            name,
            histogram_chart(
                replace(whole, counts=counts), report.recommendation.unit, f"Ends in {name}", 150
            ),
        )
        for name, counts in parts
        if any(counts)
    ]
    return found if len(found) > 1 else []


def _numbers(report: Report) -> list[tuple[str, str]]:
    """The figures under the advice: name, value."""
    advice = report.recommendation
    today, then = (
        content.reuse_rate(report, side) for _, side in (_settings(report)[0], _settings(report)[-1])
    )
    rates = (
        ("token hit rate", today) if today == then else ("token hit rate, today → then", f"{today} → {then}")
    )
    lever = content.main_lever(report)
    if lever is not None:
        return [
            ("net gain in tokens", signed(lever.gain_tokens)),
            ("95% CI of the gain", interval(lever.gain_ci95)),
            ("token hit rate today", today),
        ]
    if advice.action not in ("set", "unset"):
        return [rates, ("confidence", advice.confidence)]
    return [
        ("net gain in tokens", signed(advice.net_gain_tokens)),
        ("gain, of all prompt tokens", percent(advice.gain_fraction)),
        ("95% CI of the gain", interval(advice.gain_ci95)),
        rates,
        ("confidence", advice.confidence),
    ]


def _settings(report: Report) -> list[tuple[str, Losses]]:
    current, recommended = report.losses.current, report.losses.recommended
    settings = [(f"today, unit {current.unit:,}", current)]
    if recommended.unit != current.unit:
        settings.append((f"recommended, unit {recommended.unit:,}", recommended))
    return settings
