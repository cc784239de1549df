"""`Report`: everything that an analysis found, as one value; the JSON document `kvtune.report/1`.

Terminal, JSON, Markdown and HTML are functions of this value alone. Field names, their order and their units
are a contract with scripts and dashboards: fields may be added (with a default, so that older documents still
decode), none is renamed or dropped without `SCHEMA` going up.

Units: counts are tokens unless the name says otherwise, times are seconds, fractions run from 0 to 1. The
same input gives the same bytes but for `measured`: everything that a clock or this machine decides.

Knows the shape of the answer; neither how it is found nor how it is shown.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from kvtune.analyzers.layout import Kind, MambaMode
from kvtune.analyzers.log_check.info import LogCheck
from kvtune.analyzers.pool.figures import CapacityPoint, FootprintBySetting, PoolAdvice
from kvtune.analyzers.step_times.info import StepTimesInfo
from kvtune.analyzers.validation import Validation

SCHEMA: Literal["kvtune.report/1"] = "kvtune.report/1"

Interval = tuple[int, int]
"""95% interval [low, high] in tokens."""

Action = Literal["set", "unset", "keep", "cannot_help"]
Confidence = Literal["high", "medium", "low"]
UNDECIDABLE = "The log does not give the prompts as they were served, so no match unit is advised."
"""Why nothing is advised where the log itself stands against the replay."""

Verdict = Literal[
    "no_sharing",
    "below_floor",
    "below_alignment",
    "outside_window",
    "not_kept",
    "evicted",
    "in_flight",
    "dropped",
    "reused",
]
SizeSource = Literal["flags", "model-config", "startup-log", "metrics"]
TokenizerKind = Literal["hf", "tiktoken", "ids", "blocks"]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a clock or this machine's speed decided.

    Attributes:
        created: RFC 3339 time in UTC; the environment's SOURCE_DATE_EPOCH fixes it.
        wall_s, cpu_s: of the whole command; CPU seconds of its workers included.
        hash_cpu_s: CPU seconds to hash all of the trace's full units once, by unit, at what a hash takes.
        hash_samples: hashes that were timed for it, on this machine, in this run or an earlier one.
        lookup_cpu_s: CPU seconds of all prefix lookups, by unit.
        peak_bytes: largest resident set of this process, its workers' added.
    """

    created: str
    wall_s: float
    cpu_s: float
    hash_cpu_s: dict[int, float] = {}
    hash_samples: int = 0
    lookup_cpu_s: dict[int, float] = {}
    peak_bytes: int = 0


class TraceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was read. `rejected_by` counts lines by reason; `duration_s` is first to last arrival; `servers` are those
    that the log names; `notes` say how doubtful things were read, one sentence each."""

    files: tuple[str, ...]
    sha256: str
    format: str
    requests: int
    rejected: int = 0
    rejected_by: dict[str, int] = {}
    prompt_tokens: int
    output_tokens: int | None = None
    duration_s: float | None = None
    namespaces: int = 1
    servers: int = 0
    sessions: int = 0
    retokenised_outputs: int = 0
    notes: tuple[str, ...] = ()


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How text became ids. `checked_requests` were encoded a second time as whole texts, and agreed."""

    kind: TokenizerKind
    source: str
    chat_template_sha256: str | None = None
    checked_requests: int = 0


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A KV cache group, or `count` like ones in a row. `window` also holds the chunk of chunked attention."""

    kind: Kind
    block_size: int
    count: int = 1
    window: int | None = None
    mode: MambaMode | None = None
    cacheable: bool = True


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The server that was modelled, and the sizes that it resolves.

    Attributes:
        source: where the groups' sizes come from.
        current_match_unit: the current unit today: `default_match_unit` where the flag is unset.
        cache_hit_alignment: what a hit's length is a multiple of, with the current unit.
        partial_hits: whether the current unit lets a hit end inside a block.
        num_blocks: the engine's `num_gpu_blocks`, null block included; None is unlimited.
        minimum_reusable_prefix: the shortest prompt whose resend hits.
        minimum_shared_prefix: what prompts that part later must share, at least.
        enable_prefix_caching: False where the server reuses nothing, so that the sizes decide nothing.
    """

    name: str
    version: str
    source: SizeSource
    groups: tuple[GroupInfo, ...]
    scheduler_block_size: int
    default_match_unit: int
    current_match_unit: int
    cache_hit_alignment: int
    partial_hits: bool
    num_blocks: int | None
    max_num_batched_tokens: int
    minimum_reusable_prefix: int
    minimum_shared_prefix: int
    enable_prefix_caching: bool = True


class PoolInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`num_gpu_blocks` as the GPU's memory allows, null block included: an estimate with its range."""

    estimate: int
    low: int
    high: int


class SettledInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the GPU where nobody says otherwise.

    Attributes:
        max_num_batched_tokens: step budget, tokens. max_num_seqs: requests in one step.
        prefill_backend: the kernel of linear-attention prefills; None without such layers.
        state_export: alignment of states exported from inside a chunk, tokens; None where none is.
        num_blocks: None where it cannot be estimated.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    prefill_backend: str | None = None
    state_export: int | None = None
    num_blocks: PoolInfo | None = None


class HardwareInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of the server. `count`: that share each layer. `memory_bytes`: of one."""

    name: str
    count: int
    memory_bytes: int
    settled: SettledInfo


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A request that can never fit the pool, or not with what it finds cached there.

    `blocks_needed`: with hits considered as in the footprint; the null block is not counted.
    """

    id: str
    blocks_needed: int


class ReplayInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How the trace was replayed. `step_cost_tokens`: the price of one more step, in prefilled tokens."""

    arrivals: Literal["sequential", "trace"]
    outputs: Literal["none", "length", "recorded"]
    scheduling: Literal["sync", "async"]
    step_cost_tokens: int
    refused: tuple[Refused, ...] = ()


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """Where shared prefixes end: `counts[i]` of them in [i, i + 1) * `bin_width`, modulo `modulo` tokens."""

    modulo: int
    bin_width: int
    counts: tuple[int, ...]


class PartCount(msgspec.Struct, frozen=True):
    """How many requests' shared prefixes end in a part of the prompt, and the tokens that they share.

    `counts`: these requests by the bins of `shared.histogram`; empty where there are none.
    """

    requests: int = 0
    tokens: int = 0
    counts: tuple[int, ...] = ()


class EndsIn(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the prompt in which shared prefixes end."""

    template: PartCount = PartCount()
    tools: PartCount = PartCount()
    system: PartCount = PartCount()
    user: PartCount = PartCount()
    assistant: PartCount = PartCount()
    tool: PartCount = PartCount()
    output: PartCount = PartCount()


class SharedInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the traffic shares, whatever the engine.

    Attributes:
        requests_sharing: requests that share at least one token.
        tokens: sum of each request's longest prefix shared with anything cached earlier in its namespace.
        histogram: ends modulo the scheduler block; requests that share nothing are left out.
        just_missed: requests by how many tokens their shared prefix falls short of the next boundary.
    """

    requests_sharing: int
    tokens: int
    histogram: Histogram
    just_missed: dict[int, int] = {}
    ends_in: EndsIn = EndsIn()


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One `prefix_match_unit`. Fields from `engine_hit_tokens` on are None where the unit was not replayed.

    Attributes:
        valid: the engine starts with it.
        effective_unit: the grid that hits then land on.
        reason: the one rule that forbids or neutralises it, whenever not valid or `effective_unit` differs.
        ideal_hit_tokens: sum of floor(shared / unit) * unit, a ceiling that no engine state limits.
        hash_positions: full units in all prompts, each hashed once.
        gain_tokens: hit tokens more than the current unit's; `gain_fraction` is of the prompt tokens.
        extra_prefill_steps: more than the current unit's.
        net_gain_tokens: gain - step_cost_tokens * extra_prefill_steps.
        break_even_step_tokens: the step cost at which the net gain is zero; None without extra steps, or where
            there is none: fewer hits for more steps.
        evicted_blocks, copy_on_write_copies: blocks; preemptions: requests; lookup_probes: hash lookups.
        hits_sha256: of the hit tokens as little-endian int64 in request order.
        prefill_s: seconds of all prefill steps, each alone, summed; None without step times. prefill_change: fraction
            against the current unit.
    """

    unit: int
    valid: bool
    effective_unit: int
    reason: str | None = None
    ideal_hit_tokens: int
    hash_positions: int
    engine_hit_tokens: int | None = None
    recomputed_tokens: int | None = None
    gain_tokens: int | None = None
    gain_fraction: float | None = None
    gain_ci95: Interval | None = None
    prefill_steps: int | None = None
    extra_prefill_steps: int | None = None
    net_gain_tokens: int | None = None
    break_even_step_tokens: float | None = None
    copy_on_write_copies: int | None = None
    evicted_blocks: int | None = None
    preemptions: int | None = None
    lookup_probes: int | None = None
    hits_sha256: str | None = None
    prefill_s: float | None = None
    prefill_change: float | None = None


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """What each limit takes from what the one before left; with `hit_tokens` they sum to `shared.tokens`."""

    unit: int
    hit_tokens: int
    granularity: int = 0
    window: int = 0
    no_recurrent_state: int = 0
    evicted: int = 0
    in_flight: int = 0
    speculative_drop: int = 0


class LossesBySetting(msgspec.Struct, frozen=True, kw_only=True):
    """Losses with the current unit today and with the recommended one."""

    current: Losses
    recommended: Losses


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Requests with the same tools, first system line, tenant and adapter.

    Attributes:
        typical_end: median end of the shared prefix. spread_of_ends: its 10th and 90th percentile.
    """

    name: str
    requests: int
    prompt_tokens: int
    shared_tokens: int
    typical_end: int
    engine_hit_tokens: dict[int, int] = {}
    verdict: Verdict
    advice: tuple[str, ...] = ()
    histogram: Histogram | None = None
    spread_of_ends: tuple[int, int] | None = None


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The best unit of one slice of time, seconds from the trace's first arrival.

    Attributes:
        gain_tokens: of that unit over the one in force.
        net_gain_tokens, recommended_net_gain_tokens: its, and the recommended unit's, less the price of extra steps;
            None in documents that are older than these fields.
    """

    start_s: float
    end_s: float
    unit: int
    gain_tokens: int
    net_gain_tokens: int | None = None
    recommended_net_gain_tokens: int | None = None


class Lever(msgspec.Struct, frozen=True, kw_only=True):
    """Something other than the unit that would recover tokens, by replaying the changed trace.

    Attributes:
        title: what to do in a few words. evidence: what in the trace asks for it. limits: when it does not apply.
        gain_tokens: on top of the recommended unit, net of what the change itself costs; levers do not add up.
        advice: False where the gain is a price that is worth paying, and no advice.
    """

    kind: str
    what: str
    gain_tokens: int
    gain_ci95: Interval
    flags: tuple[str, ...] | None = None
    change: str | None = None
    cost: str
    title: str = ""
    evidence: str = ""
    limits: str = ""
    advice: bool = True

    @property
    def is_proven(self) -> bool:
        """Whether it may lead the report: advice whose interval lies above zero."""
        return self.advice and self.gain_ci95[0] > 0


class DecisionRangeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The best unit for step overheads from `from_tokens` up to `to_tokens` (None: without end), tokens a step."""

    from_tokens: float
    to_tokens: float | None
    unit: int


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of what to do.

    Attributes:
        kind: of change: a flag of the server, prompts sent beforehand, an edit of prompts, another server setting.
        flags: to be given; empty where one is dropped; None for changes that are no flag.
        text: what to do, and how to go back. if_only_this: what happens if only this step is done; None where nothing
            else is needed.
    """

    kind: Literal["flag", "warm_up", "edit", "server"]
    flags: tuple[str, ...] | None = None
    text: str
    if_only_this: str | None = None


