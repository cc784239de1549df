"""What a person who serves this model should know, by name, with the flag that changes it.

Each finding is a rule of the engine that public reports show people running into. Knows sizes and settings; what
real prompts lose by it is a matter of replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.resolver import ResolvedSizes
from kvtune.analyzers.sizing.blocks import kv_cache_dtype
from kvtune.analyzers.sizing.model_sizes import ModelSizes, size_layers
from kvtune.analyzers.sizing.releases import parse_release, sizing_rules
from kvtune.analyzers.sizing.sources import SizedServer
from kvtune.analyzers.units import UnitCandidate, divisors
from kvtune.tokenization.errors import UnusableInputError

DOCUMENTED_UNIT = 64
"""The unit that the engine's documentation suggests."""

LMCACHE_CHUNK = 256
"""LMCache's chunk where nothing else is set."""

EAGLE_LIKE = frozenset({"mtp", "multi_module_mtp", "eagle", "eagle3"})


@dataclass(frozen=True)
class Finding:
    """One finding: its name (stable, for scripts), what is so, and what changes it."""

    name: str
    text: str
    change: str | None


def find_all(
    server: SizedServer,
    config: EngineConfig,
    sizes: ResolvedSizes | None,
    candidates: tuple[UnitCandidate, ...],
) -> tuple[Finding, ...]:
    """Every finding, most consequential first. `sizes` None: the engine refuses the configuration."""
    found = [
        *_caching(server),
        *_length(config, sizes),
        *_unit(config, candidates),
        *_documented_unit(server, config, candidates),
        *_uneven(config),
        *_budget(server, config),
        *_raised_block(server.model),
        *_drafting(server, config),
        *_connector(server, config, sizes),
        *prefill_kernel_findings(server.model),
        *_hybrid_manager(server),
    ]
    return tuple(found)


def _state_block(config: EngineConfig) -> int | None:
    """The aligned block of a hybrid model."""
    return max(
        (group.block_size for group in config.groups if group.kind == "mamba" and group.mode == "align"),
        default=None,
    )


def _caching(server: SizedServer) -> Iterator[Finding]:
    if server.prefix_caching or not any(sized.group.kind == "mamba" for sized in server.groups):
        return
    release = parse_release(server.flags.version)
    by_default = server.flags.enable_prefix_caching is None and release < (0, 26)
    why = "this release leaves it off for hybrid models by default" if by_default else "it is switched off"
    yield Finding("prefix_caching_off", f"prefix caching is off: {why}", "--enable-prefix-caching")


def _length(config: EngineConfig, sizes: ResolvedSizes | None) -> Iterator[Finding]:
    block = _state_block(config)
    grid = sizes.cache_hit_alignment if sizes is not None else block
    if block is None or grid is None or config.max_model_len is None or config.max_model_len > grid:
        return
    yield Finding(
        "max_model_len_below_block",
        f"no hit is possible: sequences of at most {config.max_model_len:,} tokens never fill {grid:,}",
        f"--max-model-len above {grid}, or a --prefix-match-unit below it",
    )


def _unit(config: EngineConfig, candidates: tuple[UnitCandidate, ...]) -> Iterator[Finding]:
    asked = next((row for row in candidates if row.unit == config.match_unit), None)
    if asked is None or asked.reason is None:
        return
    names = {
        "no_fine_lookup": "unit_disabled_by_coarse_group",
        "single_group": "unit_ignored",
        "caching_off": "unit_ignored",
        "mamba_mode": "unit_ignored",
        "no_mamba_group": "unit_without_effect",
    }
    name = names.get(asked.rule or "", "unit_without_effect") if asked.valid else "unit_refused"
    legal = _nearest(candidates, asked.unit)
    change = f"--prefix-match-unit {' or '.join(map(str, legal))}" if not asked.valid and legal else None
    if asked.rule == "no_fine_lookup":
        block = next((group.block_size for group in config.groups if group.kind == "sliding_window"), None)
        change = f"--prefix-match-unit {block} (the window's own block), or none" if block else None
    yield Finding(name, f"match unit {asked.unit:,}: {asked.reason}", change)


