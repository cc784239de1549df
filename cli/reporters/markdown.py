"""The report as Markdown, for pull requests and wikis: the same sentences and tables as every other view.

A pure function of the report. Text from traces and models is escaped, so that it stays text.
"""

from __future__ import annotations

import re

from kvtune.analyzers.report import Report
from kvtune.cli.reporters import content
from kvtune.cli.reporters.layout import sparkline
from kvtune.cli.reporters.numbers import clean, interval, signed

_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&]|^[#+-])")


def render_markdown(report: Report) -> str:
    """The whole report as GitHub-flavoured Markdown."""
    advice, sure = report.recommendation, content.confidence(report).capitalize()
    parts = [
        f"## {_text(content.headline(report))}",
        " ".join(f"{part}." for part in (_text(content.subject(report)), sure) if part),
        _text(" ".join(content.gain_sentences(report))),
        _text(content.decision_sentence(report)),
        _text(advice.why),
    ]
    if content.serve_flags(report):
        parts.append(_code(f"vllm serve … {' '.join(content.serve_flags(report))}"))
    parts += map(_text, content.plan_sentences(report))
    parts.append(_bullets(content.caveats(report)))
    if report.levers:
        parts += ["### Other optimizations", _levers(report)]
    checked = content.log_check_sentences(report)
    if checked:
        parts += [f"### {content.LOG_CHECK_TITLE}", _bullets(checked)]
    if report.validation is not None:
        validation = content.validation_table(report)
        parts.append(f"### {content.validation_title(report)}")
        parts.append(_text(content.validation_aside(report)))
        parts += [content.validation_verdict(report), _table(validation)] if validation is not None else []
        parts.append(_bullets([*report.validation.differences, *report.validation.notes]))
    parts += ["### Sizes", *map(_text, content.size_sentences(report)), _table(content.groups_table(report))]
    parts += ["### Where shared prefixes end", _text(content.shared_sentence(report)), _ends(report)]
    parts += [_text(content.just_missed_sentence(report)), _table(content.ends_in_table(report))]
    parts += [
        "### Match units",
        _table(content.candidates_table(report)),
        _text(content.hashing_sentence(report)),
    ]
    parts.append(_bullets([f"{units}: {reason}" for units, reason in content.struck_units(report)]))
    load = content.load_table(report)
    if load is not None:
        parts += ["### Under load", _text(content.load_sentence(report)), _table(load)]
    parts += ["### From shared to reused", _table(content.losses_table(report))]
    if report.families:
        parts += ["### Families", _table(content.families_table(report))]
        parts.append(_bullets(content.family_advice(report)))
    footprint = content.footprint_table(report)
    if footprint is not None:
        parts += ["### Blocks that a request takes", _table(footprint), _text(content.held_sentence(report))]
    if report.capacity:
        parts += ["### Hits against the pool's size", _table(content.capacity_table(report))]
        parts += [_text(content.knee_sentence(report)), _text(content.choices_sentence(report))]
        choices = content.choices_table(report)
        parts.append(_table(choices) if choices is not None else "")
    if report.windows:
        parts += [
            "### Over time",
            _text(content.windows_sentence(report)),
            _table(content.windows_table(report)),
        ]
    parts += [
        "### Where this comes from",
        _bullets([f"{name}: {value}" for name, value in content.provenance(report)]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", clean(text))


def _code(text: str) -> str:
    return "```sh\n" + clean(text).replace("```", "'''") + "\n```"


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"- {_text(line)}" for line in lines)


def _levers(report: Report) -> str:
    lines = []
    for number, lever in enumerate(report.levers, 1):
        details = [f"{signed(lever.gain_tokens)} tokens ({interval(lever.gain_ci95)})", *(lever.flags or ())]
        because = f"because {lever.evidence}" if lever.evidence else ""
        details += [lever.change or "", because, f"cost: {lever.cost}", lever.limits]
        lines.append(f"{number}. {_text(lever.what)} {_text(' · '.join(filter(None, details)))}")
    return "\n".join(lines)


def _ends(report: Report) -> str:
    histogram = report.shared.histogram
    bins = ", ".join(f"{bar.label}: {bar.requests:,}" for bar in content.end_bars(report) if bar.requests)
    return f"`{sparkline(histogram.counts)}` modulo {histogram.modulo:,}, requests by bin: {_text(bins)}"


def _table(table: content.Table) -> str:
    if not table.rows:
        return ""
    head = [_text(column.title) for column in table.columns]
    rule = ["---:" if column.align == "right" else ":---" for column in table.columns]
    rows = []
    for number, row in enumerate(table.rows):
        cells = [_text(cell) for cell in row]
        strong = table.role(number) in ("recommended", "both", "total")
        rows.append([f"**{cell}**" if strong and cell else cell for cell in cells])
    lines = [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]
    return "\n".join(lines) + (f"\n\n{_text(table.note)}" if table.note else "")
