"""Findings about what stands around the engine: KV connectors, data parallel ranks, pipeline stages.

One place for `resolve` and `analyze`. `analyze` judges them for the match unit that it recommends.

Sources: LMCache/LMCache#4247, #4782, #5217 and #3649; kvcache-ai/Mooncake#4153; vllm-project/vllm#54302,
#53912, #43559 and #47194.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvtune.analyzers.drafting import NEEDS_NEXT_TOKEN
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.resolver import ResolvedSizes
from kvtune.analyzers.sizing.finding import Finding
from kvtune.analyzers.sizing.releases import parse_release
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.unit_findings import state_block

LMCACHE_CHUNK = 256
"""LMCache's chunk where nothing else is set, in tokens; a multiple of the block, or its connector does not start."""

_HARMLESS = frozenset(
    {
        "--api-key",
        "--chat-template",
        "--chat-template-content-format",
        "--disable-log-requests",
        "--disable-log-stats",
        "--disable-uvicorn-access-log",
        "--download-dir",
        "--enable-auto-tool-choice",
        "--enable-force-include-usage",
        "--enable-log-requests",
        "--enable-prompt-tokens-details",
        "--enable-request-id-headers",
        "--enable-server-load-tracking",
        "--generation-config",
        "--gpu-memory-utilization",
        "--hf-token",
        "--host",
        "--load-format",
        "--log-config-file",
        "--max-log-len",
        "--port",
        "--reasoning-parser",
        "--root-path",
        "--served-model-name",
        "--ssl-certfile",
        "--ssl-keyfile",
        "--tokenizer",
        "--tool-call-parser",
        "--trust-remote-code",
        "--uvicorn-log-level",
    }
)
"""Flags that do not change which prefixes hit, or that other options cover."""


def deployment_findings(
    flags: ServeFlags, config: EngineConfig, sizes: ResolvedSizes | None
) -> Iterator[Finding]:
    """In order of consequence. `config` holds the match unit that is judged."""
    yield from _known_bad(config)
    if config.kv_connector and sizes is not None:
        yield from _connector(flags, config, sizes.scheduler_block_size)
    yield from _parallel(flags)


def unmodelled_flags(ignored: Sequence[str]) -> tuple[str, ...]:
    """Of the flags of a serve command that nothing here reads, those that may matter."""
    return tuple(dict.fromkeys(flag for flag in ignored if flag not in _HARMLESS))


def finer_unit_beside_connector(config: EngineConfig, unit: int, block: int) -> str | None:
    """A sentence where a match unit lies below the block beside a KV connector; None where none does."""
    if not config.kv_connector or unit >= block:
        return None
    return (
        f"A KV connector stores whole blocks of {block:,} tokens, and a match unit of {unit:,} lies below them: wrong "
        "outputs are reported (LMCache#4247, Mooncake#4153). Compare outputs of repeated prompts first."
    )


def _known_bad(config: EngineConfig) -> Iterator[Finding]:
    """Settings with which a release is reported to answer wrongly."""
    drafter = config.drafter
    if (
        parse_release(config.version) == (0, 28)
        and drafter is not None
        and drafter.method == "mtp"
        and config.enable_prefix_caching
        and state_block(config) is not None
    ):
        yield Finding(
            "wrong_outputs_reported",
            "0.28 with a hybrid model, MTP and prefix caching: wrong outputs are reported (vllm#53912, vllm#43559, "
            "vllm#47194). Compare outputs of repeated prompts before any change.",
            "0.29 or newer, or no drafter",
        )


def _connector(flags: ServeFlags, config: EngineConfig, block: int) -> Iterator[Finding]:
    name = (flags.kv_connector or "").lower()
    if config.match_unit is not None:
        text = finer_unit_beside_connector(config, config.match_unit, block)
        odd = sorted({group.block_size for group in config.groups if group.block_size % config.match_unit})
        if text is not None:
            if odd:
                sizes = ", ".join(f"{size:,}" for size in odd)
                text += f" Groups of {sizes} tokens do not divide by it, which old offload code asserts."
            yield Finding("connector_with_finer_unit", text, "no --prefix-match-unit")
    if "lmcache" in name:
        yield from _lmcache(flags, config, block, served_apart="mp" in name)
    if config.drafter is not None and config.drafter.method in NEEDS_NEXT_TOKEN:
        yield Finding(
            "connector_brings_back_drop", "With a KV connector every hit gives up a match unit again.", None
        )


def _lmcache(flags: ServeFlags, config: EngineConfig, block: int, *, served_apart: bool) -> Iterator[Finding]:
    """LMCache's own rules; `served_apart`: its server is a process of its own (the MP connector)."""
    if LMCACHE_CHUNK % block:
        where = f"lmcache server --chunk-size {block}" if served_apart else f"LMCACHE_CHUNK_SIZE={block}"
        yield Finding(
            "connector_chunk_not_multiple",
            f"LMCache's chunk must be a multiple of the block, {block:,} tokens. It is {LMCACHE_CHUNK} unless set.",
            where,
        )
    state = state_block(config)
    if (
        state is not None
        and not flags.mamba_align_single_block_prefill
        and config.max_num_batched_tokens >= 2 * state
    ):
        yield Finding(
            "connector_needs_single_blocks",
            f"LMCache keeps states of one block a step only: the step budget of {config.max_num_batched_tokens:,} "
            f"prefills several blocks of {state:,} at once.",
            f"--mamba-align-single-block-prefill, or --max-num-batched-tokens below {2 * state}",
        )


def _parallel(flags: ServeFlags) -> Iterator[Finding]:
    ranks, stages = flags.data_parallel_size, flags.pipeline_parallel_size
    if ranks > 1:
        yield Finding(
            "data_parallel_caches",
            f"Each of the {ranks} data parallel ranks has a KV cache of its own; a prefix hits only on the rank that "
            "saw it.",
            f"--replicas {ranks}, or a log that names the rank with --by-field",
        )
    if stages > 1:
        yield Finding(
            "pipeline_stages",
            f"{stages} pipeline stages share one block table: the stage with the fewest blocks sets the pool, and up "
            f"to {stages} batches are in flight, so overlapping requests hit less than one after another.",
            "--num-blocks from the start-up log",
        )
