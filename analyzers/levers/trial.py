"""One changed trace or server, replayed and compared with the recommendation: tokens saved, net of all costs.

    gain of a request = tokens it computed before - tokens it computes after - step cost * extra prefill steps

so tokens that a change adds to prompts, and requests that it adds to the trace, are paid for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kvtune.analyzers.interval import session_interval
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.replay import ReplayResult
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.analyzers.sweep import replay_caches, replay_input
from kvtune.tokenization.trace import Int32, Int64, TokenTrace


@dataclass(frozen=True)
class Baseline:
    """The recommended setting: what levers are compared with. `config` has the recommended unit set."""

    trace: TokenTrace
    config: EngineConfig
    options: AnalyzeOptions
    replica: Int32 | None
    sessions: Int32
    result: ReplayResult
    grid: int

    @property
    def computed(self) -> Int64:
        """Tokens that each request computes, its extra steps priced in, int64[R]."""
        return _computed(self.trace.prompt_tokens, self.result, self.options.step_cost_tokens)


@dataclass(frozen=True)
class Gain:
    """Net tokens recovered by a change, with the 95 % interval over sessions."""

    tokens: int
    interval: tuple[int, int]


def try_change(
    base: Baseline,
    *,
    trace: TokenTrace | None = None,
    config: EngineConfig | None = None,
    replica: Int32 | None = None,
    original: Int64 | None = None,
) -> Gain:
    """Replay a change.

    Args:
        trace: the changed requests; config: the changed server; replica: int32[R'], changed routing.
        original: int64[R], where the base's requests stand in the changed trace; None: in their places. What
            the other requests compute is a cost of the change.
    """
    changed = trace or base.trace
    inputs = replay_input(changed, find_shared_prefixes(changed, base.options.outputs))
    caches = replica if replica is not None else base.replica
    result = replay_caches(config or base.config, inputs, caches, base.options.arrivals)
    computed = _computed(changed.prompt_tokens, result, base.options.step_cost_tokens)
    if original is None:
        original = np.arange(len(base.trace), dtype=np.int64)
    added = int(computed.sum()) - int(computed[original].sum())
    gains = base.computed - computed[original]
    low, high = session_interval(gains, base.sessions, base.options.seed)
    return Gain(int(gains.sum()) - added, (low - added, high - added))


def with_setting(config: EngineConfig, **changes: object) -> EngineConfig:
    """A server that differs in one setting."""
    return replace(config, **changes)  # type: ignore[arg-type]


def _computed(prompt_tokens: Int64, result: ReplayResult, step_cost: int) -> Int64:
    return prompt_tokens - result.hit_tokens + step_cost * result.prefill_steps
