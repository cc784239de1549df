"""Step times of a running server, from the times to first token of cold prompts and the durations of decoding streams.

    cold prompts, a grid of lengths      TTFT = request overhead + every step that the scheduler makes of the prompt
    just below and above a block          one more step for a few more tokens
    streams, alone and together           a decode step by its number of requests
    prompts beside streams                steps that prefill and decode
    other lengths, held out               how wrong the fit is

Prompts are random token ids that nobody sent before, so nothing hits. Knows the server's wire and
what to send; the fit is for `step_fit`, and where the server comes from for `validate`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from statistics import median

import numpy as np

from kvtune.analyzers.fitted_cost import FittedStepCost
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.replay import replay
from kvtune.analyzers.shared import find_shared_prefixes
from kvtune.analyzers.step_times import StepShape
from kvtune.analyzers.step_times.shape import attended_pairs
from kvtune.analyzers.sweep import replay_input
from kvtune.gpu_probe.live.answer import Answer
from kvtune.gpu_probe.live.client import LiveClient, RefusedRequestError
from kvtune.gpu_probe.live.options import Listener
from kvtune.gpu_probe.live.prediction import modelled, trace_of
from kvtune.gpu_probe.live.requests import COMPLETIONS, Sampling, TokenBodies
from kvtune.gpu_probe.live.step_fit import Observed, fit_server
from kvtune.tokenization.errors import MissingDependencyError
from kvtune.tokenization.trace import Int64, UInt32

MOST_REQUESTS = 250
LONGEST = 16_384
LENGTHS = (16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, LONGEST)
BEYOND_BLOCK = 16
"""Tokens by which the longer prompt of a pair passes a block."""
REPEATS = 6
HELD_OUT = 10
STREAMS = (1, 4, 8)
STREAM_TOKENS = 48
BESIDE_STREAMS = (4, 8)
BESIDE_LENGTHS = (64, 256, 1_024)
"""Tokens of prompts that are sent while so many streams decode."""
BESIDE_REPEATS = 3
LONG_STREAM_TOKENS = 256
STREAM_START_S = 0.05
"""Given to streams to be read; those that have not begun by the prompt's time are found out by their events."""
SLOWEST_S = 10.0
"""Longer prompts are left out once one takes longer."""
_SHORT_PROMPT = 32


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
        fitted = [*lengths, *pairs]
        alone = await self._time([*fitted, *held])
        decoded = [await self._decode(streams) for streams in STREAMS]
        beside = [row for streams in BESIDE_STREAMS for row in await self._beside(streams, lengths[-1])]
        rows, tried = [*alone[: len(fitted)], *decoded, *beside], alone[len(fitted) :]
        return fit_server(rows, tried, longest=lengths[-1], device=device)

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

    async def _time(self, lengths: Sequence[int]) -> list[Observed]:
        """The least TTFT of each length, in rounds over all of them: drifts meet all alike, disturbances add."""
        rounds = []
        for place in range(REPEATS):
            self._listener.progress("step times", self._sent, MOST_REQUESTS)
            order = self._random.permutation(len(lengths)) if place else np.arange(len(lengths))
            seconds = np.empty(len(lengths))
            for index in order.tolist():
                seconds[index] = await self._send(lengths[index])
            rounds.append(seconds)
        fastest = np.min(np.array(rounds), axis=0).tolist()
        return [
            Observed(self.steps_of(length), 1, time) for length, time in zip(lengths, fastest, strict=True)
        ]

    async def _decode(self, streams: int) -> Observed:
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
        return Observed((StepShape(0, 0, 0, streams, context),), 0, max(median(seconds), 1e-6))

    async def _beside(self, streams: int, longest: int) -> list[Observed]:
        """The median TTFT of prompts sent while `streams` requests decode; without those that the streams missed.

        A prompt waits for the step under way: one decode step is added to its own, half a one more or less.
        """
        lengths = [length for length in BESIDE_LENGTHS if length <= longest]
        tokens = min(LONG_STREAM_TOKENS, (self._config.max_model_len or LONGEST) - _SHORT_PROMPT - 1)
        first = await self._send(_SHORT_PROMPT)
        tasks = [asyncio.create_task(self._ask(_SHORT_PROMPT, tokens)) for _ in range(streams)]
        prompts: list[tuple[int, Answer]] = []
        try:
            await asyncio.sleep(STREAM_START_S + 2 * first)
            for length in lengths * BESIDE_REPEATS:
                prompts.append((length, await self._ask(length, 1)))
                if any(task.done() for task in tasks):
                    break
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        begun, ended = (
            max(answer.events[0] for answer in answers),
            min(answer.events[-1] for answer in answers),
        )
        context = streams * (_SHORT_PROMPT + tokens // 2)
        rows = []
        for length in lengths:
            seconds = [
                answer.events[0] - answer.sent
                for sent, answer in prompts
                if sent == length and answer.sent > begun and answer.events[0] < ended
            ]
            if seconds:
                steps = [
                    step._replace(decode_tokens=streams, decode_context=context)
                    for step in self.steps_of(length)
                ]
                waited = StepShape(0, 0, 0, streams, context)
                rows.append(Observed((waited, *steps), 1, median(seconds)))
        return rows

    def steps_of(self, tokens: int) -> tuple[StepShape, ...]:
        """The prefill steps of a prompt that finds nothing cached."""
        trace = trace_of([np.zeros(tokens, dtype=np.int64)])
        inputs = replay_input(trace, find_shared_prefixes(trace, "none"))
        chunks = replay(modelled(self._config), inputs).prefill_chunks
        return tuple(
            StepShape(count, 1, attended_pairs(start, count), 0, 0) for _, start, count in chunks.tolist()
        )

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
