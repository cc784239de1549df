"""The best lever with one or two others on top of it, replayed together: gains of levers cannot be added up."""

from __future__ import annotations

from dataclasses import dataclass

from kvtune.analyzers.levers.heads import common_heads
from kvtune.analyzers.levers.prime import prime
from kvtune.analyzers.levers.server import legal_units, retention
from kvtune.analyzers.levers.trial import Baseline, Found, Gain, gain_of, try_change, with_setting
from kvtune.analyzers.report import Lever
from kvtune.tokenization.trace import Int64

MOST_LEVERS = 3
_UNITS_TRIED = 4


@dataclass(frozen=True)
class _World:
    """What the levers so far lead to. `original` int64[R]: where the first base's requests stand in it."""

    base: Baseline
    original: Int64
    levers: tuple[Found, ...]


def combine(base: Baseline, ranked: list[Found], floor: float) -> Found | None:
    """Build upon the best lever with a unit, a prime or retention; None where nothing more is gained.

    Args:
        ranked: single levers, best first; floor: what each further one must bring, tokens.
    """
    best = next((one for one in ranked if one.lever.advice and one.gain.after is not None), None)
    if best is None or best.gain.after is None:
        return None
    world = _World(best.gain.after, best.gain.original, (best,))
    while len(world.levers) < MOST_LEVERS:
        kinds = {one.lever.kind for one in world.levers}
        sets_unit = any("--prefix-match-unit" in one.lever.title for one in world.levers)
        more = max(
            _further(world.base, kinds, sets_unit=sets_unit), key=lambda one: one.gain.tokens, default=None
        )
        if more is None or more.gain.tokens < max(floor, 1) or more.gain.after is None:
            break
        world = _World(more.gain.after, more.gain.original[world.original], (*world.levers, more))
    if len(world.levers) == 1:
        return None
    gain = gain_of(base, world.base, world.original)
    return Found(_lever(world, gain), gain)


def _further(base: Baseline, kinds: set[str], *, sets_unit: bool) -> list[Found]:
    """What could be added to levers of these kinds, one of which may already come with a unit."""
    found: list[Found] = []
    if "prime" not in kinds and base.trace.span == 1:
        heads = common_heads(base.trace, base.shared.paths, base.result.hit_tokens, base.shared.shared)[:1]
        units = () if sets_unit else legal_units(base.config)
        found += [one for one in (prime(base, head, units) for head in heads) if one]
    if "retention" not in kinds:
        found += retention(base)
    if "unit" not in kinds and "prime" not in kinds and not sets_unit:
        found += _units(base)
    return found


def _units(base: Baseline) -> list[Found]:
    """The coarse units that differ from the one in force."""
    found = []
    for unit in legal_units(base.config)[: _UNITS_TRIED + 1]:
        gain = try_change(base, config=with_setting(base.config, match_unit=unit))
        flag = f"--prefix-match-unit {unit}"
        lever = Lever(
            kind="unit",
            title=f"set {flag}",
            what="",
            gain_tokens=0,
            gain_ci95=(0, 0),
            flags=(flag,),
            cost="none",
        )
        found.append(Found(lever, gain))
    return found


def _lever(world: _World, gain: Gain) -> Lever:
    levers = [one.lever for one in world.levers]
    # A later lever's value of a flag replaces an earlier one's.
    flags = tuple({flag.split()[0]: flag for lever in levers for flag in lever.flags or ()}.values())
    # What the first lever does not count as its merit (text that it cuts), is no merit of all of them either.
    uncounted = world.levers[0].gain.tokens - levers[0].gain_tokens
    titles = [levers[0].title, *(lever.title[:1].lower() + lever.title[1:] for lever in levers[1:])]
    return Lever(
        kind="combination",
        title=", and ".join(titles),
        what=f"Together: {', and '.join(titles)}.",
        gain_tokens=gain.tokens - uncounted,
        gain_ci95=(gain.interval[0] - uncounted, gain.interval[1] - uncounted),
        flags=flags or None,
        change="; ".join(lever.change for lever in levers if lever.change) or None,
        cost="; ".join(dict.fromkeys(lever.cost for lever in levers if lever.cost != "none")) or "none",
        evidence=f"replayed together, not added up; the first alone brings {levers[0].gain_tokens:,} tokens",
        limits="; ".join(dict.fromkeys(lever.limits for lever in levers if lever.limits)),
    )
