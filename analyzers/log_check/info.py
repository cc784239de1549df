"""What the comparison with the log's own numbers found: the report's `log_check`. Counts are tokens or requests."""

from __future__ import annotations

import msgspec


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A request for which the log says something else. `logged` and `counted` are tokens."""

    id: str
    logged: int
    counted: int


class PromptTokensCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt lengths.

    Attributes:
        compared, agree: requests.
        median_ratio: of the logged length over the one counted here.
        first_difference: the first request that differs, None where all agree.
    """

    compared: int
    agree: int
    median_ratio: float
    first_difference: Difference | None = None


class CachedTokensCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Cached tokens, of the requests whose prompt lengths do not differ.

    Attributes:
        compared, agree: requests.
        logged, predicted: cached tokens of the compared requests in all, by the log and by the replay.
        first_difference: the first request that differs, None where all agree.
    """

    compared: int
    agree: int
    logged: int
    predicted: int
    first_difference: Difference | None = None


class LogCause(msgspec.Struct, frozen=True, kw_only=True):
    """A likely cause of differences: its name for scripts, and a sentence with what speaks for it and what to do."""

    name: str
    text: str


class LogCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Both comparisons, None where the log has no such numbers, and likely causes of what differs."""

    prompt_tokens: PromptTokensCheck | None = None
    cached_tokens: CachedTokensCheck | None = None
    causes: tuple[LogCause, ...] = ()
