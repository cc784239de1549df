"""What every view of a report says: its sentences and tables, built once, so that no two views can differ.

Knows the report and its words; neither colours, columns nor markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvtune.analyzers.report import Candidate, Losses, Report
from kvtune.cli.reporters.numbers import clean, count, interval, percent, plural, seconds, share, signed

Role = Literal["", "recommended", "current", "both", "total"]

MOST_FAMILIES = 8


@dataclass(frozen=True)
class Column:
    """A column of a table. Of `keep` 0 it is always shown; narrow views leave out the largest `keep` first."""

    title: str
    align: Literal["left", "right"] = "right"
    keep: int = 0


@dataclass(frozen=True)
class Table:
    """Cells as they are printed. `roles` says of each row what it is; `note` stands below."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    roles: tuple[Role, ...] = ()
    note: str = ""

    def role(self, row: int) -> Role:
        """What the row is; nothing special where no roles are given."""
        return self.roles[row] if self.roles else ""


@dataclass(frozen=True)
class Bar:
    """One bin of a histogram: its label and how many requests fall into it."""

    label: str
    requests: int


def subject(report: Report) -> str:
    """One line: which trace on which engine."""
    trace, engine = report.trace, report.engine
    files = clean(", ".join(trace.files)) if len(trace.files) < 4 else plural(len(trace.files), "file")
    return (
        f"{files}: {plural(trace.requests, 'request')}, {count(trace.prompt_tokens)} prompt tokens, "
        f"on {engine.name} {engine.version}"
    )


def headline(report: Report) -> str:
    """The one thing to do, in a line."""
    advice = report.recommendation
    if advice.action == "set":
        return f"Set --prefix-match-unit {advice.unit}"
    if advice.action == "unset":
        return f"Unset --prefix-match-unit: the default, {advice.unit:,}, is best"
    if advice.action == "keep":
        return f"Keep the unit of {advice.unit:,} tokens that is in force today"
    return "No match unit changes what this engine reuses"


def gain_sentences(report: Report) -> str:
    """What following the advice brings and costs; empty where nothing changes."""
    advice = report.recommendation
    if advice.action not in ("set", "unset"):
        return ""
    row = report.candidate(advice.unit)
    steps = row.extra_prefill_steps if row is not None else None
    text = (
        f"{count(advice.gain_tokens)} more prompt tokens come out of the cache than today "
        f"(unit {advice.current_unit:,}): {percent(advice.gain_fraction)} of all prompt tokens, "
        f"95 % interval {interval(advice.gain_ci95)}."
    )
    cost = report.replay.step_cost_tokens
    if steps:
        change = "extra prefill steps" if steps > 0 else "prefill steps fewer"
        text += (
            f" {abs(steps):,} {change} at {plural(cost, 'token')} each leave "
            f"{count(advice.net_gain_tokens)} net."
        )
    return text


def reuse_rate(report: Report, losses: Losses) -> str:
    """The token hit rate under one setting."""
    return share(losses.hit_tokens, report.trace.prompt_tokens)


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


def size_sentences(report: Report) -> list[str]:
    """What the groups resolve to, and from where they are known."""
    engine = report.engine
    source = {
        "flags": "--groups",
        "model-config": "the model's config",
        "startup-log": "the server's start-up log",
        "metrics": "the server's metrics",
    }[engine.source]
    partial = "hits may end inside a block" if engine.partial_hits else "hits end on block boundaries only"
    pool = "an unlimited pool" if engine.num_blocks is None else f"a pool of {engine.num_blocks:,} blocks"
    return [
        f"Sizes from {source}. Scheduler block {count(engine.scheduler_block_size)} (least common multiple), "
        f"default unit {count(engine.default_match_unit)}, in force today {count(engine.current_match_unit)}: "
        f"hits are multiples of {count(engine.cache_hit_alignment)}, {partial}.",
        f"The shortest prompt whose resend hits has {count(engine.minimum_reusable_prefix)} tokens; prompts that "
        f"part later must share at least {count(engine.minimum_shared_prefix)}.",
        f"Replayed {_arrivals(report)} with {pool} and steps of at most "
        f"{count(engine.max_num_batched_tokens)} tokens.",
    ]


def _arrivals(report: Report) -> str:
    replay = report.replay
    outputs = {
        "none": "answers stay out of the cache",
        "length": "answers take blocks and match nothing",
        "recorded": "recorded answers can be reused",
    }[replay.outputs]
    when = "one request after the other" if replay.arrivals == "sequential" else "by the trace's timestamps"
    return f"{when} ({outputs})"


def shared_sentence(report: Report) -> str:
    """How much of the traffic could be reused at all."""
    shared, trace = report.shared, report.trace
    return (
        f"{count(shared.requests_sharing)} of {plural(trace.requests, 'request')} share a prefix with an earlier "
        f"one: {count(shared.tokens)} tokens, {share(shared.tokens, trace.prompt_tokens)} of all prompt tokens."
    )


