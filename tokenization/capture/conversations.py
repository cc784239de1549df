"""Finds the conversation that a chat request continues, from its messages alone.

A request continues an earlier one when its messages begin with all of the earlier one's and go on with an
assistant message, which is what a client does that sends the history along. Texts are kept as digests only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

_MAX_REMEMBERED = 65_536


@dataclass(slots=True)
class _Conversation:
    name: str
    turns: int = 0


class _Role(msgspec.Struct):
    role: str = ""


_role = msgspec.json.Decoder(_Role)


class Conversations:
    """Names conversations `<prefix>-<n>` and counts their turns from 0.

    Args:
        prefix: unlike that of any other capture, so that several files can be analyzed as one trace.
        max_remembered: how many prompts stay recognisable; the least recently continued go first.
    """

    def __init__(self, prefix: str, max_remembered: int = _MAX_REMEMBERED) -> None:
        self._prefix = prefix
        self._max_remembered = max_remembered
        self._by_prompt: OrderedDict[bytes, _Conversation] = OrderedDict()
        self._named = 0

    def place(self, model: bytes, messages: Sequence[msgspec.Raw]) -> tuple[str, int]:
        """The conversation's name and the turn, which is unique within it even where a history forks.

        Args:
            model: the model field's bytes: histories of different models never join.
            messages: the request's messages as they were sent, in order.

        Raises:
            msgspec.MsgspecError: a message is no object or its role no string.
        """
        whole = blake2b(model, digest_size=16)
        before_answers: list[bytes] = []
        for message in messages:
            if _role.decode(message).role == "assistant":
                before_answers.append(whole.digest())
            whole.update(message)
            whole.update(b"\n")
        conversation = next(
            (self._by_prompt[digest] for digest in reversed(before_answers) if digest in self._by_prompt),
            None,
        )
        if conversation is None:
            conversation = _Conversation(self.unnamed())
        turn = conversation.turns
        conversation.turns += 1
        self._remember(whole.digest(), conversation)
        return conversation.name, turn

    def unnamed(self) -> str:
        """A name for a request whose prompt shows no turns: it is nobody's continuation."""
        name = f"{self._prefix}-{self._named}"
        self._named += 1
        return name

    def _remember(self, prompt: bytes, conversation: _Conversation) -> None:
        self._by_prompt[prompt] = conversation
        self._by_prompt.move_to_end(prompt)
        if len(self._by_prompt) > self._max_remembered:
            self._by_prompt.popitem(last=False)
