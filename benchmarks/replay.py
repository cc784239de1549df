"""What a replay costs: CPU seconds per unit on a real trace of 1,229 requests and 6.85 million prompt tokens.

    PYTHONPATH=build/links:. python benchmarks/replay.py [--rounds 7]

The trace is tau-airline as `tests/data/prefix-structure` holds it (lengths and shared prefixes, no text). Printed are
medians of interleaved rounds, in CPU seconds of this process: one unit, one request after another, for two layouts;
all divisors of both block sizes; by timestamps with the recorded answers, async scheduling; and, beside them, what a
plain dict lookup costs on this machine, to compare machines by. Peak memory is the whole process's.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.replay import replay
from kvtune.analyzers.units import divisors
from tests.analyzers.structures import load_structure

SMALL = EngineConfig(groups=parse_groups("mamba:528*3,full:528"))
LARGE = EngineConfig(groups=parse_groups("mamba:1056*3,full:1056"))


def jobs() -> dict[str, Callable[[], object]]:
    prompts, _ = load_structure("tau-airline")
    recorded, _ = load_structure("tau-airline-recorded")
    named: dict[str, Callable[[], object]] = {}
    for config, units in ((SMALL, (None, 16, 48, 176)), (LARGE, (None, 16, 96, 352))):
        for unit in units:
            setting = replace(config, match_unit=unit)
            name = f"block {config.groups[0].block_size:>4}, unit {unit or 'unset'}"
            named[name] = lambda setting=setting: replay(setting, prompts)
    bounded = replace(SMALL, match_unit=16, num_blocks=400)
    named["block  528, unit 16, 400 blocks"] = lambda: replay(bounded, prompts)
    for layout in (SMALL, LARGE):
        size = layout.groups[0].block_size
        units = divisors(size)
        named[f"block {size:>4}, all {len(units)} divisors"] = lambda layout=layout, units=units: [
            replay(replace(layout, match_unit=unit), prompts) for unit in units
        ]
    timed = replace(SMALL, match_unit=16, scheduling="async")
    named["block  528, unit 16, by timestamps, recorded answers"] = lambda: replay(
        timed, recorded, arrivals="trace"
    )
    return named


def nanoseconds_of_a_lookup() -> float:
    """One `dict.get` in a loop."""
    table = {number: number for number in range(1000)}
    get = table.get
    start = time.process_time()
    for _ in range(300):
        for number in range(1000):
            get(number)
    return (time.process_time() - start) / 300_000 * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    named = jobs()
    spent: dict[str, list[float]] = {name: [] for name in named}
    lookups = []
    for _ in range(rounds):
        lookups.append(nanoseconds_of_a_lookup())
        for name, job in named.items():
            start = time.process_time()
            job()
            spent[name].append(time.process_time() - start)
    for name, seconds in spent.items():
        print(f"{name:<55} {statistics.median(seconds):7.3f} s CPU")
    print(f"{'one dict lookup on this machine':<55} {statistics.median(lookups):7.1f} ns")
    print(f"{'peak memory':<55} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:7.0f} MB")


if __name__ == "__main__":
    main()
