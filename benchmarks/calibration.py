"""Is the recommendation as sure as it says? Advice from one half of a trace, judged on the other half.

    python benchmarks/calibration.py --model DIR [--overhead 128|unknown] [--cache FILE] [TRACE...]

Traces x layouts `mamba:B*3,full:B` (B = 528, 784, 1,056, 2,096) x three splits, each both ways: 96 checks on four
traces. Two splits are random by conversation (seeds 1 and 2), one is early against late. Each half is replayed by
itself, so that nothing of the other one is in its cache. For each check:

    regret    what the advised unit loses on the other half against the best one there, of its prompt tokens
    covered   whether the stated interval of the gain, per prompt token, holds the gain on the other half
    width     of that interval, over that of an interval that draws conversations alone

At `--overhead unknown` the choice is the one of a report without hardware; its regret is still measured at 128 tokens a
step, as the other half's best unit must be one.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvtune.analyzers.analysis import evidence_of, find
from kvtune.analyzers.decision import Choice, Evidence, Objective, Outcome, choose, session_interval
from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.sessions import find_sessions
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.analyzers.sweep import no_progress
from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.reading import read_trace
from kvtune.tokenization.trace import TokenTrace

BLOCKS = (528, 784, 1056, 2096)
SPLITS = ("random 1", "random 2", "early/late")
TRACES = tuple(
    f"tests/data/traces/{name}.jsonl.gz" for name in ("tau-airline", "arena-judge", "bfcl", "miniswe")
)
JUDGED_AT = 128


@dataclass(frozen=True)
class Half:
    """One half, replayed by itself. `unit`: the current one, also the default."""

    outcomes: list[Outcome]
    evidence: Evidence
    unit: int


@dataclass(frozen=True)
class Check:
    """One half's advice on the other half. Fractions of prompt tokens; `width` over that of conversations alone."""

    trace: str
    block: int
    split: str
    choice: Choice
    regret: float
    stated: tuple[float, float]
    gain: float
    width: float | None

    @property
    def covered(self) -> bool:
        """Whether the interval holds the other half's gain."""
        return self.stated[0] <= self.gain <= self.stated[1]


