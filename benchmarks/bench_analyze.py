"""The whole of `analyze` against encoding alone: how much of a plain tokenizer run the answer costs.

    python benchmarks/bench_analyze.py --model DIR [--units 16,48,176] [--rounds 5] TRACE...

For each trace, in turn and interleaved, each in a process of its own:

    peer    the tokenizers library's `encode_batch_fast` of the same rendered prompts, all at once
    kvtune  reading, rendering, encoding, shared prefixes, replay of the units, report

Loading the vocabulary and importing are timed apart in both. Prints medians of wall and CPU seconds, their
ratio, and peak memory (children included).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

GROUPS = "mamba:528*3,full:528"


def seconds() -> tuple[float, float]:
    """Wall, and CPU of this process and its ended children."""
    times = os.times()
    return time.perf_counter(), times.user + times.system + times.children_user + times.children_system


def spent(start: tuple[float, float]) -> dict[str, float]:
    now = seconds()
    peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"wall": now[0] - start[0], "cpu": now[1] - start[1], "peak_mb": peak / 1024}


def render_prompts(trace: str, model: str, target: str) -> None:
    """Write every rendered prompt as one JSON list."""
    from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
    from kvtune.tokenization.reading import read_trace

    encoder = open_prompt_encoder(model=Path(model))
    Path(target).write_text(
        json.dumps([encoder.render(request).text for request in read_trace([trace]).requests])
    )


def run_peer(prompts: str, model: str) -> dict[str, float]:
    """Encode the rendered prompts with the library alone."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    texts = json.loads(Path(prompts).read_text())
    start = seconds()
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    result = spent(start)
    return {**result, "tokens": sum(len(one.ids) for one in encoded)}


def run_kvtune(trace: str, model: str, units: str) -> dict[str, float]:
    """The steps of the command, the vocabulary loaded before the clock starts."""
    from kvtune.analyzers.document import encode_report
    from kvtune.analyzers.layout import EngineConfig, parse_groups
    from kvtune.analyzers.options import AnalyzeOptions, Provenance
    from kvtune.analyzers.pipeline import analyze
    from kvtune.analyzers.report import TokenizerInfo, TraceInfo
    from kvtune.cli.reporters.terminal import render_terminal
    from kvtune.cli.spare_workers import WORKER_IMPORTS
    from kvtune.tokenization.encode import encode_trace
    from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
    from kvtune.tokenization.encoding.render_ahead import RenderAhead
    from kvtune.tokenization.reading import read_trace
    from kvtune.tokenization.workers import standby, take_workers

    with standby(1, WORKER_IMPORTS):  # as the command does for traces of this size on two cores
        start = seconds()
        encoder = open_prompt_encoder(model=Path(model), checked=True)
        encoder.vocabulary.check_ids([""], affixed=False)  # the library that checks is loaded, too
        loading = spent(start)["wall"]
        start = seconds()
        how = partial(open_prompt_encoder, model=Path(model), renders_only=True)
        with RenderAhead(take_workers(), how) as ahead:
            found = read_trace([trace], on_request=ahead.offer)
            tokens, encoded = encode_trace(found.requests, encoder, ahead=ahead)
        report = analyze(
            tokens,
            EngineConfig(parse_groups(GROUPS)),
            AnalyzeOptions(units=None if units == "auto" else tuple(map(int, units.split(","))), workers=2),
            Provenance(
                kvtune_version="bench",
                command="bench",
                created="",
                trace=TraceInfo(
                    files=(trace,),
                    sha256=found.stats.sha256,
                    format=found.stats.format,
                    requests=len(tokens),
                    prompt_tokens=int(tokens.prompt_tokens.sum()),
                ),
                tokenizer=TokenizerInfo(kind="hf", source=encoded.source),
                size_source="flags",
            ),
        )
        render_terminal(report, width=80, colour=False)
        encode_report(report)
        return {**spent(start), "loading": loading, "tokens": report.trace.prompt_tokens}


def in_process(*arguments: str) -> dict[str, float]:
    """This script again with `arguments`; its last line is JSON."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=True, env=os.environ
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(trace: str, model: str, units: str, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prompts = str(Path(folder) / "prompts.json")
        render_prompts(trace, model, prompts)
        peer, ours = [], []
        for _ in range(rounds):
            peer.append(in_process("--as", "peer", "--model", model, prompts))
            ours.append(in_process("--as", "kvtune", "--model", model, "--units", units, trace))
    assert peer[0]["tokens"] == ours[0]["tokens"], "both sides must encode the same tokens"

    def median(runs: list[dict[str, float]], name: str) -> float:
        return statistics.median(run[name] for run in runs)

    print(f"{trace}: {ours[0]['tokens']:,} tokens, units {units}, median of {rounds}, interleaved")
    for name in ("wall", "cpu"):
        a, b = median(ours, name), median(peer, name)
        print(f"  {name:<4}  kvtune {a:6.2f} s   encode_batch_fast {b:6.2f} s   ratio {a / b:.2f}")
    peak = max(run["peak_mb"] for run in ours)
    print(f"  peak  kvtune {peak:.0f} MB   vocabulary loaded in {median(ours, 'loading'):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--units", default="16,48,176")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--as", dest="role", choices=["peer", "kvtune"])
    options = parser.parse_args()
    if options.role == "peer":
        print(json.dumps(run_peer(options.traces[0], options.model)))
    elif options.role == "kvtune":
        print(json.dumps(run_kvtune(options.traces[0], options.model, options.units)))
    else:
        for trace in options.traces:
            compare(trace, options.model, options.units, options.rounds)


if __name__ == "__main__":
    main()
