"""Everything the user has → the server's groups and settings, where each came from, and what disagreed.

    stated groups > start-up log > /metrics > model config      for blocks
    kinds come from the stated groups or the model config; a log and a metrics page give sizes only

Knows no files: the caller has read them. What is said twice and differently is kept as a warning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvtune.analyzers.hardware import Hardware, SettledByHardware, settle
from kvtune.analyzers.hardware.pool_estimate import estimate_pool
from kvtune.analyzers.layout import KVCacheGroup
from kvtune.analyzers.report import SizeSource
from kvtune.analyzers.sizing.builds import dated
from kvtune.analyzers.sizing.families import model_layers
from kvtune.analyzers.sizing.group_sources import FoundGroups, group_for_block, groups_for_blocks
from kvtune.analyzers.sizing.metrics import ServerMetrics
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.model_sizes import SEPARATE_DRAFT_METHODS, ModelSizes, SizedGroup, size_model
from kvtune.analyzers.sizing.pool import blocks_per_request, num_blocks_from_capacity
from kvtune.analyzers.sizing.releases import parse_release, sizing_rules
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.settings import DEFAULTS, merge_settings
from kvtune.analyzers.sizing.startup_log import StartupLog
from kvtune.analyzers.step_times.model_work import ModelWork
from kvtune.tokenization.errors import UnusableInputError

DEFAULT_STEP_BUDGET = 8192
COARSE_KINDS = frozenset({"sliding_window", "chunked_local"})
"""Groups that are looked up by whole blocks in every release."""

BLOCK_LABEL_SYNCED = (0, 24)
"""Before, the metrics label `block_size` was the size before the workers aligned it."""


@dataclass(frozen=True)
class SizeSources:
    """What the user has, read and not yet combined. `flags` are typed ones and those of a serve command; `hardware`
    settles what nobody says."""

    flags: ServeFlags = DEFAULTS
    groups: tuple[KVCacheGroup, ...] | None = None
    model_config: ModelConfig | None = None
    startup_log: StartupLog | None = None
    metrics: ServerMetrics | None = None
    hardware: Hardware | None = None


@dataclass(frozen=True)
class SizedServer:
    """A server's groups and settings.

    Attributes:
        groups: one by one, in the engine's order, with their layers where the config tells (None: not known).
        flags: the settings in force after all sources were combined.
        source: what decided the blocks. model: the sizes that follow from the model config, if there is one.
        padding_pct: of the state page, as logged or computed.
        kinds_known: False where only sizes are known.
        num_blocks: of the pool; None where nothing says so.
        warnings: disagreements and assumptions, most important first.
        provenance: where values stand that a file decided, by name.
        hardware: the GPUs, where they are named. settled: what follows from them. config: the model's.
    """

    groups: tuple[SizedGroup, ...]
    flags: ServeFlags
    source: SizeSource
    model: ModelSizes | None
    padding_pct: float | None
    kinds_known: bool
    num_blocks: int | None
    warnings: tuple[str, ...]
    provenance: dict[str, str]
    startup_log: StartupLog | None = None
    metrics: ServerMetrics | None = None
    hardware: Hardware | None = None
    settled: SettledByHardware | None = None
    config: ModelConfig | None = None

    @property
    def prefix_caching(self) -> bool:
        if self.flags.enable_prefix_caching is not None:
            return self.flags.enable_prefix_caching
        if self.source == "startup-log" and any(sized.group.mode == "none" for sized in self.groups):
            return False
        return self.model.block.prefix_caching if self.model is not None else True

    @property
    def hidden_coarse_managers(self) -> tuple[str, ...]:
        """Managers that take whole blocks only, by the log, where no known group has such a manager."""
        found = self.startup_log.value("coarse_managers") if self.startup_log is not None else None
        if not isinstance(found, tuple) or any(sized.group.kind in COARSE_KINDS for sized in self.groups):
            return ()
        return tuple(str(name) for name in found)

    def layout(self) -> tuple[KVCacheGroup, ...]:
        """The groups with like neighbours counted together."""
        runs: list[KVCacheGroup] = []
        for sized in self.groups:
            if runs and replace(runs[-1], count=1) == sized.group:
                runs[-1] = replace(runs[-1], count=runs[-1].count + 1)
            else:
                runs.append(sized.group)
        return tuple(runs)


def size_server(sources: SizeSources) -> SizedServer:
    """Combine the sources.

    Raises:
        UnusableInputError: no source gives a block, or the only one that does cannot be used.
    """
    merged = merge_settings(sources.flags, sources.metrics, sources.startup_log)
    flags, warnings = merged.flags, list(merged.warnings)
    version, dating = dated(flags.version, sources.startup_log, sources.model_config)
    flags = replace(flags, version=version)
    warnings += (dating,) if dating else ()
    settled = None
    if sources.hardware is not None:
        layers = model_layers(sources.model_config) if sources.model_config is not None else None
        settled = settle(sources.hardware.gpu, flags, layers)
        flags = settled.fill(flags)
        warnings += (settled.assumed,) if settled.assumed else ()
    for read in (sources.startup_log, sources.metrics):
        warnings += read.warnings if read is not None else ()
    warnings += _release_warnings(flags.version)
    model = _model_sizes(sources, flags, warnings)
    found = _find_groups(sources, flags, model)
    warnings += (*found.warnings, *_metric_warnings(sources.metrics, flags))
    sized = SizedServer(
        groups=found.groups,
        flags=flags,
        source=found.source,
        model=model,
        padding_pct=_padding(sources, model),
        kinds_known=found.kinds_known,
        num_blocks=None,
        warnings=tuple(dict.fromkeys(warnings)),
        provenance=merged.places | _log_places(sources.startup_log),
        startup_log=sources.startup_log,
        metrics=sources.metrics,
    )
    sized = replace(
        sized,
        num_blocks=_num_blocks(sized),
        warnings=(*sized.warnings, *_caching_assumed(sized), *_capacity_unused(sized)),
        hardware=sources.hardware,
        settled=settled,
        config=sources.model_config,
    )
    return _with_estimated_pool(sized)


def _capacity_unused(server: SizedServer) -> tuple[str, ...]:
    """A capacity line that no number of blocks of these groups gives."""
    log = server.startup_log
    if log is None or not server.kinds_known or _num_blocks(server) is not None:
        return ()
    tokens, concurrency = log.number("kv_cache_tokens"), log.value("max_concurrency")
    if tokens is None or log.number("max_model_len") is None or not isinstance(concurrency, float):
        return ()
    return (
        f"{log.line_of('kv_cache_tokens')}: a capacity of {tokens:,} tokens and {concurrency:.2f} requests fits no "
        "pool of these groups, so the pool's size is not used. Check --groups, or pass --num-blocks.",
    )


def _caching_assumed(server: SizedServer) -> tuple[str, ...]:
    """Where a hybrid model's release caches only when told to, and nothing says whether it was."""
    if server.flags.enable_prefix_caching is not None or server.model is not None:
        return ()
    if sizing_rules(parse_release(server.flags.version)).hybrid_caching:
        return ()
    if {"mamba", "full"} - {sized.group.kind for sized in server.groups}:
        return ()
    return (
        f"Prefix caching taken as on: vLLM {server.flags.version} leaves it off for hybrid models unless "
        "--enable-prefix-caching is given.",
    )


