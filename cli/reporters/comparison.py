"""Two reports side by side, for a terminal. A pure function of the comparison and the width."""

from __future__ import annotations

from kvtune.analyzers.compare import Comparison, Side
from kvtune.analyzers.loss_kinds import LOSS_WORDS
from kvtune.cli.reporters.content import Column, Table
from kvtune.cli.reporters.layout import Page
from kvtune.cli.reporters.numbers import ABSENT, clean, count, percent, signed

MOST_ROWS = 12


def render_comparison(found: Comparison, *, width: int = 80, colour: bool = False) -> str:
    """The comparison as text of at most `width` columns."""
    page = Page(max(width, 60), colour)
    lines = [page.paint(_headline(found), "bold"), ""]
    lines += page.paragraph(
        "The same trace." if found.same_trace else "Two traces: rates are of each one's own."
    )
    changed = _settings(found)
    if changed.rows:
        lines += page.paragraph(
            "The settings differ, so the change is not the traffic's or the unit's alone."
        )
        lines += ["", *page.table(changed)]
    lines += ["", *page.table(_sides(found))]
    sections = (("Lost to", _losses(found)), ("Families", _families(found)), ("Levers", _levers(found)))
    for title, table in sections:
        if table.rows:
            lines += [*page.heading(title), *page.table(table)]
    return "\n".join(lines) + "\n"


def _headline(found: Comparison) -> str:
    before, after = percent(found.base.token_hit_rate), percent(found.new.token_hit_rate)
    if found.base.token_hit_rate == found.new.token_hit_rate:
        return f"The token hit rate stays at {after}"
    verb = "falls" if found.worse_fraction > 0 else "rises"
    return f"The token hit rate {verb} from {before} to {after}"


def _sides(found: Comparison) -> Table:
    def row(words: str, name: str, difference: bool = True) -> tuple[str, ...]:
        base, new = (getattr(side, name) for side in (found.base, found.new))
        return words, count(base), count(new), signed(new - base) if difference else ""

    def rates(words: str, name: str) -> tuple[str, ...]:
        return (
            words,
            *(percent(getattr(side, name)) for side in (found.base, found.new)),
            _points(found, name),
        )

    return Table(
        (Column("", "left"), Column("base"), Column("new"), Column("change")),
        (
            ("engine version", found.base.engine_version, found.new.engine_version, ""),
            row("requests", "requests"),
            row("prompt tokens", "prompt_tokens"),
            row("shared tokens", "shared_tokens"),
            row("current match unit", "current_unit", difference=False),
            row("hit tokens", "hit_tokens"),
            rates("token hit rate", "token_hit_rate"),
            row("recommended unit", "recommended_unit", difference=False),
            row("its hit tokens", "best_hit_tokens"),
            rates("its token hit rate", "best_token_hit_rate"),
        ),
    )


def _settings(found: Comparison) -> Table:
    """The settings that are not the same."""
    base, new = found.base.settings, found.new.settings
    rows = tuple((name, base[name], new[name]) for name in base if base[name] != new[name])
    return Table((Column("setting", "left"), Column("base", "left"), Column("new", "left")), rows)


def _points(found: Comparison, name: str) -> str:
    base, new = (_rate(side, name) for side in (found.base, found.new))
    return _difference(base, new)


def _rate(side: Side, name: str) -> float:
    rate: float = getattr(side, name)
    return rate


def _difference(base: float | None, new: float | None) -> str:
    if base is None or new is None:
        return ABSENT
    points = round((new - base) * 100, 1)
    sign = "+" if points > 0 else "−" if points < 0 else ""
    return f"{sign}{abs(points):.1f} points"


def _losses(found: Comparison) -> Table:
    rows = tuple(
        (
            LOSS_WORDS[loss.limit],
            percent(loss.base_rate),
            percent(loss.new_rate),
            _difference(loss.base_rate, loss.new_rate),
        )
        for loss in found.losses
        if loss.base_rate or loss.new_rate
    )
    return Table(
        (Column("of all prompt tokens", "left"), Column("base"), Column("new"), Column("change")), rows
    )


def _families(found: Comparison) -> Table:
    rows = tuple(
        (
            clean(family.name),
            percent(family.base_token_hit_rate),
            percent(family.new_token_hit_rate),
            _difference(family.base_token_hit_rate, family.new_token_hit_rate),
        )
        for family in found.families[:MOST_ROWS]
    )
    return Table((Column("token hit rate", "left"), Column("base"), Column("new"), Column("change")), rows)


def _levers(found: Comparison) -> Table:
    rows = tuple(
        (
            clean(lever.what),
            count(lever.base_gain_tokens),
            count(lever.new_gain_tokens),
            signed((lever.new_gain_tokens or 0) - (lever.base_gain_tokens or 0)),
        )
        for lever in found.levers[:MOST_ROWS]
    )
    return Table((Column("tokens to recover", "left"), Column("base"), Column("new"), Column("change")), rows)
