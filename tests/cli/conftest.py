"""A synthetic report whose numbers are easy to follow (every field that a view shows is set), and a command runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvtune.analyzers.document import encode_report
from kvtune.analyzers.pool.figures import (
    CapacityPoint,
    Footprint,
    FootprintBySetting,
    Knee,
    PoolAdvice,
    PoolChoice,
    Spread,
)
from kvtune.analyzers.report import (
    Candidate,
    EndsIn,
    EngineInfo,
    Family,
    GroupInfo,
    Histogram,
    Lever,
    Losses,
    LossesBySetting,
    Measured,
    PartCount,
    Recommendation,
    ReplayInfo,
    Report,
    RequestRow,
    SharedInfo,
    TokenizerInfo,
    TraceInfo,
    Window,
)
from kvtune.analyzers.validation import Percentiles, ValidatedCandidate, Validation
from kvtune.cli.app import main

HISTOGRAM = Histogram(modulo=528, bin_width=48, counts=(66, 75, 83, 262, 161, 162, 107, 92, 68, 69, 0))


def candidate(unit: int, engine: int, steps: int, *, copies: int = 0) -> Candidate:
    """A replayed unit of the sample: today's 528 hits 5,600,000 tokens in 1,400 steps."""
    gain, extra = engine - 5_600_000, steps - 1_400
    return Candidate(
        unit=unit,
        valid=True,
        effective_unit=unit,
        ideal_hit_tokens=6_422_734 // unit * unit,
        hash_positions=6_848_473 // unit,
        engine_hit_tokens=engine,
        recomputed_tokens=6_848_473 - engine,
        gain_tokens=gain,
        gain_fraction=gain / 6_848_473,
        gain_ci95=(gain - 20_000, gain + 20_000) if gain else (0, 0),
        prefill_steps=steps,
        extra_prefill_steps=extra,
        net_gain_tokens=gain - 128 * extra,
        break_even_step_tokens=gain / extra if extra else None,
        copy_on_write_copies=copies,
        evicted_blocks=12_000 + copies,
        preemptions=0,
        lookup_probes=3_000,
        hits_sha256="ab" * 32,
    )


