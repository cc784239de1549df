"""Width and height of an inline image, from its header alone; nothing is decoded beyond that."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Any

_MOST_HEADER_CHARS = 1 << 20
"""Of base64: a photo's metadata may stand before its size."""

_MOST_SIDE = 1 << 20
_JPEG_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


def image_size(part: Mapping[str, Any]) -> tuple[int, int] | None:
    """(width, height) in pixels of an image part whose content is inline; None where it is a link, or not told."""
    data = _inline(part)
    if data is None:
        return None
    try:
        size = _size(base64.b64decode(data[: _MOST_HEADER_CHARS // 4 * 4], validate=False))
    except (binascii.Error, struct.error, ValueError, IndexError):
        return None
    if size is None or not all(0 < side <= _MOST_SIDE for side in size):
        return None
    return size


def _inline(part: Mapping[str, Any]) -> str | None:
    """The base64 text in OpenAI's, Anthropic's and plain shapes."""
    for holder in (part, part.get("image_url"), part.get("source"), part.get("image")):
        values: list[Any] = [holder]
        if isinstance(holder, Mapping):
            values = [holder.get(name) for name in ("url", "image_url", "data", "b64_json", "base64")]
        for value in values:
            if not isinstance(value, str) or not value:
                continue
            if value.startswith("data:"):
                return value[: _MOST_HEADER_CHARS + 256].partition(",")[2]
            if isinstance(holder, Mapping) and holder.get("type") == "base64":
                return value
    return None


def _size(data: bytes) -> tuple[int, int] | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return struct.unpack(">II", data[16:24])
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return struct.unpack("<HH", data[6:10])
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    if data.startswith(b"\xff\xd8"):
        return _jpeg(data)
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """The first frame header behind the segments before it."""
    place = 2
    while place + 9 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker in _JPEG_SIZES:
            height, width = struct.unpack(">HH", data[place + 5 : place + 9])
            return width, height
        if marker == 0xFF:
            place += 1
            continue
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None
