"""The sentences of a report: what to do, what it brings, what it rests on. Knows the report and its words only."""

from __future__ import annotations

from collections.abc import Sequence

from kvtune.analyzers.decision.objective import LEAST_NET_GAIN
from kvtune.analyzers.report import UNDECIDABLE, Lever, Losses, Report
from kvtune.cli.reporters.numbers import (
    clean,
    count,
    interval,
    percent,
    plural,
    seconds,
    share,
    signed,
    signed_percent,
)

MOST_LEVERS = 3
_BLOCK_OVER_MISSED = 4
"""How much larger than what is just missed a block must be: in small ones every prefix ends near a boundary."""


def subject(report: Report) -> str:
    """One line: which trace on which engine."""
    trace, engine = report.trace, report.engine
    files = clean(", ".join(trace.files)) if len(trace.files) < 4 else plural(len(trace.files), "file")
    return (
        f"{files}: {plural(trace.requests, 'request')}, {count(trace.prompt_tokens)} prompt tokens, "
        f"{engine.name} {engine.version}"
    )


def best_lever(report: Report) -> Lever | None:
    """The single lever that brings most, where levers were tried and one pays."""
    return next(
        (lever for lever in report.levers if lever.is_proven and lever.title and lever.kind != "combination"),
        None,
    )


def main_lever(report: Report) -> Lever | None:
    """The lever that leads the plan, since no unit does; None where a unit does, or no lever pays."""
    if report.recommendation.why == UNDECIDABLE:
        return None
    led = any(step.kind != "flag" for step in report.plan)
    return best_lever(report) if led or report.recommendation.action in ("keep", "cannot_help") else None


def serve_flags(report: Report) -> tuple[str, ...]:
    """What the advice adds to the serve command."""
    lever = main_lever(report)
    return report.recommendation.flags if lever is None else lever.flags or ()


def telling_levers(report: Report) -> list[Lever]:
    """The optimizations that are worth a reader's time: three at most, intervals above zero, at least 0.5% of the
    prompt tokens. The others are folded."""
    least = LEAST_NET_GAIN * report.trace.prompt_tokens
    return [lever for lever in report.levers if lever.is_proven and lever.gain_tokens >= least][:MOST_LEVERS]


def levers_hint(report: Report) -> str:
    """What was not tried, or that nothing pays; empty where all was tried and something does."""
    words = report.command.split()
    if "--levers" in words:
        return (
            "" if report.levers else "Optimizations were replayed too: none brings 0.1% of the prompt tokens."
        )
    if "--no-levers" in words:
        return "No optimizations were tried (--no-levers)."
    if report.tokenizer.kind == "blocks":  # what prompts say is not in the log
        return "Not tried: retention, pool size: add --levers."
    found = "" if report.levers else "Prompt order, tool order and rewritten history cost less than 0.5%. "
    return f"{found}Not tried: warm-up, padding, retention: add --levers."


def headline(report: Report) -> str:
    """The one thing to do, in a line."""
    advice, lever = report.recommendation, main_lever(report)
    if lever is not None:
        return lever.title
    if advice.action == "set":
        return f"Set --prefix-match-unit {advice.unit}"
    if advice.action == "unset":
        return f"Drop --prefix-match-unit: the default, {advice.unit:,}, is best"
    if advice.action == "keep":
        return _kept_unit(report)
    if advice.why == UNDECIDABLE:
        return "This log cannot decide the match unit"
    return "No match unit changes what this engine reuses"


def _kept_unit(report: Report) -> str:
    """What the serve command says of the unit, where that stays as it is."""
    unit = report.recommendation.unit
    if unit == report.engine.default_match_unit:
        return f"Leave --prefix-match-unit unset ({unit:,})"
    return f"Keep --prefix-match-unit {unit}"


def confidence(report: Report) -> str:
    """How sure the headline is; empty where it is a lever's, as a lever has an interval and no grade."""
    return "" if main_lever(report) is not None else f"confidence {report.recommendation.confidence}"


def reason(report: Report) -> str:
    """The first sentence of why: what the choice minimises."""
    first, found, _ = clean(report.recommendation.why).partition(". ")
    return f"{first}." if found else first


