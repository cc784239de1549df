"""How numbers and foreign text are written in every view: one rounding, thousands separators, nothing hostile.

Knows no report.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

ABSENT = "–"


def count(value: float | None) -> str:
    """A count of tokens, blocks or requests: `1,234,567`; a dash where there is none."""
    return ABSENT if value is None else f"{round(value):,}"


def signed(value: float | None) -> str:
    """A difference of counts, with its sign: `+1,234`, `−12`, `0`."""
    if value is None:
        return ABSENT
    rounded = round(value)
    sign = "+" if rounded > 0 else "−" if rounded < 0 else ""
    return f"{sign}{abs(rounded):,}"


def percent(fraction: float | None) -> str:
    """A fraction as per cent with one decimal: `13.5%`."""
    if fraction is None:
        return ABSENT
    return f"{fraction * 100:.1f}%".replace("-0.0", "0.0").replace("-", "−")


def signed_percent(fraction: float | None) -> str:
    """A change as per cent with its sign: `+3.2%`, `−16.0%`."""
    return ABSENT if fraction is None else f"{fraction * 100:+.1f}%".replace("-", "−")


def share(part: float, whole: float) -> str:
    """`part` of `whole` as per cent; a dash of nothing."""
    return percent(part / whole) if whole else ABSENT


def seconds(value: float | None) -> str:
    """A time with the unit that suits it: `12 ms`, `3.4 s`, `2 h 5 min`."""
    if value is None:
        return ABSENT
    if 0 < value < 0.0995:
        return f"{value * 1000:.3g} ms"
    if value < 99.5:
        return f"{value:.3g} s"
    minutes = round(value / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{round(hours / 24)} days"


def per_second(value: float | None) -> str:
    """A rate of requests: `3.25/s`."""
    return ABSENT if value is None else f"{value:.3g}/s"


def multiple(value: float | None) -> str:
    """A multiple of a rate: `0`, `1.5×`, `64×`."""
    return ABSENT if value is None else f"{value:.3g}×" if value else "0"


def interval(bounds: tuple[int, int] | None) -> str:
    """An interval of token counts: `1,200 to 3,400`."""
    return ABSENT if bounds is None else f"{_minus(bounds[0])} to {_minus(bounds[1])}"


def _minus(value: int) -> str:
    return f"{value:,}".replace("-", "−")


def plural(number: int, noun: str, many: str | None = None) -> str:
    """`1 request`, `1,234 requests`."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def clean(text: str) -> str:
    """Text from a trace or a model folder, harmless in a terminal: no control or direction characters, one line."""
    kept = (" " if char.isspace() else char for char in text)
    shown = "".join(char if unicodedata.category(char)[0] != "C" else "�" for char in kept)
    return " ".join(shown.split())


def listing(items: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    words = list(items)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""
