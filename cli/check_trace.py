"""`kvtune analyze --check-trace`: what is in a trace and what is missing, without a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvtune.cli.reporters.content.log_check import short_id
from kvtune.cli.reporters.numbers import clean, count, percent, plural, seconds

if TYPE_CHECKING:
    from kvtune.cli.traces import LoadedTrace


def check_lines(loaded: LoadedTrace) -> list[tuple[str, str]]:
    """(mark, sentence): `ok` for what is there, `!` for what is missing or disagrees, `·` for how it was read."""
    trace, info = loaded.trace, loaded.info
    lines = [
        (
            "ok",
            f"{plural(len(trace), 'request')} of format {clean(info.format)}, {count(info.prompt_tokens)} tokens",
        )
    ]
    if info.rejected:
        reasons = ", ".join(f"{count(number)} {reason}" for reason, number in info.rejected_by.items())
        lines.append(("!", f"Left out: {reasons}. --rejects FILE keeps them."))
    if info.duration_s is None:
        lines.append(("!", "No times: requests are replayed in the order of the file, one after another."))
    else:
        lines.append(("ok", f"Times: over {seconds(info.duration_s)}"))
    lines += _names(loaded)
    lines += [_outputs(loaded), *_lengths(loaded), *_cached(loaded)]
    lines += [("!", doubt.sentence) for doubt in trace.doubts]
    return [
        *lines,
        *(("!", clean(caveat)) for caveat in loaded.caveats),
        *(("·", clean(note)) for note in info.notes),
    ]


def _names(loaded: LoadedTrace) -> list[tuple[str, str]]:
    trace = loaded.trace
    tools = sum(one is not None for one in trace.tool_sets or ())
    sessions = len({one for one in trace.sessions or () if one is not None})
    servers = loaded.info.servers
    return [
        ("ok", f"Tools: in {plural(tools, 'request')}")
        if tools
        else ("!", "Tools: in no request. Right if clients send none."),
        ("ok", f"Conversations: {count(sessions)} named")
        if sessions
        else ("!", "Conversations: none named; found by their messages instead."),
        ("ok", f"Servers: {count(servers)} named")
        if servers
        else ("!", "Servers: none named; assuming one."),
    ]


def _outputs(loaded: LoadedTrace) -> tuple[str, str]:
    lengths = loaded.trace.output_tokens
    logged = 0 if lengths is None else int((lengths >= 0).sum())
    if not logged:
        return "!", "Outputs: none. Only --outputs recorded and step times need them."
    return "ok", f"Outputs: in {count(logged)} of {plural(len(loaded.trace), 'request')}"


def _lengths(loaded: LoadedTrace) -> list[tuple[str, str]]:
    trace = loaded.trace
    logged = trace.logged_prompt_tokens
    if logged is None:
        return [
            ("!", "Prompt tokens: not logged, so the tokenization cannot be checked (usage.prompt_tokens).")
        ]
    compared = logged >= 0 if trace.trusted_lengths is None else (logged >= 0) & ~trace.trusted_lengths
    number, agree = int(compared.sum()), int((compared & (logged == trace.prompt_tokens)).sum())
    if not number:
        return []
    text = f"Prompt tokens: {count(agree)} of {plural(number, 'request')} agree with the log's own count"
    if agree == number:
        return [("ok", text)]
    first = int((compared & (logged != trace.prompt_tokens)).argmax())
    return [
        (
            "!",
            f"{text} ({percent(agree / number)}). First that differs: {short_id(trace.ids[first])}, "
            f"{count(int(logged[first]))} logged, {count(int(trace.prompt_tokens[first]))} counted here.",
        )
    ]


def _cached(loaded: LoadedTrace) -> list[tuple[str, str]]:
    cached = loaded.trace.logged_cached_tokens
    if cached is None or not (cached > 0).any():
        return [
            (
                "!",
                "Cached tokens: not logged, so hits cannot be checked (vllm serve --enable-prompt-tokens-details).",
            )
        ]
    total = int(np.maximum(cached, 0).sum())
    return [("ok", f"Cached tokens: {count(total)} logged")]
