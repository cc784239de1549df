"""One set of server settings out of several sources, each of which may know some of them.

    typed flags and serve command < /metrics < start-up log

What ran beats what was meant to run; a disagreement is put into words, never hidden. Knows settings, not groups.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from kvtune.analyzers.sizing.backends import BACKENDS
from kvtune.analyzers.sizing.metrics import ServerMetrics
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.startup_log import StartupLog
from kvtune.tokenization.errors import UnusableInputError

DEFAULTS = ServeFlags()
_LEAST = {
    "mamba_block_size": 1,
    "block_size": 1,
    "tensor_parallel_size": 1,
    "data_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "num_speculative_tokens": 0,
    "max_model_len": 1,
    "max_num_batched_tokens": 1,
    "max_num_seqs": 1,
    "num_gpu_blocks": 2,
}
_MOST_RANKS = 1 << 12
"""Of a context parallel group, by which blocks are multiplied."""


@dataclass(frozen=True)
class MergedSettings:
    """The settings in force.

    Attributes:
        places: where each setting that a file decided stands, by field (`server.log:12`).
        warnings: disagreements between the sources.
    """

    flags: ServeFlags
    places: dict[str, str]
    warnings: tuple[str, ...]


def merge_settings(
    flags: ServeFlags, metrics: ServerMetrics | None, log: StartupLog | None
) -> MergedSettings:
    """Lay what the files say over what the user typed.

    Raises:
        UnusableInputError: a number that no server runs with.
    """
    merged, places, warnings = flags, dict[str, str](), list[str]()
    stated = {item.name: "the flags" for item in fields(flags) if _differs(flags, item.name)}
    for found in (_from_metrics(metrics), _from_log(log)):
        changes: dict[str, Any] = {}
        for name, (value, place) in found.items():
            current = getattr(merged, name)
            if name == "version" and stated.get(name) == "the flags":
                if current != value:
                    warnings.append(
                        f"--engine-version {current} is used; {place} says {_shown(value)}: sizes are those of the log"
                    )
                continue
            if name in stated and current != value:
                warnings.append(
                    f"{stated[name]} say {name} {_shown(current)}, {place} says {_shown(value)}: "
                    f"{place} is used"
                )
            changes[name] = value
            stated[name] = places[name] = place
        merged = replace(merged, **changes)
    _check_ranges(merged, places)
    return MergedSettings(merged, places, tuple(warnings))


def _check_ranges(flags: ServeFlags, places: dict[str, str]) -> None:
    for name, least in _LEAST.items():
        value = getattr(flags, name)
        most = _MOST_RANKS if name == "decode_context_parallel_size" else None
        if value is not None and (value < least or (most is not None and value > most)):
            raise UnusableInputError(
                "is out of range",
                where=places.get(name),
                field="--" + name.replace("_", "-").replace("gpu-blocks", "gpu-blocks-override"),
                found=str(value),
                wanted=f"{least:,} or more" if most is None else f"{least:,} to {most:,}",
            )


def _differs(flags: ServeFlags, name: str) -> bool:
    return bool(getattr(flags, name) != getattr(DEFAULTS, name))


def _from_log(log: StartupLog | None) -> dict[str, tuple[Any, str]]:
    if log is None:
        return {}
    found: dict[str, tuple[Any, str]] = {}
    for name in (
        "version",
        "dtype",
        "kv_cache_dtype",
        "mamba_cache_dtype",
        "mamba_ssm_cache_dtype",
        "mamba_cache_mode",
        "tensor_parallel_size",
        "data_parallel_size",
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "block_size",
        "prefix_match_unit",
        "retention_interval",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "long_prefill_token_threshold",
        "enable_prefix_caching",
        "speculative_method",
        "num_speculative_tokens",
        "kv_connector",
        "num_gpu_blocks",
        "gdn_prefill_backend",
        "attention_backend",
    ):
        fact = log.facts.get(name)
        if fact is not None and fact.value != "auto":
            found[name] = (fact.value, log.line_of(name))
    if "retention_interval" in found:
        found["retention_given"] = (True, found["retention_interval"][1])
    if log.flag("hybrid_manager_disabled"):
        found["disable_hybrid_kv_cache_manager"] = (True, log.line_of("hybrid_manager_disabled"))
    if "gdn_prefill_backend" in found:
        name, place = found["gdn_prefill_backend"]
        found["gdn_prefill_backend"] = (name.split("/")[0].strip().lower(), place)
    if found.get("attention_backend", ("", ""))[0].upper() not in BACKENDS:
        found.pop("attention_backend", None)
    return found


def _from_metrics(metrics: ServerMetrics | None) -> dict[str, tuple[Any, str]]:
    if metrics is None:
        return {}
    place = metrics.place()
    texts = {
        "cache_dtype": "kv_cache_dtype",
        "mamba_cache_dtype": "mamba_cache_dtype",
        "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype",
        "mamba_cache_mode": "mamba_cache_mode",
        "prefix_caching_hash_algo": "hash_algo",
    }
    found: dict[str, tuple[Any, str]] = {}
    for label, name in texts.items():
        value = metrics.labels.get(label, "None")
        if value not in ("None", "auto") and not (
            name == "mamba_cache_mode" and value not in ("align", "all", "none")
        ):
            found[name] = (value, place)
    for label, name in (("prefix_match_unit", "prefix_match_unit"), ("num_gpu_blocks", "num_gpu_blocks")):
        number = metrics.number(label)
        if number is not None:
            found[name] = (number, place)
    for label, name in (
        ("enable_prefix_caching", "enable_prefix_caching"),
        ("enable_mamba_shared_prefix_checkpoint", "mamba_shared_prefix_checkpoint"),
    ):
        flag = metrics.flag(label)
        if flag is not None:
            found[name] = (flag, place)
    if "prefix_cache_retention_interval" in metrics.labels:
        found["retention_interval"] = (metrics.number("prefix_cache_retention_interval"), place)
        found["retention_given"] = (True, place)
    return found


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