def gain_sentences(report: Report) -> list[str]:
    """What following the advice brings and costs, the token hit rate first."""
    advice, lever = report.recommendation, best_lever(report)
    now = reuse_rate(report, report.losses.current)
    if advice.action not in ("set", "unset") or main_lever(report) is not None:
        lines = [f"Token hit rate {now}."]
        if lever is not None:
            lines.append(
                f"{signed(lever.gain_tokens)} tokens net ({share(lever.gain_tokens, report.trace.prompt_tokens)} of "
                f"all prompt tokens, 95% CI {interval(lever.gain_ci95)}).{_unit_beside(report, lever)}"
            )
        return lines
    lines = [
        f"Token hit rate {now} → {reuse_rate(report, report.losses.recommended)} ({signed(advice.gain_tokens)} "
        f"tokens, 95% CI of this trace {interval(advice.gain_ci95)})."
    ]
    if advice.gain_by_half is not None:
        early, late = (f"{signed_percent(part)}" for part in advice.gain_by_half)
        lines.append(f"Of the prompt tokens: early half {early}, late half {late}.")
    row = report.candidate(advice.unit)
    steps = row.extra_prefill_steps if row is not None else None
    if advice.worth:
        lines.append(clean(advice.worth))
    if steps:
        change = f"extra prefill step{'s' if abs(steps) != 1 else ''}" if steps > 0 else "prefill steps fewer"
        tokens = report.replay.step_cost_tokens
        lines.append(
            f"{abs(steps):,} {change}: at {plural(tokens, 'token')} each, net {signed(advice.net_gain_tokens)} tokens."
        )
    if lever is not None:
        lines.append(
            f"On top: {lever.title[:1].lower()}{lever.title[1:]} ({signed(lever.gain_tokens)} tokens)."
        )
    return lines


def _unit_beside(report: Report, lever: Lever) -> str:
    """What becomes of the match unit where a lever is the one thing to do."""
    if any(flag.startswith("--prefix-match-unit") for flag in lever.flags or ()):
        return " Take both steps together: the gain is that of the two."
    return f" {_kept_unit(report)}."


def plan_sentences(report: Report) -> list[str]:
    """Where one flag is all: how to go back. Else every step, numbered; empty where nothing changes."""
    steps = report.plan
    if len(steps) == 1 and steps[0].kind == "flag":
        back = steps[0].text.find("To go back")
        return [clean(steps[0].text[max(back, 0) :])]
    if len(steps) < 2:
        return []
    return [
        f"Step {number}: {clean(' '.join(filter(None, (step.text, step.if_only_this))))}"
        for number, step in enumerate(steps, 1)
    ]


def decision_sentence(report: Report) -> str:
    """Which unit is best at which step overhead; empty where there was nothing to choose from."""
    line = report.decision_line
    if not line:
        return ""
    default = report.engine.default_match_unit

    def named(unit: int) -> str:
        return "leave it unset" if unit == default else f"{unit:,}"

    if len(line) == 1:
        return f"Best match unit at any step overhead: {named(line[0].unit)}."
    parts = [f"up to {line[0].to_tokens or 0:,.0f} tokens a step: {named(line[0].unit)}"]
    parts += [
        f"{part.from_tokens:,.0f} to {part.to_tokens:,.0f}: {named(part.unit)}"
        for part in line[1:]
        if part.to_tokens is not None
    ]
    parts.append(f"above: {named(line[-1].unit)}")
    times = report.step_times
    source = ""
    if times is not None:
        own = times.overhead_tokens
        here = f" This server, idle: {own[0]:,.0f} to {own[1]:,.0f} tokens." if own is not None else ""
        source = f"{here} Step times decide, chunk by chunk."
    return f"Best match unit by step overhead: {'; '.join(parts)}.{source}"


def step_times_sentence(report: Report) -> str:
    """Where step times come from and how far off they may be; empty where none are known."""
    times = report.step_times
    if times is None:
        return ""
    where = f" on {clean(times.hardware)}" if times.hardware else ""
    many = f" x{times.tensor_parallel}" if times.tensor_parallel > 1 else ""
    error = (
        f"; held-out error: mean {percent(times.error.mean)}, p90 {percent(times.error.p90)}"
        if times.error
        else ""
    )
    low, high = times.range
    sentence = f"Step times{where}{many}: {clean(times.provenance)}{error}."
    return f"{sentence} A real step takes {low:g} to {high:g} times that."


def hardware_sentence(report: Report) -> str:
    """What the GPU settles; empty where it is not named."""
    found = report.hardware
    if found is None:
        return ""
    settled = found.settled
    facts = [
        f"step budget {settled.max_num_batched_tokens:,} tokens",
        f"{settled.max_num_seqs:,} requests a step",
    ]
    if settled.prefill_backend:
        exports = f", states exported at multiples of {settled.state_export}" if settled.state_export else ""
        facts.append(f"prefill kernel {clean(settled.prefill_backend)}{exports}")
    if settled.num_blocks is not None:
        pool = settled.num_blocks
        facts.append(f"a pool of about {pool.estimate:,} blocks (estimated, {pool.low:,} to {pool.high:,})")
    many = f" x{found.count}" if found.count > 1 else ""
    return f"{clean(found.name)}{many} by default: {', '.join(facts)}. Options, logs and metrics win."


