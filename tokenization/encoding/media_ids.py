"""Ids for images, audio and video in a prompt, from what they are, so that equal items share and others do not.

A server expands an item to a run of placeholder tokens whose length the model's processor decides, and puts the
item's hash into the blocks' keys. Here the item stands as a run of one id above the vocabulary where the template wrote
its placeholder, as long as is known; prompts with other items diverge there, as they do in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kvtune.tokenization.chat_template.messages import Media
from kvtune.tokenization.media import media_digest
from kvtune.tokenization.trace import UInt32


class MediaIds:
    """Dense ids from `first` on, one per distinct item of the trace."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._known: dict[str, int] = {}

    def of(self, media: Media) -> int:
        """The id of an item; one that nothing identifies is like no other."""
        digest = media_digest(media.part) or f"unknown:{len(self._known)}"
        return self._known.setdefault(f"{media.modality}:{digest}", self._first + len(self._known))

    def place(
        self, ids: UInt32, media: Sequence[Media], placeholders: Mapping[str, int], anchors: Sequence[int]
    ) -> tuple[UInt32, list[int]]:
        """The prompt with its items in it, uint32[n], n >= len(ids), and before which tokens items were put in.

        Args:
            placeholders: modality -> token id that stands for an item.
            anchors: per item, where its message's text begins, in tokens: an item without a placeholder is
                put there.
        """
        placed = ids.copy()
        missing: list[tuple[int, int]] = []
        for modality in sorted({item.modality for item in media}):
            numbered = [
                (item, anchor)
                for item, anchor in zip(media, anchors, strict=True)
                if item.modality == modality
            ]
            token = placeholders.get(modality)
            at = np.flatnonzero(ids == token).tolist() if token is not None else []
            for position, (item, _) in zip(at, numbered, strict=False):
                placed[position] = self.of(item)
            missing += [(anchor, self.of(item)) for item, anchor in numbered[len(at) :]]
        if not missing:
            return placed, []
        positions = [position for position, _ in missing]
        values = np.array([value for _, value in missing], dtype=np.uint32)
        return np.insert(placed, positions, values), positions


def with_lengths(
    placed: UInt32, media: Sequence[Media], lengths: Sequence[int], of: Callable[[Media], int]
) -> tuple[UInt32, list[int]]:
    """The prompt with each item as long as it is, and behind which tokens more of it were put in, one each.

    Args:
        placed: with one id an item, uint32[n]. lengths: of the items, in their order, at least 1.
        of: an item's id.
    """
    queues: dict[int, list[int]] = {}
    for item, length in zip(media, lengths, strict=True):
        queues.setdefault(of(item), []).append(length)
    repeats = np.ones(len(placed), dtype=np.int64)
    behind: list[int] = []
    for place in np.flatnonzero(np.isin(placed, np.array(list(queues), dtype=np.uint32))).tolist():
        waiting = queues[int(placed[place])]
        if waiting:
            repeats[place] = waiting.pop(0)
            behind += [place + 1] * (int(repeats[place]) - 1)
    return np.repeat(placed, repeats), behind
