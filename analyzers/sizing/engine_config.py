"""The settings of a sized server, in the form that replay and every later stage take."""

from __future__ import annotations

from dataclasses import replace

from kvtune.analyzers.layout import Drafter, EngineConfig
from kvtune.analyzers.profiles.server_defaults import HASH_ALGO, default_retention
from kvtune.analyzers.sizing.releases import parse_release, release_name
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.serving_findings import prefill_kernel_findings
from kvtune.analyzers.sizing.sources import DEFAULT_STEP_BUDGET, SizedServer, SizeSources, size_server
from kvtune.tokenization.errors import UnusableInputError

DEFAULT_MAX_SEQS = 256


def engine_config_from_sources(sources: SizeSources) -> tuple[EngineConfig, SizedServer]:
    """The settings for an analysis, and the server that they came from.

    Raises:
        UnusableInputError: as `size_server`, or where the kinds of the groups are not known.
    """
    server = size_server(sources)
    if server.hidden_coarse_managers:
        raise UnusableInputError(
            "the server has a group that is looked up by whole blocks only, and nothing names it",
            where=sources.startup_log.line_of("coarse_managers") if sources.startup_log is not None else None,
            found=", ".join(server.hidden_coarse_managers),
            wanted="all groups, the drafter's as well",
            way_out="give --groups, for instance mamba:832*10,full:832*4,swa:832:window=2048",
        )
    if not server.kinds_known:
        raise UnusableInputError(
            "block sizes alone do not tell what is kept",
            field="--groups",
            wanted="the kind of each group, in the engine's order",
            way_out="give --model-config beside the log, or --groups such as mamba:528*3,full:528",
        )
    return engine_config(server), replace(server, warnings=(*server.warnings, *_kernel_caveat(server)))


def _kernel_caveat(server: SizedServer) -> tuple[str, ...]:
    """Where an unknown prefill kernel would change the blocks that everything else rests on."""
    if server.model is None or server.source != "model-config":
        return ()
    return tuple(finding.text for finding in prefill_kernel_findings(server.model))


def engine_config(server: SizedServer) -> EngineConfig:
    """The settings of a server in the form that every later stage takes."""
    flags = server.flags
    return EngineConfig(
        groups=server.layout(),
        version=release_name(flags.version),
        match_unit=flags.prefix_match_unit,
        num_blocks=server.num_blocks,
        max_num_batched_tokens=flags.max_num_batched_tokens or DEFAULT_STEP_BUDGET,
        max_num_seqs=flags.max_num_seqs or DEFAULT_MAX_SEQS,
        long_prefill_token_threshold=flags.long_prefill_token_threshold or 0,
        max_model_len=flags.max_model_len,
        retention_interval=flags.retention_interval if flags.retention_given else _default_retention(server),
        enable_prefix_caching=server.prefix_caching,
        kv_connector=flags.kv_connector is not None,
        decode_context_parallel_size=flags.decode_context_parallel_size,
        drafter=_drafter(flags),
        mamba_shared_prefix_checkpoint=flags.mamba_shared_prefix_checkpoint,
        watermark=flags.watermark or 0.0,
        hash_algo=flags.hash_algo or HASH_ALGO,
    )


def _default_retention(server: SizedServer) -> int | None:
    kinds = {sized.group.kind for sized in server.groups}
    drafter = _drafter(server.flags)
    return default_retention(
        parse_release(server.flags.version),
        hybrid="mamba" in kinds and len(kinds) > 1,
        draft_method=drafter.method if drafter is not None else None,
    )


def _drafter(flags: ServeFlags) -> Drafter | None:
    if not flags.num_speculative_tokens or flags.draft_method is None:
        return None
    return Drafter(
        method=flags.draft_method,
        num_speculative_tokens=flags.num_speculative_tokens,
        disable_lookahead_block_hashes=flags.disable_lookahead_block_hashes,
        disable_eagle_block_drop=flags.disable_eagle_block_drop,
        parallel_drafting=flags.parallel_drafting,
    )
