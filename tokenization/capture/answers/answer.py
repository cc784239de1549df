"""An answer as a trace holds it, whichever endpoint gave it."""

from __future__ import annotations

from typing import Any

import msgspec


class Answer(msgspec.Struct):
    """`message` as the samples' `response` field holds it, None where nothing was said; `usage` as it came."""

    message: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


class NotUnderstoodError(ValueError):
    """The answer is not what its endpoint should give."""
