"""Identity of images, audio, video and files in a prompt: same content, same digest.

From a media item's placeholder on, a prompt is shared only with prompts that have the same item there. What
is in the item is never decoded, only hashed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any

from kvtune.tokenization.request import Message

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "reasoning"})

# Where the API or a log gives an id or hash that stands for the content.
_GIVEN = ("uuid", "mm_hash", "image_hash", "hash", "sha256", "digest", "file_id", "image_id")
_LINKS = ("url", "image_url", "audio_url", "video_url", "file_url", "uri")
_DATA = ("data", "file_data", "b64_json", "base64", "content")
_CARRIERS = (
    "image_url",
    "input_audio",
    "audio_url",
    "video_url",
    "file",
    "image",
    "audio",
    "video",
    "source",
)


def is_media(part: Any) -> bool:
    """Whether a content part is anything but text."""
    return (
        isinstance(part, dict) and part.get("type", "text" if "text" in part else "media") not in TEXT_PARTS
    )


def has_media(messages: list[Message]) -> bool:
    """Whether any message carries a media item."""
    return any(
        is_media(part)
        for message in messages
        if isinstance(content := message.get("content"), list)
        for part in content
    )


def media_digest(part: Any) -> str | None:
    """The identity of a media part of a message (`{"type": "image_url", ...}` and its like).

    A hash or id that the request gives comes first, as in the engine (`uuid`), then SHA-256 of inline data
    (base64 decoded, so that the wrapping does not matter), then the link itself. None: nothing identifies the
    item, and it is to be taken as unlike any other.
    """
    if not isinstance(part, dict):
        return None
    holders = [part, *(part[name] for name in _CARRIERS if isinstance(part.get(name), dict))]
    for holder in holders:
        for name in _GIVEN:
            if isinstance(holder.get(name), str) and holder[name]:
                return f"id:{holder[name]}"
    for holder in holders:
        for name in (*_LINKS, *_DATA):
            value = holder.get(name)
            if isinstance(value, str) and value:
                return _of_text(value, is_data=name in _DATA)
    return None


def _of_text(value: str, *, is_data: bool) -> str:
    if value.startswith("data:"):
        _, _, value = value.partition(",")
        is_data = True
    if not is_data:
        return f"url:{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()}"
    try:
        content = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        content = value.encode("utf-8", "surrogatepass")
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
