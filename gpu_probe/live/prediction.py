"""What the bookkeeping says that a server will do with a trace, request by request.

Knows the trace and a server's settings; no server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.options import Arrivals
from kvtune.analyzers.profiles import profile_for
from kvtune.analyzers.replay import ReplayResult, replay
from kvtune.analyzers.shared import Outputs, SharedPrefixes, find_shared_prefixes
from kvtune.analyzers.step_times import ASSUMED, StepTimes
from kvtune.analyzers.sweep import replay_input
from kvtune.tokenization.trace import Int64, TokenTrace


@dataclass(frozen=True)
class Prediction:
    """`hits`: int64[R], tokens found in the cache. `shared`: int64[R], longest prefix shared with anything before."""

    hits: Int64
    shared: Int64
    result: ReplayResult


class Predictor:
    """Predicts one trace under any number of settings; the prefix tree is built once."""

    def __init__(
        self,
        trace: TokenTrace,
        *,
        outputs: Outputs = "none",
        arrivals: Arrivals = "sequential",
        step_times: StepTimes = ASSUMED,
    ) -> None:
        self.trace = trace
        self._shared: SharedPrefixes = find_shared_prefixes(trace, outputs)
        self._inputs = replay_input(trace, self._shared)
        self._arrivals: Arrivals = arrivals
        self._step_times = step_times

    def predict(self, config: EngineConfig) -> Prediction:
        """Raises: EngineRefusal, for settings with which no engine starts."""
        result = replay(modelled(config), self._inputs, arrivals=self._arrivals, step_times=self._step_times)
        return Prediction(result.hit_tokens, self._shared.shared, result)


def modelled(config: EngineConfig) -> EngineConfig:
    """The same settings under the release whose rules are used for them."""
    return replace(config, version=profile_for(config.version).profile.version)


def trace_of(prompts: list[Int64]) -> TokenTrace:
    """A trace of bare prompts, one namespace, for probes."""
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    return TokenTrace(
        tokens=np.concatenate(prompts).astype(np.uint32),
        offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        prompt_tokens=lengths,
        arrival=np.full(len(prompts), np.nan),
        namespace=np.zeros(len(prompts), dtype=np.int32),
        ids=[str(index) for index in range(len(prompts))],
    )


def without(trace: TokenTrace, left_out: tuple[int, ...]) -> TokenTrace:
    """The trace without some requests. Only what a prediction needs is kept: no recorded answers, no parts."""
    if not left_out:
        return trace
    kept = np.delete(np.arange(len(trace)), left_out)
    prompts = [trace.prompt(index) for index in kept.tolist()]
    lengths = np.diff(trace.offsets)[kept]
    return TokenTrace(
        tokens=np.concatenate(prompts) if prompts else np.zeros(0, dtype=np.uint32),
        offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        prompt_tokens=trace.prompt_tokens[kept],
        arrival=trace.arrival[kept],
        namespace=trace.namespace[kept],
        ids=[trace.ids[index] for index in kept.tolist()],
        span=trace.span,
        output_tokens=None if trace.output_tokens is None else trace.output_tokens[kept],
    )


def first_requests(trace: TokenTrace, number: int) -> TokenTrace:
    """The trace up to a request, with the parts of its prompts."""
    if number >= len(trace):
        return trace
    return replace(without(trace, tuple(range(number, len(trace)))), parts=trace.parts)
