"""A few SVG primitives as text: axes, bars, lines, labels. Colours come from CSS classes, so that themes apply.

Hand-made because the page needs five static charts whose marks are rectangles, lines and text; a charting
library would weigh more than the page and style itself past the page's themes. Every label is escaped here.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

Point = tuple[float, float]


def number(value: float) -> str:
    """A coordinate with at most two decimals, so that equal reports give equal bytes."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rect(x: float, y: float, width: float, height: float, css: str, title: str = "") -> Markup:
    tip = Markup("<title>{}</title>").format(title) if title else Markup("")
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}">{}</rect>').format(
        css, number(x), number(y), number(max(width, 0)), number(max(height, 0)), tip
    )


def line(start: Point, end: Point, css: str) -> Markup:
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
        css, number(start[0]), number(start[1]), number(end[0]), number(end[1])
    )


def polyline(points: Sequence[Point], css: str) -> Markup:
    path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return Markup('<polyline class="{}" points="{}"/>').format(css, path)


def dot(center: Point, css: str, title: str = "", radius: float = 3.5) -> Markup:
    return Markup('<circle class="{}" cx="{}" cy="{}" r="{}"><title>{}</title></circle>').format(
        css, number(center[0]), number(center[1]), number(radius), title
    )


def text(x: float, y: float, content: str, css: str = "", anchor: str = "start") -> Markup:
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        css, number(x), number(y), anchor, content
    )


def figure(width: int, height: int, label: str, marks: Sequence[Markup]) -> Markup:
    """The whole drawing; `label` is what a screen reader says."""
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        width, height, label, Markup("").join(marks)
    )


def nice_ceiling(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5 or 10 times a power of ten that is >= `value`."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 < value:
        power *= 10
    while power > value:
        power /= 10
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)


def short(value: float) -> str:
    """A count for an axis: 1.5M, 20k, 300."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{number(value / size)}{suffix}"
    return number(value)


__all__ = [
    "Markup",
    "Point",
    "dot",
    "escape",
    "figure",
    "line",
    "nice_ceiling",
    "number",
    "polyline",
    "rect",
    "short",
    "text",
]
