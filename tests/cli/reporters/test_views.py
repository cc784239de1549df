"""The terminal and Markdown views of the synthetic report: snapshots, widths, equal numbers, hostile text."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len

from kvtune.analyzers.report import UNDECIDABLE, Report
from kvtune.cli.reporters import content
from kvtune.cli.reporters.layout import sparkline
from kvtune.cli.reporters.markdown import render_markdown
from kvtune.cli.reporters.terminal import render_terminal

SNAPSHOTS = Path(__file__).parent / "snapshots"
_NUMBER = re.compile(r"[+−]?\d[\d,]{3,}")


def test_the_terminal_report_is_the_one_that_was_looked_at(report: Report) -> None:
    assert render_terminal(report, width=80) == (SNAPSHOTS / "terminal-80.txt").read_text()


def test_the_markdown_report_is_the_one_that_was_looked_at(report: Report) -> None:
    assert render_markdown(report) == (SNAPSHOTS / "report.md").read_text()


@pytest.mark.parametrize("width", [70, 80, 100, 140, 200])
def test_no_line_is_wider_than_the_terminal(report: Report, width: int) -> None:
    assert max(cell_len(line) for line in render_terminal(report, width=width).splitlines()) <= width


def test_wide_terminals_get_more_columns(report: Report) -> None:
    assert "  recomputed      gain" not in render_terminal(report, width=80)
    assert "  recomputed      gain" in render_terminal(report, width=130)


def test_preemptions_are_shown_where_there_are_any(report: Report) -> None:
    assert "preempted" not in render_terminal(report, width=130)
    rows = tuple(msgspec.structs.replace(row, preemptions=3) for row in report.candidates)
    assert "preempted" in render_terminal(msgspec.structs.replace(report, candidates=rows), width=130)


def test_colour_changes_nothing_but_colour(report: Report) -> None:
    coloured = render_terminal(report, width=80, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == render_terminal(report, width=80)


def test_the_recommendation_comes_first(report: Report) -> None:
    first = [line for line in render_terminal(report).splitlines() if line][1]
    assert first.startswith("Set --prefix-match-unit 96")


def test_both_views_say_the_same_numbers(report: Report) -> None:
    wide = set(_NUMBER.findall(render_terminal(report, width=200)))
    markdown = set(_NUMBER.findall(render_markdown(report).replace("\\", "")))
    assert wide - markdown == set()


def test_losses_and_hits_sum_to_what_is_shared(report: Report) -> None:
    table = content.losses_table(report)
    for column in (1, 2):
        cells = [int(row[column].replace(",", "").replace("−", "-")) for row in table.rows[:-1]]
        assert sum(cells[:-1]) == cells[-1]


def test_the_unit_in_force_and_the_recommended_one_are_marked(report: Report) -> None:
    table = content.candidates_table(report)
    assert [row[0] for row in table.rows] == ["528", "96", "16"]
    assert table.roles == ("current", "recommended", "")


def test_struck_and_idle_units_are_grouped_by_reason(report: Report) -> None:
    assert content.struck_units(report) == [
        ("48", "48 does not divide the block of 500 of group 2 (full)"),
        ("2", "valid, not replayed (name it with --units)"),
    ]


@pytest.mark.parametrize(
    ("action", "words"),
    [("keep", "Keep --prefix-match-unit 96"), ("unset", "Drop"), ("cannot_help", "No match unit changes")],
)
def test_every_action_has_its_headline(report: Report, action: str, words: str) -> None:
    advice = msgspec.structs.replace(report.recommendation, action=action, flags=())
    other = msgspec.structs.replace(report, recommendation=advice, levers=())
    assert content.headline(other).startswith(words)
    assert content.gain_sentences(other)[0].startswith("Token hit rate 81.8%")
    assert ("→" in content.gain_sentences(other)[0]) == (action == "unset")


def test_a_log_that_lost_its_prompts_decides_nothing(report: Report) -> None:
    advice = msgspec.structs.replace(report.recommendation, action="cannot_help", flags=(), why=UNDECIDABLE)
    other = msgspec.structs.replace(report, recommendation=advice)
    assert content.headline(other) == "This log cannot decide the match unit"
    assert content.serve_flags(other) == ()


@pytest.mark.parametrize("action", ["keep", "cannot_help"])
def test_where_no_unit_pays_the_best_lever_is_the_one_thing_to_do(report: Report, action: str) -> None:
    advice = msgspec.structs.replace(report.recommendation, action=action, flags=())
    price = msgspec.structs.replace(report.levers[0], kind="isolation", title="A price", advice=False)
    other = msgspec.structs.replace(report, recommendation=advice, levers=(price, *report.levers))
    assert content.headline(other) == "Warm up the shared prefix of 3,845 tokens"
    assert content.gain_sentences(other)[1].startswith("+3,168 tokens net")


def test_three_optimizations_are_shown_and_the_rest_is_folded(report: Report) -> None:
    # 0.5% of the prompt tokens is the least that is shown; an interval that touches zero is not.
    least = -(-report.trace.prompt_tokens // 200)
    shown = msgspec.structs.replace(report.levers[0], gain_tokens=least, gain_ci95=(1, least))
    small = msgspec.structs.replace(shown, gain_tokens=least - 1)
    unsure = msgspec.structs.replace(shown, gain_ci95=(0, least))
    other = msgspec.structs.replace(report, levers=(unsure, shown, small, shown, shown, shown))
    assert content.telling_levers(other) == [shown] * 3
    assert "3 smaller or less certain optimizations: --details." in render_terminal(
        other, width=100, details=False
    )


def test_levers_are_mentioned_where_they_were_not_tried(report: Report) -> None:
    assert content.levers_hint(report) == "Not tried: warm-up, padding, retention: add --levers."
    tried = msgspec.structs.replace(report, command=f"{report.command} --levers")
    assert content.levers_hint(tried) == ""
    assert "none brings 0.1%" in content.levers_hint(msgspec.structs.replace(tried, levers=()))
    assert content.levers_hint(msgspec.structs.replace(report, levers=())).startswith(
        "Prompt order, tool order"
    )
    none = msgspec.structs.replace(report, command=f"{report.command} --no-levers", levers=())
    assert content.levers_hint(none) == "No optimizations were tried (--no-levers)."


def test_hostile_names_stay_text(report: Report) -> None:
    family = msgspec.structs.replace(report.families[0], name="\x1b[2Jevil|<b>`x`\n# h")
    hostile = msgspec.structs.replace(report, families=(family,))
    terminal, markdown = render_terminal(hostile, width=120), render_markdown(hostile)
    assert "\x1b" not in terminal
    assert "evil|<b>" in terminal
    assert r"evil\|\<b\>\`x\`" in markdown


def test_sparklines() -> None:
    assert sparkline((0, 1, 7)) == "·▂█"
    assert sparkline((0, 0)) == ""


def test_a_report_without_extras_has_no_empty_sections(report: Report) -> None:
    bare = msgspec.structs.replace(
        report,
        families=(),
        capacity=(),
        footprint=None,
        pool_advice=None,
        windows=(),
        levers=(),
        validation=None,
        requests=msgspec.UNSET,
    )
    text = render_terminal(bare)
    for title in ("Families", "pool's size", "Blocks that", "Over time", "What else", "Validated"):
        assert title not in text
        assert title not in render_markdown(bare)


def test_where_steps_alone_were_measured_no_unit_is_compared(report: Report) -> None:
    assert report.validation is not None
    steps = msgspec.structs.replace(report.validation, candidates=(), notes=("step overhead 3.4 ms",))
    measured = msgspec.structs.replace(report, validation=steps)
    for view in (render_terminal(measured), render_markdown(measured)):
        assert "Step times measured" in view
        assert "step overhead 3.4 ms" in view
        assert "matched" not in view
        assert "Execution agrees" not in view


def test_a_change_that_may_be_noise_is_named_as_such(report: Report) -> None:
    assert report.validation is not None
    [row] = report.validation.candidates
    rows = (
        row,
        msgspec.structs.replace(
            row, unit=48, ttft_change=-0.026, ttft_change_ci95=(-0.19, 0.17), ttft_differs=False
        ),
        msgspec.structs.replace(
            row, unit=16, ttft_change=0.387, ttft_change_ci95=(0.2, 0.5), ttft_differs=True
        ),
    )
    measured = msgspec.structs.replace(
        report, validation=msgspec.structs.replace(report.validation, candidates=rows)
    )
    text = render_terminal(measured, width=120)
    assert "(−2.6%)" in text
    assert " +38.7%" in text
    assert "in brackets where it may be noise" in text
