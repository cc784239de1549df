"""`RooflineStepTimes`: step times estimated from a GPU's data sheet and a model's config.

    dense weights    the longer of reading them once and computing with them for every token
    output           reading its projection, for one token a request
    experts          reading those that tokens choose, plus computing with them
    activations      what the matrices read and write for every token
    attention        the longer of computing pairs and reading keys and values
    states           read and written once a request
    launch           a constant for each mixer and feed-forward layer
    all-reduce       one after each of them, between GPUs that share it

k tokens read E (1 - (1 - top_k / E)^k) of a layer's E experts. Efficiencies are those of the card's generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvtune.analyzers.hardware.gpu import CUSTOM, Gpu
from kvtune.analyzers.step_times.efficiency import (
    QUANTIZED_ERROR,
    UNJUDGED_RANGE,
    Efficiency,
    RooflineError,
    generation_of,
)
from kvtune.analyzers.step_times.info import StepTimesInfo
from kvtune.analyzers.step_times.model_work import ModelWork
from kvtune.analyzers.step_times.shape import StepShape
from kvtune.tokenization.trace import Float64, Int64

_Amount = float | Float64

_ACTIVATION_BYTES = 2
_ALL_REDUCE_S = 1.5e-5
"""Of a small all-reduce, as measured on NVLink and PCIe: 5 to 27 µs."""
_HALF_SPEED_WIDTH = 256
"""Width of an expert on one GPU at which its kernels reach half of their best throughput. Chosen, not fitted: half or
twice as much moves no judged median by more than 0.03."""


@dataclass(frozen=True)
class RooflineStepTimes:
    """Step times of one model on GPUs of one kind.

    Attributes:
        work: the model's.
        gpu: the card.
        tensor_parallel: GPUs that share each layer.
        expert_parallel: whether whole experts are spread over them.
        efficiency: of the card's generation.
    """

    work: ModelWork
    gpu: Gpu
    tensor_parallel: int
    expert_parallel: bool
    efficiency: Efficiency

    @classmethod
    def of(
        cls, work: ModelWork, gpu: Gpu, tensor_parallel: int = 1, *, expert_parallel: bool = False
    ) -> RooflineStepTimes:
        """With the efficiencies of the card's generation."""
        return cls(work, gpu, tensor_parallel, expert_parallel, generation_of(gpu).efficiency)

    @cached_property
    def info(self) -> StepTimesInfo:
        generation = generation_of(self.gpu)
        sheet = "the data sheet given" if self.gpu.name == CUSTOM else "the GPU's data sheet"
        provenance = f"estimated from {sheet} and the model's config"
        error: RooflineError | None = generation.error
        low, high = generation.error.range
        if self.work.is_quantized:
            provenance += "; quantized weights, where estimates and measured kernels differ most"
            error = QUANTIZED_ERROR
            low, high = error.range
        if not generation.judges(self.gpu):
            provenance += (
                f"; efficiencies of {generation.name} GPUs, as no kernels of its own generation are measured"
            )
            error = None
            low, high = min(low, UNJUDGED_RANGE[0]), max(high, UNJUDGED_RANGE[1])
        return StepTimesInfo(
            source="roofline",
            hardware=self.gpu.name,
            tensor_parallel=self.tensor_parallel,
            provenance=provenance,
            error=error.relative if error is not None else None,
            range=(low, high),
        )

    def prefill_s(self, start: Int64, tokens: Int64) -> Float64:
        """Seconds of steps that hold one chunk each."""
        begin, count = np.asarray(start, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
        seconds: Float64 = np.asarray(self._weights_s(count, 1.0) + self._prefill_attention_s(begin, count))
        return seconds

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step."""
        requests = shape.prefill_requests + shape.decode_tokens
        if not requests:
            return 0.0
        seconds = self._weights_s(float(shape.prefill_tokens + shape.decode_tokens), float(requests))
        if shape.prefill_requests:
            start, tokens = shape.mean_chunk()
            seconds += shape.prefill_requests * self._prefill_attention_s(start, tokens)
        return float(seconds) + self._decode_attention_s(shape.decode_tokens, shape.decode_context)

    def decode_s(self, steps: int, requests: int, context: int) -> float:
        """Seconds of a run of decode steps: those of the middle one, for each."""
        middle = context + requests * (steps - 1) // 2
        return steps * self.step_s(StepShape(0, 0, 0, requests, middle))

    def _weights_s(self, tokens: _Amount, requests: float) -> _Amount:
        """Everything but attention: `tokens` of `requests` requests."""
        work, how = self.work, self.efficiency
        byte_s = self._byte_s * how.bandwidth
        dense_flop_s = self._flop_s * work.dense_format.speed(self.gpu.capability) * how.compute
        read = work.dense_weights * work.dense_format.bytes
        output_and_states = work.head_weights * work.head_bytes + requests * 2 * work.state_bytes
        return (
            _longer(read / byte_s, tokens * (2 * work.dense_weights / dense_flop_s))
            + output_and_states / byte_s
            + tokens * (work.activation_elements * _ACTIVATION_BYTES / byte_s)
            + self._experts_s(tokens)
            + work.parts * how.launch_s
            + self._all_reduce_s(tokens)
        )

    def _experts_s(self, tokens: _Amount) -> _Amount:
        work, how, experts = self.work, self.efficiency, self.work.experts
        if experts is None:
            return 0.0
        width = experts.projections[-1].inputs / (1 if self.expert_parallel else self.tensor_parallel)
        flop_s = self._flop_s * work.expert_format.speed(self.gpu.capability) * how.experts_compute
        flop_s *= width / (width + _HALF_SPEED_WIDTH)
        touched = experts.number * (1 - (1 - experts.chosen / experts.number) ** tokens)
        read = touched * (work.expert_format.bytes / (self._byte_s * how.experts_bandwidth))
        return experts.layers * experts.expert_weights * (read + tokens * (2 * experts.chosen / flop_s))

    def _all_reduce_s(self, tokens: _Amount) -> _Amount:
        """Each GPU sends and receives 2 (n - 1) / n times what is summed."""
        ranks, how = self.tensor_parallel, self.efficiency
        if ranks == 1:
            return 0.0
        byte_s = self.gpu.link_byte_s * (how.link_pair if ranks == 2 else how.link_many)
        token_bytes = 2 * (ranks - 1) / ranks * self.work.hidden_size * _ACTIVATION_BYTES
        return self.work.parts * (_ALL_REDUCE_S + tokens * (token_bytes / byte_s))

    def _prefill_attention_s(self, start: _Amount, tokens: _Amount) -> _Amount:
        """Of one chunk. Latent rows of earlier positions are expanded to keys and values first."""
        how = self.efficiency
        flop_s, byte_s = self._flop_s * how.attention, self._byte_s * how.bandwidth
        seconds: _Amount = 0.0
        for kind in self.work.attention:
            attended, read = start + (tokens + 1) / 2, start + tokens
            if kind.reach is not None:
                attended, read = _shorter(attended, kind.reach), _shorter(read, kind.reach + tokens)
            pairs = tokens * attended * (kind.pair_flops / flop_s)
            expanded = start * (2 * kind.expanded_weights / (self._flop_s * how.compute))
            seconds = seconds + kind.layers * (
                _longer(pairs, read * (kind.position_bytes / byte_s)) + expanded
            )
        return seconds

    def _decode_attention_s(self, requests: int, context: int) -> float:
        """Of decoding requests that have `context` positions in all."""
        positions = (
            kind.layers
            * kind.position_bytes
            * (context if kind.reach is None else min(context, requests * kind.reach))
            for kind in self.work.attention
        )
        return sum(positions) / (self._byte_s * self.efficiency.bandwidth)

    @cached_property
    def _flop_s(self) -> float:
        return self.gpu.bf16_flop_s * self.tensor_parallel

    @cached_property
    def _byte_s(self) -> float:
        return self.gpu.bandwidth_byte_s * self.tensor_parallel


def _longer(first: _Amount, second: _Amount) -> _Amount:
    if isinstance(first, float) and isinstance(second, float):
        return max(first, second)
    longer: Float64 = np.maximum(first, second)
    return longer


def _shorter(first: _Amount, second: _Amount) -> _Amount:
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        shorter: Float64 = np.minimum(first, second)
        return shorter
    return min(first, second)