def sample_report() -> Report:
    """tau-airline in spirit: a grid of 528, unit 96 recommended, 48 struck, 2 inert."""
    return Report(
        kvtune_version="0.1.0",
        command="kvtune analyze airline.jsonl.gz --groups mamba:528*3,full:528",
        measured=Measured(
            created="2026-01-02T03:04:05Z", wall_s=6.4, cpu_s=9.1, hash_cpu_s={528: 0.01, 96: 0.05}
        ),
        trace=TraceInfo(
            files=("airline.jsonl.gz",),
            sha256="0123456789abcdef" * 4,
            format="openai-batch",
            requests=1_229,
            rejected=2,
            rejected_by={"not_json": 2},
            prompt_tokens=6_848_473,
            output_tokens=91_220,
            duration_s=8_130.0,
            namespaces=1,
            sessions=100,
        ),
        tokenizer=TokenizerInfo(
            kind="hf",
            source="tiny-hybrid/tokenizer.json",
            chat_template_sha256="cd" * 32,
            checked_requests=16,
        ),
        engine=EngineInfo(
            name="vllm",
            version="0.33.0",
            source="flags",
            groups=(
                GroupInfo(kind="mamba", block_size=528, count=3, mode="align"),
                GroupInfo(kind="full", block_size=528),
                GroupInfo(kind="sliding_window", block_size=48, window=4096),
            ),
            scheduler_block_size=528,
            default_match_unit=528,
            current_match_unit=528,
            cache_hit_alignment=528,
            partial_hits=False,
            num_blocks=None,
            max_num_batched_tokens=8192,
            minimum_reusable_prefix=529,
            minimum_shared_prefix=528,
        ),
        replay=ReplayInfo(arrivals="sequential", outputs="none", scheduling="async", step_cost_tokens=128),
        shared=SharedInfo(
            requests_sharing=1_228,
            tokens=6_422_734,
            histogram=HISTOGRAM,
            just_missed={1: 4, 3: 40, 16: 2},
            ends_in=EndsIn(
                system=PartCount(100, 380_000), user=PartCount(700, 3_800_000), tool=PartCount(428, 2_242_734)
            ),
        ),
        candidates=(
            candidate(528, 5_600_000, 1_400),
            candidate(96, 6_100_000, 2_400, copies=1_180),
            candidate(16, 6_050_000, 2_500, copies=1_200),
            Candidate(
                unit=48,
                valid=False,
                effective_unit=528,
                reason="48 does not divide the block of 500 of group 2 (full)",
                ideal_hit_tokens=6_395_040,
                hash_positions=142_000,
            ),
            Candidate(
                unit=2,
                valid=True,
                effective_unit=2,
                ideal_hit_tokens=6_422_000,
                hash_positions=3_424_000,
            ),
        ),
        losses=LossesBySetting(
            current=Losses(unit=528, hit_tokens=5_600_000, granularity=304_270, no_recurrent_state=518_464),
            recommended=Losses(unit=96, hit_tokens=6_100_000, granularity=52_174, no_recurrent_state=270_560),
        ),
        families=(
            Family(
                name="Airline Agent Policy · 14 tools",
                requests=1_229,
                prompt_tokens=6_848_473,
                shared_tokens=6_422_734,
                typical_end=5_120,
                spread_of_ends=(3_845, 7_010),
                engine_hit_tokens={528: 5_600_000, 96: 6_100_000},
                verdict="reused",
                advice=("prime its 3,845 common tokens once",),
                histogram=HISTOGRAM,
            ),
        ),
        capacity=tuple(
            CapacityPoint(
                num_blocks=pool,
                unit=unit,
                engine_hit_tokens=hits,
                evicted_blocks=evicted,
                net_gain_tokens=gain,
                refused_requests=0,
            )
            for pool, unit, hits, evicted, gain in (
                (625, 16, 3_100_000, 62_000, -210_000),
                (625, 96, 3_350_000, 60_000, -31_000),
                (625, 528, 3_200_000, 24_000, 0),
                (5_000, 16, 5_850_000, 31_000, 420_000),
                (5_000, 96, 5_900_000, 30_000, 410_000),
                (5_000, 528, 5_370_000, 9_000, 0),
                (40_000, 16, 6_050_000, 0, 309_200),
                (40_000, 96, 6_100_000, 0, 372_000),
                (40_000, 528, 5_600_000, 0, 0),
            )
        ),
        footprint=FootprintBySetting(
            longest_request="tau-t0-17/9",
            longest_request_tokens=13_951,
            enough_blocks=40_000,
            current=footprint(528, on_hit=111, most=(43, 61, 104)),
            recommended=footprint(96, on_hit=115, most=(46, 64, 108)),
        ),
        pool_advice=PoolAdvice(
            knees=tuple(
                Knee(unit=unit, share=share, num_blocks=pool, engine_hit_tokens=hits)
                for unit, share, pool, hits in (
                    (528, 0.99, 9_100, 5_545_000),
                    (528, 0.95, 4_800, 5_321_000),
                    (96, 0.99, 15_400, 6_040_000),
                    (96, 0.95, 4_200, 5_796_000),
                )
            ),
            choices=(
                PoolChoice(num_blocks=625, unit=528, net_gain_tokens=0),
                PoolChoice(num_blocks=5_000, unit=16, net_gain_tokens=420_000),
                PoolChoice(num_blocks=40_000, unit=96, net_gain_tokens=372_000),
            ),
        ),
        windows=(
            Window(
                start_s=0.0,
                end_s=3600.0,
                unit=96,
                gain_tokens=240_000,
                net_gain_tokens=180_000,
                recommended_net_gain_tokens=180_000,
            ),
        ),
        levers=(
            Lever(
                kind="prime",
                what="Send the common system prompt of the largest family once on its own.",
                gain_tokens=3_168,
                gain_ci95=(3_168, 3_168),
                flags=None,
                change="kvtune analyze --write-prime prime.jsonl",
                cost="one prefill of 3,845 tokens",
                title="Warm up the shared prefix of 3,845 tokens",
                evidence="400,000 tokens of this head are computed again",
                limits="not where the head changes often",
            ),
        ),
        validation=Validation(
            rung="bundled-engine",
            device="cpu",
            clock="virtual",
            order="528, 96",
            runs=1,
            candidates=(
                ValidatedCandidate(
                    unit=96,
                    matched_tokens=6_100_000,
                    recomputed_tokens=748_473,
                    copied_tokens=113_280,
                    ttft_s=Percentiles(p50=0.042, p90=0.1, p99=0.3),
                ),
            ),
            agrees=True,
        ),
        recommendation=Recommendation(
            action="set",
            unit=96,
            current_unit=528,
            flags=("--prefix-match-unit", "96"),
            gain_tokens=500_000,
            gain_fraction=500_000 / 6_848_473,
            gain_ci95=(480_000, 520_000),
            net_gain_tokens=372_000,
            confidence="high",
            why="Unit 96 reuses 6,100,000 tokens, 8.9% more than today's unit (528), for 1,000 extra prefill steps.",
            caveats=("the pool was assumed unlimited: state --num-blocks for evictions",),
        ),
        requests=(
            RequestRow(
                id="t0/0", prompt_tokens=3_870, shared_tokens=0, shared_with=None, hit_tokens={528: 0, 96: 0}
            ),
            RequestRow(
                id="t0/1",
                prompt_tokens=3_990,
                shared_tokens=3_860,
                shared_with="t0/0",
                hit_tokens={528: 3_696, 96: 3_840},
            ),
        ),
    )


@dataclass(frozen=True)
class Outcome:
    """What one command line did."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


def footprint(unit: int, on_hit: int, most: tuple[int, int, int]) -> Footprint:
    return Footprint(
        unit=unit,
        minimum_pool_blocks=111,
        minimum_pool_on_hit_blocks=on_hit,
        most_pinned=Spread(median=most[0], p90=most[1], max=most[2]),
        pinned_at_end=Spread(median=40, p90=58, max=101),
        pinned_at_end_by_kind={
            "mamba": Spread(median=6, p90=6, max=6),
            "full": Spread(median=11, p90=18, max=27),
            "sliding_window": Spread(median=23, p90=34, max=68),
        },
    )


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `kvtune ARGUMENTS` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = main(list(arguments))
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return command


@pytest.fixture
def report() -> Report:
    """The synthetic report."""
    return sample_report()


@pytest.fixture
def stored(report: Report, tmp_path: Path) -> Path:
    """The synthetic report as a file."""
    path = tmp_path / "report.json"
    path.write_bytes(encode_report(report))
    return path
