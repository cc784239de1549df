"""The report for a terminal: the recommendation first, then what it rests on.

A pure function of the report, the width and whether to colour. Knows no file and no device.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtune.analyzers.report import Lever, Report
from kvtune.cli.reporters import content
from kvtune.cli.reporters.layout import INDENT, Page, sparkline
from kvtune.cli.reporters.numbers import clean, interval, plural, signed

LEAST_WIDTH = 60


MOST_CAVEATS = 3
MOST_UNITS = 8
"""Without details: what the first screen shows of them."""


def render_terminal(report: Report, *, width: int = 80, colour: bool = False, details: bool = True) -> str:
    """The report as text of at most `width` columns (60 at least); without `details` the answer and its evidence."""
    page = Page(max(width, LEAST_WIDTH), colour)
    lines = [page.paint(line, "dim") for line in page.paragraph(content.subject(report), first="", rest="")]
    if not details:
        for section in (
            _short_answer,
            _short_levers,
            _log_check,
            _validation,
            _short_candidates,
            _load,
            _losses,
            _windows,
            _more,
        ):
            lines += section(report, page)
        return "\n".join(lines) + "\n"
    for section in (
        _recommendation,
        _levers,
        _log_check,
        _validation,
        _sizes,
        _ends,
        _candidates,
        _load,
        _losses,
        _families,
        _footprint,
        _capacity,
        _windows,
        _provenance,
    ):
        lines += section(report, page)
    return "\n".join(lines) + "\n"


def _recommendation(report: Report, page: Page) -> list[str]:
    notes = content.caveats(report)
    lines = _answer(report, page) + page.paragraph(clean(report.recommendation.why))
    lines += _caveats(notes, page)
    hint = content.levers_hint(report)
    return [*lines, "", *page.paragraph(hint, "dim")] if hint else lines


def _short_answer(report: Report, page: Page) -> list[str]:
    notes = content.caveats(report)
    return (
        _answer(report, page) + page.paragraph(content.reason(report)) + _caveats(notes[:MOST_CAVEATS], page)
    )


def _answer(report: Report, page: Page) -> list[str]:
    """Headline, gain, the step overhead on which it hangs, what to type and how to go back."""
    advice = report.recommendation
    changes = advice.action in ("set", "unset") or content.main_lever(report) is not None
    strong = ("bold", "green") if changes else ("bold",)
    confidence = content.confidence(report)
    title = content.headline(report)
    gap = " " * max(page.width - len(title) - len(confidence), 3)
    sure = gap + page.paint(confidence, "dim") if confidence else ""
    lines = ["", page.paint(title, *strong) + sure, ""]
    for sentence in (*content.gain_sentences(report), content.decision_sentence(report)):
        lines += page.paragraph(sentence) if sentence else []
    if content.serve_flags(report):
        flags = " ".join(clean(flag) for flag in content.serve_flags(report))
        lines += ["", *page.paragraph(f"vllm serve … {flags}", "bold", first="    ", rest="      "), ""]
    for sentence in content.plan_sentences(report):
        lines += page.paragraph(sentence)
    return lines


def _caveats(notes: list[str], page: Page) -> list[str]:
    lines = []
    for note in notes:
        wrapped = page.paragraph(note, first="  ! ", rest="    ")
        lines += [wrapped[0].replace("!", page.paint("!", "yellow"), 1), *wrapped[1:]]
    return lines


def _short_candidates(report: Report, page: Page) -> list[str]:
    lines = page.heading("Match units", "→ recommended  • current")
    table = content.candidates_table(report)
    shown = content.telling_rows(report, MOST_UNITS)
    return [*lines, *page.table(table.only(shown))]


def _more(report: Report, page: Page) -> list[str]:
    hidden = len(content.caveats(report)) - MOST_CAVEATS
    caveats = f"{plural(hidden, 'more caveat')}, " if hidden > 0 else ""
    hint = content.levers_hint(report)
    return [
        "",
        *page.paragraph(f"--details: {caveats}all units, sizes, families, blocks, sources. {hint}", "dim"),
    ]


def _short_levers(report: Report, page: Page) -> list[str]:
    shown = content.telling_levers(report)
    lines = _listed_levers(shown, page)
    rest = len(report.levers) - len(shown)
    if rest:
        what = "optimization" if not shown else "smaller or less certain optimization"
        few = " of less than 0.5% or with an uncertain gain" if not shown else ""
        lines += ["", *page.paragraph(f"{plural(rest, what)}{few}: --details.", "dim")]
    return lines


def _levers(report: Report, page: Page) -> list[str]:
    return _listed_levers(report.levers, page)


def _listed_levers(levers: Sequence[Lever], page: Page) -> list[str]:
    if not levers:
        return []
    lines = page.heading("Other optimizations", "each replayed on this trace")
    for number, lever in enumerate(levers, 1):
        gain = f"{signed(lever.gain_tokens)} tokens ({interval(lever.gain_ci95)})"
        lines += page.paragraph(f"{number}. {clean(lever.what)}", rest="     ")
        lines += page.paragraph(gain, first="     ", rest="     ")
        flags = "add " + " ".join(lever.flags) if lever.flags else ""
        named = (("", flags), ("", lever.change or ""), ("because ", lever.evidence), ("cost: ", lever.cost))
        for name, text in (*named, ("", lever.limits)):
            if text:
                lines += page.paragraph(name + clean(text), "dim", first="     ", rest="       ")
    return lines


def _log_check(report: Report, page: Page) -> list[str]:
    sentences = content.log_check_sentences(report)
    if not sentences:
        return []
    lines = page.heading(content.LOG_CHECK_TITLE, "as the server counted, request by request")
    for sentence in sentences:
        lines += page.paragraph(sentence)
    return lines


def _validation(report: Report, page: Page) -> list[str]:
    found, table = report.validation, content.validation_table(report)
    if found is None:
        return []
    lines = page.heading(content.validation_title(report), content.validation_aside(report))
    if table is not None:
        lines += page.paragraph(content.validation_verdict(report)) + page.table(table)
    for difference in found.differences:
        lines += page.paragraph(clean(difference), first="  ! ", rest="    ")
    for note in found.notes:
        lines += page.paragraph(clean(note), "dim", first="  ", rest="    ")
    return lines


def _sizes(report: Report, page: Page) -> list[str]:
    lines = page.heading("Sizes")
    for sentence in content.size_sentences(report):
        lines += page.paragraph(sentence)
    return [*lines, *page.table(content.groups_table(report))]


def _ends(report: Report, page: Page) -> list[str]:
    modulo = report.shared.histogram.modulo
    lines = page.heading(
        "Where shared prefixes end", f"requests, modulo {modulo:,} tokens (scheduler block size)"
    )
    bars = content.end_bars(report)
    lines += page.bars([bar.label for bar in bars], [bar.requests for bar in bars])
    lines += page.paragraph(content.shared_sentence(report))
    missed = content.just_missed_sentence(report)
    lines += page.paragraph(missed) if missed else []
    table = content.ends_in_table(report)
    return [*lines, *page.table(table)] if table.rows else lines


def _candidates(report: Report, page: Page) -> list[str]:
    lines = page.heading("Match units", "→ recommended  • current")
    lines += page.table(content.candidates_table(report))
    hashing = content.hashing_sentence(report)
    lines += page.paragraph(hashing, "dim") if hashing else []
    struck = content.struck_units(report)
    if struck:
        lines.append("")
    for units, reason in struck:
        lines += page.paragraph(f"{units}  {reason}", "dim", rest=INDENT * 3)
    return lines


def _load(report: Report, page: Page) -> list[str]:
    table = content.load_table(report)
    if table is None:
        return []
    return [
        *page.heading("Under load", "replayed by timestamps, with these step times"),
        *page.paragraph(content.load_sentence(report)),
        *page.table(table),
    ]


def _losses(report: Report, page: Page) -> list[str]:
    return page.heading("From shared to reused") + page.table(content.losses_table(report))


def _families(report: Report, page: Page) -> list[str]:
    if not report.families:
        return []
    lines = page.heading("Families", "requests with the same tools and system prompt")
    lines += page.table(content.families_table(report))
    shown = [family for family in report.families if family.histogram is not None]
    if shown:
        modulo = report.shared.histogram.modulo
        lines += ["", *page.paragraph(f"Ends modulo {modulo:,}, from 0 on the left:", "dim")]
        names = min(max(len(clean(family.name)) for family in shown), 40)
        for family in shown[: content.MOST_FAMILIES]:
            assert family.histogram is not None
            name = clean(family.name)[:names].ljust(names)
            lines.append(f"{INDENT}{name}  {page.paint(sparkline(family.histogram.counts), 'cyan')}")
    for advice in content.family_advice(report):
        lines += page.paragraph(advice, rest=INDENT * 2)
    return lines


def _footprint(report: Report, page: Page) -> list[str]:
    table = content.footprint_table(report)
    if table is None:
        return []
    lines = page.heading("Blocks that a request takes") + page.table(table)
    held = content.held_sentence(report)
    return lines + (page.paragraph(held) if held else [])


def _capacity(report: Report, page: Page) -> list[str]:
    if not report.capacity:
        return []
    lines = page.heading("Hits against the pool's size") + page.table(content.capacity_table(report))
    for sentence in (content.knee_sentence(report), content.choices_sentence(report)):
        lines += page.paragraph(sentence) if sentence else []
    choices = content.choices_table(report)
    return [*lines, *page.table(choices)] if choices is not None else lines


def _windows(report: Report, page: Page) -> list[str]:
    if not report.windows:
        return []
    sentence = content.windows_sentence(report)
    lines = page.heading("Over time") + (page.paragraph(sentence) if sentence else [])
    return lines + page.table(content.windows_table(report))


def _provenance(report: Report, page: Page) -> list[str]:
    lines = page.heading("Where this comes from")
    facts = content.provenance(report)
    names = max(len(name) for name, _ in facts)
    for name, value in facts:
        lines += page.paragraph(value, first=f"{INDENT}{name.ljust(names)}  ", rest=" " * (names + 4))
    return lines
