"""What the user asked a live validation to do, and where its progress goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvtune.analyzers.options import Arrivals
from kvtune.analyzers.shared import Outputs
from kvtune.analyzers.sizing.sources import SizeSources
from kvtune.analyzers.step_times import ASSUMED, StepTimes
from kvtune.tokenization.request import Request
from kvtune.tokenization.trace import TokenTrace


@dataclass(frozen=True)
class LiveOptions:
    """How to replay.

    Attributes:
        outputs: `none` asks for one token, `length` for as many as the trace says; a server writes its own.
        runs: how often each candidate is run.
        as_chat: send messages in place of token ids, and compare the ids that the server makes of them.
        slo: seconds by figure (`ttft`, `tpot`, `e2e`), for goodput and the largest rate.
        step_times: what steps take, for predictions by timestamps.
        ready_timeout_s: how long a server may take to load.
        log_dir: folder for the servers' logs.
        api_key: for a running server.
        allow_traffic: go on although others are using the server.
        measure_steps: measure step times; nothing is replayed.
    """

    arrivals: Arrivals = "sequential"
    outputs: Outputs = "none"
    runs: int = 2
    as_chat: bool = False
    slo: Mapping[str, float] = field(default_factory=dict)
    step_times: StepTimes = ASSUMED
    ready_timeout_s: float = 900.0
    log_dir: Path | None = None
    api_key: str | None = None
    allow_traffic: bool = False
    measure_steps: bool = False


@dataclass(frozen=True)
class Subject:
    """What is replayed: the trace, its requests as logged (for `as_chat`), and what is known of the server."""

    trace: TokenTrace
    sources: SizeSources
    requests: Sequence[Request] | None = None


@dataclass(frozen=True)
class Listener:
    """Where progress goes. `note` lines stay; `log_line` and `progress` replace one another."""

    note: Callable[[str], None]
    log_line: Callable[[str], None]
    progress: Callable[[str, int, int], None]
