"""A request written as a line of the samples' format is the same request when it is read again."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kvtune.tokenization.formats.openai_batch import write_line
from kvtune.tokenization.reading import read_trace
from kvtune.tokenization.request import Identity, Request

DATA = Path(__file__).parents[2] / "data" / "formats"
TEXT_FILES = sorted(
    path
    for path in DATA.iterdir()
    if path.stem not in ("SOURCE", "mooncake", "bailian", "weka", "dynamo", "azure", "burstgpt", "guidellm")
)


def same(one: Request, other: Request) -> None:
    for name in Request.__struct_fields__:
        if name not in ("source", "endpoint", "parent", "output"):
            assert getattr(other, name) == getattr(one, name), name
    if not isinstance(one.output, list):
        assert other.output == one.output


@pytest.mark.parametrize("path", TEXT_FILES, ids=lambda path: path.name)
def test_every_text_format(path: Path) -> None:
    requests = read_trace([str(path)]).requests
    again = read_trace(["-"], stdin=io.BytesIO(b"\n".join(write_line(one) for one in requests))).requests
    assert len(again) == len(requests)
    for one, other in zip(requests, again, strict=True):
        same(one, other)


def test_everything_that_a_request_can_have() -> None:
    request = Request(
        id="r",
        arrival=1.25,
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        tools=[{"type": "function", "function": {"name": "f"}}],
        documents=[{"text": "d"}],
        chat_template="{{ messages }}",
        chat_template_kwargs={"thinking": False},
        add_generation_prompt=False,
        continue_final_message=True,
        add_special_tokens=True,
        output={"role": "assistant", "content": "b"},
        output_tokens=3,
        session="s",
        server="gpu-0",
        identity=Identity("m", "ad", "/ad", "salt", "t"),
    )
    same(request, read_trace(["-"], stdin=io.BytesIO(write_line(request))).requests[0])