def reuse_rate(report: Report, losses: Losses) -> str:
    """The token hit rate under one setting."""
    return share(losses.hit_tokens, report.trace.prompt_tokens)


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
    sizes = (
        f"Sizes from {source}. Scheduler block size {count(engine.scheduler_block_size)}, default match unit "
        f"{count(engine.default_match_unit)}, current {count(engine.current_match_unit)}"
    )
    hits = [
        f"{sizes}: hits are multiples of {count(engine.cache_hit_alignment)}, {partial}.",
        f"A repeated prompt hits from {count(engine.minimum_reusable_prefix)} tokens; different prompts must share at "
        f"least {count(engine.minimum_shared_prefix)}.",
    ]
    lines = [
        *(hits if engine.enable_prefix_caching else [f"{sizes}: without prefix caching, nothing hits."]),
        f"Replayed {_arrivals(report)} with {pool} and steps of at most "
        f"{count(engine.max_num_batched_tokens)} tokens.",
        hardware_sentence(report),
        step_times_sentence(report),
    ]
    return [line for line in lines if line]


def _arrivals(report: Report) -> str:
    replay = report.replay
    outputs = {
        "none": "outputs stay out of the cache",
        "length": "outputs take blocks and match nothing",
        "recorded": "recorded outputs can be reused",
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


def just_missed_sentence(report: Report) -> str:
    """Requests whose shared prefix ends just short of a boundary; empty where there is none."""
    missed = sorted(report.shared.just_missed.items())
    if not missed or report.shared.histogram.modulo < _BLOCK_OVER_MISSED * missed[-1][0]:
        return ""
    total = sum(requests for _, requests in missed)
    tokens, requests = max(missed, key=lambda item: item[1])
    verb = "diverges" if total == 1 else "diverge"
    often = f" (most often {count(tokens)}: {plural(requests, 'request')})" if requests > 1 else ""
    return f"{plural(total, 'request')} {verb} at most {plural(missed[-1][0], 'token')} before a boundary{often}."


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


def hashing_sentence(report: Report) -> str:
    """What hashing and looking up prefixes cost this machine, today and as recommended; empty if not measured."""
    measured, advice = report.measured, report.recommendation
    costs = [
        f"{seconds(measured.hash_cpu_s[unit])} with {unit:,}"
        for unit in dict.fromkeys((advice.current_unit, advice.unit))
        if unit in measured.hash_cpu_s
    ]
    if not costs:
        return ""
    return f"Hashing all prompts once takes this machine {' and '.join(costs)} (CPU time, by hashes timed on it)."


def windows_sentence(report: Report) -> str:
    """Whether the recommendation holds in each slice of time; empty where there are no slices."""
    advice, windows = report.recommendation, report.windows
    known = [
        (window.unit, window.net_gain_tokens, window.recommended_net_gain_tokens)
        for window in windows
        if window.net_gain_tokens is not None and window.recommended_net_gain_tokens is not None
    ]
    if not known:
        return ""
    best = sum(unit == advice.unit for unit, *_ in known)
    near = sum(10 * gain >= 9 * most for _, most, gain in known)
    worse = sum(gain < 0 for *_, gain in known)
    stable = "stable" if near == len(known) else "mostly stable" if 2 * near > len(known) else "not stable"
    harm = f" It loses in {worse:,} of them." if worse else ""
    return (
        f"The recommendation is {stable}: unit {advice.unit:,} is the best in {best:,} of "
        f"{plural(len(known), 'slice')}, and brings at least nine tenths of the best one's net gain in {near:,}.{harm}"
    )


def caveats(report: Report) -> list[str]:
    """What to keep in mind: rejected lines, then the recommendation's caveats."""
    lines = []
    if report.trace.rejected:
        reasons = ", ".join(
            f"{clean(reason)} {number:,}" for reason, number in report.trace.rejected_by.items()
        )
        lines.append(f"{plural(report.trace.rejected, 'line')} of the trace rejected ({reasons}).")
    return lines + [clean(caveat) for caveat in report.recommendation.caveats]


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
    known += [("note", clean(one)) for one in trace.notes]
    known.append(
        ("made by", f"kvtune {report.kvtune_version}, {measured.created}, {seconds(measured.wall_s)}")
    )
    return known


def _checked(requests: int) -> str:
    return f"{plural(requests, 'request')} encoded twice" if requests else "not checked"


def _traffic(report: Report) -> str:
    trace = report.trace
    facts = [plural(trace.sessions, "session")] if trace.sessions else []
    facts += [plural(trace.servers, "server")] if trace.servers else []
    facts += [plural(trace.namespaces, "namespace")] if trace.namespaces > 1 or not trace.servers else []
    facts += [f"over {seconds(trace.duration_s)}"] if trace.duration_s else []
    return ", ".join(facts)
