"""`Probe`: a model on a device, ready to run candidates one after another; weights are made once, pools per run.

Knows memory: a pool that does not fit is refused before it is touched, with the largest that would. Knows no
trace format and no report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.step_times import ASSUMED, StepShape
from kvtune.gpu_probe.engine.clocks import Clock, ModelClock
from kvtune.gpu_probe.engine.executor import Executor
from kvtune.gpu_probe.engine.grid import ExactGrid
from kvtune.gpu_probe.engine.model import Decoder
from kvtune.gpu_probe.engine.ops.fast import FastOps
from kvtune.gpu_probe.engine.ops.interface import Ops
from kvtune.gpu_probe.engine.pools import CachePools, assign_layers, pool_page_bytes
from kvtune.gpu_probe.engine.runner import Arrivals, Progress, Run, RunRecord
from kvtune.gpu_probe.engine.spec import ModelSpec
from kvtune.gpu_probe.engine.workload import Workload
from kvtune.tokenization.errors import UnusableInputError

AT_ONCE = 1e9
"""A rate at which all requests have arrived when the first one starts."""

POOL_SHARE_OF_FREE = 0.8
"""Of the memory that is free, what a pool may take; the rest is for activations."""


@dataclass(frozen=True)
class Precision:
    """Types of activations and of recurrent states."""

    dtype: torch.dtype = torch.float32
    state_dtype: torch.dtype = torch.float32


class OutOfMemoryError(UnusableInputError):
    """A step needed more memory than there is; what was finished before can be kept."""


class Probe:
    """A decoder with the groups of one server. `run` may be called for any unit of that server."""

    def __init__(
        self,
        spec: ModelSpec,
        config: EngineConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        precision: Precision | None = None,
        grid: ExactGrid | None = None,
        ops: Ops | None = None,
    ) -> None:
        """Weights are on the device that is to be used.

        Raises:
            UnusableInputError: the groups do not fit the model, or ask for what the engine lacks.
        """
        refuse_what_is_lacking(config)
        self.spec = spec
        self.config = config
        self.precision = precision or Precision()
        self.device = next(iter(weights.values())).device
        self.layers = assign_layers(spec, config.expanded())
        self.grid = grid
        ops = ops or FastOps(self.precision.state_dtype, grid)
        group_of = {block: index for index, group in enumerate(self.layers) for block in group.blocks}
        self.model = Decoder(spec, weights, ops, group_of)

    def run(
        self,
        config: EngineConfig,
        workload: Workload,
        clock: Clock,
        *,
        arrivals: Arrivals = "sequential",
        rate: float = 1.0,
        check: bool = False,
        progress: Progress | None = None,
    ) -> RunRecord:
        """One candidate from an empty cache to the last request.

        Raises:
            UnusableInputError: the pool does not fit, or memory ran out on the way.
        """
        num_blocks = config.num_blocks or self._blocks_needed(config, workload, clock, arrivals, rate)
        if arrivals == "trace":
            # Overlap by measured time may ask for a block more than was rehearsed: then one is evicted.
            config = replace(config, num_blocks=num_blocks)
        pools = self.allocate(num_blocks)
        executor = Executor(self.model, pools, workload.ids_of, self.grid)
        try:
            run = Run(
                config,
                workload,
                clock,
                executor,
                arrivals=arrivals,
                rate=rate,
                check=check,
                progress=progress,
            )
            return run.run()
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(
                "ran out of memory during a step",
                where=str(self.device),
                way_out="lower --max-num-batched-tokens, --layers or --num-blocks",
            ) from error

    def rehearse(
        self,
        config: EngineConfig,
        workload: Workload,
        *,
        arrivals: Arrivals = "sequential",
        rate: float = 1.0,
        seconds: Callable[[StepShape], float] = ASSUMED.step_s,
    ) -> RunRecord:
        """The bookkeeping alone, under a clock by step costs."""
        clock = ModelClock(seconds)
        return Run(config, workload, clock, None, arrivals=arrivals, rate=rate, hashing=False).run()

    def _blocks_needed(
        self, config: EngineConfig, workload: Workload, clock: Clock, arrivals: Arrivals, rate: float
    ) -> int:
        """How many blocks a run in an unlimited pool takes: what a rehearsal took, where times are measured the more
        crowded one of two."""
        if arrivals == "sequential" or isinstance(clock, ModelClock):
            seconds = clock.seconds if isinstance(clock, ModelClock) else ASSUMED.step_s
            rehearsed = self.rehearse(config, workload, arrivals=arrivals, rate=rate, seconds=seconds)
            return rehearsed.num_blocks_used
        return max(
            self.rehearse(config, workload, arrivals=arrivals, rate=each).num_blocks_used
            for each in (rate, AT_ONCE)
        )

    def largest_pool(self) -> int:
        """Blocks that fit in the memory that is free now, room for activations left."""
        return int(free_bytes(self.device) * POOL_SHARE_OF_FREE) // self._block_bytes()

    def allocate(self, num_blocks: int) -> CachePools:
        """Pools of `num_blocks`.

        Raises:
            UnusableInputError: they do not fit; it names the largest that would.
        """
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        largest = self.largest_pool()
        if num_blocks > largest:
            needed, free = num_blocks * self._block_bytes() / 1e9, free_bytes(self.device) / 1e9
            raise UnusableInputError(
                f"a pool of {num_blocks} blocks does not fit on {self.device}",
                field="--num-blocks",
                found=f"{needed:.2f} GB needed, {free:.2f} GB free",
                wanted=f"at most {largest} blocks",
                way_out="lower --num-blocks or --layers",
            )
        return CachePools(
            self.spec,
            self.layers,
            num_blocks,
            dtype=self.precision.dtype,
            state_dtype=self.precision.state_dtype,
            device=self.device,
            open_chunk=self._open_chunk,
        )

    @property
    def _open_chunk(self) -> int:
        return self.grid.scan_chunk if self.grid else 0

    def _block_bytes(self) -> int:
        return pool_page_bytes(
            self.spec,
            self.layers,
            dtype=self.precision.dtype,
            state_dtype=self.precision.state_dtype,
            open_chunk=self._open_chunk,
        )


def refuse_what_is_lacking(config: EngineConfig) -> None:
    """Settings that the bookkeeping predicts and the bundled engine cannot execute.

    Raises:
        UnusableInputError: naming the setting.
    """
    lacking = {
        "draft tokens (--draft)": config.drafter is not None,
        "context parallelism (--dcp)": config.decode_context_parallel_size > 1,
        "KV connectors (--kv-connector)": config.kv_connector,
        "groups that compress states": any(group.tokens_per_state > 1 for group in config.groups),
        "Mamba mode all": any(group.mode == "all" for group in config.groups),
    }
    for what, asked in lacking.items():
        if asked:
            raise UnusableInputError(
                f"the bundled engine lacks {what}", way_out="validate on a server with --serve or --endpoint"
            )


def with_unit(config: EngineConfig, unit: int | None) -> EngineConfig:
    """The same server started with another match unit."""
    return replace(config, match_unit=unit)


def free_bytes(device: torch.device) -> int:
    """Memory that can be had now: of the card, or of the machine (Linux)."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 1 << 62  # unknown: let the allocator decide
