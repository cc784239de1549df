"""One thing that a person who serves a model should know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One finding: its name (stable, for scripts), what is so, and what changes it."""

    name: str
    text: str
    change: str | None
