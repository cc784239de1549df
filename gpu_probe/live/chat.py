"""Our token ids against the server's own for the same messages: the first that differs, and the rule behind it.

Knows ids and the part of the prompt in which they stand; never text, which belongs to the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvtune.gpu_probe.live.client import LiveClient, RefusedRequestError
from kvtune.gpu_probe.live.requests import chat_fields
from kvtune.tokenization.errors import MissingDependencyError
from kvtune.tokenization.request import Request
from kvtune.tokenization.trace import TokenTrace, UInt32

TOKENIZE = "/tokenize"
_RULES = {
    "template": "the chat template differs: give the server's own with --chat-template",
    "tools": "tools are rendered differently: the template, or how tool-call arguments and definitions are normalised",
    "system": "the system message is rendered differently: merged, moved or stripped by the server's release",
    "tool": "a tool message is rendered differently: how its parts are joined, or the content format",
    "assistant": "an earlier answer is rendered differently: reasoning dropped or kept, or tool-call arguments",
    "user": "a user message is rendered differently: the content format (--chat-template-content-format)",
    "output": "the answer's start is rendered differently: the generation prompt",
}


@dataclass(frozen=True)
class TokenDifference:
    """The first differing token of a request.

    Attributes:
        position: 0-based. ours, theirs: ids; None where that side has ended.
        part: where in the prompt it stands. rule: what makes such a difference.
    """

    request: int
    id: str
    position: int
    ours: int | None
    theirs: int | None
    part: str
    rule: str

    def sentence(self) -> str:
        """In words, without text of the prompt."""
        ours, theirs = (
            ("the end" if token is None else f"token {token}") for token in (self.ours, self.theirs)
        )
        return (
            f"request {self.id} is other tokens on the server: at position {self.position} ({self.part}) "
            f"{ours} here, {theirs} there; {self.rule}"
        )


def first_difference(trace: TokenTrace, theirs: Sequence[UInt32 | None]) -> TokenDifference | None:
    """The first differing token of the first differing request; requests without the server's ids are passed over."""
    for request, other in enumerate(theirs):
        if other is None:
            continue
        ours = trace.prompt(request)
        length = min(len(ours), len(other))
        parted = np.flatnonzero(ours[:length] != other[:length])
        if len(parted) or len(ours) != len(other):
            return _difference(trace, request, ours, other, int(parted[0]) if len(parted) else length)
    return None


def _difference(
    trace: TokenTrace, request: int, ours: UInt32, theirs: UInt32, position: int
) -> TokenDifference:
    mine, other = (int(ids[position]) if position < len(ids) else None for ids in (ours, theirs))
    part = trace.parts.part_of(request, min(position, len(ours) - 1))
    if position == 0 and len(theirs) == len(ours) + 1 and np.array_equal(theirs[1:], ours):
        rule = "the server puts one token in front (BOS): its tokenizer adds special tokens to chats"
    elif position == 0 and len(ours) == len(theirs) + 1 and np.array_equal(ours[1:], theirs):
        rule = "here one token more stands in front (BOS): the server adds none"
    elif mine is None or other is None:
        rule = "one ends where the other goes on: the generation prompt differs"
    else:
        rule = _RULES.get(part, _RULES["template"])
    return TokenDifference(request, trace.ids[request], position, mine, other, part, rule)


def with_tokens(trace: TokenTrace, theirs: Sequence[UInt32 | None]) -> TokenTrace:
    """The trace as the server saw it: its own ids where they are known."""
    prompts = [trace.prompt(index) if ids is None else ids for index, ids in enumerate(theirs)]
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    return replace(
        trace,
        tokens=np.concatenate(prompts).astype(np.uint32),
        offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        prompt_tokens=lengths,
    )


async def server_tokens(client: LiveClient, model: str, request: Request) -> UInt32 | None:
    """The server's ids for one chat, by its tokenizing endpoint; None where it has none or refuses the chat."""
    body = {"model": model, **chat_fields(request)}
    body.pop("documents", None)
    try:
        document = await client.post_json(TOKENIZE, body)
    except (RefusedRequestError, MissingDependencyError):
        return None
    ids = document.get("tokens") if isinstance(document, dict) else None
    if not isinstance(ids, list) or not all(isinstance(token, int) and 0 <= token < 2**32 for token in ids):
        return None
    return np.array(ids, dtype=np.uint32)
