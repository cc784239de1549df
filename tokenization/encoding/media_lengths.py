"""How many tokens a model's processor makes of an image, where that is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvtune.tokenization.chat_template.messages import Media
from kvtune.tokenization.image_size import image_size

_WIDEST = 200
"""Longer side over shorter side: the processor refuses what is longer."""


@dataclass(frozen=True)
class MediaLengths:
    """Processors of the Qwen-VL kind: an image is scaled to whole cells of `cell` pixels a side, a token each.

    Attributes:
        cell: pixels (patch size times merge size). least, most: pixels of the scaled image.
    """

    cell: int
    least: int
    most: int

    def of(self, media: Media) -> int | None:
        """Tokens of an item; None where its size, or its kind, is not known."""
        if media.modality != "image":
            return None
        size = image_size(media.part)
        if size is None or max(size) > _WIDEST * min(size):
            return None
        return self.tokens(*size)

    def tokens(self, width: int, height: int) -> int:
        """Tokens of an image of these pixels."""
        cell, area = self.cell, width * height
        sides = [max(1, round(side / cell)) for side in (width, height)]
        cells = sides[0] * sides[1]
        if cells * cell * cell > self.most:
            scale = math.sqrt(area / self.most)
            sides = [max(1, math.floor(side / scale / cell)) for side in (width, height)]
        elif cells * cell * cell < self.least:
            scale = math.sqrt(self.least / area)
            sides = [math.ceil(side * scale / cell) for side in (width, height)]
        return sides[0] * sides[1]


_FAMILIES = {
    "qwen2_vl": MediaLengths(28, 3_136, 12_845_056),
    "qwen2_5_vl": MediaLengths(28, 3_136, 12_845_056),
    "qwen3_vl": MediaLengths(32, 65_536, 16_777_216),
    "qwen3_5": MediaLengths(32, 65_536, 16_777_216),
}
"""By the beginning of `model_type`; sizes as in the models' published preprocessor_config.json."""


def media_lengths(config: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> MediaLengths | None:
    """The processor of a model, by its `preprocessor_config.json`, else by its family; None: not known."""
    kind = str(config.get("model_type", ""))
    family = next((known for name, known in _FAMILIES.items() if kind.startswith(name)), None)
    if not str(preprocessor.get("image_processor_type", "")).startswith("Qwen2VLImageProcessor"):
        return family
    size = preprocessor.get("size")
    size = size if isinstance(size, Mapping) else {}
    patch, merge = _count(preprocessor.get("patch_size")), _count(preprocessor.get("merge_size"))
    least = _count(preprocessor.get("min_pixels")) or _count(size.get("shortest_edge"))
    most = _count(preprocessor.get("max_pixels")) or _count(size.get("longest_edge"))
    if not (patch and merge and least and most):
        return family
    return MediaLengths(patch * merge, least, most)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 32 else None