def end_bars(report: Report) -> list[Bar]:
    """The histogram of shared prefixes' ends, a bar a bin."""
    histogram = report.shared.histogram
    width = histogram.bin_width
    return [
        Bar(f"{start:,}–{min(start + width, histogram.modulo) - 1:,}", requests)
        for start, requests in zip(range(0, histogram.modulo, width), histogram.counts, strict=False)
    ]


def just_missed_sentence(report: Report) -> str:
    """Requests whose shared prefix ends just short of a boundary; empty where there is none."""
    missed = sorted(report.shared.just_missed.items())
    if not missed:
        return ""
    total = sum(requests for _, requests in missed)
    tokens, requests = max(missed, key=lambda item: item[1])
    return (
        f"{plural(total, 'request')} part at most {plural(missed[-1][0], 'token')} before a boundary "
        f"(most often {count(tokens)}: {plural(requests, 'request')})."
    )


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


def candidates_table(report: Report) -> Table:
    """The replayed units, coarsest first."""
    replayed = sorted(
        (
            row
            for row in report.candidates
            if row.valid and row.engine_hit_tokens is not None and not row.reason
        ),
        key=lambda row: -row.unit,
    )
    columns = (
        Column("unit"),
        Column("ideal hits"),
        Column("engine hits"),
        Column("recomputed", keep=5),
        Column("gain", keep=4),
        Column("net gain"),
        Column("steps", keep=6),
        Column("+steps"),
        Column("break-even", keep=2),
        Column("copies", keep=1),
        Column("evicted", keep=1),
        Column("preempted", keep=7),
    )
    rows = tuple(
        (
            count(row.unit),
            count(row.ideal_hit_tokens),
            count(row.engine_hit_tokens),
            count(row.recomputed_tokens),
            signed(row.gain_tokens),
            signed(row.net_gain_tokens),
            count(row.prefill_steps),
            signed(row.extra_prefill_steps),
            count(row.break_even_step_tokens),
            count(row.copy_on_write_copies),
            count(row.evicted_blocks),
            count(row.preemptions),
        )
        for row in replayed
    )
    note = (
        "Hits and gains in tokens; ideal: what the unit's grid allows if every state were kept. Net gain: less "
        f"{plural(report.replay.step_cost_tokens, 'token')} per extra prefill step; break-even: the step cost in "
        "tokens at which nothing is left."
    )
    return Table(columns, rows, tuple(_role(report, row) for row in replayed), note)


def _role(report: Report, row: Candidate) -> Role:
    advice = report.recommendation
    if row.unit == advice.unit:
        return "both" if row.unit == advice.current_unit else "recommended"
    return "current" if row.unit == advice.current_unit else ""


def struck_units(report: Report) -> list[tuple[str, str]]:
    """Units that are refused, neutralised or not replayed, grouped: (the units, the reason)."""
    grouped: dict[str, list[int]] = {}
    for row in report.candidates:
        if row.reason:
            inert = row.valid and row.effective_unit != row.unit
            prefix = f"does what {row.effective_unit:,} does: " if inert else ""
            grouped.setdefault(prefix + clean(row.reason), []).append(row.unit)
        elif row.engine_hit_tokens is None:
            grouped.setdefault("valid, not replayed (name it with --units)", []).append(row.unit)
    return [(_units(units), reason) for reason, units in grouped.items()]


def _units(units: Sequence[int], most: int = 8) -> str:
    ordered = sorted(units, reverse=True)
    shown = ", ".join(f"{unit:,}" for unit in ordered[:most])
    return shown if len(ordered) <= most else f"{shown} and {len(ordered) - most} more"


LIMIT_WORDS = {
    "granularity": "below the grid's granularity",
    "window": "outside a window",
    "no_recurrent_state": "no recurrent state kept there",
    "evicted": "evicted before",
    "in_flight": "still being computed",
    "speculative_drop": "dropped for the drafter",
}


def losses_table(report: Report) -> Table:
    """The way from shared to reused tokens, today and as recommended."""
    losses = report.losses
    sides = (
        [losses.current]
        if losses.current.unit == losses.recommended.unit
        else [losses.current, losses.recommended]
    )
    titles = [f"today ({side.unit:,})" for side in sides[:1]] + [f"unit {side.unit:,}" for side in sides[1:]]
    rows: list[tuple[str, ...]] = [
        ("shared with earlier requests", *[count(report.shared.tokens) for _ in sides])
    ]
    roles: list[Role] = ["total"]
    for name, words in LIMIT_WORDS.items():
        lost = [getattr(side, name) for side in sides]
        if any(lost):
            rows.append((words, *[signed(-tokens) for tokens in lost]))
            roles.append("")
    rows.append(("reused (hit tokens)", *[count(side.hit_tokens) for side in sides]))
    roles.append("total")
    rows.append(("token hit rate", *[reuse_rate(report, side) for side in sides]))
    roles.append("")
    columns = (Column("Tokens", "left"), *[Column(title) for title in titles])
    return Table(columns, tuple(rows), tuple(roles))


