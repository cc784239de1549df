"""The page's charts, each a pure function of report values to one SVG drawing. No rule, no file."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvtune.analyzers.loss_kinds import LOSS_WORDS
from kvtune.analyzers.pool.figures import CapacityPoint
from kvtune.analyzers.report import Candidate, Histogram, Losses, Window
from kvtune.cli.reporters.html.svg import (
    Markup,
    Point,
    dot,
    figure,
    line,
    nice_ceiling,
    polyline,
    rect,
    short,
    text,
)

WIDTH = 720
LEFT, RIGHT = 64, 16
PLOT = WIDTH - LEFT - RIGHT


def histogram_chart(histogram: Histogram, unit: int, label: str, height: int = 240) -> Markup:
    """Bars of ends modulo the block; ticks below mark the boundaries of `unit` where they are not too dense."""
    top, base = 16, height - 44
    highest = nice_ceiling(max(histogram.counts, default=0))
    marks = _horizontal_grid(highest, top, base)
    bins = len(histogram.counts)
    for index, count in enumerate(histogram.counts):
        low = index * histogram.bin_width
        high = min(low + histogram.bin_width, histogram.modulo)
        x = LEFT + PLOT * low / histogram.modulo
        width = PLOT * (high - low) / histogram.modulo
        size = (base - top) * count / highest
        marks.append(
            rect(
                x + 1,
                base - size,
                width - 2,
                size,
                "bar",
                f"{count:,} requests end at {low:,} to {high - 1:,}",
            )
        )
        if bins <= 20:
            marks.append(text(x, base + 16, f"{low:,}", "tick", "middle"))
    marks.append(text(LEFT + PLOT, base + 16, f"{histogram.modulo:,}", "tick", "end"))
    if histogram.modulo // unit <= 96:
        marks += [
            line(
                (LEFT + PLOT * at / histogram.modulo, base),
                (LEFT + PLOT * at / histogram.modulo, base + 5),
                "boundary",
            )
            for at in range(0, histogram.modulo + 1, unit)
        ]
    marks.append(text(LEFT, height - 8, f"end of shared prefix modulo {histogram.modulo:,} tokens", "axis"))
    return figure(WIDTH, height, label, marks)


def units_chart(
    candidates: Sequence[Candidate],
    recommended: int,
    current: int,
    capacity: Sequence[CapacityPoint] = (),
) -> Markup:
    """Hit tokens against the unit, ideal, engine and in smaller pools, over a second panel with prefill steps."""
    rows = sorted((row for row in candidates if row.engine_hit_tokens is not None), key=lambda row: row.unit)
    height, top, base, steps_top, steps_base = 360, 16, 216, 250, 316
    highest = nice_ceiling(max(max(row.ideal_hit_tokens, row.engine_hit_tokens or 0) for row in rows))
    most_steps = nice_ceiling(max(row.prefill_steps or 0 for row in rows))
    low, high = math.log2(rows[0].unit), math.log2(rows[-1].unit)

    def at(unit: int) -> float:
        return LEFT + 24 + (PLOT - 48) * ((math.log2(unit) - low) / (high - low) if high > low else 0.5)

    def level(tokens: int) -> float:
        return base - (base - top) * tokens / highest

    marks = _horizontal_grid(highest, top, base)
    marks += _horizontal_grid(most_steps, steps_top, steps_base, lines=1)
    marks.append(polyline([(at(row.unit), level(row.ideal_hit_tokens)) for row in rows], "line ideal"))
    marks.append(polyline([(at(row.unit), level(row.engine_hit_tokens or 0)) for row in rows], "line engine"))
    below = 0.0
    for index, (pool, line_points) in enumerate(_pool_lines(capacity, rows)):
        css = f"series{2 + index % 2}"
        marks.append(polyline([(at(unit), level(hits)) for unit, hits in line_points], f"line pool {css}"))
        unit, hits = line_points[0]
        below = max(below + 14, level(hits) + 14)
        marks.append(text(at(unit) - 4, below, f"{short(pool)} blocks", f"value {css}"))
    last_label = -100.0
    for row in rows:
        x, hits, steps = at(row.unit), row.engine_hit_tokens or 0, row.prefill_steps or 0
        css = "best" if row.unit == recommended else "today" if row.unit == current else "engine"
        tip = f"unit {row.unit:,}: {hits:,} tokens reused, ideal {row.ideal_hit_tokens:,}, {steps:,} prefill steps"
        marks.append(dot((x, level(hits)), css, tip, 6 if css != "engine" else 3.5))
        size = (steps_base - steps_top) * steps / most_steps
        marks.append(rect(x - 4, steps_base - size, 8, size, f"bar {css}", tip))
        if x - last_label >= 34 or css != "engine":
            marks.append(text(x, steps_base + 16, f"{row.unit:,}", f"tick {css}", "middle"))
            last_label = x
    marks.append(
        text(LEFT, height - 8, "prefix_match_unit (tokens, log scale); below: prefill steps", "axis")
    )
    return figure(WIDTH, height, "Tokens reused and prefill steps by match unit", marks)


def _pool_lines(
    capacity: Sequence[CapacityPoint], rows: Sequence[Candidate]
) -> list[tuple[int, list[tuple[int, int]]]]:
    """Pools at which three units or more were replayed and something was lost, the largest first: (blocks, (unit,
    hit tokens) from the finest on). Three of them at most, spread evenly: more lines cannot be told apart."""
    roomy = {row.unit: row.engine_hit_tokens or 0 for row in rows}
    lines = []
    for pool in sorted({point.num_blocks for point in capacity}, reverse=True):
        points = sorted(
            (point.unit, point.engine_hit_tokens) for point in capacity if point.num_blocks == pool
        )
        points = [(unit, hits) for unit, hits in points if unit in roomy]
        if len(points) >= 3 and any(hits < roomy[unit] for unit, hits in points):
            lines.append((pool, points))
    last = len(lines) - 1
    return [lines[place] for place in sorted({0, last // 2, last})] if lines else []


def waterfall_chart(losses: Losses, shared_tokens: int, label: str) -> Markup:
    """From the tokens that prompts share down to the tokens that were reused."""
    steps = [(name, getattr(losses, field)) for field, name in LOSS_WORDS.items() if getattr(losses, field)]
    rows = [("shared", shared_tokens, 0, "bar shared")]
    left = shared_tokens
    for name, lost in steps:
        left -= lost
        rows.append((name, lost, left, "bar lost"))
    rows.append(("reused", losses.hit_tokens, 0, "bar engine"))
    labels, room, high = 168, 110, 30
    scale = (WIDTH - labels - room) / max(shared_tokens, 1)
    marks: list[Markup] = []
    for index, (name, tokens, start, css) in enumerate(rows):
        y = 6 + index * high
        marks.append(text(labels - 10, y + 15, name, "row", "end"))
        marks.append(
            rect(labels + start * scale, y, tokens * scale, high - 10, css, f"{name}: {tokens:,} tokens")
        )
        marks.append(text(labels + (start + tokens) * scale + 6, y + 15, f"{tokens:,}", "value"))
    return figure(WIDTH, 10 + high * len(rows), label, marks)


def capacity_chart(points: Sequence[CapacityPoint], units: Sequence[int]) -> Markup:
    """Hit tokens against the pool's blocks (log scale), one line per unit."""
    points = [point for point in points if point.unit in units]
    sizes = sorted({point.num_blocks for point in points})
    height, top, base = 260, 16, 200
    highest = nice_ceiling(max(point.engine_hit_tokens for point in points))
    low, high = math.log2(sizes[0]), math.log2(sizes[-1])

    def place(point: CapacityPoint) -> Point:
        share = (math.log2(point.num_blocks) - low) / (high - low) if high > low else 0.5
        return LEFT + 12 + (PLOT - 110) * share, base - (base - top) * point.engine_hit_tokens / highest

    marks = _horizontal_grid(highest, top, base)
    ends: list[tuple[float, float, str, str]] = []
    for index, unit in enumerate(units):
        own = sorted((point for point in points if point.unit == unit), key=lambda point: point.num_blocks)
        css = f"series{index % 4}"
        marks.append(polyline([place(point) for point in own], f"line {css}"))
        marks += [
            dot(
                place(point),
                css,
                f"unit {unit:,}, {point.num_blocks:,} blocks: {point.engine_hit_tokens:,} tokens",
            )
            for point in own
        ]
        x, y = place(own[-1])
        ends.append((y, x, f"unit {unit:,}", css))
    below = 0.0
    for y, x, name, css in sorted(ends):  # names of lines that end side by side stand below one another
        below = max(y + 4, below + 14)
        marks.append(text(x + 8, below, name, f"value {css}"))
    for point in (p for p in points if p.unit == units[0]):
        marks.append(text(place(point)[0], base + 16, short(point.num_blocks), "tick", "middle"))
    marks.append(text(LEFT, height - 8, "blocks in the pool (num_gpu_blocks, log scale)", "axis"))
    return figure(WIDTH, height, "Tokens reused by pool size", marks)


