"""An image is as long as the model's processor makes it, else as the log says; never one token silently."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from kvtune.tokenization.doubts import media_unsized
from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.encoding.media_lengths import MediaLengths, media_lengths
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.image_size import image_size
from tests.tokenization.encoding.models import TEMPLATE, chat, encoder_of

QWEN3 = MediaLengths(32, 65_536, 16_777_216)


def png(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def jpeg(width: int, height: int) -> bytes:
    """With metadata in front, as cameras write it."""
    metadata = b"\xff\xe1" + struct.pack(">H", 40_002) + bytes(40_000)
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + metadata + frame


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(3)


def webp(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + bytes(4) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + sides


def image(data: bytes, kind: str = "png") -> dict[str, Any]:
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.mark.parametrize("write", [png, jpeg, gif, webp])
def test_the_size_is_read_from_the_header(write: Any) -> None:
    assert image_size(image(write(2_048, 1_536))) == (2_048, 1_536)


def test_anthropic_writes_it_in_another_place() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png(640, 480)).decode()}
    assert image_size({"type": "image", "source": source}) == (640, 480)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://a/cat.png"}},
        {"type": "image_url", "image_url": {}},
        image(b""),
        image(b"\x89PNG\r\n\x1a\n"),
        image(png(0, 5)),
        image(b"\xff\xd8" + b"\xff" * 50),
        image(b"\xff\xd8\xff\xe1\x00\x00" * 9),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,%%%%"}},
        {"type": "image_url", "image_url": 7},
    ],
)
def test_what_does_not_tell_its_size(part: dict[str, Any]) -> None:
    assert image_size(part) is None


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        ((2_048, 1_536), 3_072),  # 64 x 48 cells
        ((1_000, 700), 31 * 22),  # 31.25 and 21.9 cells, rounded
        ((64, 64), 8 * 8),  # 65,536 pixels at least
        ((10_000, 5_000), 181 * 90),  # 16,777,216 pixels at most: 5,792.6 x 2,896.3
    ],
)
def test_cells_of_32_pixels(size: tuple[int, int], tokens: int) -> None:
    assert QWEN3.tokens(*size) == tokens


def test_the_processor_is_known_by_its_file_or_its_family() -> None:
    written = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": 16,
        "merge_size": 2,
        "size": {"shortest_edge": 65_536, "longest_edge": 1_000_000},
    }
    assert media_lengths({"model_type": "other"}, written) == MediaLengths(32, 65_536, 1_000_000)
    assert media_lengths({"model_type": "qwen3_5_moe"}, {}) == QWEN3
    assert media_lengths({"model_type": "qwen3_vl"}, {"image_processor_type": "Other"}) == QWEN3
    assert media_lengths({"model_type": "qwen2_5_vl"}, {}) == MediaLengths(28, 3_136, 12_845_056)
    assert media_lengths({"model_type": "gemma3"}, {}) is None


def content(*parts: Any, **more: Any) -> Any:
    return chat(messages=[{"role": "user", "content": list(parts)}], **more)


def family_folder(tmp_path: Path) -> Any:
    encoder_of(tmp_path, TEMPLATE)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5"}))
    return open_prompt_encoder(model=tmp_path)


def test_an_image_counts_what_its_family_makes_of_it(tmp_path: Path) -> None:
    encoder = family_folder(tmp_path)
    big, small = image(png(2_048, 1_536)), image(png(320, 320))
    requests = [
        content("look ", *items, " x", id=str(n)) for n, items in enumerate(([], [big], [big, small]))
    ]
    trace, info = encode_trace(requests, encoder)
    plain, one, two = trace.prompt_tokens.tolist()
    assert (one - plain, two - plain) == (3_072, 3_172)
    assert info.unsized_media == 0
    assert trace.media_items.tolist() == [0, 1, 2]
    assert trace.trusted_lengths is None
    run = trace.prompt(1)
    assert max(run.tolist().count(number) for number in set(run.tolist())) == 3_072
    assert (trace.prompt(1)[:3_080] == trace.prompt(2)[:3_080]).all(), "the same image is shared whole"


def test_parts_of_the_prompt_stay_where_they_are(tmp_path: Path) -> None:
    requests = [
        chat(
            messages=[
                {"role": "user", "content": [image(png(2_048, 1_536))]},
                {"role": "assistant", "content": "well"},
                {"role": "user", "content": "and?"},
            ]
        )
    ]
    trace, _ = encode_trace(requests, family_folder(tmp_path))
    parts = [trace.parts.part_of(0, at) for at in range(len(trace.prompt(0)))]
    assert parts.index("assistant") > 3_072


def test_else_the_log_says_how_long_it_was(tmp_path: Path) -> None:
    encoder = encoder_of(tmp_path, TEMPLATE)
    link = {"type": "image_url", "image_url": {"url": "http://a/cat"}}
    requests = [
        content("look ", link, id="a", prompt_tokens=700),
        content("see ", link, link, id="b", prompt_tokens=901),
    ]
    trace, info = encode_trace(requests, encoder)
    assert trace.prompt_tokens.tolist() == [700, 901]
    assert trace.trusted_lengths.tolist() == [True, True]
    assert (info.logged_media, info.unsized_media) == (2, 0)


def test_a_known_length_yields_to_the_log_only_where_it_is_trusted(tmp_path: Path) -> None:
    encoder = family_folder(tmp_path)
    requests = [content("look ", image(png(2_048, 1_536)), prompt_tokens=700)]
    (length,) = encode_trace(requests, encoder)[0].prompt_tokens.tolist()
    assert length > 3_072
    trace, _ = encode_trace(requests, encoder, trusts_lengths=True)
    assert trace.prompt_tokens.tolist() == [700]


def test_what_nothing_tells_is_counted_and_said(tmp_path: Path) -> None:
    encoder = encoder_of(tmp_path, TEMPLATE)
    link = {"type": "image_url", "image_url": {"url": "http://a/cat"}}
    _, info = encode_trace([content("look ", link), content("no more", id="b")], encoder)
    assert info.unsized_media == 1
    doubt = media_unsized(info.unsized_media)
    assert doubt is not None and not doubt.decides
    assert doubt.sentence.startswith("1 request holds images or other media of unknown length")
    assert media_unsized(0) is None
