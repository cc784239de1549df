"""Lever: begin every prompt with one BOS token.

Some paths (a template that writes it, and a tokenizer that adds it) give two; such prompts share nothing with those
that have one, since every token stands one place further back.
"""

from __future__ import annotations

import numpy as np

from kvtune.analyzers.levers.edits import edit_prompts
from kvtune.analyzers.levers.trial import Baseline, Found, try_change
from kvtune.analyzers.report import Lever


def double_bos(base: Baseline) -> Found | None:
    """The gain of dropping the second BOS where other prompts have one; None where that gains nothing."""
    trace = base.trace
    heads = [trace.prompt(request)[:2].tolist() for request in range(len(trace))]
    doubled = [len(head) == 2 and head[0] == head[1] for head in heads]
    single = {head[0] for head, twice in zip(heads, doubled, strict=True) if not twice}
    requests = np.array(
        [
            index
            for index, (head, twice) in enumerate(zip(heads, doubled, strict=True))
            if twice and head[0] in single
        ],
        dtype=np.int64,
    )
    if not len(requests):
        return None
    gain = try_change(base, trace=edit_prompts(trace, requests, lambda prompt: prompt[1:]))
    saved = len(requests)  # the dropped tokens themselves are no merit of the cache
    if gain.tokens - saved <= 0:
        return None
    lever = Lever(
        kind="template",
        title="Write one BOS token, not two",
        what=f"{len(requests):,} prompts begin with two BOS tokens, the others with one: let all begin with one.",
        gain_tokens=gain.tokens - saved,
        gain_ci95=(gain.interval[0] - saved, gain.interval[1] - saved),
        change="leave the BOS out of the template or of the prompt's text, or send add_special_tokens=false",
        cost="none",
        evidence=f"first in {trace.ids[int(requests[0])]!r}; from there on nothing stands where it does elsewhere",
    )
    return Found(lever, gain)
