"""What a step's output changes: tokens are appended, drafts rejected, blocks keyed, requests ended.

Also the shortcut for long answers: a run of decode steps that change nothing but counters. Source:
`sched/scheduler: update_from_output`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq

from kvtune.analyzers.bookkeeping.coordinator import Coordinator
from kvtune.analyzers.bookkeeping.recorder import Recorder
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.bookkeeping.step_plan import Chunk, StepPlan
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.profiles import ReleaseProfile
from kvtune.analyzers.resolver import ResolvedSizes

_CLOSE = 4
"""Tokens around a block boundary in which a decode step may allocate, key or release something."""


class StepOutput:
    """The queues of an engine, and how its requests move on when a step has run.

    Attributes:
        waiting: not admitted, or preempted and put back in front. running: admitted, in order of admission.
        recorder: told of what happens, if set.
    """

    def __init__(
        self, config: EngineConfig, profile: ReleaseProfile, sizes: ResolvedSizes, coordinator: Coordinator
    ) -> None:
        self.coordinator = coordinator
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.recorder: Recorder | None = None
        self._max_model_len = coordinator.max_model_len
        self._num_drafts = sizes.speculative_blocks
        self._accept = min(config.drafter.accept, self._num_drafts) if config.drafter is not None else 0
        self._registers_output = profile.registers_accepted_drafts and self._num_drafts > 0
        self._caching = config.enable_prefix_caching
        self._untold = False

    def _next_tokens(self, sequence: Sequence) -> int:
        """Tokens that a running request could compute now."""
        return sequence.num_tokens + sequence.num_draft_tokens - sequence.num_computed_tokens

    def update(self, plan: StepPlan, generated: Seq[int] | None = None) -> list[Sequence]:
        """Hand a step's output back; returns the requests that it finished.

        Args:
            generated: tokens per chunk, in the plan's order: one and the accepted drafts. None: what the
                drafter's configured acceptance gives.
        """
        finished: list[Sequence] = []
        for place, chunk in enumerate(plan.chunks):
            sequence = chunk.sequence
            sequence.num_in_flight_tokens -= chunk.num_tokens
            stale = sequence.num_stale_tokens > 0
            if stale:
                sequence.num_stale_tokens -= chunk.num_tokens
            if sequence.finished or not chunk.samples:
                continue
            count = 1 + min(self._accept, chunk.num_drafts) if generated is None else generated[place]
            if self.recorder is not None:
                self.recorder.acts_for(sequence)
            if count and self._append(sequence, chunk, count, stale):
                sequence.finished = True
                finished.append(sequence)
                self._untold = True
                self.coordinator.release(sequence)
                (self.running if sequence in self.running else self.waiting).remove(sequence)
        return finished

    def _append(self, sequence: Sequence, chunk: Chunk, count: int, stale: bool) -> bool:
        """Append generated tokens; True if the request ends with them."""
        rejected = chunk.num_drafts - (count - 1)
        if chunk.num_drafts and not stale:
            if sequence.num_computed_tokens > 0:
                sequence.num_computed_tokens -= rejected
            if sequence.num_output_placeholders > 0:
                sequence.num_output_placeholders -= rejected
        had_placeholders = sequence.num_output_placeholders > 0
        left = sequence.max_output_tokens - sequence.num_output_tokens
        if left > self._max_model_len - sequence.num_tokens:
            left = self._max_model_len - sequence.num_tokens
        added = max(1, min(count, left)) if count > 1 else 1
        sequence.num_output_tokens += added
        sequence.num_tokens += added
        stopped = added >= left
        if not stale:
            if stopped:
                sequence.num_computed_tokens -= count - added
            if had_placeholders:
                sequence.num_output_placeholders -= count
            if (had_placeholders or self._registers_output) and sequence.states and self._caching:
                self.coordinator.register(
                    sequence, sequence.num_computed_tokens - sequence.num_in_flight_tokens
                )
        if not stopped and self._num_drafts:
            self._draft(sequence)
        return stopped

    def _draft(self, sequence: Sequence) -> None:
        """The drafter proposes tokens for the next step."""
        if not sequence.is_prefill_chunk:
            sequence.num_draft_tokens = self._num_drafts

    def quiet_decode_steps(self) -> int:
        """How many steps would only add a token to every running request: no block begins or fills up near them,
        nobody ends, is admitted or still prefills. 0 if the next step may do more."""
        if self.waiting or self._num_drafts or not self.running:
            return 0
        steps = self._max_model_len
        for sequence in self.running:
            computed = sequence.num_computed_tokens
            left = min(
                sequence.max_output_tokens - sequence.num_output_tokens,
                self._max_model_len - sequence.num_tokens,
            )
            if computed <= sequence.num_prompt_tokens or self._next_tokens(sequence) != 1:
                return 0
            steps = min(steps, left - _CLOSE)
            for period, offset in self.coordinator.rhythms:
                into = (computed - offset) % period
                steps = min(steps, period - into - _CLOSE if into >= _CLOSE else 0)
            if steps <= 0:
                return 0
        return steps

    def pass_decode_steps(self, steps: int) -> None:
        """Let that many quiet steps have happened."""
        for sequence in self.running:
            sequence.num_computed_tokens += steps
            sequence.num_tokens += steps
            sequence.num_output_tokens += steps
