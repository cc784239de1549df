"""Block hashes bound what can be replayed."""

from __future__ import annotations

import pytest

from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.span import check_span, restrict_to_span
from kvtune.analyzers.units import unit_candidates
from kvtune.tokenization.errors import UnusableInputError


def test_sizes_that_would_work_are_named() -> None:
    with pytest.raises(UnusableInputError, match="replay with 512 for 528, 1024 for 1056"):
        check_span(EngineConfig(parse_groups("mamba:1056*3,full:528")), 512)
    check_span(EngineConfig(parse_groups("mamba:1024,full:512")), 512)


def test_finer_units_are_listed_and_not_replayed() -> None:
    config = EngineConfig(parse_groups("mamba:1024*3,full:1024"))
    rows = restrict_to_span(unit_candidates(config, profile_for(None).profile), 512)
    assert [row.unit for row in rows if row.swept] == [1024, 512]
    assert all(row.reason for row in rows if row.unit < 512)
    assert len(rows) == 11
