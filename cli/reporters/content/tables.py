"""The tables and bars of a report, row by row. Knows the report and its words only."""

from __future__ import annotations

from dataclasses import dataclass

from kvtune.analyzers.loss_kinds import LOSS_WORDS, VERDICT_WORDS
from kvtune.analyzers.report import Candidate, Report
from kvtune.cli.reporters.content.sentences import reuse_rate
from kvtune.cli.reporters.content.table import Column, Role, Table
from kvtune.cli.reporters.numbers import (
    clean,
    count,
    plural,
    seconds,
    share,
    signed,
    signed_percent,
)

MOST_FAMILIES = 8


def groups_table(report: Report) -> Table:
    """The KV cache groups in the engine's order."""
    rows = []
    for group in report.engine.groups:
        details = [f"window {group.window:,}"] if group.window else []
        details += [f"mode {group.mode}"] if group.mode else []
        details += [] if group.cacheable else ["not cacheable"]
        rows.append(
            (group.kind.replace("_", " "), str(group.count), count(group.block_size), ", ".join(details))
        )
    columns = (Column("KV cache group", "left"), Column("groups"), Column("block"), Column("", "left"))
    return Table(columns, tuple(rows))


@dataclass(frozen=True)
class Bar:
    """One bin of a histogram: its label and how many requests fall into it."""

    label: str
    requests: int


def end_bars(report: Report) -> list[Bar]:
    """The histogram of shared prefixes' ends, a bar a bin."""
    histogram = report.shared.histogram
    width = histogram.bin_width
    return [
        Bar(f"{start:,}–{min(start + width, histogram.modulo) - 1:,}", requests)
        for start, requests in zip(range(0, histogram.modulo, width), histogram.counts, strict=False)
    ]


def ends_in_table(report: Report) -> Table:
    """The parts of the prompt in which shared prefixes end, in prompt order."""
    ends = report.shared.ends_in
    parts = [(name, getattr(ends, name)) for name in ends.__struct_fields__]
    rows = [
        (
            name,
            count(part.requests),
            share(part.requests, report.shared.requests_sharing),
            count(part.tokens),
        )
        for name, part in parts
        if part.requests
    ]
    columns = (Column("Ends in", "left"), Column("requests"), Column(""), Column("shared tokens"))
    return Table(columns, tuple(rows))


def telling_rows(report: Report, most: int) -> list[int]:
    """Places in `candidates_table` of the rows that tell most: the current and the recommended unit, what the decision
    line names, the finest; `most` at most."""
    rows = _replayed(report)
    advice = report.recommendation
    named = [advice.current_unit, advice.unit, *(part.unit for part in report.decision_line)]
    wanted = list(dict.fromkeys([*named, rows[-1].effective_unit] if rows else named))[:most]
    return [place for place, row in enumerate(rows) if row.effective_unit in wanted]


def _replayed(report: Report) -> list[Candidate]:
    grids: dict[int, Candidate] = {}
    for row in report.candidates:
        if row.valid and row.engine_hit_tokens is not None:
            known = grids.get(row.effective_unit)
            if known is None or row.unit == row.effective_unit:
                grids[row.effective_unit] = row
    return [grids[grid] for grid in sorted(grids, reverse=True)]


def candidates_table(report: Report) -> Table:
    """What hits are multiples of, coarsest first: replayed units, and what inert ones do where that is no unit."""
    replayed = _replayed(report)
    preempts = any(row.preemptions for row in replayed)
    timed = any(row.prefill_s is not None for row in replayed)
    columns = (
        Column("unit"),
        Column("ideal hits", keep=3 if timed else 0),
        Column("engine hits"),
        Column("recomputed", keep=5),
        Column("gain", keep=4),
        Column("net gain"),
        *([Column("prefill time"), Column("change")] if timed else []),
        Column("steps", keep=6),
        Column("+steps"),
        Column("break-even", keep=2),
        Column("copies", keep=1),
        Column("evicted", keep=1),
        *([Column("preempted", keep=3)] if preempts else []),
    )
    rows = tuple(
        (
            count(row.effective_unit),
            count(row.ideal_hit_tokens if row.unit == row.effective_unit else None),
            count(row.engine_hit_tokens),
            count(row.recomputed_tokens),
            signed(row.gain_tokens),
            signed(row.net_gain_tokens),
            *([seconds(row.prefill_s), signed_percent(row.prefill_change)] if timed else []),
            count(row.prefill_steps),
            signed(row.extra_prefill_steps),
            count(row.break_even_step_tokens),
            count(row.copy_on_write_copies),
            count(row.evicted_blocks),
            *([count(row.preemptions)] if preempts else []),
        )
        for row in replayed
    )
    note = (
        "Hits and gains in tokens. Ideal: if every state were kept. Net gain: less "
        f"{plural(report.replay.step_cost_tokens, 'token')} per extra prefill step. Break-even: the step overhead in "
        "tokens that eats up the gain."
        + (" Prefill time: all prefill steps, each alone, summed." if timed else "")
    )
    return Table(columns, rows, tuple(_role(report, row) for row in replayed), note)


