"""Findings about how the model is served: the step budget, what raises the block, drafters, the pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvtune.analyzers.drafting import NEEDS_NEXT_TOKEN, lookahead_or_drop
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.profiles import nearest_profile
from kvtune.analyzers.resolver import ResolvedSizes
from kvtune.analyzers.sizing.blocks import kv_cache_dtype
from kvtune.analyzers.sizing.deployment_findings import deployment_findings
from kvtune.analyzers.sizing.finding import Finding
from kvtune.analyzers.sizing.model_sizes import ModelSizes, size_layers
from kvtune.analyzers.sizing.pool import blocks_per_request
from kvtune.analyzers.sizing.releases import parse_release
from kvtune.analyzers.sizing.sources import SizedServer
from kvtune.analyzers.sizing.unit_findings import state_block
from kvtune.analyzers.sizing.what_if import LATENT_BACKENDS
from kvtune.tokenization.errors import UnusableInputError

FEW_REQUESTS = 2.0
LARGE_SHARE = 0.05
"""A pool below these is worth a word."""


def find_about_serving(
    server: SizedServer, config: EngineConfig, sizes: ResolvedSizes | None
) -> Iterator[Finding]:
    """In order of consequence."""
    yield from _budget(server, config)
    yield from _raised_block(server.model)
    yield from _drafting(server, config)
    yield from deployment_findings(server.flags, config, sizes)
    yield from prefill_kernel_findings(server.model)
    yield from _latent_backend(server.model)
    yield from _hybrid_manager(server)
    yield from _pool(server, config)
    yield from _observed(server, sizes)


def _budget(server: SizedServer, config: EngineConfig) -> Iterator[Finding]:
    block, budget = state_block(config), config.max_num_batched_tokens
    stated = server.flags.max_num_batched_tokens is not None
    if (
        block is None
        or not config.enable_prefix_caching
        or budget % block == 0
        or not (stated or budget < block)
    ):
        return
    if budget < block:
        yield Finding(
            "step_budget_below_block",
            f"the step budget of {budget:,} is below the block of {block:,}: before 0.28 the engine does not start, "
            "and since then every block takes several steps",
            f"--max-num-batched-tokens {block} or more",
        )
        return
    step = budget // block * block
    alone = "; two long prompts never prefill together" if step < 2 * block else ""
    yield Finding(
        "step_budget_not_multiple",
        f"prefill steps end on blocks, so {step:,} of the budget's {budget:,} tokens are used{alone}",
        f"--max-num-batched-tokens {step + block}",
    )


def _raised_block(model: ModelSizes | None) -> Iterator[Finding]:
    """Which flags made the block larger than it need be."""
    if model is None or not model.model.state_layers:
        return
    flags, block = model.flags, model.block.attention_block_size
    if flags.num_speculative_tokens and (plain := _block(model, num_speculative_tokens=0)) and plain < block:
        yield Finding(
            "drafts_raise_block",
            f"{flags.num_speculative_tokens} draft tokens lengthen the state: the block is {block:,}, not {plain:,}",
            "fewer num_speculative_tokens",
        )
    quantised = kv_cache_dtype(model.model, flags)
    if quantised != "auto" and (plain := _block(model, kv_cache_dtype=model.model.dtype)) and plain < block:
        yield Finding(
            "kv_dtype_raises_block",
            f"a KV cache of {quantised} holds more tokens a page: the block is {block:,}, not {plain:,}",
            f"--kv-cache-dtype {model.model.dtype}, or a smaller --mamba-ssm-cache-dtype",
        )
    if flags.block_size is not None and flags.block_size < block:
        yield Finding(
            "block_size_overridden",
            f"--block-size {flags.block_size:,} is only a step to round to: the block is {block:,}",
            None,
        )
    if flags.mamba_block_size is not None and model.block.mode == "align":
        yield Finding("mamba_block_size_ignored", "--mamba-block-size has no effect in mode align", None)


def _block(model: ModelSizes, **changes: object) -> int | None:
    try:
        return size_layers(model.model, replace(model.flags, **changes)).block.attention_block_size  # type: ignore[arg-type]
    except UnusableInputError:
        return None


def _drafting(server: SizedServer, config: EngineConfig) -> Iterator[Finding]:
    drafter, release = config.drafter, parse_release(server.flags.version)
    if drafter is None:
        return
    drops = lookahead_or_drop(config, nearest_profile(release))[1]
    if drops and release == (0, 29) and state_block(config) is not None and config.retention_interval == 0:
        yield Finding(
            "drafter_hits_nothing",
            "in 0.29 with retention interval 0 a hybrid model with this drafter does not hit even when a prompt is "
            "sent again",
            "no --prefix-cache-retention-interval, which keeps every state there, or 0.30 or newer",
        )
    elif drops and release < (0, 33):
        yield Finding(
            "drafter_drops_a_unit",
            "every hit gives up one unit (one block without a finer unit), since the draft layer needs its last token",
            "0.33 or newer, which hashes the next token instead"
            if drafter.method in NEEDS_NEXT_TOKEN
            else "0.33 or newer, where this drafter gives up nothing",
        )
    log = server.startup_log
    if log is not None and log.flag("no_draft_group"):
        yield Finding(
            "no_draft_group",
            "the engine found no group of draft layers, so every group gives up a unit",
            "a release that names the drafter's layers (0.31 or newer)",
        )


def prefill_kernel_findings(model: ModelSizes | None) -> Iterator[Finding]:
    """Which prefill kernel runs is decided by the GPU, and one of them rounds the block."""
    if model is None or model.model.state_export is None or not model.rules.export_rounds_block:
        return
    export, flags = model.model.state_export, model.flags
    if not export.rounds_block or flags.gdn_prefill_backend is not None or flags.state_export is not None:
        return
    rounded = _block(model, gdn_prefill_backend=export.backend)
    if rounded and rounded != model.block.attention_block_size:
        yield Finding(
            "prefill_kernel_unknown",
            f"where the {export.backend} prefill kernel runs (Hopper; Blackwell with CUDA 13) blocks are multiples of "
            f"{export.alignment}: {rounded:,} instead of {model.block.attention_block_size:,}",
            f"--gdn-prefill-backend {export.backend} or triton, as the log's `Using … GDN prefill kernel` says",
        )


def _latent_backend(model: ModelSizes | None) -> Iterator[Finding]:
    """Backends of latent attention take different kernel blocks, and the GPU decides which one runs."""
    if model is None or not model.model.is_latent or model.flags.attention_backend is not None:
        return
    blocks = {name: _block(model, attention_backend=name) for name in LATENT_BACKENDS}
    if len(set(blocks.values())) > 1:
        listed = ", ".join(f"{block:,} with {name}" for name, block in blocks.items() if block is not None)
        yield Finding(
            "attention_backend_unknown",
            f"the block depends on the attention backend: {listed}",
            "--attention-backend, as the server's log names it",
        )


def _hybrid_manager(server: SizedServer) -> Iterator[Finding]:
    if server.flags.disable_hybrid_kv_cache_manager:
        yield Finding(
            "hybrid_manager_disabled",
            "sliding-window layers are kept as full attention: one group, and more memory",
            "without --disable-hybrid-kv-cache-manager",
        )


def _pool(server: SizedServer, config: EngineConfig) -> Iterator[Finding]:
    """How little of the pool is left for reuse while requests run."""
    log = server.startup_log
    concurrency = log.value("max_concurrency") if log is not None else None
    if isinstance(concurrency, float) and concurrency < FEW_REQUESTS:
        yield Finding(
            "pool_holds_few_requests",
            f"the pool holds the longest sequence {concurrency:.2f} times: little survives from one long request to "
            "the next",
            "a smaller --max-model-len, or more memory",
        )
    if config.num_blocks is None:
        return
    drafts = config.drafter.num_speculative_tokens if config.drafter is not None else 0
    pinned = blocks_per_request(config.groups, 1, num_speculative_tokens=drafts) / config.num_blocks
    if pinned > LARGE_SHARE:
        yield Finding(
            "short_requests_pin_much",
            f"every running request holds {pinned:.1%} of the pool, however short it is: its states take whole blocks",
            "a smaller block (KV cache or state dtype), or more memory",
        )


def _observed(server: SizedServer, sizes: ResolvedSizes | None) -> Iterator[Finding]:
    """A server that was asked a lot and never hit."""
    metrics = server.metrics
    if metrics is None or sizes is None or metrics.prefix_cache_hits != 0:
        return
    if metrics.prefix_cache_queries:
        yield Finding(
            "no_hits_so_far",
            f"0 of {metrics.prefix_cache_queries:,} queried tokens hit: prompts below "
            f"{sizes.minimum_reusable_prefix:,} tokens never do",
            "--prefix-match-unit, if prompts are sent again or extended",
        )