def _with_estimated_pool(server: SizedServer) -> SizedServer:
    """The pool that the GPU's memory leaves, where nothing says how large it is and the config gives the blocks."""
    if server.hardware is None or server.settled is None or server.config is None or server.model is None:
        return server
    if server.source != "model-config":
        return server
    try:
        work = ModelWork.of(server.config)
    except UnusableInputError:
        return server
    pool = estimate_pool(server.hardware.gpu, work, server.model, server.flags.tensor_parallel_size)
    if pool is None:
        return server
    settled = replace(server.settled, num_blocks=pool)
    if server.num_blocks is not None or server.flags.unlimited_pool:
        return replace(server, settled=settled)
    warning = (
        f"Pool size estimated from the GPU's memory: {pool.estimate:,} blocks ({pool.low:,} to {pool.high:,}). The "
        "start-up log says how many there are: --startup-log or --num-blocks."
    )
    return replace(server, settled=settled, num_blocks=pool.estimate, warnings=(*server.warnings, warning))


def _model_sizes(sources: SizeSources, flags: ServeFlags, warnings: list[str]) -> ModelSizes | None:
    """Sizes from the config; where something better is at hand, a config that cannot be used is only a warning."""
    if sources.model_config is None:
        return None
    try:
        model = size_model(sources.model_config, flags)
    except UnusableInputError as error:
        if sources.groups is None and sources.startup_log is None and sources.metrics is None:
            raise
        warnings.append(f"the model config is left aside: {error}")
        return None
    if flags.num_speculative_tokens and flags.draft_method in SEPARATE_DRAFT_METHODS:
        warnings.append(
            f"the layers of the {flags.speculative_method} drafter are not in this config: its groups are missing here"
        )
    if flags.num_speculative_tokens and flags.speculative_method is None:
        warnings.append(
            "the draft method is not named: draft tokens lengthen the state, draft layers are left out"
        )
    return model


def _find_groups(sources: SizeSources, flags: ServeFlags, model: ModelSizes | None) -> FoundGroups:
    """The groups from the best source; the others are compared with it."""
    logged = _logged_groups(sources, flags, model)
    if sources.groups is not None:
        stated = tuple(
            SizedGroup(replace(group, count=1), None) for group in sources.groups for _ in range(group.count)
        )
        known = all(sized.group.kind != "unspecified" for sized in stated)
        found = FoundGroups(stated, "flags", known)
    elif logged is not None:
        found = logged
    elif model is not None:
        return FoundGroups(model.groups, "model-config", True)
    else:
        raise UnusableInputError(
            "nothing gives a block size",
            wanted="a model config, a start-up log, a metrics page or --groups",
            way_out="for instance --groups mamba:528*3,full:528",
        )
    others = [] if logged is None or found is logged else [logged]
    if model is not None:
        others.append(FoundGroups(model.groups, "model-config", True))
    disagreements = tuple(text for other in others if (text := _disagreement(found, other)))
    return replace(found, warnings=(*disagreements, *found.warnings))