def first_half(trace: TokenTrace, split: str) -> npt.NDArray[np.bool_]:
    """bool[R]: conversations drawn until half of the requests are taken, or the earlier half of the requests."""
    count = len(trace)
    if split == "early/late":
        return np.arange(count) < count // 2
    sessions = find_sessions(trace, find_shared_prefixes(trace, "none"))
    sizes = np.bincount(sessions)
    order = np.random.default_rng(int(split.split()[1])).permutation(len(sizes))
    taken = order[np.cumsum(sizes[order]) <= count // 2]
    return np.isin(sessions, taken)


def replay_half(trace: TokenTrace, block: int) -> Half:
    config = EngineConfig(groups=parse_groups(f"mamba:{block}*3,full:{block}"))
    found = find(trace, config, AnalyzeOptions(workers=1), no_progress)
    evidence = evidence_of(found.trace, found.shared, found.sessions)
    return Half(found.outcomes, evidence, found.setting.current_unit)


def replay_all(files: list[str], model: str) -> dict[tuple[str, int, str], tuple[Half, Half]]:
    encoder = open_prompt_encoder(model=Path(model))
    halves = {}
    for file in files:
        trace, _ = encode_trace(read_trace([file]).requests, encoder)
        for split in SPLITS:
            first = first_half(trace, split)
            parts = trace.select(first), trace.select(~first)
            for block in BLOCKS:
                name = Path(file).name.split(".")[0]
                halves[name, block, split] = (replay_half(parts[0], block), replay_half(parts[1], block))
                print(f"replayed {name}, {block}, {split}", flush=True)
    return halves


def judge(
    half: Half, other: Half, objective: Objective
) -> tuple[Choice, float, tuple[float, float], float, float | None]:
    """The half's choice; its regret, stated interval and gain on the other half; and the interval's relative width."""
    choice = choose(
        half.outcomes,
        current_unit=half.unit,
        default_unit=half.unit,
        objective=objective,
        evidence=half.evidence,
    )
    judged = Objective("overhead", JUDGED_AT)
    there = {outcome.unit: outcome for outcome in other.outcomes}
    tokens, other_tokens = (float(part.evidence.prompt_tokens.sum()) for part in (half, other))
    costs = {unit: float(judged.cost(outcome).sum()) for unit, outcome in there.items()}
    regret = (costs[choice.unit] - min(costs.values())) / other_tokens
    gain = int((there[choice.unit].hit_tokens - there[half.unit].hit_tokens).sum()) / other_tokens
    here = {outcome.unit: outcome for outcome in half.outcomes}
    low, high = session_interval(
        here[choice.unit].hit_tokens - here[half.unit].hit_tokens, half.evidence.sessions
    )
    low_stated, high_stated = choice.interval
    width = (high_stated - low_stated) / (high - low) if high > low else None
    return choice, regret, (low_stated / tokens, high_stated / tokens), gain, width


def checks(halves: dict[tuple[str, int, str], tuple[Half, Half]], objective: Objective) -> Iterator[Check]:
    for (trace, block, split), (one, two) in halves.items():
        for half, other in ((one, two), (two, one)):
            yield Check(trace, block, split, *judge(half, other, objective))


def print_table(found: list[Check]) -> None:
    titles = ("confidence", "checks", "mean regret", "p90", "worst", "within 1%", "no loss")
    print(f"\n| {' | '.join(titles)} | covered, random | covered, early/late |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for grade in ("high", "medium", "low", "all"):
        rows = [one for one in found if grade in ("all", one.choice.confidence)]
        if not rows:
            print(f"| {grade} | 0 |" + " |" * 7)
            continue
        regrets = [one.regret for one in rows]
        advised = [one for one in rows if one.choice.action in ("set", "unset")]
        random = [one.covered for one in advised if one.split != "early/late"]
        late = [one.covered for one in advised if one.split == "early/late"]
        cells = [
            f"{len(rows)}",
            f"{statistics.mean(regrets):.2%}",
            f"{np.quantile(regrets, 0.9):.2%}",
            f"{max(regrets):.2%}",
            f"{sum(regret <= 0.01 for regret in regrets)} of {len(rows)}",
            f"{sum(one.gain >= 0 for one in rows)} of {len(rows)}",
            f"{sum(random)} of {len(random)}",
            f"{sum(late)} of {len(late)}",
        ]
        print(f"| {grade} | {' | '.join(cells)} |")
    widths = [one.width for one in found if one.width is not None]
    print(
        f"\ninterval over one that draws conversations alone: median width {statistics.median(widths):.2f}"
        if widths
        else ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", nargs="*", default=list(TRACES))
    parser.add_argument("--model", required=True)
    parser.add_argument("--overhead", default=str(JUDGED_AT), help="step overhead in tokens, or `unknown`")
    parser.add_argument("--cache", type=Path, default=Path("build/calibration.pickle"), help="replays, kept")
    parser.add_argument("--each", action="store_true", help="also print every check")
    options = parser.parse_args()
    if not options.cache.exists():
        halves = replay_all(list(options.traces), options.model)
        options.cache.write_bytes(pickle.dumps(halves))
    halves = pickle.loads(options.cache.read_bytes())
    objective = Objective() if options.overhead == "unknown" else Objective("overhead", int(options.overhead))
    found = list(checks(halves, objective))
    if options.each:
        for one in found:
            low, high = one.stated
            print(
                f"{one.trace:12} {one.block:5} {one.split:10} {one.choice.action:5} {one.choice.unit:5} "
                f"{one.choice.confidence:6} regret {one.regret:6.2%} gain {one.gain:6.2%} in {low:.2%} to {high:.2%}"
                f" {'' if one.covered else 'NOT COVERED'} {one.choice.regret}"
            )
    print_table(found)


if __name__ == "__main__":
    main()
