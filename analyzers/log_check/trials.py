"""Which other server would have logged these cached tokens: each hypothesis is a replay of the trace's beginning.

A replay never looks ahead, so what the first requests hit does not depend on those that are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.log_check.info import LogCause
from kvtune.analyzers.profiles import PROFILES, profile_for
from kvtune.analyzers.refusal import EngineRefusal
from kvtune.analyzers.replays import ReplayTask
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.trace import Bool, Int64

MOST_REQUESTS = 1_000
"""Of the trace's beginning, which is replayed once per hypothesis."""

EXPLAINS = 0.5
"""Of the differing requests: the share that must agree under a hypothesis for it to be named."""

_POOLS = (2, 4, 8, 16, 32)
_REPLICAS = (2, 3, 4, 8)


@dataclass(frozen=True)
class Trial:
    """A hypothesis: its cause, without what speaks for it, the value that it assumes, and the hits that it predicts."""

    name: str
    text: str
    value: str
    hits: Callable[[], Int64]


@dataclass(frozen=True)
class Trials:
    """What is tried.

    Attributes:
        config: the server as it is given. task: the replay of the trace's beginning, N requests.
        by_unit: hits of other match units, replayed already, int64[R] each; the current unit is not among them.
        used_blocks: the most blocks in use in the replay.
    """

    config: EngineConfig
    task: ReplayTask
    by_unit: dict[int, Int64]
    used_blocks: int

    def best(self, logged: Int64, predicted: Int64, compared: Bool) -> LogCause | None:
        """The hypothesis with which most requests agree, if it explains at least half of those that differ.

        Args:
            logged, predicted: int64[N] cached tokens. compared: bool[N].
        """
        total = int(compared.sum())
        now = int((logged == predicted)[compared].sum())
        least = max(now + EXPLAINS * (total - now), now + 1)
        best: list[Trial] = []
        most = 0
        for trial in self._all():
            if best and most == total and trial.name != best[0].name:
                break
            try:
                agree = int((logged == trial.hits()[: len(logged)])[compared].sum())
            except (EngineRefusal, UnusableInputError):
                continue
            if agree > most:
                best, most = [trial], agree
            elif agree == most and best and trial.name == best[0].name:
                best.append(trial)
        if not best or most < least:
            return None
        others = f", or {', '.join(trial.value for trial in best[1:])}" if len(best) > 1 else ""
        return LogCause(
            name=best[0].name,
            text=f"{best[0].text}{others}: {most:,} of {total:,} requests agree then, instead of {now:,}.",
        )

    def _all(self) -> Iterator[Trial]:
        for unit, hits in self.by_unit.items():
            yield Trial(
                "match_unit",
                f"The log fits another match unit, {unit:,} tokens (--match-unit {unit})",
                f"{unit:,}",
                lambda hits=hits: hits,  # type: ignore[misc]
            )
        if self.config.enable_prefix_caching:
            yield Trial("caching_off", "The log fits a server without prefix caching", "", self._nothing)
        given = profile_for(self.config.version).profile
        for version, profile in PROFILES.items():
            if profile is not given:
                other = replace(self.config, version=version)
                text = f"The log fits another release, vLLM {version} (--engine-version)"
                yield Trial("release", text, version, lambda other=other: self._hits(other))  # type: ignore[misc]
        if self.task.arrivals == "sequential" and self.task.inputs.arrival is not None:
            timed = replace(self.task, arrivals="trace")
            yield Trial(
                "overlapping_requests",
                "The log fits requests that overlap (--arrivals trace)",
                "",
                lambda: timed.run(replace(self.config, scheduling="async")).hit_tokens,
            )
        if self.task.replica is None:
            yield from self._replicas()
        yield from self._pools()

    def _replicas(self) -> Iterator[Trial]:
        requests = len(self.task.inputs.prompt_tokens)
        for number in _REPLICAS:
            turns = replace(self.task, replica=np.arange(requests, dtype=np.int32) % number)
            yield Trial(
                "other_replica",
                f"The log fits {number} servers that take requests in turn (--replicas {number}, or --by-field)",
                str(number),
                lambda turns=turns: turns.run(self.config).hit_tokens,  # type: ignore[misc]
            )

    def _pools(self) -> Iterator[Trial]:
        limit = self.config.num_blocks or self.used_blocks + 1
        for part in _POOLS:
            blocks = min(limit, self.used_blocks) // part
            if blocks < 2:
                return
            smaller = replace(self.config, num_blocks=blocks)
            yield Trial(
                "smaller_pool",
                f"The log fits a smaller KV cache, of about {blocks:,} blocks (--num-blocks)",
                f"{blocks:,}",
                lambda smaller=smaller: self._hits(smaller),  # type: ignore[misc]
            )

    def _hits(self, config: EngineConfig) -> Int64:
        return self.task.run(config).hit_tokens

    def _nothing(self) -> Int64:
        return np.zeros(len(self.task.inputs.prompt_tokens), dtype=np.int64)


def beginning(task: ReplayTask, requests: int) -> ReplayTask:
    """The same for the trace's first requests."""
    if len(task.inputs.prompt_tokens) <= requests:
        return task
    first = np.arange(requests, dtype=np.int64)
    replica = None if task.replica is None else task.replica[first]
    return replace(task, inputs=task.inputs.subset(first), replica=replica)
