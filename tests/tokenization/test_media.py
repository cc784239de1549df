"""Identity of media items: same content, same digest, whatever it is wrapped in."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from kvtune.tokenization.media import has_media, is_media, media_digest

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
ENCODED = base64.b64encode(PICTURE).decode()
DIGEST = f"sha256:{hashlib.sha256(PICTURE).hexdigest()}"
URL = "https://pictures.example/1.png"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}", "detail": "high"}},
        {"type": "image_url", "image_url": f"data:image/png;base64,{ENCODED}"},
        {"type": "input_image", "image_url": f"data:application/octet-stream;base64,{ENCODED}"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED}},
        {"type": "input_audio", "input_audio": {"data": ENCODED, "format": "wav"}},
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{ENCODED}"},
        },
    ],
)
def test_inline_data_by_its_content(part: dict[str, Any]) -> None:
    assert media_digest(part) == DIGEST
    assert is_media(part)


@pytest.mark.parametrize(
    ("part", "digest"),
    [
        ({"type": "image_url", "uuid": "u1", "image_url": {"url": URL}}, "id:u1"),
        ({"type": "image_url", "image_url": None, "uuid": "u1"}, "id:u1"),
        ({"type": "file", "file": {"file_id": "f1"}}, "id:f1"),
        ({"type": "image_url", "image_url": {"url": URL}}, f"url:{hashlib.sha256(URL.encode()).hexdigest()}"),
        ({"type": "image"}, None),
        ({"type": "image_url", "image_url": {"detail": "low"}}, None),
        ({"type": "image_url", "image_url": {"url": ""}}, None),
        ("text", None),
        (None, None),
    ],
)
def test_what_identifies_an_item(part: Any, digest: str | None) -> None:
    assert media_digest(part) == digest


def test_other_content_other_digest() -> None:
    other = base64.b64encode(PICTURE[:-1]).decode()
    assert media_digest({"type": "image", "source": {"data": other}}) != DIGEST


def test_data_that_is_no_base64_is_hashed_as_it_stands() -> None:
    one, other = (
        {"type": "image_url", "image_url": {"url": f"data:image/svg+xml,<svg>{n}</svg>"}} for n in "ab"
    )
    assert media_digest(one) != media_digest(other)
    assert str(media_digest(one)).startswith("sha256:")


def test_text_is_no_media() -> None:
    text = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "a"}, {"text": "a"}, "a", None]
    assert not any(is_media(part) for part in text)
    assert not has_media([{"role": "user", "content": "a"}, {"role": "user", "content": text}])
    assert has_media([{"role": "user", "content": [*text, {"type": "image_url", "image_url": {"url": URL}}]}])
