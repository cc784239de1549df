"""`kvtune formats`: the trace formats that are read, how each is recognised, and an example."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvtune.cli.options import OUTPUT, with_options
from kvtune.cli.output import has_colour, terminal_width, write_stdout

Markdown = Annotated[
    bool, typer.Option("--markdown", metavar="", help="As a Markdown table.", rich_help_panel=OUTPUT)
]


@with_options
def formats(markdown: Markdown = False) -> None:
    """List the trace formats that are read, how each is recognised, and an example."""
    if markdown:
        write_stdout(render_markdown())
    else:
        write_stdout(render_text(terminal_width(sys.stdout), colour=has_colour(sys.stdout)))


def render_text(width: int, *, colour: bool = False) -> str:
    """A paragraph a format."""
    from kvtune.cli.reporters.layout import Page
    from kvtune.tokenization.formats import FORMATS

    page = Page(max(width, 60), colour)
    lines: list[str] = []
    for one in FORMATS:
        lines += [page.paint(one.name, "bold"), *page.paragraph(one.about)]
        lines += page.paragraph(one.recognised_by, first="  recognised by  ", rest=" " * 17)
        lines += page.paragraph(one.example, "dim", first="  example        ", rest=" " * 17)
    return "\n".join(lines) + "\n"


def render_markdown() -> str:
    """A table row a format, as it stands in docs/trace-formats.md."""
    from kvtune.tokenization.formats import FORMATS

    rows = ["| `--format` | what | recognised by |", "|---|---|---|"]
    for one in FORMATS:
        cells = (f"`{one.name}`", one.about, one.recognised_by)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows) + "\n"