def _documented_unit(
    server: SizedServer, config: EngineConfig, candidates: tuple[UnitCandidate, ...]
) -> Iterator[Finding]:
    """64 is legal only where it divides the block, which is rarely a power of two."""
    block = _state_block(config)
    if block is None or block % DOCUMENTED_UNIT == 0 or config.match_unit is not None:
        return
    if not sizing_rules(parse_release(server.flags.version)).match_unit:
        return
    legal = _nearest(candidates, DOCUMENTED_UNIT)
    if legal:
        near = " and ".join(map(str, legal))
        yield Finding(
            "documented_unit_illegal",
            f"{DOCUMENTED_UNIT}, the documentation's suggestion, does not divide {block:,}: the nearest legal units "
            f"are {near}",
            f"--prefix-match-unit {legal[-1]}",
        )


def _nearest(candidates: tuple[UnitCandidate, ...], unit: int) -> list[int]:
    """The closest working units below and above."""
    default = max((row.unit for row in candidates if row.valid), default=1)
    works = sorted(n for n in divisors(default))
    below = [n for n in works if n < unit][-1:]
    above = [n for n in works if n > unit][:1]
    return below + above


def _uneven(config: EngineConfig) -> Iterator[Finding]:
    """Chunks end on the smallest block of any cacheable group: a larger Mamba block may never be met."""
    block = _state_block(config)
    smallest = min((group.block_size for group in config.groups if group.cacheable), default=None)
    if block is None or smallest is None or smallest >= block or not config.enable_prefix_caching:
        return
    yield Finding(
        "chunks_miss_the_state_block",
        f"chunks end on multiples of {smallest:,}, states are kept on multiples of {block:,}: "
        "a prompt may leave no state that another can resume",
        f"--max-num-batched-tokens as a multiple of {block}",
    )


def _budget(server: SizedServer, config: EngineConfig) -> Iterator[Finding]:
    block, budget = _state_block(config), config.max_num_batched_tokens
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
    if drafter is None or drafter.method not in EAGLE_LIKE:
        return
    if release[:2] == (0, 29) and _state_block(config) is not None:
        yield Finding(
            "drafter_hits_nothing",
            "in 0.29 a hybrid model with this drafter does not hit even when a prompt is sent again",
            "0.30 or newer",
        )
    elif release < (0, 33):
        yield Finding(
            "drafter_drops_a_unit",
            "every hit gives up one unit (one block without a finer unit), since the draft layer needs its last token",
            "0.33 or newer, which hashes the next token instead",
        )
    log = server.startup_log
    if log is not None and log.flag("no_draft_group"):
        yield Finding(
            "no_draft_group",
            "the engine found no group of draft layers, so every group gives up a unit",
            "a release that names the drafter's layers (0.31 or newer)",
        )


def _connector(server: SizedServer, config: EngineConfig, sizes: ResolvedSizes | None) -> Iterator[Finding]:
    name = server.flags.kv_connector
    if not config.kv_connector or sizes is None:
        return
    block = sizes.scheduler_block_size
    if name is not None and "lmcache" in name.lower() and LMCACHE_CHUNK % block:
        yield Finding(
            "connector_chunk_not_multiple",
            f"LMCache stores chunks of {LMCACHE_CHUNK} tokens unless told otherwise, no multiple of {block:,}",
            f"LMCACHE_CHUNK_SIZE {block}",
        )
    if config.match_unit is not None and config.match_unit < block:
        odd = sorted({group.block_size for group in config.groups if group.block_size % config.match_unit})
        also = (
            f"; groups of {', '.join(map(str, odd))} do not divide by it, which old offload code asserts"
            if odd
            else ""
        )
        yield Finding(
            "connector_with_finer_unit",
            f"a KV connector beside a unit finer than the block: connectors store whole blocks{also}",
            "test resends for equal answers before you rely on it",
        )
    if config.drafter is not None and config.drafter.method in EAGLE_LIKE:
        yield Finding(
            "connector_brings_back_drop", "with a KV connector every hit gives up a unit again", None
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


def _hybrid_manager(server: SizedServer) -> Iterator[Finding]:
    if server.flags.disable_hybrid_kv_cache_manager:
        yield Finding(
            "hybrid_manager_disabled",
            "sliding-window layers are kept as full attention: one group, and more memory",
            "without --disable-hybrid-kv-cache-manager",
        )
