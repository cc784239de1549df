"""`kvtune cache`: what is kept between runs, and where; `--clear` removes it."""

from __future__ import annotations

from typing import Annotated

import typer

from kvtune.cli.options import OUTPUT, with_options
from kvtune.cli.output import write_stdout

Clear = Annotated[bool, typer.Option("--clear", metavar="", help="Remove all of it.", rich_help_panel=OUTPUT)]


@with_options
def cache(clear: Clear = False) -> None:
    """Show what is kept between runs (vocabularies, step times; never a prompt), or remove it."""
    from kvtune.tokenization import cache as kept

    if clear:
        write_stdout(f"removed {_megabytes(kept.clear())} from {kept.cache_folder()}\n")
        return
    lines = [f"{kept.cache_folder()}, at most {_megabytes(kept.MOST_BYTES)}"]
    lines += [f"  {use.kind:<14}{use.entries:>6,}  {_megabytes(use.size):>10}" for use in kept.cache_use()]
    write_stdout("\n".join(lines) + "\n")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
