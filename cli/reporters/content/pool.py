"""The pool in words and tables: what requests take of it, and what its size decides. Knows the report only."""

from __future__ import annotations

from kvtune.analyzers.pool.figures import PoolChoice, Spread
from kvtune.analyzers.report import Report
from kvtune.cli.reporters.content.table import Column, Role, Table
from kvtune.cli.reporters.numbers import ABSENT, count, plural, signed

_KINDS = {
    "full": "full attention",
    "sliding_window": "sliding windows",
    "chunked_local": "chunked local attention",
    "ring": "rings",
    "mamba": "Mamba states",
}


def footprint_table(report: Report) -> Table | None:
    """Blocks that a request takes, with the current unit and the recommended one; None in older documents."""
    found = report.footprint
    if found is None:
        return None
    sides = (
        [found.current]
        if found.current.unit == found.recommended.unit
        else [found.current, found.recommended]
    )
    roles: list[Role] = ["both"] if len(sides) == 1 else ["current", "recommended"]
    columns = (
        Column("unit"),
        Column("smallest pool"),
        Column("with a hit"),
        Column("held at its end"),
        Column("held at most"),
    )
    rows = tuple(
        (
            count(side.unit),
            count(side.minimum_pool_blocks),
            count(side.minimum_pool_on_hit_blocks),
            _spread(side.pinned_at_end),
            _spread(side.most_pinned),
        )
        for side in sides
    )
    note = (
        f"Smallest pool: in which the longest request ({plural(found.longest_request_tokens, 'token')}) runs alone, "
        "the null block included; with a hit: if some of it is found cached, and copied. Held: by one running request, "
        "median / 90th percentile / most."
    )
    return Table(columns, rows, tuple(roles), note)


def _spread(blocks: Spread | None) -> str:
    return ABSENT if blocks is None else f"{blocks.median:,} / {blocks.p90:,} / {blocks.max:,}"


def held_sentence(report: Report) -> str:
    """What kinds of group a request's blocks belong to, and how many requests fit; empty in older documents."""
    found = report.footprint
    if found is None or not found.recommended.most_pinned or not found.recommended.most_pinned.max:
        return ""
    side, most = found.recommended, found.recommended.most_pinned
    kinds = ", ".join(
        f"{blocks.median:,} of {_KINDS.get(kind, kind)}"
        for kind, blocks in side.pinned_at_end_by_kind.items()
    )
    text = f"Median blocks at the end with unit {side.unit:,}, by kind of group: {kinds}."
    if report.engine.num_blocks is not None:
        fit = (report.engine.num_blocks - 1) // most.median
        unshared = " if they share nothing" if fit > 1 else ""
        text += (
            f" The pool of {report.engine.num_blocks:,} holds {plural(fit, 'request')} of median size at "
            f"once{unshared}."
        )
    return text


def capacity_units(report: Report) -> list[int]:
    """The current unit and the recommended one, as far as they were replayed at every pool size; coarsest first."""
    seen = {(point.num_blocks, point.unit) for point in report.capacity}
    pools = {pool for pool, _ in seen}
    if not pools:
        return []
    advice = report.recommendation
    return sorted(
        (unit for unit in {advice.current_unit, advice.unit} if all((pool, unit) in seen for pool in pools)),
        reverse=True,
    )


def capacity_table(report: Report) -> Table:
    """Hits and evictions against the pool's size, a pair of columns per unit."""
    points = {(point.num_blocks, point.unit): point for point in report.capacity}
    pools = sorted({pool for pool, _ in points})
    units = capacity_units(report)
    refuses = any(points[pool, unit].refused_requests for pool in pools for unit in units)
    columns = [Column("blocks")]
    for unit in units:
        columns += [Column(f"hits at {unit:,}"), Column("evicted", keep=2)]
        columns += [Column("refused", keep=1)] if refuses else []
    rows = []
    for pool in pools:
        cells = [count(pool)]
        for unit in units:
            point = points[pool, unit]
            cells += [count(point.engine_hit_tokens), count(point.evicted_blocks)]
            cells += [count(point.refused_requests)] if refuses else []
        rows.append(tuple(cells))
    note = "Hits in tokens, evictions in blocks."
    if refuses:
        note += " Refused: requests that the pool cannot hold, or not with what they find cached in it."
    return Table(tuple(columns), tuple(rows), note=note)


