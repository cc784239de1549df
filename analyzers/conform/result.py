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


@dataclass(frozen=True)
class EngineFailure:
    """The engine ended a case with an error that is none of its checks; it is compared up to there.

    Attributes:
        case: its name. request: that it failed at. type: the exception's class.
    """

    case: str
    request: int
    type: str


@dataclass(frozen=True)
class NotModelled:
    """A setting of a case that this bookkeeping does not know; the case is compared without it.

    Attributes:
        case: its name. setting: its path, such as `config.scheduler`.
    """

    case: str
    setting: str


@dataclass
class ConformResult:
    """Counts of one document; `cases` are resolver rows in a `resolve/1` document."""

    cases: int = 0
    requests: int = 0
    differences: list[Difference] = field(default_factory=list)
    engine_failures: list[EngineFailure] = field(default_factory=list)
    not_modelled: list[NotModelled] = field(default_factory=list)

    def compare(self, case: str, request: int | None, name: str, wanted: Any, found: Any) -> None:
        """Record a difference unless the two are equal."""
        if wanted != found:
            self.differences.append(Difference(case, request, name, wanted, found))
