"""Which units of a report are executed, and what the execution does to the report."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvtune.gpu_probe.choosing import flag_of, units_to_validate


def row(unit, net_gain, *, valid=True, effective=None):
    return SimpleNamespace(unit=unit, valid=valid, effective_unit=effective or unit, net_gain_tokens=net_gain)


def report(rows, current, recommended):
    return SimpleNamespace(
        candidates=rows,
        candidate=lambda unit: next((each for each in rows if each.unit == unit), None),
        engine=SimpleNamespace(current_match_unit=current, default_match_unit=528, scheduler_block_size=528),
        recommendation=SimpleNamespace(unit=recommended),
    )


ROWS = [
    row(528, 0),
    row(176, 30),
    row(88, 50),
    row(48, 70),
    row(16, 50),
    row(33, None),
    row(32, 90, valid=False),
]


@pytest.mark.parametrize(
    ("current", "recommended", "units"),
    [(528, 48, [528, 48, 88, 16]), (528, 528, [528, 48, 88, 16]), (16, 48, [16, 48, 88, 176])],
)
def test_in_force_recommended_and_the_next_best(current, recommended, units):
    assert units_to_validate(report(ROWS, current, recommended)) == units


def test_a_neutralised_unit_in_force_is_run_as_what_it_does():
    rows = [row(528, 0), row(24, 0, effective=528), row(48, 10)]
    assert units_to_validate(report(rows, 24, 48)) == [528, 48]


def test_the_default_is_started_without_the_flag():
    assert flag_of(report(ROWS, 528, 48), 528) is None
    assert flag_of(report(ROWS, 528, 48), 48) == 48
