"""Step times for the server that the options describe, and what is kept of them between runs.

Answers of the kernel library are kept in the user's cache folder, named by what they depend on: the model's config,
the GPU, the parallel sizes and the library's version. No prompt is in them.
"""

from __future__ import annotations

import io
from contextlib import suppress
from zipfile import BadZipFile

import numpy as np

from kvtune.analyzers.report import HardwareInfo, PoolInfo, SettledInfo
from kvtune.analyzers.sizing.sources import SizedServer
from kvtune.analyzers.step_times.choice import ChosenStepTimes, step_times_on
from kvtune.analyzers.step_times.kernels import KernelAnswers, KernelQuery, KernelStepTimes
from kvtune.analyzers.step_times.model import StepTimes
from kvtune.cli.engine import Server
from kvtune.tokenization import cache

_KIND = "step-times"


def step_times_of(server: SizedServer) -> ChosenStepTimes:
    """The step times of a server whose GPU is named; none where it is not."""
    if server.hardware is None:
        return ChosenStepTimes(None)
    return step_times_on(
        server.hardware.gpu,
        server.config,
        tensor_parallel=server.flags.tensor_parallel_size,
        expert_parallel=server.flags.expert_parallel,
        kv_cache_dtype=server.flags.kv_cache_dtype,
        recall=recall,
    )


def hardware_info(server: Server) -> HardwareInfo | None:
    """The report's `hardware`: the GPUs and what they settle; None where they are not named."""
    sized = server.sized
    if sized is None or sized.hardware is None or sized.settled is None:
        return None
    gpu, settled = sized.hardware.gpu, sized.settled
    exports = [group.export_alignment for group in server.config.groups if group.export_alignment is not None]
    pool = settled.num_blocks
    return HardwareInfo(
        name=gpu.name,
        count=sized.flags.tensor_parallel_size,
        memory_bytes=gpu.memory_bytes,
        settled=SettledInfo(
            max_num_batched_tokens=settled.max_num_batched_tokens,
            max_num_seqs=settled.max_num_seqs,
            prefill_backend=settled.prefill_backend,
            state_export=exports[0] if exports else None,
            num_blocks=None
            if pool is None
            else PoolInfo(estimate=pool.estimate, low=pool.low, high=pool.high),
        ),
    )


def recall(query: KernelQuery) -> KernelAnswers:
    """What earlier runs were told; nothing where a file is missing or unusable."""
    entry = cache.load(_KIND, query.key())
    if entry is None:
        return KernelAnswers()
    with suppress(OSError, ValueError, KeyError, BadZipFile):
        with np.load(io.BytesIO(entry), allow_pickle=False) as kept:
            chunks, chunk_ms = kept["chunks"].astype(np.int64), kept["chunk_ms"].astype(np.float64)
            names, step_ms = kept["steps"].tolist(), kept["step_ms"].astype(np.float64).tolist()
        ascending = bool((np.diff(chunks) > 0).all())
        usable = bool(np.isfinite(chunk_ms).all() and (chunk_ms > 0).all()) and all(ms > 0 for ms in step_ms)
        if ascending and usable and len(chunks) == len(chunk_ms) and len(names) == len(step_ms):
            return KernelAnswers(chunks, chunk_ms, dict(zip(map(str, names), step_ms, strict=True)))
    return KernelAnswers()


def keep(times: StepTimes | None) -> None:
    """Keep what the library was asked in this run; a cache that cannot be written is done without."""
    if not isinstance(times, KernelStepTimes) or not times.answers.grown:
        return
    answers = times.answers
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        chunks=answers.chunks,
        chunk_ms=answers.chunk_ms,
        steps=np.array(list(answers.steps), dtype=np.str_),
        step_ms=np.array(list(answers.steps.values()), dtype=np.float64),
    )
    cache.keep(_KIND, times.query.key(), buffer.getvalue())
