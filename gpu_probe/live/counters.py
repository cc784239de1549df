"""The engine's counters before and after a run: which names each release has, and what must add up.

    computed + hit + external = prompt tokens      the engine's own account of where prompt tokens came from
    counted prompt tokens     = what was sent      nobody else was served meanwhile
    counted hits              = the answers' hits  both ways of measuring agree

Knows names and sums; nothing about how the page was fetched.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvtune.gpu_probe.live.exposition import Sample, samples
from kvtune.tokenization.errors import MissingDependencyError

Release = tuple[int, int]


@dataclass(frozen=True)
class MetricName:
    """Where a counter stands on the page. `label`: only samples with it count. From `since` to `until`, inclusive."""

    name: str
    label: tuple[str, str] | None = None
    since: Release = (0, 19)
    until: Release = (99, 0)

    def matches(self, sample: Sample) -> bool:
        return sample.name == self.name and (
            self.label is None or sample.labels.get(self.label[0]) == self.label[1]
        )


_BY_SOURCE = "vllm:prompt_tokens_by_source_total"

NAMES: dict[str, tuple[MetricName, ...]] = {
    # Read from the metrics module of 0.20, 0.22 to 0.26, 0.29 and 0.32, and from the page of a running 0.32.
    "requests": (MetricName("vllm:request_success_total"),),
    "prompt_tokens": (MetricName("vllm:prompt_tokens_total"),),
    "computed_tokens": (MetricName(_BY_SOURCE, ("source", "local_compute")),),
    "hit_tokens": (MetricName(_BY_SOURCE, ("source", "local_cache_hit")),),
    "external_tokens": (MetricName(_BY_SOURCE, ("source", "external_kv_transfer")),),
    "cached_tokens": (MetricName("vllm:prompt_tokens_cached_total"),),
    "prefilled_tokens": (MetricName("vllm:request_prefill_kv_computed_tokens_sum"),),
    "generation_tokens": (MetricName("vllm:generation_tokens_total"),),
    "preemptions": (MetricName("vllm:num_preemptions_total"),),
    "prefix_queries": (MetricName("vllm:prefix_cache_queries_total"),),
    "prefix_hits": (MetricName("vllm:prefix_cache_hits_total"),),
    "running": (MetricName("vllm:num_requests_running"),),
    "waiting": (MetricName("vllm:num_requests_waiting"),),
}
"""By meaning; where a release renamed one, its names stand side by side with their releases."""

QUERIES_COUNTED_ONCE: Release = (0, 29)
"""Before it, `prefix_queries` and `prefix_hits` were counted again at every admission that failed."""


@dataclass(frozen=True)
class Counters:
    """One reading, summed over engines. Tokens, but for `requests`, `preemptions`, `running` and `waiting`."""

    requests: int
    prompt_tokens: int
    computed_tokens: int
    hit_tokens: int
    external_tokens: int
    cached_tokens: int
    prefilled_tokens: int
    generation_tokens: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    running: int
    waiting: int

    def since(self, before: Counters) -> Counters:
        """What happened between two readings; the gauges `running` and `waiting` are the later ones."""
        gauges = ("running", "waiting")
        return Counters(
            **{
                item.name: getattr(self, item.name)
                - (0 if item.name in gauges else getattr(before, item.name))
                for item in fields(self)
            }
        )

    @property
    def busy(self) -> bool:
        return self.running + self.waiting > 0


def read_counters(page: str, release: Release, where: str) -> Counters:
    """Read a page.

    Raises:
        MissingDependencyError: the page lacks a counter that this release should have; its names are given.
    """
    wanted = {
        counter: next((name for name in names if name.since <= release <= name.until), names[-1])
        for counter, names in NAMES.items()
    }
    found: dict[str, float] = {}
    for sample in samples(page):
        for counter, name in wanted.items():
            if name.matches(sample):
                found[counter] = found.get(counter, 0.0) + sample.value
    missing = [wanted[counter].name for counter in wanted if counter not in found]
    if missing:
        raise MissingDependencyError(
            f"the page lacks counters that vLLM {release[0]}.{release[1]} should have",
            where=where,
            found=f"no {', '.join(sorted(set(missing)))}",
            way_out="start the server without --disable-log-stats; if it does count, please report its release",
        )
    return Counters(**{counter: round(value) for counter, value in found.items()})


@dataclass(frozen=True)
class Expected:
    """What was sent and answered in a run, by the answers' own account."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


def broken_identities(delta: Counters, expected: Expected, release: Release) -> tuple[str, ...]:
    """The identities that do not hold, each as one sentence; empty where the accounts agree."""
    problems = []

    def check(what: str, found: int, wanted: int) -> None:
        if found != wanted:
            problems.append(f"{what}: {found:,} counted, {wanted:,} expected")

    check("finished requests", delta.requests, expected.requests)
    check("prompt tokens", delta.prompt_tokens, expected.prompt_tokens)
    check("generated tokens", delta.generation_tokens, expected.completion_tokens)
    check(
        "computed + hit + external against prompt tokens",
        delta.computed_tokens + delta.hit_tokens + delta.external_tokens,
        delta.prompt_tokens,
    )
    check(
        "hit + external against cached tokens", delta.hit_tokens + delta.external_tokens, delta.cached_tokens
    )
    check("cached tokens against the answers' own", delta.cached_tokens, expected.cached_tokens)
    if release >= QUERIES_COUNTED_ONCE and not delta.preemptions:
        check("prefix cache queries against prompt tokens", delta.prefix_queries, delta.prompt_tokens)
        check("prefix cache hits against hit tokens", delta.prefix_hits, delta.hit_tokens)
        check(
            "tokens prefilled per request against computed tokens",
            delta.prefilled_tokens,
            delta.computed_tokens,
        )
    return tuple(problems)
