"""Step times of a running server, from the times to first token of cold prompts and the durations of decoding streams.

    cold prompts, a grid of lengths      TTFT = request overhead + every step that the scheduler makes of the prompt
    just below and above a block          one more step for a few more tokens
    streams, alone and together           a decode step by its number of requests
    other lengths, held out               how wrong the fit is

Prompts are random token ids that nobody sent before, so nothing hits. Knows the server's wire and the fit; where the
server comes from is for `validate`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from kvtune.analyzers.fitted_cost import FittedStepCost, server_reason
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.replay import replay
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.analyzers.step_times import StepShape
from kvtune.analyzers.step_times.nonnegative import nonnegative_least_squares
from kvtune.analyzers.sweep import replay_input
from kvtune.gpu_probe.live.answer import Answer
from kvtune.gpu_probe.live.client import LiveClient, RefusedRequestError
from kvtune.gpu_probe.live.options import Listener
from kvtune.gpu_probe.live.prediction import modelled, trace_of
from kvtune.gpu_probe.live.requests import COMPLETIONS, Sampling, TokenBodies
from kvtune.tokenization.errors import MissingDependencyError
from kvtune.tokenization.trace import Float64, Int64, UInt32

MOST_REQUESTS = 160
LONGEST = 16_384
LENGTHS = (16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, LONGEST)
BEYOND_BLOCK = 16
"""Tokens by which the longer prompt of a pair passes a block."""
REPEATS = 4
HELD_OUT = 10
STREAMS = (1, 4, 8)
STREAM_TOKENS = 48
SLOWEST_S = 10.0
"""Longer prompts are left out once one takes longer."""
_SHORT_PROMPT = 32


@dataclass(frozen=True)
class Prompt:
    """A length to be sent, and the prefill steps that the scheduler makes of it: StepShape features, summed."""

    tokens: int
    steps: tuple[float, ...]


class StepTimesMeasurement:
    """Measures one server.

    Args:
        vocabulary: token ids that the server is known to take.
    """

    def __init__(
        self,
        client: LiveClient,
        model: str,
        config: EngineConfig,
        vocabulary: UInt32,
        listener: Listener,
        *,
        seed: int | None = None,
    ) -> None:
        self._client = client
        self._sampling = Sampling(model, f"kvtune-{os.urandom(8).hex()}")
        self._config = config
        self._vocabulary = vocabulary
        self._listener = listener
        self._random = np.random.default_rng(int.from_bytes(os.urandom(8)) if seed is None else seed)
        self._sent = 0

    async def measure(self, device: str) -> FittedStepCost:
        """Send the prompts and fit.

        Args:
            device: what is measured, for the report.

        Raises:
            MissingDependencyError: the server fails or refuses prompts of token ids.
        """
        longest = min(LONGEST, (self._config.max_model_len or LONGEST + 2) - 2)
        lengths = [length for length in LENGTHS if length <= longest]
        lengths = await self._warm_up(lengths)
        block = max(group.block_size for group in self._config.groups)
        pairs = [
            length
            for multiple in (1, 2)
            for length in (multiple * block, multiple * block + BEYOND_BLOCK)
            if length <= lengths[-1]
        ]
        held = np.exp(self._random.uniform(np.log(24), np.log(lengths[-1]), HELD_OUT)).astype(int).tolist()
        fitted = await self._time([*lengths, *pairs])
        tried = await self._time(held)
        decoded = [await self._decode(streams) for streams in STREAMS]
        return fit_server(fitted, tried, decoded, longest=lengths[-1], device=device)

    async def _warm_up(self, lengths: Sequence[int]) -> list[int]:
        """Each length once, unmeasured: kernels are compiled at first use. Gives the lengths that are fast enough."""
        kept: list[int] = []
        for length in lengths:
            await self._send(length)
            seconds = await self._send(length)
            kept.append(length)
            if seconds > SLOWEST_S / 2:
                break
        return kept

    async def _time(self, lengths: Sequence[int]) -> list[tuple[Prompt, float]]:
        """The median TTFT of each length, in rounds over all of them, so that drifts meet all alike."""
        rounds = []
        for place in range(REPEATS):
            self._listener.progress("step times", self._sent, MOST_REQUESTS)
            order = self._random.permutation(len(lengths)) if place else np.arange(len(lengths))
            seconds = np.empty(len(lengths))
            for index in order.tolist():
                seconds[index] = await self._send(lengths[index])
            rounds.append(seconds)
        typical = np.median(np.array(rounds), axis=0).tolist()
        return [(self.steps_of(length), time) for length, time in zip(lengths, typical, strict=True)]

    async def _decode(self, streams: int) -> tuple[StepShape, float]:
        """A decode step of `streams` requests: what their tokens after the first take, over their number.

        Events are not counted: a token may decode to no text, and then has none of its own.
        """
        first = median([await self._send(_SHORT_PROMPT) for _ in range(REPEATS)])
        answers = await asyncio.gather(*(self._ask(_SHORT_PROMPT, STREAM_TOKENS) for _ in range(streams)))
        seconds = [
            (answer.finished - answer.sent - first) / ((answer.completion_tokens or STREAM_TOKENS) - 1)
            for answer in answers
        ]
        context = streams * (_SHORT_PROMPT + STREAM_TOKENS // 2)
        return StepShape(0, 0, 0, streams, context), max(median(seconds), 1e-6)

    def steps_of(self, tokens: int) -> Prompt:
        """The prefill steps of a prompt that finds nothing cached."""
        trace = trace_of([np.zeros(tokens, dtype=np.int64)])
        inputs = replay_input(trace, find_shared_prefixes(trace, "none"))
        chunks = replay(modelled(self._config), inputs).prefill_chunks
        features = np.zeros(6)
        for _, start, count in chunks.tolist():
            shape = StepShape(count, 1, count * (2 * start + count + 1) // 2, 0, 0)
            features += shape.features()
        return Prompt(tokens, tuple(features.tolist()))

    async def _send(self, tokens: int) -> float:
        """Seconds to the first token of a prompt that nobody sent before."""
        answer = await self._ask(tokens, 1)
        return answer.events[0] - answer.sent

    async def _ask(self, prompt_tokens: int, output_tokens: int) -> Answer:
        self._sent += 1
        prompt: Int64 = self._random.choice(self._vocabulary, prompt_tokens).astype(np.int64)
        bodies = TokenBodies(trace_of([prompt]), np.array([output_tokens]), self._sampling)
        try:
            answer = await self._client.complete(COMPLETIONS, bodies.body(0))
        except RefusedRequestError as error:
            raise MissingDependencyError(
                "the server refuses a prompt of token ids", where=COMPLETIONS, found=str(error)
            ) from None
        if not answer.events:
            raise MissingDependencyError("the server answered without a token", where=COMPLETIONS)
        if answer.cached_tokens:
            raise MissingDependencyError(
                "a prompt of random tokens hit the cache at its first use",
                where=COMPLETIONS,
                found=f"{answer.cached_tokens} tokens",
                wanted="0",
            )
        return answer


def fit_server(
    fitted: Sequence[tuple[Prompt, float]],
    held: Sequence[tuple[Prompt, float]],
    decoded: Sequence[tuple[StepShape, float]],
    *,
    longest: int,
    device: str,
) -> FittedStepCost:
    """Step times and the overhead of a request, by non-negative least squares of relative errors.

    Args:
        fitted, held: prompts and their seconds to the first token; `held` take no part in the fit.
        decoded: shapes of decode steps and their seconds.
    """
    prompt_rows = [[*prompt.steps[:5], 1.0] for prompt, _ in fitted]
    decode_rows = [[*shape.features()[:5], 0.0] for shape, _ in decoded]
    seconds = np.array([*(time for _, time in fitted), *(time for _, time in decoded)])
    matrix = np.array(prompt_rows + decode_rows)
    solution = nonnegative_least_squares(matrix / seconds[:, None], np.ones(len(seconds)))
    predicted = np.array([[*prompt.steps[:5], 1.0] for prompt, _ in held]) @ solution
    errors: Float64 = np.abs(predicted / np.array([time for _, time in held]) - 1)
    step, token, pair, decode, context, request = solution.tolist()
    mean_error, p90_error = float(errors.mean()), float(np.quantile(errors, 0.9))
    reason = server_reason(mean_error, p90_error)
    return FittedStepCost(
        step_s=step,
        prefill_token_s=token,
        attended_pair_s=pair,
        decode_sequence_s=decode,
        context_token_s=context,
        prefill_sequence_s=0.0,
        request_s=request,
        step_cost_tokens=step / token if token > 0 else None,
        mean_error=mean_error,
        p90_error=p90_error,
        median_error=float(np.median(errors)),
        held_out=len(held),
        longest_context_tokens=longest,
        device=device,
        rung="L3",
        covers="model",
        layers=0,
        extrapolates=reason is None,
        reason=reason,
    )
