"""An explanation as text for the terminal. A pure function; every number is also in its JSON."""

from __future__ import annotations

import textwrap

from kvtune.analyzers.explanation import Explanation
from kvtune.analyzers.loss_kinds import LOSS_WORDS
from kvtune.cli.reporters.numbers import clean

_WIDTH = 80


def render_explanation(found: Explanation) -> str:
    """The story, the cascade from shared to reused, and the events behind it."""
    lines = [
        f"{clean(found.id)} (number {found.number:,} of the trace), {found.prompt_tokens:,} prompt tokens, "
        f"unit {found.unit:,}",
        "",
    ]
    for sentence in found.why:
        lines += textwrap.wrap(clean(sentence), _WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines += ["", *_table(_cascade(found))]
    if found.chunk_ends:
        ends = ", ".join(f"{end:,}" for end in found.chunk_ends)
        own = f"Its own prefill steps ended at {ends}.{_blocks(found)}"
        lines += ["", *textwrap.wrap(own, _WIDTH, initial_indent="  ", subsequent_indent="  ")]
    if found.events:
        lines += ["", "What became of states and blocks of its prefix before it came"]
        rows = [("step", "position", "group", "event", "by")]
        rows += [
            (
                f"{event.step:,}",
                f"{event.position:,}",
                str(event.group),
                f"{event.event} ({event.how})" if event.how and event.event == "left" else event.event,
                clean(event.by),
            )
            for event in found.events
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for row in rows:
            numbers = "  ".join(cell.rjust(width) for cell, width in zip(row[:3], widths, strict=False))
            lines.append(f"  {numbers}  {row[3].ljust(widths[3])}  {row[4]}")
    where = found.divergence
    if where is not None and where.own_text is not None:
        lines += [
            "",
            "Where they part",
            f"  here:  {clean(where.own_text)!r}",
            f"  there: {clean(where.other_text or '')!r}",
        ]
    return "\n".join(lines) + "\n"


def _blocks(found: Explanation) -> str:
    alone, on_hit = found.minimum_pool_blocks, found.minimum_pool_on_hit_blocks
    if not found.most_pinned or found.pinned_at_end is None or alone is None or on_hit is None:
        return ""
    hits = f", {on_hit:,} with a hit" if on_hit > alone else ""
    return (
        f" It held {found.most_pinned:,} blocks at most and {found.pinned_at_end:,} at its end; the smallest pool "
        f"that it runs in is {alone:,} with nothing cached{hits}, the null block included."
    )


def _cascade(found: Explanation) -> list[tuple[str, int]]:
    rows = [("shared with an earlier request", found.shared_tokens)]
    rows += [
        (words, -getattr(found.losses, name))
        for name, words in LOSS_WORDS.items()
        if getattr(found.losses, name)
    ]
    return [*rows, ("reused", found.hit_tokens), ("recomputed", found.recomputed_tokens)]


def _table(rows: list[tuple[str, int]]) -> list[str]:
    names = max(len(name) for name, _ in rows)
    figures = [f"{tokens:,}" for _, tokens in rows]
    width = max(map(len, figures))
    return [
        f"  {name.ljust(names)}  {figure.rjust(width)}"
        for (name, _), figure in zip(rows, figures, strict=True)
    ]
