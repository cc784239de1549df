"""The decision line as a picture: the best unit by step overhead, on a log axis, with the server's own range marked."""

from __future__ import annotations

import math

from markupsafe import Markup

from kvtune.analyzers.report import DecisionRangeInfo
from kvtune.cli.reporters.html.svg import figure, line, rect, text

WIDTH, LEFT, RIGHT = 720, 16, 16
LEAST, MOST = 1.0, 10_000.0
"""Tokens a step that the axis shows."""
_TOP, _BAR, _HEIGHT = 30, 34, 118
_LABEL = 34


def decision_chart(
    ranges: tuple[DecisionRangeInfo, ...], default_unit: int, own: tuple[float, float] | None
) -> Markup | None:
    """One bar a range, labelled with its unit; None without ranges. `own`: the server's step overhead, tokens."""
    if not ranges:
        return None

    def at(tokens: float) -> float:
        share = math.log(min(max(tokens, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    marks = []
    for place, part in enumerate(ranges):
        start, end = at(part.from_tokens), at(MOST if part.to_tokens is None else part.to_tokens)
        name = "unset" if part.unit == default_unit else f"{part.unit:,}"
        until = "" if part.to_tokens is None else f" to {part.to_tokens:,.0f}"
        tip = f"{name}: from {part.from_tokens:,.0f}{until} tokens a step"
        marks.append(rect(start, _TOP, end - start, _BAR, f"bar part{place % 2}", tip))
        if end - start >= _LABEL:
            marks.append(text((start + end) / 2, _TOP + 22, name, "value", "middle"))
    base = _TOP + _BAR
    for tokens in (1, 10, 100, 1_000, 10_000):
        marks.append(line((at(tokens), base), (at(tokens), base + 5), "grid"))
        marks.append(text(at(tokens), base + 18, f"{tokens:,}", "tick", "middle"))
    if own is not None:
        low, high = at(own[0]), at(own[1])
        marks.append(rect(low, _TOP - 10, max(high - low, 3), 6, "bar best", "this server, idle"))
        marks.append(text(low, _TOP - 14, "this server, idle", "tick"))
    marks.append(text(LEFT, _HEIGHT - 6, "step overhead, tokens (log scale)", "axis"))
    return figure(WIDTH, _HEIGHT, "Best match unit by step overhead", marks)
