"""Text for a fixed number of columns: wrapping, tables that give up columns, bars, and colour on top.

Widths are terminal cells, so that wide characters line up. Knows no report.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from kvtune.cli.reporters.content import Role, Table

INDENT = "  "
_CODES = {"bold": "1", "dim": "2", "green": "32", "yellow": "33", "cyan": "36"}
_LEAST_NAME = 24
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BEFORE_PERCENT = re.compile(r"(?<=\d) (?=%)")
_NO_BREAK = "\u00a0"
_SPARKS = "▁▂▃▄▅▆▇█"
_MARKS: dict[Role, str] = {"recommended": "→", "current": "•", "both": "→", "total": " ", "": " "}


@dataclass(frozen=True)
class Page:
    """How text is laid out: `width` columns, with or without colour."""

    width: int
    colour: bool

    def paint(self, text: str, *styles: str) -> str:
        """`text` in a style; as it is where there is no colour."""
        if not self.colour or not text:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def heading(self, title: str, aside: str = "") -> list[str]:
        """A section's title after an empty line; the aside stands behind it where it fits, else below."""
        if not aside:
            return ["", self.paint(title, "bold")]
        if len(title) + 2 + len(aside) <= self.width:
            return ["", f"{self.paint(title, 'bold')}  {self.paint(aside, 'dim')}"]
        return ["", self.paint(title, "bold"), *self.paragraph(aside, "dim")]

    def paragraph(self, text: str, *styles: str, first: str = INDENT, rest: str = INDENT) -> list[str]:
        """Wrapped text; a word longer than a line stays whole, so that commands can be copied."""
        lines = textwrap.wrap(
            _BEFORE_PERCENT.sub(_NO_BREAK, text),
            max(self.width, 30),
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines = [line.replace(_NO_BREAK, " ") for line in lines]
        return [self.paint(line, *styles) if styles else line for line in lines]

    def bars(self, labels: Sequence[str], values: Sequence[int], *, label_width: int = 0) -> list[str]:
        """A horizontal bar per value, scaled to the largest, with the value behind it."""
        most = max(values, default=0)
        names = max([label_width, *(cell_len(label) for label in labels)], default=0)
        numbers = max((len(f"{value:,}") for value in values), default=0)
        room = max(min(self.width, 100) - len(INDENT) - names - numbers - 3, 8)
        lines = []
        for label, value in zip(labels, values, strict=True):
            eighths = round(value * room * 8 / most) if most else 0
            eighths = max(eighths, 1) if value else 0
            full, part = divmod(eighths, 8)
            bar = "█" * full + (_EIGHTHS[part] if part else "")
            padding = " " * (room - len(bar))
            lines.append(
                f"{INDENT}{label.rjust(names)} {self.paint(bar, 'cyan')}{padding} {value:>{numbers},}"
            )
        return lines

    def table(self, table: Table) -> list[str]:
        """Head and rows; columns that do not fit are left out by their rank; a long name in the first is cut."""
        shown = _columns_that_fit(table, self.width)
        widths = _widths(table, shown)
        spare = self.width - len(INDENT) - sum(widths) - 2 * (len(widths) - 1)
        if spare < 0 and table.columns[shown[0]].align == "left":
            widths[0] = max(widths[0] + spare, _LEAST_NAME)
        cells = [table.columns[index].title for index in shown]
        lines = [self.paint(self._row(table, shown, widths, cells, " "), "dim")]
        for number, row in enumerate(table.rows):
            role = table.role(number)
            line = self._row(table, shown, widths, [row[index] for index in shown], _MARKS[role])
            styles = {"recommended": ("bold", "green"), "both": ("bold", "green"), "total": ("bold",)}
            lines.append(self.paint(line, *styles.get(role, ())))
        if table.note:
            lines += self.paragraph(table.note, "dim")
        return lines

    def _row(
        self, table: Table, shown: Sequence[int], widths: Sequence[int], cells: Sequence[str], mark: str
    ) -> str:
        parts = []
        for index, width, cell in zip(shown, widths, cells, strict=True):
            if cell_len(cell) > width:
                cell = set_cell_size(cell, width - 1) + "…"
            gap = " " * (width - cell_len(cell))
            parts.append(gap + cell if table.columns[index].align == "right" else cell + gap)
        return f"{mark} {'  '.join(parts)}".rstrip()


def _widths(table: Table, shown: Sequence[int]) -> list[int]:
    return [
        max([cell_len(table.columns[index].title), *(cell_len(row[index]) for row in table.rows)])
        for index in shown
    ]


def _columns_that_fit(table: Table, width: int) -> list[int]:
    shown = list(range(len(table.columns)))
    while True:
        widths = _widths(table, shown)
        if table.columns[0].align == "left":
            widths[0] = min(widths[0], _LEAST_NAME)
        if len(INDENT) + sum(widths) + 2 * (len(shown) - 1) <= width:
            return shown
        spare = [index for index in shown if table.columns[index].keep]
        if not spare:
            return shown
        shown.remove(max(spare, key=lambda index: (table.columns[index].keep, index)))


def sparkline(counts: Sequence[int]) -> str:
    """Counts as one character each."""
    most = max(counts, default=0)
    return "".join(_SPARKS[round(value * 7 / most)] if value else "·" for value in counts) if most else ""
