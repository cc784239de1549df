"""The best unit of each slice of time, from the whole trace's replay: a slice starts with what came before cached."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvtune.analyzers.decision import Objective, Outcome, net_gain
from kvtune.analyzers.report import Window
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.trace import Float64, Int64


def gain_by_window(
    arrival: Float64,
    outcomes: Sequence[Outcome],
    *,
    current_unit: int,
    recommended_unit: int,
    objective: Objective,
    prompt_tokens: Int64,
    window_s: float,
) -> tuple[Window, ...]:
    """Slices of `window_s` seconds from the first arrival on; empty slices are left out.

    Args:
        arrival: float64[R], ascending seconds. current_unit, recommended_unit: among the outcomes'.

    Raises:
        UnusableInputError: the trace has requests without a time.
    """
    if np.isnan(arrival).any():
        raise UnusableInputError(
            "the trace has requests without a time", field="--window", way_out="leave the option out"
        )
    by_unit = {outcome.unit: outcome for outcome in outcomes}
    current, recommended = by_unit[current_unit], by_unit[recommended_unit]
    start = float(arrival[0])
    number = ((arrival - start) // window_s).astype(np.int64)
    windows = []
    for index in np.unique(number).tolist():
        inside = slice(int(np.searchsorted(number, index)), int(np.searchsorted(number, index, side="right")))
        best = objective.best(outcomes, current, int(prompt_tokens[inside].sum()), inside)
        gain = int((best.hit_tokens[inside] - current.hit_tokens[inside]).sum())
        windows.append(
            Window(
                start_s=index * window_s,
                end_s=(index + 1) * window_s,
                unit=best.unit,
                gain_tokens=gain,
                net_gain_tokens=net_gain(best, current, objective.step_overhead, inside),
                recommended_net_gain_tokens=net_gain(recommended, current, objective.step_overhead, inside),
            )
        )
    return tuple(windows)
