"""The scheduler: which requests get how many tokens in a step, who is preempted, who is admitted.

    schedule() -> StepPlan -> the workers run it -> update(plan, generated) -> finished requests

There is no prefill or decode phase: running requests are served first, in order, then waiting ones are admitted,
each up to what its known tokens and the step budget allow. First come, first served. `update` stands in
`step_output`. Sources: `sched/scheduler: schedule`, and `sched/async_scheduler` for `AsyncScheduler`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from kvtune.analyzers.bookkeeping.chunk_splitter import ChunkSplitter
from kvtune.analyzers.bookkeeping.coordinator import Coordinator
from kvtune.analyzers.bookkeeping.lookup import Hit
from kvtune.analyzers.bookkeeping.sequence import Sequence
from kvtune.analyzers.bookkeeping.step_output import StepOutput
from kvtune.analyzers.bookkeeping.step_plan import Chunk, StepPlan
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.profiles import ReleaseProfile
from kvtune.analyzers.resolver import ResolvedSizes, resolve_sizes

MOST_VAIN_TRIES = 8
"""How often a request that runs alone may preempt itself without getting further than before, until it counts as one
that can never fit."""


class Scheduler(StepOutput):
    """One engine's scheduler. Step n+1 is scheduled when step n's output is known.

    Attributes:
        prefill_chunks: (request, start, tokens) of every chunk that began inside a prompt.
    """

    def __init__(
        self,
        config: EngineConfig,
        profile: ReleaseProfile,
        sizes: ResolvedSizes | None = None,
        *,
        roomy: bool = False,
        coordinator: Coordinator | None = None,
    ) -> None:
        self.sizes = sizes if sizes is not None else resolve_sizes(config, profile)
        if coordinator is None:
            coordinator = Coordinator(config, profile, self.sizes, roomy=roomy)
        super().__init__(config, profile, self.sizes, coordinator)
        self.prefill_chunks: list[tuple[int, int, int]] = []
        self._budget = self.sizes.step_budget
        self._draft_rows = self.sizes.draft_rows
        self._max_num_seqs = config.max_num_seqs
        self._threshold = config.long_prefill_token_threshold
        self._threshold_needs_company = profile.long_prefill_threshold_needs_company
        self._prefill_lookahead = self.sizes.prefill_lookahead_tokens
        self._splitter = ChunkSplitter(config, profile, self.sizes) if self.sizes.align_split else None

    # --- requests ----------------------------------------------------------------------------------------------
    def add_request(self, sequence: Sequence) -> None:
        """Queue a request."""
        self.waiting.append(sequence)

    def refuse(self, sequence: Sequence) -> None:
        """Drop a request that can never fit, or never gets further."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.coordinator.release(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.first_hit, sequence.first_junction = 0, 0
        sequence.most_pinned, sequence.pinned_at_end = 0, []

    @property
    def has_requests(self) -> bool:
        """Whether a step has something to do: a request, or workers to be told of finished ones."""
        return bool(self.running or self.waiting or self._untold)

    def tables(self, sequence: Sequence) -> list[list[int]]:
        """The block table of a running request in every expanded group; 0 is the null block."""
        tables: list[list[int]] = []
        for manager, state in zip(self.coordinator.managers, sequence.states, strict=True):
            tables.extend(manager.tables(state))
        return tables

    # --- one step ----------------------------------------------------------------------------------------------
    def schedule(self) -> StepPlan:
        """Plan the next step, and hold the blocks that it needs."""
        coordinator = self.coordinator
        coordinator.begin_step()
        self._untold = False
        chunks: list[Chunk] = []
        preempted: list[Sequence] = []
        threshold = self._threshold
        if threshold and self._threshold_needs_company and len(self.running) + len(self.waiting) <= 1:
            threshold = 0
        budget = self._budget
        if self.running:
            budget = self._schedule_running(budget, threshold, chunks, preempted)
        if self.waiting and not preempted:
            self._admit_waiting(budget, threshold, chunks)
        copies = coordinator.take_copies()
        if copies:
            coordinator.free_copy_ends(copies)
        for chunk in chunks:
            self._advance(chunk)
        plan = StepPlan(chunks, copies, preempted)
        if self.recorder is not None:
            self.recorder.planned(plan)
        return plan

    def _schedule_running(
        self, budget: int, threshold: int, chunks: list[Chunk], preempted: list[Sequence]
    ) -> int:
        place = 0
        running, splitter, rows = self.running, self._splitter, self._draft_rows
        while place < len(running) and budget > rows:
            sequence = running[place]
            num_new = self._next_tokens(sequence)
            if 0 < threshold < num_new:
                num_new = threshold
            if num_new > budget - rows:
                num_new = budget - rows
            computed = sequence.num_computed_tokens
            if computed + num_new >= self._max_model_len:
                num_new = self._max_model_len - computed - 1
            if splitter is not None and computed < sequence.num_tokens - 1 and num_new > 0:
                num_new = splitter.clip(sequence, computed, num_new)
            if self._prefill_lookahead > 1:
                num_new = self._leave_lookahead(sequence, computed, num_new)
            if num_new <= 0:
                place += 1
                continue
            if not self._make_room(sequence, num_new, preempted):
                break
            drafts = 0
            if sequence.num_draft_tokens:
                known = sequence.num_tokens + sequence.num_output_placeholders
                drafts = min(
                    sequence.num_draft_tokens, max(0, num_new + sequence.num_computed_tokens - known)
                )
                sequence.num_draft_tokens = 0
            chunks.append(Chunk(sequence, sequence.num_computed_tokens, num_new, drafts))
            budget -= num_new + rows
            place += 1
        return budget

    def _make_room(self, sequence: Sequence, num_new: int, preempted: list[Sequence]) -> bool:
        """Hold the blocks of a chunk, preempting from the end of the queue; False if it preempted itself."""
        if self.recorder is not None:
            self.recorder.acts_for(sequence)
        while not self.coordinator.extend(sequence, num_new):
            victim = self.running.pop()
            if not self.running:
                self._count_vain_try(victim)
            self._preempt(victim)
            preempted.append(victim)
            if victim is sequence:
                return False
        return True

    @staticmethod
    def _count_vain_try(sequence: Sequence) -> None:
        """A request that preempts itself starts anew from what it left in the cache, and may get further so."""
        if sequence.num_computed_tokens > sequence.furthest_alone:
            sequence.furthest_alone = sequence.num_computed_tokens
            sequence.num_vain_preemptions = 0
        else:
            sequence.num_vain_preemptions += 1

    def _admit_waiting(self, budget: int, threshold: int, chunks: list[Chunk]) -> None:
        skipped: list[Sequence] = []
        waiting, running, coordinator, rows = self.waiting, self.running, self.coordinator, self._draft_rows
        while waiting and budget > rows and len(running) < self._max_num_seqs:
            sequence = waiting[0]
            if sequence.num_stale_tokens:
                skipped.append(waiting.popleft())
                continue
            if sequence.num_vain_preemptions >= MOST_VAIN_TRIES and not running:
                break  # the engine would try for ever
            hit = coordinator.find(sequence)
            sequence.junction = hit.junction
            sequence.num_probes += hit.probes
            if self.recorder is not None:
                self.recorder.looked_up(sequence, hit)
            num_new, drafts = self._first_tokens(sequence, hit, budget - rows, threshold, chunks)
            if num_new <= 0:
                break
            if self._prefill_lookahead > 1:
                num_new = self._leave_lookahead(sequence, hit.tokens, num_new)
                if num_new <= 0:
                    skipped.append(waiting.popleft())
                    continue
            if not coordinator.admit(sequence, hit, num_new, others_run=bool(running)):
                break
            waiting.popleft()
            running.append(sequence)
            sequence.num_computed_tokens = hit.tokens
            if sequence.first_hit < 0:
                sequence.first_hit = hit.tokens
                sequence.first_junction = hit.junction
            chunks.append(Chunk(sequence, hit.tokens, num_new, drafts, hit))
            budget -= num_new + rows
        if skipped:
            waiting.extendleft(reversed(skipped))

    def _first_tokens(
        self, sequence: Sequence, hit: Hit, budget: int, threshold: int, chunks: Seq[Chunk]
    ) -> tuple[int, int]:
        """Tokens, and drafts among them, of the first chunk after a hit."""
        num_new = sequence.num_tokens - hit.tokens
        drafts = 0
        runs = [chunk for chunk in chunks if chunk.hit is None] if self._num_drafts else ()
        if (
            num_new == 1
            and self._num_drafts
            and (runs or hit.tokens)
            and not any(chunk.sequence.is_prefill_chunk for chunk in runs)
        ):
            # A request that only decodes is padded to the batch's uniform number of rows.
            padded = 1 + self._num_drafts
            if hit.tokens + padded + 1 <= self._max_model_len:
                if padded > budget:
                    return 0, 0
                num_new, drafts = padded, self._num_drafts
        if 0 < threshold < num_new:
            num_new = threshold
        if num_new > budget:
            num_new = budget
        if self._splitter is not None:
            num_new = self._splitter.clip(sequence, hit.tokens, num_new)
            if drafts and 0 < num_new != 1 + drafts:
                num_new, drafts = 1, 0
        return num_new, drafts

    def _leave_lookahead(self, sequence: Sequence, computed: int, num_new: int) -> int:
        """A drafter of several modules needs a chunk's end to be followed by as many known tokens, or by none."""
        remaining = sequence.num_tokens - computed - num_new
        if 0 < remaining < self._prefill_lookahead:
            num_new -= self._prefill_lookahead - remaining
        return num_new

    def _advance(self, chunk: Chunk) -> None:
        """Count a scheduled chunk as computed: the next step may be scheduled before this one has run."""
        sequence = chunk.sequence
        if chunk.start < sequence.num_prompt_tokens:
            sequence.num_prefill_steps += 1
            self.prefill_chunks.append((sequence.index, chunk.start, chunk.num_tokens))
        sequence.num_computed_tokens += chunk.num_tokens
        sequence.num_in_flight_tokens += chunk.num_tokens
        known = sequence.num_tokens + sequence.num_output_placeholders
        sequence.is_prefill_chunk = sequence.num_computed_tokens < known
        chunk.samples = not sequence.is_prefill_chunk

    def _preempt(self, sequence: Sequence) -> None:
        self.coordinator.release(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_draft_tokens = 0
        sequence.num_stale_tokens = sequence.num_in_flight_tokens
        sequence.num_output_placeholders = 0
        sequence.num_preemptions += 1
        self.waiting.appendleft(sequence)


class AsyncScheduler(Scheduler):
    """Step n+1 is scheduled before step n's output is known: sampled tokens are counted as placeholders."""

    def _next_tokens(self, sequence: Sequence) -> int:
        placeholders = sequence.num_output_placeholders
        computed = sequence.num_computed_tokens
        ends_at = sequence.num_prompt_tokens + sequence.max_output_tokens
        if placeholders and computed + 2 - placeholders >= ends_at:
            return 0  # the step in flight gives the last token
        return sequence.num_tokens + sequence.num_draft_tokens + placeholders - computed

    def _advance(self, chunk: Chunk) -> None:
        super()._advance(chunk)
        if chunk.samples:
            chunk.sequence.num_output_placeholders += 1 + chunk.num_drafts
            chunk.sequence.num_draft_tokens = self._num_drafts

    def _draft(self, sequence: Sequence) -> None:
        """Drafts were counted when the step was scheduled."""


def make_scheduler(
    config: EngineConfig,
    profile: ReleaseProfile,
    sizes: ResolvedSizes | None = None,
    *,
    roomy: bool = False,
    coordinator: Coordinator | None = None,
) -> Scheduler:
    """The scheduler that `config.scheduling` asks for.

    Args:
        roomy: count blocks instead of telling them apart, until the pool runs out (`RoomyPool`).
        coordinator: to be used instead of a new one.
    """
    kind = AsyncScheduler if config.scheduling == "async" else Scheduler
    return kind(config, profile, sizes, roomy=roomy, coordinator=coordinator)
