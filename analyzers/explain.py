"""Why one request hit what it hit: the replay watched, and told for that request.

Knows a trace as ids, a server and the recorded replay; no files and no terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvtune.analyzers.bookkeeping.recorder import EngineLog, KeyLogEntry, LookupRecord
from kvtune.analyzers.explanation import Divergence, Explanation, Fate, GroupHit, Left, StateEvent
from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.losses import split_losses
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.pool.footprint import pool_for
from kvtune.analyzers.prefix_tree import KEY_SHIFT
from kvtune.analyzers.replay import ReplayInput, ReplayResult, replay
from kvtune.analyzers.routing import caches_of
from kvtune.analyzers.rows import losses_row
from kvtune.analyzers.shared import Outputs, SharedPrefixes, find_shared_prefixes
from kvtune.analyzers.story import tell
from kvtune.analyzers.sweep import replay_input
from kvtune.analyzers.text_class import TextClass, classify
from kvtune.tokenization.trace import TokenTrace, UInt32

Decode = Callable[[Sequence[int]], str]

_CONTEXT_TOKENS = 24
_MOST_EVENTS = 16
"""The latest ones are shown."""

_POSITION = (1 << KEY_SHIFT) - 1


@dataclass(frozen=True)
class Watched:
    """A recorded replay and the request in it. `number` is its place among the requests of its cache."""

    trace: TokenTrace
    config: EngineConfig
    inputs: ReplayInput
    shared: SharedPrefixes
    result: ReplayResult
    log: EngineLog
    number: int

    @property
    def lookup(self) -> LookupRecord | None:
        """The request's first admission; None where it was refused or not looked up."""
        return self.log.lookups.get(self.number)


def explain_request(
    trace: TokenTrace,
    config: EngineConfig,
    options: AnalyzeOptions,
    request: int,
    *,
    kvtune_version: str,
    decode: Decode | None = None,
    show_text: bool = False,
) -> Explanation:
    """Explain request `request` (its place in the trace) under `config`.

    Args:
        decode: gives the text of ids, for the class of what differs; the text itself only with `show_text`.
    """
    config = options.engine(config)
    trace, replica = caches_of(trace, options)
    shared = find_shared_prefixes(trace, options.outputs)
    members = np.arange(len(trace)) if replica is None else np.flatnonzero(replica == replica[request])
    inputs = replay_input(trace, shared).subset(members)
    number = int(np.searchsorted(members, request))
    result = replay(config, inputs, arrivals=options.arrivals, step_times=options.step_times, record=True)
    assert result.log is not None
    assert result.limits is not None
    losses = split_losses(config, inputs, shared.shared[members], result, result.limits)
    own_losses = {kind: tokens[number : number + 1] for kind, tokens in losses.items()}
    watched = Watched(trace, config, inputs, shared, result, result.log, number)
    hit = int(result.hit_tokens[number])
    grid = result.sizes.cache_hit_alignment
    common, peer = int(shared.shared[request]), int(shared.shared_with[request])
    prompt = int(trace.prompt_tokens[request])
    row = losses_row(grid, hit, own_losses)
    pool = pool_for(config, inputs, number)
    found = Explanation(
        kvtune_version=kvtune_version,
        id=trace.ids[request],
        number=request + 1,
        prompt_tokens=prompt,
        unit=grid,
        scheduler_block_size=result.sizes.scheduler_block_size,
        shared_tokens=common,
        shared_with=trace.ids[peer] if peer >= 0 else None,
        divergence=_divergence(trace, options.outputs, request, peer, common, decode, show_text)
        if peer >= 0
        else None,
        group_hits=_group_hits(watched),
        hit_tokens=hit,
        junction=int(result.junction[number]),
        recomputed_tokens=prompt - hit,
        losses=row,
        chunk_ends=tuple(chunk.end for chunk in watched.log.chunks.get(number, ()) if chunk.start < prompt),
        fate=_fate(watched, common, hit, own_losses),
        why=(),
        events=_events(watched, members, common),
        most_pinned=None if result.most_pinned is None else int(result.most_pinned[number]),
        pinned_at_end=sum(int(held[number]) for held in result.pinned_at_end.values())
        if result.pinned_at_end
        else None,
        minimum_pool_blocks=pool.alone,
        minimum_pool_on_hit_blocks=pool.on_hit,
    )
    return tell(found)


