"""What the views say of the pool: how far the recommendation holds, knees, refused requests."""

from __future__ import annotations

import msgspec
import pytest

from kvtune.analyzers.pool.figures import Knee, PoolAdvice, PoolChoice
from kvtune.analyzers.report import Report
from kvtune.cli.reporters import content


def with_choices(report: Report, *units: int, num_blocks: int | None = None) -> Report:
    """Pools of 100, 200, 400 … blocks, and what is chosen in each."""
    choices = tuple(
        PoolChoice(num_blocks=100 << rung, unit=unit, net_gain_tokens=0 if unit == 528 else 1_000 + rung)
        for rung, unit in enumerate(units)
    )
    return msgspec.structs.replace(
        report,
        engine=msgspec.structs.replace(report.engine, num_blocks=num_blocks),
        pool_advice=PoolAdvice(choices=choices),
    )


@pytest.mark.parametrize(
    ("units", "num_blocks", "words"),
    [
        ((96, 96, 96), None, "does not depend on the pool: it is 96 at every size from 100 to 400 blocks"),
        ((528, 528), None, "In no pool from 100 to 200 blocks does another unit gain over 528"),
        ((528, 96, 96), None, "for an unlimited pool and stays the best at every size tried from 200 on"),
        ((96, 16, 96), None, "for an unlimited pool and stays the best at every size tried from 400 on"),
        ((96, 96, 16), 200, "for 200 blocks and is the best at every size tried from 100 to 200"),
        ((16, 96, 16), 200, "for 200 blocks; at the next sizes tried another unit is the best"),
        ((16, 96, 96), 200, "for 200 blocks and stays the best at every size tried from 200 on"),
        ((96, 16, 16), 200, "for 200 blocks, where it is not the one with the largest net gain"),
        ((96, 16, 16), None, "for an unlimited pool, where it is not the one with the largest net gain"),
    ],
)
def test_how_far_the_recommendation_holds(
    report: Report, units: tuple[int, ...], num_blocks: int | None, words: str
) -> None:
    assert words in content.choices_sentence(with_choices(report, *units, num_blocks=num_blocks))


def test_the_table_of_choices_has_a_row_for_each_change(report: Report) -> None:
    table = content.choices_table(with_choices(report, 528, 528, 16, 96, 96, 96))
    assert table is not None
    assert table.rows == (
        ("100 to 200", "528", "0"),
        ("400", "16", "+1,002"),
        ("800 to 3,200", "96", "+1,003 to +1,005"),
    )
    assert table.roles == ("current", "", "recommended")
    assert content.choices_table(with_choices(report, 96, 96)) is None


def test_knees_say_where_nothing_smaller_was_tried(report: Report) -> None:
    knees = (
        Knee(unit=528, share=0.99, num_blocks=625, engine_hit_tokens=1),
        Knee(unit=96, share=0.99, num_blocks=700, engine_hit_tokens=1),
    )
    found = msgspec.structs.replace(report, pool_advice=PoolAdvice(knees=knees))
    assert content.knee_sentence(found) == (
        "Hits stay within 1% of those in a pool that never evicts from 625 blocks on with unit 528 (no smaller "
        "pool was tried) and from 700 blocks on with unit 96."
    )
    none = msgspec.structs.replace(report, pool_advice=PoolAdvice())
    assert content.knee_sentence(none) == "Nothing is reused in any pool."


def test_refused_requests_get_a_column_where_there_are_any(report: Report) -> None:
    assert "refused" not in [column.title for column in content.capacity_table(report).columns]
    points = tuple(msgspec.structs.replace(point, refused_requests=7) for point in report.capacity)
    table = content.capacity_table(msgspec.structs.replace(report, capacity=points))
    assert [column.title for column in table.columns][1:4] == ["hits at 528", "evicted", "refused"]
    assert table.rows[0][3] == "7"
    assert "cannot hold" in table.note


def test_a_given_pool_says_how_many_requests_fit(report: Report) -> None:
    given = msgspec.structs.replace(report, engine=msgspec.structs.replace(report.engine, num_blocks=1_000))
    assert "at once" not in content.held_sentence(report)
    # 999 blocks beside the null block, 46 for the median request.
    assert (
        "The pool of 1,000 holds 21 requests of median size at once if they share nothing."
        in content.held_sentence(given)
    )
    small = msgspec.structs.replace(report, engine=msgspec.structs.replace(report.engine, num_blocks=50))
    assert content.held_sentence(small).endswith("The pool of 50 holds 1 request of median size at once.")
