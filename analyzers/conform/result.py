"""What a conformance run found: counts and differences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Difference:
    """One field in which this bookkeeping and the engine disagree.

    Attributes:
        case: the case's name, or the row's place (`row 17`). request: its position; None for the case itself.
        field: as the vectors name it. wanted: what the engine did. found: what this bookkeeping does.
    """

    case: str
    request: int | None
    field: str
    wanted: Any
    found: Any


@dataclass
class ConformResult:
    """Counts of one document; `cases` are resolver rows in a `resolve/1` document."""

    cases: int = 0
    requests: int = 0
    differences: list[Difference] = field(default_factory=list)

    def compare(self, case: str, request: int | None, name: str, wanted: Any, found: Any) -> None:
        """Record a difference unless the two are equal."""
        if wanted != found:
            self.differences.append(Difference(case, request, name, wanted, found))
