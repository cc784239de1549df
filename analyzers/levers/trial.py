"""One changed trace or server, replayed and compared with what it was before: tokens saved, net of all costs.

    gain of a request = tokens it computed before - tokens it computes after - step cost * extra prefill steps

so tokens that a change adds to prompts, and requests that it adds to the trace, are paid for. What a change leads
to is a `Baseline` again, on which the next change can be tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kvtune.analyzers.decision import session_interval
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.replay import ReplayResult
from kvtune.analyzers.replays import ReplayTask
from kvtune.analyzers.report import Lever
from kvtune.analyzers.shared import SharedPrefixes, find_shared_prefixes
from kvtune.analyzers.sweep import replay_input
from kvtune.tokenization.trace import Int32, Int64, TokenTrace, UInt32


@dataclass(frozen=True)
class Baseline:
    """A trace on a server, replayed: what levers are compared with. `config` has the recommended unit set."""

    trace: TokenTrace
    config: EngineConfig
    options: AnalyzeOptions
    replica: Int32 | None
    sessions: Int32
    shared: SharedPrefixes
    result: ReplayResult

    @property
    def computed(self) -> Int64:
        """Tokens that each request computes, its extra steps priced in, int64[R]."""
        steps = self.options.decides_in_tokens().step_overhead * self.result.prefill_steps
        return self.trace.prompt_tokens - self.result.hit_tokens + steps

    @property
    def grid(self) -> int:
        """What hits are multiples of."""
        return self.result.sizes.cache_hit_alignment


@dataclass(frozen=True)
class Gain:
    """Net tokens recovered by a change, with the 95% interval over sessions.

    Attributes:
        per_request: int64[R], of the base's requests; what added requests compute is not in it.
        after: what the change leads to, None where nothing is to be built upon it.
        original: int64[R], where the base's requests stand there.
    """

    tokens: int
    interval: tuple[int, int]
    per_request: Int64
    after: Baseline | None
    original: Int64


@dataclass(frozen=True)
class Found:
    """A lever, what it brings, and the prompts that it wants sent beforehand: (request it is cut from, ids)."""

    lever: Lever
    gain: Gain
    prompts: tuple[tuple[int, UInt32], ...] = ()


def measure(
    trace: TokenTrace,
    config: EngineConfig,
    options: AnalyzeOptions,
    *,
    replica: Int32 | None,
    sessions: Int32,
) -> Baseline:
    """Replay a trace on a server."""
    shared = find_shared_prefixes(trace, options.outputs)
    result = ReplayTask(replay_input(trace, shared), replica, options.arrivals, options.step_times).run(
        config
    )
    return Baseline(trace, config, options, replica, sessions, shared, result)


def try_change(
    base: Baseline,
    *,
    trace: TokenTrace | None = None,
    config: EngineConfig | None = None,
    options: AnalyzeOptions | None = None,
    replica: Int32 | None = None,
    original: Int64 | None = None,
) -> Gain:
    """Replay a change.

    Args:
        trace: the changed requests; config: the changed server; options: for other outputs in the cache.
        replica: int32[R'], changed routing.
        original: int64[R], where the base's requests stand in the changed trace; None: in their places. What
            the other requests compute is a cost of the change.
    """
    changed = trace or base.trace
    sessions = base.sessions
    if original is None:
        original = np.arange(len(base.trace), dtype=np.int64)
    elif len(changed) != len(base.trace):
        sessions = np.full(len(changed), int(base.sessions.max()) + 1, dtype=np.int32)
        sessions[original] = base.sessions
    caches = replica if replica is not None else base.replica
    config, options = config or base.config, options or base.options
    if trace is None and options is base.options:
        task = ReplayTask(replay_input(changed, base.shared), caches, options.arrivals, options.step_times)
        result = task.run(config)
        after = Baseline(changed, config, options, caches, sessions, base.shared, result)
    else:
        after = measure(changed, config, options, replica=caches, sessions=sessions)
    return gain_of(base, after, original)


def gain_of(base: Baseline, after: Baseline, original: Int64) -> Gain:
    """What lies between two replays."""
    computed = after.computed
    added = int(computed.sum()) - int(computed[original].sum())
    gains = base.computed - computed[original]
    low, high = session_interval(gains, base.sessions, base.options.seed)
    return Gain(int(gains.sum()) - added, (low - added, high - added), gains, after, original)


def with_setting(config: EngineConfig, **changes: object) -> EngineConfig:
    """A server that differs in one setting."""
    return replace(config, **changes)  # type: ignore[arg-type]
