"""A changed trace together with the match unit that suits it: edits of prompts and units are searched as pairs.

A unit that brings nothing on the trace as it is may be the best one once prompts are repaired, and an edit that brings
nothing at the current unit may pay at a finer one. The unit is chosen as the recommendation chooses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from kvtune.analyzers.decision.objective import LEAST_NET_GAIN
from kvtune.analyzers.levers.trial import Baseline, Found, Gain, gain_of, with_setting
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.replays import ReplayTask
from kvtune.analyzers.report import Lever
from kvtune.analyzers.sweep import no_progress, replay_input, sweep_units
from kvtune.analyzers.units import default_match_unit, unit_candidates


@dataclass(frozen=True)
class Pair:
    """What an edit brings with the unit that suits it.

    Attributes:
        gain: of both. changes_unit: whether that is another unit than the base's. unit: that unit; None: the default,
            which needs no flag.
    """

    gain: Gain
    changes_unit: bool = False
    unit: int | None = None

    def found(self, lever: Lever) -> Found:
        """The lever, with the change of the unit where there is one."""
        if not self.changes_unit:
            return Found(lever, self.gain)
        flag = "--prefix-match-unit" if self.unit is None else f"--prefix-match-unit {self.unit}"
        step = f"drop {flag}" if self.unit is None else f"set {flag}"
        return Found(
            msgspec.structs.replace(
                lever,
                title=f"{lever.title}, and {step}",
                what=f"{lever.what} With that, {step}.",
                flags=lever.flags if self.unit is None else (*(lever.flags or ()), flag),
                gain_tokens=self.gain.tokens,
                gain_ci95=self.gain.interval,
            ),
            self.gain,
        )


def with_best_unit(base: Baseline, found: Found) -> Found:
    """A lever together with the unit that suits it best."""
    return on_best_unit(base, found.gain).found(found.lever)


def on_best_unit(base: Baseline, gain: Gain) -> Pair:
    """The edit that `gain` was found for, on every match unit, where another one brings clearly more.

    Args:
        gain: of the edit with the base's unit; its `after` is the edited trace.
    """
    world = gain.after
    assert world is not None
    prompt_tokens = int(world.trace.prompt_tokens.sum())
    least = LEAST_NET_GAIN * prompt_tokens
    more_shared = int(world.shared.shared.sum()) - int(base.shared.shared.sum())
    if more_shared < least or int((world.shared.shared - world.result.hit_tokens).sum()) < least:
        return Pair(gain)  # what units bring, they bring without the edit
    options, config = world.options, world.config
    profile = profile_for(config.version).profile
    candidates = unit_candidates(config, profile, options.units)
    task = ReplayTask(
        replay_input(world.trace, world.shared), world.replica, options.arrivals, options.step_times
    )
    sweep = sweep_units(
        config,
        task,
        candidates,
        default_unit=default_match_unit(config, profile),
        workers=options.workers,
        progress=no_progress,
    )
    prefill_s = sweep.prefill_s(options.step_times)
    outcomes = sweep.outcomes(candidates, prefill_s, task.inputs.arrival)
    effective = {row.unit: row.effective_unit for row in candidates}
    current = next(one for one in outcomes if one.unit == effective[sweep.current_unit])
    best = options.decides_by().best(outcomes, current, prompt_tokens)
    if best is current:
        return Pair(gain)
    row = next(row for row in candidates if row.effective_unit == best.unit and sweep.of(row) is not None)
    result = sweep.of(row)
    assert result is not None
    unit = None if row.unit == sweep.default_unit else row.unit
    after = replace(world, config=with_setting(config, match_unit=unit), result=result)
    joint = gain_of(base, after, gain.original)
    if joint.tokens < gain.tokens + least:
        return Pair(gain)
    return Pair(joint, True, unit)
