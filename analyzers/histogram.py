"""Shared-prefix ends modulo a block, counted in bins. Knows lengths only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.units import divisors
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.trace import Int64

_BARS = 16
_FEWEST_BARS = 8
_MOST_BINS = 1 << 16
_JUST_MISSED_TOKENS = 16


@dataclass(frozen=True)
class EndHistogram:
    """`counts[i]` requests whose shared prefix ends at i * bin_width <= end mod modulo < (i + 1) * bin_width.

    `just_missed[d]` requests end exactly d tokens before the next multiple of `modulo`, 1 <= d <= 16.
    Requests that share nothing are left out of both.
    """

    modulo: int
    bin_width: int
    counts: tuple[int, ...]
    just_missed: dict[int, int]


def default_bin_width(modulo: int) -> int:
    """The smallest divisor of `modulo` that is >= modulo/16 and a multiple of 16, unless that gives fewer than 8 bars;
    then the smallest >= modulo/16."""
    wide = [width for width in reversed(divisors(modulo)) if width * _BARS >= modulo]
    return next((width for width in wide if width % 16 == 0 and width * _FEWEST_BARS <= modulo), wide[0])


def histogram_of_ends(shared: Int64, modulo: int, bin_width: int | None = None) -> EndHistogram:
    """Count the ends of `shared` (int64[R], tokens; zeros are left out).

    Raises:
        UnusableInputError: more bins than anyone looks at.
    """
    width = bin_width or default_bin_width(modulo)
    if modulo > width * _MOST_BINS:
        raise UnusableInputError(
            f"gives too many bins over the scheduler block of {modulo:,} tokens",
            field="--bin-width",
            found=str(width),
            wanted=f"at least {-(-modulo // _MOST_BINS)}",
        )
    ends = shared[shared > 0] % modulo
    counts = np.bincount(ends // width, minlength=-(-modulo // width))
    distances, requests = np.unique(modulo - ends, return_counts=True)
    near = {
        int(distance): int(number)
        for distance, number in zip(distances, requests, strict=True)
        if distance <= _JUST_MISSED_TOKENS
    }
    return EndHistogram(modulo, width, tuple(int(count) for count in counts), near)