_VERDICTS = {
    "no_sharing": "shares nothing",
    "below_floor": "shares too little",
    "not_kept": "state not kept",
    "evicted": "evicted",
    "reused": "reused",
}


def families_table(report: Report) -> Table:
    """The largest families, by prompt tokens."""
    ordered = sorted(report.families, key=lambda family: (-family.prompt_tokens, family.name))
    advice = report.recommendation
    columns = (
        Column("Family", "left"),
        Column("requests", keep=1),
        Column("prompt tokens", keep=3),
        Column("shared"),
        Column("typical end", keep=2),
        Column("hits today"),
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
            count(family.engine_hit_tokens.get(advice.current_unit)),
            *(
                [count(family.engine_hit_tokens.get(advice.unit))]
                if advice.unit != advice.current_unit
                else []
            ),
            _VERDICTS[family.verdict],
        )
        for family in ordered[:MOST_FAMILIES]
    )
    rest = len(ordered) - MOST_FAMILIES
    return Table(
        columns, rows, note=f"and {plural(rest, 'smaller family', 'smaller families')}" if rest > 0 else ""
    )


def capacity_table(report: Report) -> Table:
    """Hits against the pool's size."""
    columns = (Column("blocks"), Column("unit"), Column("engine hits"), Column("evicted blocks"))
    rows = tuple(
        (
            count(point.num_blocks),
            count(point.unit),
            count(point.engine_hit_tokens),
            count(point.evicted_blocks),
        )
        for point in report.capacity
    )
    return Table(columns, rows)


def windows_table(report: Report) -> Table:
    """The best unit of each slice of time."""
    columns = (Column("from", "left"), Column("to", "left"), Column("best unit"), Column("gain"))
    rows = tuple(
        (seconds(window.start_s), seconds(window.end_s), count(window.unit), signed(window.gain_tokens))
        for window in report.windows
    )
    return Table(columns, rows)


def validation_table(report: Report) -> Table | None:
    """What was measured; None where nothing was."""
    found = report.validation
    if found is None:
        return None
    columns = (
        Column("unit"),
        Column("matched"),
        Column("recomputed"),
        Column("copied", keep=1),
        Column("TTFT p50"),
        Column("p99", keep=2),
        Column("end to end p50", keep=3),
    )
    rows = tuple(
        (
            count(row.unit),
            count(row.matched_tokens),
            count(row.recomputed_tokens),
            count(row.copied_tokens),
            seconds(row.ttft_s.p50 if row.ttft_s else None),
            seconds(row.ttft_s.p99 if row.ttft_s else None),
            seconds(row.e2e_s.p50 if row.e2e_s else None),
        )
        for row in found.candidates
    )
    return Table(columns, rows, note="Matched, recomputed and copied in tokens.")


def caveats(report: Report) -> list[str]:
    """What to keep in mind: the recommendation's caveats, refused requests and rejected lines."""
    lines = [clean(caveat) for caveat in report.recommendation.caveats]
    if report.replay.refused:
        lines.append(
            f"{plural(len(report.replay.refused), 'request')} can never fit the pool and were left out"
        )
    if report.trace.rejected:
        reasons = ", ".join(
            f"{clean(reason)} {number:,}" for reason, number in report.trace.rejected_by.items()
        )
        lines.append(f"{plural(report.trace.rejected, 'line')} of the trace were rejected ({reasons})")
    return lines


def provenance(report: Report) -> list[tuple[str, str]]:
    """Where the answer comes from: (what, value)."""
    trace, tokenizer, measured = report.trace, report.tokenizer, report.measured
    known = [
        ("command", clean(report.command)),
        ("trace", f"{clean(trace.format)}, sha256 {trace.sha256[:16]}…, {_traffic(report)}"),
        ("tokenizer", f"{tokenizer.kind}, {clean(tokenizer.source)}, {_checked(tokenizer.checked_requests)}"),
    ]
    if tokenizer.chat_template_sha256:
        known.append(("chat template", f"sha256 {tokenizer.chat_template_sha256[:16]}…"))
    known.append(
        ("made by", f"kvtune {report.kvtune_version}, {measured.created}, {seconds(measured.wall_s)}")
    )
    return known


def _checked(requests: int) -> str:
    return f"{plural(requests, 'request')} encoded twice" if requests else "not checked"


def _traffic(report: Report) -> str:
    trace = report.trace
    facts = [plural(trace.sessions, "session")] if trace.sessions else []
    facts += [plural(trace.namespaces, "namespace")]
    facts += [f"over {seconds(trace.duration_s)}"] if trace.duration_s else []
    return ", ".join(facts)
