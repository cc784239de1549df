"""Images, audio and video of a prompt, as ids above the vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtune.tokenization.encode import encode_trace
from tests.tokenization.encoding.models import (
    ID,
    STRINGS,
    TEMPLATE,
    chat,
    encoder_of,
    text_ids,
)


class TestMedia:
    @staticmethod
    def image(url: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url}}

    def prompt(self, folder: Path, *contents: list[Any], template: str = TEMPLATE) -> list[list[int]]:
        requests = [
            chat(messages=[{"role": "user", "content": content}], id=str(n))
            for n, content in enumerate(contents)
        ]
        trace, _ = encode_trace(requests, encoder_of(folder, template))
        return [trace.prompt(n).tolist() for n in range(len(trace))]

    def test_an_item_stands_above_the_vocabulary_where_its_placeholder_was(self, tmp_path: Path) -> None:
        cat, dog = self.image("http://a/cat"), self.image("http://a/dog")
        a, b, c = self.prompt(tmp_path, ["look ", cat, " x"], ["look ", dog, " x"], ["look ", cat, " x", dog])
        size = 256 + len(ID)
        head = text_ids("<s><|turn|>user\nlook ")
        assert a == [*head, size, *text_ids(" x<|end|>\n<|turn|>assistant\n")]
        assert b[: len(head) + 1] == [*head, size + 1]
        assert c == [*head, size, *text_ids(" x"), size + 1, *text_ids("<|end|>\n<|turn|>assistant\n")]

    def test_an_item_without_a_placeholder_stands_before_the_piece_with_its_message(
        self, tmp_path: Path
    ) -> None:
        film = {"type": "video_url", "video_url": {"url": "http://a/film"}}
        [plain] = self.prompt(tmp_path / "a", ["watch"], template=STRINGS)
        [watched] = self.prompt(tmp_path / "b", ["watch", film], template=STRINGS)
        item = 256 + len(ID)
        assert watched == [*text_ids("<s><|turn|>"), item, *plain[2:]]

    def test_items_that_nothing_identifies_are_unlike_any_other(self, tmp_path: Path) -> None:
        nameless = {"type": "image_url", "image_url": {}}
        a, b = self.prompt(tmp_path, [nameless], [nameless])
        assert a != b
