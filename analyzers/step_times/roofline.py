"""`RooflineStepTimes`: step times estimated from a GPU's data sheet and a model's config.

Each part of a step takes the longer of reading its bytes and computing its FLOPs, at efficiencies that were fitted
for the GPU's generation on half of the pairs of model and GPU whose kernels are measured, and judged on the others
(`benchmarks/roofline.py`). A step of k tokens reads E (1 - (1 - top_k / E)^k) of E experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvtune.analyzers.hardware.gpu import Gpu
from kvtune.analyzers.step_times.info import StepTimesInfo
from kvtune.analyzers.step_times.model_work import ModelWork
from kvtune.analyzers.step_times.shape import StepShape
from kvtune.tokenization.trace import Float64, Int64

RANGE = (0.5, 2.0)
"""Factors between which the measured kernels lie, in the worst of the judged pairs."""


class Efficiency(NamedTuple):
    """Of one generation of GPUs.

    Attributes:
        bandwidth: share of the data sheet's that dense weights are read with.
        experts: the same for experts.
        compute: share of the data sheet's throughput that long prefills reach.
        launch_s: seconds a layer, whatever it computes.
    """

    bandwidth: float
    experts: float
    compute: float
    launch_s: float


EFFICIENCIES = {
    80: Efficiency(0.549, 0.617, 0.617, 1.0e-6),
    89: Efficiency(0.691, 0.934, 0.454, 1.2e-5),
    90: Efficiency(0.697, 0.891, 0.584, 4.5e-5),
    100: Efficiency(0.643, 0.862, 0.459, 4.5e-5),
    120: Efficiency(0.967, 0.921, 0.542, 1.27e-4),
}
"""By generation: Ampere, Ada, Hopper, Blackwell and its workstation cards; `benchmarks/roofline.py` prints them."""


def generation(capability: int) -> int:
    """The key of `EFFICIENCIES` for a compute capability; an unknown card is taken for a Hopper one."""
    own = capability if capability == 89 else capability // 10 * 10
    return own if own in EFFICIENCIES else 90


_LINK_BYTE_S = 5e10
"""Between GPUs, where the data sheet of the link is not known: half of PCIe 5."""


@dataclass(frozen=True)
class RooflineStepTimes:
    """Step times of one model on GPUs of one kind.

    Attributes:
        work: the model's. gpu: the card. tensor_parallel: GPUs that share each layer.
        efficiency: of the card's generation.
    """

    work: ModelWork
    gpu: Gpu
    tensor_parallel: int
    efficiency: Efficiency

    @classmethod
    def of(cls, work: ModelWork, gpu: Gpu, tensor_parallel: int = 1) -> RooflineStepTimes:
        """With the efficiencies of the card's generation."""
        return cls(work, gpu, tensor_parallel, EFFICIENCIES[generation(gpu.capability)])

    @property
    def info(self) -> StepTimesInfo:
        return StepTimesInfo(
            source="roofline",
            hardware=self.gpu.name,
            tensor_parallel=self.tensor_parallel,
            provenance="estimated from the GPU's data sheet and the model's config",
            range=RANGE,
        )

    def prefill_s(self, start: Int64, tokens: Int64) -> Float64:
        """Seconds of steps that hold one chunk each."""
        count = np.asarray(tokens, dtype=np.float64)
        begin = np.asarray(start, dtype=np.float64)
        return self._seconds(count, np.ones_like(count), self._pairs(begin, count), begin + count)

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step."""
        tokens, requests = (
            shape.prefill_tokens + shape.decode_tokens,
            shape.prefill_requests + shape.decode_tokens,
        )
        if not tokens:
            return 0.0
        pairs = np.zeros(1)
        read = float(shape.decode_context)
        if shape.prefill_requests:
            start, count = (np.array([value]) for value in shape.mean_chunk())
            pairs = shape.prefill_requests * self._pairs(start, count)
            read += shape.prefill_requests * float(start[0] + count[0])
        pairs = pairs + self._decode_pairs(shape.decode_tokens, shape.decode_context)
        one = np.ones(1)
        return float(self._seconds(tokens * one, requests * one, pairs, read * one)[0])

    def decode_s(self, steps: int, requests: int, context: int) -> float:
        """Seconds of a run of decode steps: those of the middle one, for each."""
        middle = context + requests * (steps - 1) // 2
        return steps * self.step_s(StepShape(0, 0, 0, requests, middle))

    def _pairs(self, start: Float64, tokens: Float64) -> Float64:
        """FLOPs of attention: 4 for each pair of a token, a position and an element of the queries."""
        flops = np.zeros_like(tokens)
        for width, _, window in self.work.attention:
            reach = start + (tokens + 1) / 2
            if window:
                reach = np.minimum(reach, window)
            flops = flops + 4.0 * width * tokens * reach
        return flops

    def _decode_pairs(self, requests: int, context: int) -> float:
        if not requests:
            return 0.0
        mean = context / requests
        return sum(
            4.0 * width * requests * (min(mean, window) if window else mean)
            for width, _, window in self.work.attention
        )

    def _seconds(self, tokens: Float64, requests: Float64, attention: Float64, read: Float64) -> Float64:
        """Seconds of steps of `tokens` tokens of `requests` requests: attention FLOPs, positions read in all."""
        work, gpu, how, ranks = self.work, self.gpu, self.efficiency, self.tensor_parallel
        flop_s, byte_s = gpu.bf16_flop_s * how.compute * ranks, gpu.bandwidth_byte_s * ranks
        dense = np.maximum(
            work.dense_weights * work.weight_bytes / (byte_s * how.bandwidth),
            2 * tokens * work.dense_weights / flop_s,
        )
        head = work.head_weights * work.weight_bytes / (byte_s * how.bandwidth)
        experts = np.zeros_like(tokens)
        if work.expert_layers:
            number, chosen = work.experts, min(work.experts_per_token, work.experts)
            touched = number * (1 - (1 - chosen / number) ** tokens)
            experts = (
                work.expert_layers
                * work.expert_weights
                * np.maximum(
                    touched * work.weight_bytes / (byte_s * how.experts), 2 * tokens * chosen / flop_s
                )
            )
        kv = sum(elements for _, elements, window in work.attention if not window)
        attended = np.maximum(attention / flop_s, read * kv * 2 / (byte_s * how.bandwidth))
        states = requests * work.state_elements * 4 * 2 / (byte_s * how.bandwidth)
        seconds: Float64 = dense + head + experts + attended + states + work.layers * how.launch_s
        if ranks > 1:
            seconds = seconds + 2 * work.layers * (2e-5 + tokens * work.hidden_size * 2 * 2 / _LINK_BYTE_S)
        return seconds
