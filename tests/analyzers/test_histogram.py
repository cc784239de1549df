"""Histogram bins by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kvtune.analyzers.histogram import default_bin_width, histogram_of_ends
from kvtune.tokenization.errors import UnusableInputError


@pytest.mark.parametrize(
    ("modulo", "width"),
    # 528/16 = 33: of 33, 44, 48, 66 … the first multiple of 16 is 48: 11 bars. 2096/16 = 131, multiples of 16: 2096
    # only, which is 1 bar; 784/16 = 49, multiples of 16: 112, which is 7 bars.
    # The last two are too large to be walked through number by number.
    [
        *((1024, 64), (528, 48), (1056, 96), (784, 49), (2096, 131), (272, 17), (33, 3), (7, 1)),
        *((64, 4), (128, 16)),
        *((65_521 * 65_519, 65_521 * 65_519), (1056 << 31, 1056 << 27)),
    ],
)
def test_default_bin_width(modulo: int, width: int) -> None:
    assert default_bin_width(modulo) == width


def test_counts_and_just_missed() -> None:
    shared = np.array([0, 5, 528, 527, 520, 1000], dtype=np.int64)
    found = histogram_of_ends(shared, 528, 48)
    assert found.counts == (2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2)  # 5 and 528 | 472 | 527 and 520
    assert found.just_missed == {1: 1, 8: 1}
    assert sum(found.counts) == 5


def test_more_bins_than_anyone_looks_at_are_refused() -> None:
    shared = np.array([5], dtype=np.int64)
    assert len(histogram_of_ends(shared, 1 << 20, 16).counts) == 1 << 16
    with pytest.raises(
        UnusableInputError, match=r"--bin-width: .*1,048,576 tokens \(found 15, wanted at least 16"
    ):
        histogram_of_ends(shared, 1 << 20, 15)