def knee_sentence(report: Report) -> str:
    """How small the pool can be until it costs reuse; empty where nothing was looked for."""
    if report.pool_advice is None:
        return ""
    knees = report.pool_advice.knees
    if not knees:
        return "Nothing is reused in any pool."
    smallest = min(point.num_blocks for point in report.capacity)
    unlimited = " of those in a pool that never evicts"
    parts: list[str] = []
    for share in dict.fromkeys(knee.share for knee in knees):
        pools = [
            f"from {knee.num_blocks:,} blocks on with unit {knee.unit:,}"
            + (" (no smaller pool was tried)" if knee.num_blocks == smallest else "")
            for knee in knees
            if knee.share == share
        ]
        parts.append(f"within {round(100 * (1 - share))}%{'' if parts else unlimited} {' and '.join(pools)}")
    return f"Hits stay {'; '.join(parts)}."


def choices_sentence(report: Report) -> str:
    """Whether the best unit depends on the pool, and how far the recommendation holds; empty where nothing was chosen
    from."""
    if report.pool_advice is None or len({point.unit for point in report.capacity}) < 2:
        return ""
    choices, advice = report.pool_advice.choices, report.recommendation
    smallest, largest = choices[0].num_blocks, choices[-1].num_blocks
    span = f"from {smallest:,} to {largest:,} blocks"
    best = {choice.unit for choice in choices}
    if best == {advice.current_unit}:
        return (
            f"In no pool {span} does another unit gain over {advice.current_unit:,}, the current match unit."
        )
    if len(best) == 1:
        return f"The best unit does not depend on the pool: it is {choices[0].unit:,} at every size {span}."
    made_for = report.engine.num_blocks
    pool = "an unlimited pool" if made_for is None else f"{made_for:,} blocks"
    held = _held(choices, advice.unit, made_for)
    if held is None:
        holds = f"is recommended for {pool}, where it is not the one with the largest net gain"
    elif held[1] == largest:
        holds = f"is recommended for {pool} and stays the best at every size tried from {held[0]:,} on"
    elif held[0] == held[1]:
        holds = f"is recommended for {pool}; at the next sizes tried another unit is the best"
    else:
        holds = (
            f"is recommended for {pool} and is the best at every size tried from {held[0]:,} to {held[1]:,}"
        )
    return f"The best unit depends on the pool. {advice.unit:,} {holds}."


def _held(choices: tuple[PoolChoice, ...], unit: int, made_for: int | None) -> tuple[int, int] | None:
    """The sizes around the pool in question over which the unit is the best without a gap."""
    ranges = _ranges(choices)
    for run in ranges:
        if run[0].unit == unit and (made_for is None or run[0].num_blocks <= made_for <= run[-1].num_blocks):
            found = (run[0].num_blocks, run[-1].num_blocks)
            if made_for is not None or run is ranges[-1]:
                return found
    return None


def _ranges(choices: tuple[PoolChoice, ...]) -> list[list[PoolChoice]]:
    runs: list[list[PoolChoice]] = []
    for choice in choices:
        if runs and runs[-1][-1].unit == choice.unit:
            runs[-1].append(choice)
        else:
            runs.append([choice])
    return runs


def choices_table(report: Report) -> Table | None:
    """The best unit by pool size; None where it is the same everywhere."""
    if report.pool_advice is None:
        return None
    runs = _ranges(report.pool_advice.choices)
    if len(runs) < 2:
        return None
    advice = report.recommendation
    rows, roles = [], []
    for run in runs:
        first, last = run[0], run[-1]
        gains = dict.fromkeys(signed(one.net_gain_tokens) for one in (first, last))
        sizes = dict.fromkeys(count(one.num_blocks) for one in (first, last))
        rows.append((" to ".join(sizes), count(first.unit), " to ".join(gains)))
        role: Role = "current" if first.unit == advice.current_unit else ""
        if first.unit == advice.unit:
            role = "both" if role else "recommended"
        roles.append(role)
    columns = (
        Column("blocks", "left"),
        Column("best unit"),
        Column(f"net gain over {advice.current_unit:,}"),
    )
    note = "Chosen in each pool by what the recommendation minimizes; the interval of the gain is not asked here."
    return Table(columns, tuple(rows), tuple(roles), note)