def windows_chart(windows: Sequence[Window]) -> Markup:
    """Gain of each slice of time, in its order."""
    height, top, base = 200, 16, 150
    highest = nice_ceiling(max(max(window.gain_tokens, 0) for window in windows))
    marks = _horizontal_grid(highest, top, base)
    width = PLOT / len(windows)
    for index, window in enumerate(windows):
        size = (base - top) * max(window.gain_tokens, 0) / highest
        tip = f"{window.start_s:,.0f} s to {window.end_s:,.0f} s: unit {window.unit:,}, {window.gain_tokens:,} tokens"
        marks.append(rect(LEFT + index * width + 1, base - size, width - 2, size, "bar engine", tip))
        if len(windows) <= 16:
            marks.append(text(LEFT + (index + 0.5) * width, base + 16, f"{window.unit:,}", "tick", "middle"))
    marks.append(text(LEFT, height - 8, "time; below each bar its best unit", "axis"))
    return figure(WIDTH, height, "Gain over time", marks)


def _horizontal_grid(highest: float, top: float, base: float, lines: int = 4) -> list[Markup]:
    marks: list[Markup] = []
    for index in range(lines + 1):
        y = base - (base - top) * index / lines
        marks.append(line((LEFT, y), (WIDTH - RIGHT, y), "grid"))
        marks.append(text(LEFT - 8, y + 4, short(highest * index / lines), "tick", "end"))
    return marks