class LoadLatency(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles of a latency, seconds."""

    p50: float
    p99: float


class LoadCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One unit under one load. `busy`: share of time in which a step runs."""

    unit: int
    ttft_s: LoadLatency
    e2e_s: LoadLatency
    busy: float


class LoadPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The trace at `multiplier` times its own rate, replayed by timestamps.

    Attributes:
        busy: share of time in which a step runs, with the current unit.
        best_unit: under the objective.
    """

    multiplier: float
    busy: float
    best_unit: int
    candidates: tuple[LoadCandidate, ...]


class RegretInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the recommendation can lose against the best unit: a fraction of all prompt tokens, and over what."""

    tokens_fraction: float
    over: str


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """The one thing to do. `unit` is the effective one, also where nothing changes.

    Attributes:
        objective: what the choice minimises. prefill_change: of the objective's time, a fraction; saved_s: of it,
            seconds; None where tokens decide. worth: what that comes to, in words.
        gain_tokens, gain_fraction, gain_ci95, flags: of the whole plan, also where an optimization leads it.
        regret: what the choice can lose. plan: places of the steps in the report's `plan`.
        gain_by_half: of hit tokens, fractions of the prompt tokens of the earlier and the later half of the requests.
            None where nothing changes.
        margin_tokens: by how many tokens shared prefixes may shrink before another unit wins (estimated); None where 32
            are not enough for that, or where there was nothing to choose from.
    """

    action: Action
    unit: int
    current_unit: int
    flags: tuple[str, ...] = ()
    gain_tokens: int
    gain_fraction: float
    gain_ci95: Interval
    net_gain_tokens: int
    confidence: Confidence
    why: str
    caveats: tuple[str, ...] = ()
    objective: Literal["gpu-time", "ttft", "tokens", "overhead", "worst-case"] = "overhead"
    prefill_change: float | None = None
    saved_s: float | None = None
    worth: str = ""
    regret: RegretInfo | None = None
    gain_by_half: tuple[float, float] | None = None
    margin_tokens: int | None = None
    plan: tuple[int, ...] = ()


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request (`--per-request`). `shared_with`: the latest earlier request that shares as much."""

    id: str
    prompt_tokens: int
    shared_tokens: int
    shared_with: str | None = None
    hit_tokens: dict[int, int] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, in the order of the document. `requests` is left out where nobody asked for it."""

    schema: Literal["kvtune.report/1"] = SCHEMA
    kvtune_version: str
    command: str
    measured: Measured
    trace: TraceInfo
    tokenizer: TokenizerInfo
    engine: EngineInfo
    replay: ReplayInfo
    shared: SharedInfo
    candidates: tuple[Candidate, ...]
    losses: LossesBySetting
    families: tuple[Family, ...] = ()
    capacity: tuple[CapacityPoint, ...] = ()
    footprint: FootprintBySetting | None = None
    pool_advice: PoolAdvice | None = None
    windows: tuple[Window, ...] = ()
    levers: tuple[Lever, ...] = ()
    validation: Validation | None = None
    recommendation: Recommendation
    plan: tuple[PlanStep, ...] = ()
    decision_line: tuple[DecisionRangeInfo, ...] = ()
    load: tuple[LoadPoint, ...] = ()
    step_times: StepTimesInfo | None = None
    hardware: HardwareInfo | None = None
    log_check: LogCheck | None = None
    requests: tuple[RequestRow, ...] | UnsetType = UNSET

    def candidate(self, unit: int) -> Candidate | None:
        """The row of a unit; where several lead to it, the one that names it."""
        return next((row for row in self.candidates if row.unit == unit), None)
