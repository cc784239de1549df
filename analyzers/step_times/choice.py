"""Which step times a named GPU gives: measured kernels where there are some of this model, else a roofline."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from kvtune.analyzers.hardware import Gpu
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.step_times.kernels import (
    KernelAnswers,
    KernelQuery,
    KernelStepTimes,
    UnknownToKernelsError,
    has_library,
    library_version,
)
from kvtune.analyzers.step_times.model import StepTimes
from kvtune.analyzers.step_times.model_work import ModelWork
from kvtune.analyzers.step_times.roofline import RooflineStepTimes
from kvtune.tokenization.errors import UnusableInputError

Recall = Callable[[KernelQuery], KernelAnswers]
"""What the library said of this query in earlier runs."""

_FP8 = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})


@dataclass(frozen=True)
class ChosenStepTimes:
    """Step times, or why there are none. `notes`: one sentence each on what was not to be had."""

    times: StepTimes | None
    notes: tuple[str, ...] = ()


def step_times_on(
    gpu: Gpu,
    config: ModelConfig | None,
    *,
    tensor_parallel: int,
    expert_parallel: bool,
    kv_cache_dtype: str,
    recall: Recall = lambda _query: KernelAnswers(),
) -> ChosenStepTimes:
    """The best step times for a model on a GPU.

    Args:
        config: the model's; None where only the sizes of its groups are known.
        tensor_parallel: GPUs that share each layer.
    """
    if config is None:
        return ChosenStepTimes(
            None, ("--hardware gives no step times without a model's config.json: add --model-config",)
        )
    kernels = _kernels(gpu, config, tensor_parallel, expert_parallel, kv_cache_dtype, recall)
    if kernels.times is not None:
        return kernels
    try:
        work = ModelWork.of(config, "fp8" if kv_cache_dtype in _FP8 else "auto")
    except UnusableInputError as error:
        return ChosenStepTimes(None, (f"No step times: {error}",))
    times = RooflineStepTimes.of(work, gpu, tensor_parallel, expert_parallel=expert_parallel)
    low, high = times.info.range
    estimate = f"Step times are estimated: real ones are {low:.2f} to {high:.2f} times as long"
    return ChosenStepTimes(times, tuple(f"{estimate}. {reason}" for reason in kernels.notes))


def _kernels(
    gpu: Gpu,
    config: ModelConfig,
    tensor_parallel: int,
    expert_parallel: bool,
    kv_cache_dtype: str,
    recall: Recall,
) -> ChosenStepTimes:
    """Measured kernels, or the reason why there are none."""
    if gpu.kernels is None:
        return ChosenStepTimes(None, (f"No kernel times are measured on {gpu.name}.",))
    if not has_library():
        return ChosenStepTimes(
            None, (f"pip install 'kvtune[times]' brings kernel times measured on {gpu.name}.",)
        )
    query = KernelQuery(
        json.dumps(config.outer, sort_keys=True),
        gpu.kernels,
        tensor_parallel,
        expert_parallel,
        "fp8" if kv_cache_dtype in _FP8 else None,
    )
    times = KernelStepTimes(query, gpu.name, library_version(), recall(query))
    try:
        times.check()
    except UnknownToKernelsError as error:
        return ChosenStepTimes(
            None, (f"No kernel times of this model are measured on {gpu.name} ({error}).",)
        )
    return ChosenStepTimes(times)