def _role(report: Report, row: Candidate) -> Role:
    advice = report.recommendation
    if row.effective_unit == advice.unit:
        return "both" if row.effective_unit == advice.current_unit else "recommended"
    return "current" if row.effective_unit == advice.current_unit else ""


def losses_table(report: Report) -> Table:
    """The way from shared to reused tokens, today and as recommended."""
    losses = report.losses
    sides = (
        [losses.current]
        if losses.current.unit == losses.recommended.unit
        else [losses.current, losses.recommended]
    )
    titles = [f"current ({side.unit:,})" for side in sides[:1]] + [
        f"unit {side.unit:,}" for side in sides[1:]
    ]
    rows: list[tuple[str, ...]] = [
        ("shared with earlier requests", *[count(report.shared.tokens) for _ in sides])
    ]
    roles: list[Role] = ["total"]
    for name, words in LOSS_WORDS.items():
        lost = [getattr(side, name) for side in sides]
        if any(lost):
            words = words if report.engine.enable_prefix_caching else "prefix caching is off"
            rows.append((words, *[signed(-tokens) for tokens in lost]))
            roles.append("")
    rows.append(("reused (hit tokens)", *[count(side.hit_tokens) for side in sides]))
    roles.append("total")
    rows.append(("token hit rate", *[reuse_rate(report, side) for side in sides]))
    roles.append("")
    columns = (Column("Tokens", "left"), *[Column(title) for title in titles])
    return Table(columns, tuple(rows), tuple(roles))


def families_table(report: Report) -> Table:
    """The largest families."""
    advice = report.recommendation
    columns = (
        Column("Family", "left"),
        Column("requests", keep=1),
        Column("prompt tokens", keep=3),
        Column("shared"),
        Column("typical end", keep=2),
        Column("ends, 80%", keep=4),
        Column("hits now"),
        *([Column(f"at {advice.unit:,}")] if advice.unit != advice.current_unit else []),
        Column("verdict", "left"),
    )
    rows = tuple(
        (
            clean(family.name),
            count(family.requests),
            count(family.prompt_tokens),
            count(family.shared_tokens),
            count(family.typical_end),
            f"{family.spread_of_ends[0]:,}–{family.spread_of_ends[1]:,}" if family.spread_of_ends else "–",
            count(family.engine_hit_tokens.get(advice.current_unit)),
            *(
                [count(family.engine_hit_tokens.get(advice.unit))]
                if advice.unit != advice.current_unit
                else []
            ),
            VERDICT_WORDS[family.verdict],
        )
        for family in report.families[:MOST_FAMILIES]
    )
    rest = len(report.families) - MOST_FAMILIES
    return Table(
        columns, rows, note=f"and {plural(rest, 'smaller family', 'smaller families')}" if rest > 0 else ""
    )


def family_advice(report: Report) -> list[str]:
    """What would help the families of `families_table`, a sentence each."""
    return [
        f"{clean(family.name)}: {clean(advice)}"
        for family in report.families[:MOST_FAMILIES]
        for advice in family.advice
    ]


def windows_table(report: Report) -> Table:
    """The best unit of each slice of time, beside the recommended one."""
    advice = report.recommendation
    other = advice.unit != advice.current_unit
    columns = (
        Column("from", "left"),
        Column("to", "left"),
        Column("best unit"),
        Column("gain", keep=1),
        Column("net gain"),
        *([Column(f"net gain of {advice.unit:,}")] if other else []),
    )
    rows = tuple(
        (
            seconds(window.start_s),
            seconds(window.end_s),
            count(window.unit),
            signed(window.gain_tokens),
            signed(window.net_gain_tokens),
            *([signed(window.recommended_net_gain_tokens)] if other else []),
        )
        for window in report.windows
    )
    return Table(columns, rows)
