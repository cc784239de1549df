"""A table as every view prints it: cells are text already. Knows no report and no layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["", "recommended", "current", "both", "total"]


@dataclass(frozen=True)
class Column:
    """A column of a table. Of `keep` 0 it is always shown; narrow views leave out the largest `keep` first."""

    title: str
    align: Literal["left", "right"] = "right"
    keep: int = 0


@dataclass(frozen=True)
class Table:
    """Cells as they are printed. `roles` says of each row what it is; `note` stands below."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    roles: tuple[Role, ...] = ()
    note: str = ""

    def only(self, places: Sequence[int]) -> Table:
        """The rows at these places; the note says how many there are."""
        left_out = len(self.rows) - len(places)
        return Table(
            self.columns,
            tuple(self.rows[place] for place in places),
            tuple(self.role(place) for place in places),
            f"{left_out} more units: --details." if left_out else "",
        )

    def role(self, row: int) -> Role:
        """What the row is; nothing special where no roles are given."""
        return self.roles[row] if self.roles else ""
