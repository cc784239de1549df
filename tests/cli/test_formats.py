"""`kvtune formats` and the page of formats say what the registry says."""

from __future__ import annotations

from pathlib import Path

from kvtune.cli.formats import render_markdown
from kvtune.tokenization.formats import FORMATS

PAGE = Path(__file__).parents[2] / "docs" / "trace-formats.md"


def test_every_format_is_listed_with_its_example(run) -> None:
    done = run("formats")
    assert done.code == 0
    words = " ".join(done.out.split())
    for one in FORMATS:
        assert one.name in words
        assert " ".join(one.about.split()) in words
        assert one.example.replace(" ", "") in words.replace(" ", "")


def test_the_page_holds_the_same_table(run) -> None:
    assert run("formats", "--markdown").out == render_markdown()
    assert render_markdown() in PAGE.read_text(), "write it anew with `kvtune formats --markdown`"
