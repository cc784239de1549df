"""Lever: send a common head once on its own, so that a state is kept where it ends.

A recurrent state is kept at each prompt's own last unit boundary and nowhere else inside a chunk. A prompt that is
just the head leaves one at the head's end, where everyone who shares it can resume, from the second request on
instead of the third.
"""

from __future__ import annotations

from kvtune.analyzers.levers.edits import Insertion, insert_requests
from kvtune.analyzers.levers.heads import Head
from kvtune.analyzers.levers.trial import Baseline, try_change
from kvtune.analyzers.report import Lever
from kvtune.tokenization.trace import UInt32


def prime_prompt(base: Baseline, head: Head) -> UInt32:
    """The head and the one token after it: the last token of a prompt is always recomputed, so one more is needed."""
    prompt = base.trace.prompt(head.owner)
    return prompt[: min(head.tokens + 1, len(prompt))]


def prime(base: Baseline, head: Head) -> Lever | None:
    """The gain of sending `head` once before its first request; None where it gains nothing."""
    prompt = prime_prompt(base, head)
    changed = insert_requests(base.trace, [Insertion(int(head.members[0]), prompt)])
    replica = None if base.replica is None else base.replica[changed.source]
    gain = try_change(base, trace=changed.trace, original=changed.original, replica=replica)
    if gain.tokens <= 0:
        return None
    return Lever(
        kind="prime",
        what=(
            f"Send the head of {head.tokens:,} tokens that {len(head.members):,} requests start with once on its own "
            f"before them (the prompt of {base.trace.ids[head.owner]!r}, cut there)."
        ),
        gain_tokens=gain.tokens,
        gain_ci95=gain.interval,
        change="kvtune analyze --write-prime FILE writes the request; send it when the server has started",
        cost=f"one prompt of {len(prompt):,} tokens, already taken off the gain; again after a restart or an eviction",
    )