def _fate(watched: Watched, shared: int, hit: int, losses: dict[str, np.ndarray]) -> Fate:
    if not shared:
        return "no_sharing"
    if watched.number in watched.result.refused:
        return "refused"
    names: dict[str, Fate] = {
        "no_recurrent_state": "no_state",
        "evicted": "evicted",
        "in_flight": "in_flight",
        "window": "window",
        "speculative_drop": "drop",
    }
    worst = max(names, key=lambda kind: int(losses[kind][0]))
    if int(losses[worst][0]) == 0:
        return "full" if hit else "grid"
    smallest = min(watched.result.sizes.group_block_sizes)
    if worst == "no_recurrent_state" and hit == 0 and shared < smallest:
        return "below_floor"
    return names[worst]


def _group_hits(watched: Watched) -> tuple[GroupHit, ...]:
    lookup = watched.lookup
    if lookup is None:
        return ()
    return tuple(
        GroupHit(group=index, kind=group.kind, block_size=group.block_size, hit_tokens=tokens)
        for index, (group, tokens) in enumerate(
            zip(watched.config.expanded(), lookup.group_hits, strict=False)
        )
    )


def _divergence(
    trace: TokenTrace,
    outputs: Outputs,
    request: int,
    peer: int,
    shared: int,
    decode: Decode | None,
    show_text: bool,
) -> Divergence:
    part = trace.parts.part_of(request, shared)
    if decode is None or trace.span > 1:
        return Divergence(position=shared, part=part)
    own_class, own_text = _differing(trace.prompt(request), shared, decode)
    other_class, other_text = _differing(_cached(trace, peer, outputs), shared, decode)
    return Divergence(
        position=shared,
        part=part,
        own_class=own_class,
        other_class=other_class,
        own_text=own_text if show_text else None,
        other_text=other_text if show_text else None,
    )


def _cached(trace: TokenTrace, request: int, outputs: Outputs) -> UInt32:
    """What a request leaves in the cache: its prompt, and its recorded answer where answers are kept."""
    prompt = trace.prompt(request)
    if outputs != "recorded" or trace.outputs is None or trace.output_offsets is None:
        return prompt
    start, end = int(trace.output_offsets[request]), int(trace.output_offsets[request + 1])
    return np.concatenate((prompt, trace.outputs[start:end]))


def _differing(ids: UInt32, shared: int, decode: Decode) -> tuple[TextClass | None, str | None]:
    """Class and text of what follows the shared prefix; None where nothing does."""
    if shared >= len(ids):
        return None, None
    before = decode(ids[max(shared - _CONTEXT_TOKENS, 0) : shared].tolist())
    first = decode(ids[shared : shared + 1].tolist())
    after = decode(ids[shared : shared + _CONTEXT_TOKENS].tolist())
    return classify(before + after, len(before), len(before) + len(first)), after


def _events(watched: Watched, members: np.ndarray, shared: int) -> tuple[StateEvent, ...]:
    """Events before the admission, at positions of this request's own prefix, of one group of each sort."""
    lookup = watched.lookup
    if lookup is None:
        return ()
    groups = watched.config.expanded()
    first_of_kind = {
        index for index, group in enumerate(groups) if all(group != other for other in groups[:index])
    }
    path = watched.inputs.paths[watched.number]
    lookahead = watched.result.sizes.hash_lookahead_tokens
    found = []
    for entry in watched.log.keys:
        if entry.step >= lookup.step:
            break
        position = (entry.key & _POSITION) - lookahead
        if entry.group not in first_of_kind or not 0 < position <= shared:
            continue
        attention = groups[entry.group].kind != "mamba"
        if attention and entry.event == "keyed" and position % groups[entry.group].block_size == 0:
            continue  # every full block gets a key: only what became of it is news
        if path.key(position + lookahead) == entry.key:
            found.append(
                StateEvent(
                    step=entry.step,
                    by=watched.trace.ids[int(members[entry.request])],
                    event="left" if entry.event == "keyed" else entry.event,
                    group=entry.group,
                    position=position,
                    how=_how(watched, entry, position),
                )
            )
    return tuple(found[-_MOST_EVENTS:])


def _how(watched: Watched, entry: KeyLogEntry, position: int) -> Left | None:
    """Why the request of this event left a state there."""
    if entry.event == "moved":
        return "moved copy"
    if entry.event != "keyed":
        return None
    block = watched.config.expanded()[entry.group].block_size
    if position % block:
        return "prompt tail"
    if watched.config.expanded()[entry.group].kind != "mamba":
        return "block"
    before = watched.log.lookups.get(entry.request)
    if before is not None and before.junction and before.junction // block * block == position:
        return "junction"
    return "block boundary"
