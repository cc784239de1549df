"""Latencies under load, in a table and a sentence. Knows the report only."""

from __future__ import annotations

from kvtune.analyzers.report import Report
from kvtune.cli.reporters.content.table import Column, Role, Table
from kvtune.cli.reporters.numbers import count, multiple, percent, plural, seconds


def load_table(report: Report) -> Table | None:
    """One row a load and unit; None where no load was asked for."""
    if not report.load:
        return None
    columns = (
        Column("load"),
        Column("unit"),
        Column("TTFT p50"),
        Column("p99", keep=2),
        Column("end to end p50"),
        Column("busy"),
    )
    rows: list[tuple[str, ...]] = []
    roles: list[Role] = []
    for point in report.load:
        for row in point.candidates:
            rows.append(
                (
                    multiple(point.multiplier),
                    count(row.unit),
                    seconds(row.ttft_s.p50),
                    seconds(row.ttft_s.p99),
                    seconds(row.e2e_s.p50),
                    percent(row.busy),
                )
            )
            current = row.unit == report.recommendation.current_unit
            best = row.unit == point.best_unit
            roles.append(
                "both" if best and current else "recommended" if best else "current" if current else ""
            )
    return Table(
        columns, tuple(rows), tuple(roles), "Load: multiples of the trace's own rate. →: best at that load."
    )


def load_sentence(report: Report) -> str:
    """At which load the best unit changes; empty where no load was asked for."""
    if not report.load:
        return ""
    points = sorted(report.load, key=lambda point: point.multiplier)
    default = report.engine.default_match_unit
    named = [
        f"{multiple(point.multiplier)}: {'leave it unset' if point.best_unit == default else f'{point.best_unit:,}'}"
        for point in points
    ]
    units = len({point.best_unit for point in points})
    if units == 1 and len(points) > 1:
        return f"The best match unit is the same at {plural(len(points), 'load')}: {named[0].split(': ')[1]}."
    return f"Best match unit by load: {'; '.join(named)}."
