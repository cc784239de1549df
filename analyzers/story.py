"""An explanation in words: what an engineer would tell a colleague about one request. Adds no facts."""

from __future__ import annotations

import msgspec

from kvtune.analyzers.explanation import Explanation, StateEvent


def tell(found: Explanation) -> Explanation:
    """The same explanation with its `why` filled in, one sentence each."""
    sentences = [_sharing(found), _groups(found), _resumed(found), _stopped(found), _junction(found)]
    return msgspec.structs.replace(found, why=tuple(sentence for sentence in sentences if sentence))


def _sharing(found: Explanation) -> str:
    if found.shared_with is None or found.divergence is None:
        return f"Nothing of its {found.prompt_tokens:,} tokens was cached before by anybody in its namespace."
    where = found.divergence
    if where.own_class is None and where.other_class is None:
        classes = ""
    else:
        own, other = (
            where.own_class or "the end of the prompt",
            where.other_class or "the end of what was cached",
        )
        classes = f" ({own} here, {other} there)" if own != other else f" ({own} in both)"
    return (
        f"It shares {found.shared_tokens:,} of its {found.prompt_tokens:,} tokens with {found.shared_with}, the latest "
        f"earlier request that shares as much; its first own token, number {where.position + 1:,}, stands in the "
        f"{where.part} part{classes}."
    )


def _groups(found: Explanation) -> str:
    if not found.group_hits or not found.shared_tokens:
        return ""
    by_kind: dict[tuple[str, int], int] = {}
    for hit in found.group_hits:
        name = (hit.kind.replace("_", " "), hit.block_size)
        by_kind[name] = min(by_kind.get(name, hit.hit_tokens), hit.hit_tokens)
    if len(by_kind) < 2:
        return ""
    alone = ", ".join(f"{kind} {block:,}: {tokens:,}" for (kind, block), tokens in by_kind.items())
    return (
        f"Alone, each KV cache group could resume at ({alone}); the engine takes the longest that all of them have: "
        f"{found.hit_tokens:,}."
    )


def _resumed(found: Explanation) -> str:
    if not found.hit_tokens:
        return ""
    event = _last(found, found.hit_tokens, ("left", "moved"))
    if event is None:
        return ""
    how = f" ({event.how})" if event.how and event.event == "left" else ""
    return f"What it resumed from at {found.hit_tokens:,} was left by {event.by}{how} in step {event.step:,}."


def _stopped(found: Explanation) -> str:
    missed, losses = found.shared_tokens - found.hit_tokens, found.losses
    if found.fate == "no_sharing":
        return ""
    if found.fate == "refused":
        return "The engine would refuse it: the prompt can never fit the pool."
    if found.fate == "full":
        if not missed:
            return "It reuses all that it shares."
        past = losses.granularity
        return f"It reuses all that a hit alignment of {found.unit:,} allows; {past:,} tokens past it are computed."
    if found.fate == "grid":
        return f"Less than one unit of {found.unit:,} tokens is shared: no hit can land there."
    if found.fate == "below_floor":
        return (
            "Prompts that part inside the first block leave no state there: nothing shorter than a block is kept "
            f"but a prompt's own last boundary, and no earlier prompt ended within these {found.shared_tokens:,} "
            "tokens."
        )
    if found.fate == "no_state":
        more = losses.no_recurrent_state
        return (
            f"{more:,} more tokens are shared, but no earlier request ended a prefill step between "
            f"{found.hit_tokens:,} and {found.hit_tokens + more:,} of them, so no Mamba state was ever kept there."
        )
    if found.fate == "evicted":
        event = _last(found, None, ("evicted",))
        who = f" (position {event.position:,}, by {event.by} in step {event.step:,})" if event else ""
        return f"{losses.evicted:,} more tokens had been kept and were evicted before it came{who}."
    if found.fate == "in_flight":
        return f"{losses.in_flight:,} more tokens were still being computed when it was admitted."
    if found.fate == "window":
        return (
            f"{losses.window:,} tokens are lost to a sliding window whose blocks are not kept that far back."
        )
    dropped = losses.speculative_drop
    return f"{dropped:,} tokens are given up for the drafter, which needs the next token's hidden state."


def _junction(found: Explanation) -> str:
    if found.junction <= found.hit_tokens:
        return ""
    planted = [end for end in found.chunk_ends if found.hit_tokens < end <= found.junction]
    if not planted:
        return ""
    return (
        f"Since attention alone got to {found.junction:,}, its own prefill stops at {planted[-1]:,} and leaves a state "
        "there: the next request that shares as much can resume from it."
    )


def _last(found: Explanation, position: int | None, events: tuple[str, ...]) -> StateEvent | None:
    """The latest of these events at `position`; with None, at the furthest position past the hit."""
    fitting = [
        event
        for event in found.events
        if event.event in events
        and (event.position == position if position is not None else event.position > found.hit_tokens)
    ]
    return max(fitting, key=lambda event: (event.position, event.step, -event.group), default=None)
