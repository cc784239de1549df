"""`kvtune analyze` without a trace: what the server's metrics page can answer, and the shortest way to a trace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvtune.cli.analysis_options import AnalysisOptions
from kvtune.cli.options import OutputOptions
from kvtune.cli.output import STDOUT, terminal_width, write_file, write_stdout

if TYPE_CHECKING:
    from kvtune.analyzers.resolution import Resolution

_SERVER = "http://127.0.0.1:8000"


def answer_without_trace(words: list[str], asked: AnalysisOptions, output: OutputOptions) -> None:
    """Print what `--metrics` answers; `--json` gets the document of `kvtune resolve`. `words`: a serve command, if any.

    Raises: as `resolve`.
    """
    from kvtune.cli.documents import encode_document
    from kvtune.cli.resolve import LayerOptions, resolve_sizes

    found = resolve_sizes(words, asked.model.model, asked.sizes, LayerOptions(), asked.engine, "auto")
    if output.json is not None:
        write_file(output.json, encode_document(found), force=output.force)
    if output.json != STDOUT:
        write_stdout(render(found, asked.sizes.metrics or "", width=terminal_width(sys.stdout)))


def render(found: Resolution, metrics: str, *, width: int) -> str:
    """The answer as text."""
    from kvtune.cli.reporters.layout import Page
    from kvtune.cli.reporters.numbers import clean
    from kvtune.cli.reporters.traffic import traffic_sentences

    page = Page(max(width, 60), colour=False)
    lines = [*page.paragraph("No trace: no recommendation.", first="", rest=""), ""]
    if found.traffic is not None:
        for sentence in traffic_sentences(found.traffic):
            lines += page.paragraph(sentence)
    else:
        lines += page.paragraph("The metrics page counts no lookups yet: send requests first.")
    lines += page.paragraph(
        f"Hits are multiples of {found.cache_hit_alignment:,} tokens. A repeated prompt hits from "
        f"{found.minimum_reusable_prefix:,} tokens."
    )
    for warning in found.warnings:
        lines += page.paragraph(clean(warning), first="  ! ", rest="    ")
    lines += page.heading("The shortest way to a trace")
    lines += page.paragraph(
        "Let clients connect to kvtune for an hour; it passes requests on and keeps them:"
    )
    lines += ["", f"    kvtune capture --to {server_of(metrics)} -o trace.jsonl"]
    lines += ["    kvtune analyze trace.jsonl --model MODEL --metrics METRICS", ""]
    lines += page.paragraph("Gateways and observability tools keep traces, too: docs/getting-a-trace.md.")
    return "\n".join(lines) + "\n"


def server_of(metrics: str) -> str:
    """The server's URL: that of the metrics page, or vLLM's own where the page is a file."""
    if not metrics.startswith(("http://", "https://")):
        return _SERVER
    return metrics.rstrip("/").removesuffix("/metrics")
