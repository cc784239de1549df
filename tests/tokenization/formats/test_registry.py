"""The registry is the one list: its examples are read as what they are, and the docs show the same."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.formats import AUTO, FORMATS, format_named, format_names
from kvtune.tokenization.formats.format import Format
from kvtune.tokenization.reading import read_trace

DOCS = Path(__file__).parents[3] / "docs" / "trace-formats.md"


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
@pytest.mark.parametrize("asked", [False, True], ids=["auto", "by name"])
def test_each_example_is_read_as_its_format(known: Format, asked: bool) -> None:
    source = io.BytesIO(known.example.encode())
    name = known.name if asked else AUTO
    if known.read is None:
        with pytest.raises(NoUsableRequestError):
            read_trace(["-"], stdin=source, format=name)
    else:
        result = read_trace(["-"], stdin=source, format=name)
        assert result.stats.formats == {known.name: 1}
        assert result.stats.rejected == 0


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
def test_descriptions_are_one_line(known: Format) -> None:
    for text in (known.name, known.about, known.recognised_by, known.example):
        assert text.strip() == text
        assert "\n" not in text and "|" not in text
    if known.name not in ("vllm-log", "sglang-log"):
        json.loads(known.example)


def test_names_are_unique_and_known() -> None:
    names = format_names()
    assert names[0] == AUTO
    assert len(set(names)) == len(names) == len(FORMATS) + 1
    assert [format_named(name) for name in names] == [None, *FORMATS]
    with pytest.raises(UnusableInputError, match="openai-batch"):
        format_named("openai")


def test_the_docs_have_the_registrys_examples() -> None:
    lines = DOCS.read_text().splitlines()
    examples = [lines[at + 1] for at, line in enumerate(lines) if line in ("```json", "```text")]
    assert examples == [one.example for one in FORMATS]
