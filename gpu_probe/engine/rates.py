"""The largest arrival rate of each candidate that still meets the objectives: executed, or rehearsed.

Under the `model` clock the bookkeeping alone is run, which takes what the clock says. Under a measured one every
rate is a run of the requests, their arrivals compressed, on the device; what the fitted step cost says only decides
which rates are tried first. Knows probes and objectives; how rates are picked is for `rate_search`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvtune.analyzers.step_times import StepTimes
from kvtune.analyzers.validation import RateSearch as HowFound
from kvtune.gpu_probe.engine.candidates import Candidate
from kvtune.gpu_probe.engine.clocks import VirtualClock
from kvtune.gpu_probe.engine.measure import qualifying
from kvtune.gpu_probe.engine.probe import Probe
from kvtune.gpu_probe.engine.runner import RunRecord
from kvtune.gpu_probe.engine.workload import Workload
from kvtune.gpu_probe.rate_search import (
    EXECUTED_RESOLUTION,
    EXECUTED_RUNS,
    QUALIFYING_SHARE,
    REHEARSED_RESOLUTION,
    REHEARSED_RUNS,
    RateSearch,
    how_executed,
    how_rehearsed,
    search_together,
)
from kvtune.gpu_probe.validate import ProbeOptions, Progress
from kvtune.tokenization.errors import UnusableInputError

BUDGET_S = 120.0
"""What the runs of all candidates' searches may take."""


@dataclass
class Rates:
    """`searches[i]` is candidate i's; `how` None where nothing was looked for. `said`: for the report's notes."""

    searches: list[RateSearch]
    how: HowFound | None = None
    said: tuple[str, ...] = ()


def why_no_rates(workload: Workload) -> str | None:
    """Why a workload has no arrival rate to multiply; None where it has one."""
    arrival = workload.inputs.arrival
    if arrival is None:
        return "the trace has no arrival times"
    if arrival[-1] <= arrival[0]:
        return "all requests arrive at once"
    return None


class RateFinder:
    """The searches of one session. `cost`: what steps cost, by the clock or as fitted; None where that is unknown."""

    def __init__(
        self,
        probe: Probe,
        candidates: Sequence[Candidate],
        workload: Workload,
        options: ProbeOptions,
        cost: StepTimes | None,
    ) -> None:
        self.rates = Rates([])
        self._probe = probe
        self._candidates = candidates
        self._workload = workload
        self._options = options
        self._cost = cost
        # As servers run; what is recorded one request after the other may have been planned without overlap.
        self._configs = [replace(candidate.config, scheduling="async") for candidate in candidates]

    def find(self, progress: Progress) -> None:
        """Fills `rates`; what an interruption leaves is what was found before it."""
        if not self._options.slo:
            return
        why_not = why_no_rates(self._workload)
        if why_not is not None:
            self.rates.said = (f"the largest load that meets the objectives was not looked for: {why_not}",)
            return
        rehearsed = self._rehearse_all(progress) if self._cost is not None else []
        if self._options.clock == "model":
            self.rates.searches = rehearsed
            self.rates.how = how_rehearsed()
            return
        self.rates.searches = [
            RateSearch(EXECUTED_RESOLUTION, EXECUTED_RUNS, rehearsed[place].met if rehearsed else None)
            for place in range(len(self._configs))
        ]
        self.rates.how = how_executed(complete=False)
        self._take_own_rate()
        total = EXECUTED_RUNS * len(self._configs)
        tried = 0

        def try_rate(place: int, rate: float) -> bool:
            nonlocal tried
            progress("largest load", tried, total)
            tried += 1
            record = self._probe.run(
                self._configs[place], self._workload, VirtualClock(), arrivals="trace", rate=rate
            )
            return self._met(record)

        try:
            complete = search_together(self.rates.searches, try_rate, budget_s=BUDGET_S)
        except UnusableInputError as error:  # memory: more requests run at once than before
            self.rates.said = (f"the search for the largest load ended early: {error}",)
            return
        progress("largest load", total, total)
        self.rates.how = how_executed(complete=complete)

    def _rehearse_all(self, progress: Progress) -> list[RateSearch]:
        found = []
        for place in range(len(self._configs)):
            progress("rehearsed loads", place, len(self._configs))
            found.append(self._rehearse(place))
        return found

    def _rehearse(self, place: int) -> RateSearch:
        assert self._cost is not None
        search = RateSearch(REHEARSED_RESOLUTION, REHEARSED_RUNS)
        while (rate := search.next_rate) is not None:
            record = self._probe.rehearse(
                self._configs[place], self._workload, arrivals="trace", rate=rate, seconds=self._cost.step_s
            )
            search.tell(met=self._met(record))
        return search

    def _take_own_rate(self) -> None:
        """The candidates' own runs were at the trace's rate where they went by its arrivals."""
        if self._options.arrivals == "trace":
            for search, candidate in zip(self.rates.searches, self._candidates, strict=True):
                met = sum(map(self._met, candidate.records))
                search.tell(met=2 * met > len(candidate.records))

    def _met(self, record: RunRecord) -> bool:
        return qualifying(record, self._options.slo) >= QUALIFYING_SHARE * len(self._workload)