def _logged_groups(sources: SizeSources, flags: ServeFlags, model: ModelSizes | None) -> FoundGroups | None:
    """Groups from the start-up log, else from the metrics page."""
    log, metrics = sources.startup_log, sources.metrics
    if log is not None:
        hybrid = any(
            name in log.facts for name in ("attention_block_size", "padding_pct", "mamba_cache_mode")
        )
        sizes = log.value("group_block_sizes")
        if isinstance(sizes, tuple):
            blocks = [int(size) for size in sizes]
            return groups_for_blocks(blocks, "startup-log", flags, model, hybrid=hybrid)
        block = log.number("attention_block_size") or log.number("kv_cache_block_size")
        if block is not None:
            return group_for_block(block, "startup-log", flags, model, hybrid=hybrid)
    if metrics is not None:
        effective = metrics.number("effective_attention_block_size")
        block = effective or metrics.number("block_size")
        stale = effective is None and parse_release(flags.version) < BLOCK_LABEL_SYNCED
        if block is not None and not (stale and model is not None):
            hybrid = metrics.labels.get("mamba_cache_mode", "None") in ("align", "all") or bool(metrics.stale)
            return group_for_block(block, "metrics", flags, model, hybrid=hybrid)
    return None


def _metric_warnings(metrics: ServerMetrics | None, flags: ServeFlags) -> tuple[str, ...]:
    """`block_size` is the smallest block of a cacheable group, and was not kept up to date in old releases."""
    block = metrics.labels.get("block_size") if metrics is not None else None
    if metrics is None or block is None or metrics.number("effective_attention_block_size") is not None:
        return ()
    if parse_release(flags.version) < BLOCK_LABEL_SYNCED:
        why = "in this release it may be the size before alignment"
    else:
        why = "it is the smallest block of any cached group, not surely the attention block"
    return (f"metrics label block_size={block}: {why}; a start-up log says more",)


def _disagreement(used: FoundGroups, other: FoundGroups) -> str | None:
    mine, theirs = (_blocks(found) for found in (used, other))
    if mine == theirs or (
        len(theirs) < len(mine) and set(theirs) <= set(mine) and other.source != "model-config"
    ):
        return None
    names = {"flags": "--groups", "startup-log": "the start-up log", "metrics": "the metrics page"}
    who, what = (names.get(found.source, "the model config with these flags") for found in (used, other))
    return f"{who} gives blocks {_listed(mine)}, {what} gives {_listed(theirs)}: {who} is used"


def _blocks(found: FoundGroups) -> list[int]:
    return [sized.group.block_size for sized in found.groups]


def _listed(blocks: list[int]) -> str:
    """`528*3,528` reads worse than `4 x 528`."""
    runs: list[tuple[int, int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block:
            runs[-1] = (runs[-1][0] + 1, block)
        else:
            runs.append((1, block))
    return ", ".join(f"{count} x {block:,}" if count > 1 else f"{block:,}" for count, block in runs)


def _release_warnings(version: str | None) -> list[str]:
    if version is None:
        return []
    release = parse_release(version)
    warnings = []
    if "dev" in version:
        warnings.append(
            f"{version} is a development build: the rules of {release[0]}.{release[1]} are used, later ones may hold"
        )
    if release < (0, 26):
        warnings.append(f"there is no match unit in {version}: sizes only; hits land on whole blocks")
    return warnings


def _padding(sources: SizeSources, model: ModelSizes | None) -> float | None:
    logged = sources.startup_log.value("padding_pct") if sources.startup_log is not None else None
    if isinstance(logged, float):
        return logged
    return model.block.padding_pct if model is not None else None


def _log_places(log: StartupLog | None) -> dict[str, str]:
    if log is None:
        return {}
    return {name: log.line_of(name) for name in log.facts}


def _num_blocks(server: SizedServer) -> int | None:
    """The pool: by flag or label, else recovered from the log's capacity line."""
    flags, log = server.flags, server.startup_log
    if flags.num_gpu_blocks is not None:
        return flags.num_gpu_blocks
    if log is None or not server.kinds_known or not server.groups:
        return None
    tokens, length = log.number("kv_cache_tokens"), log.number("max_model_len")
    concurrency = log.value("max_concurrency")
    if tokens is None or length is None or not isinstance(concurrency, float):
        return None
    groups = [sized.group for sized in server.groups]
    per_request = blocks_per_request(
        groups,
        length,
        num_speculative_tokens=flags.num_speculative_tokens,
        max_num_batched_tokens=flags.max_num_batched_tokens or DEFAULT_STEP_BUDGET,
        exports=any(group.export_alignment is not None for group in groups),
    )
    logged = log.text("version")
    wrote = (
        flags.version if logged is None or ".dev" in logged else logged
    )  # the line's own release, whatever was typed
    return num_blocks_from_capacity(parse_release(wrote), groups, per_request, tokens, length, concurrency)
