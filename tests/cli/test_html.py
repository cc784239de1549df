"""The HTML page: equal numbers, hostile names as text, nothing fetched, nothing wider than the window."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from kvtune.analyzers.report import Report
from kvtune.cli.reporters import content
from kvtune.cli.reporters.html import render_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = '<script>alert("x")</script><img src=https://example.invalid/a.png>'


class Tags(HTMLParser):
    """Collects what a page consists of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.urls: list[str] = []
        self.headings: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.urls += [value or "" for name, value in attrs if name in ("src", "href")]
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))


def tags_of(page: str) -> Tags:
    parser = Tags()
    parser.feed(page)
    return parser


def test_nothing_is_fetched_and_headings_do_not_skip(report: Report) -> None:
    found = tags_of(render_html(report))
    assert "script" not in found.tags
    assert all(url.startswith("data:") for url in found.urls)
    assert found.headings[0] == 1
    assert found.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(found.headings, found.headings[1:], strict=False))


def test_hostile_names_stay_text(report: Report) -> None:
    families = tuple(msgspec.structs.replace(family, name=HOSTILE) for family in report.families)
    hostile = msgspec.structs.replace(
        report,
        command=HOSTILE,
        families=families * 2,
        trace=msgspec.structs.replace(report.trace, files=(HOSTILE,)),
        recommendation=msgspec.structs.replace(report.recommendation, caveats=(HOSTILE,), why=HOSTILE),
    )
    found = tags_of(render_html(hostile))
    assert "script" not in found.tags
    assert "img" not in found.tags


def test_the_page_has_the_numbers_of_the_other_views(report: Report) -> None:
    page = unescape(render_html(report))
    for table in (
        content.candidates_table(report),
        content.losses_table(report),
        content.ends_in_table(report),
    ):
        for row in table.rows:
            for cell in row:
                assert cell in page


def test_equal_reports_give_equal_bytes(report: Report) -> None:
    assert render_html(report) == render_html(report)


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_no_overflow_in_a_browser(report: Report, tmp_path: Path, width: int) -> None:
    """The page in an inline frame of the given width; a script of the test's own measures it."""
    page = render_html(report).replace(
        'content="default-src', "content=\"script-src 'unsafe-inline'; default-src"
    )
    probe = "<script>document.title = document.documentElement.scrollWidth + '/' + innerWidth</script></body>"
    (tmp_path / "page.html").write_text(page.replace("</body>", probe), encoding="utf-8")
    frame = (
        f'<iframe id="f" src="page.html" style="width:{width}px;height:900px;border:0"></iframe>'
        "<script>f.onload = () => document.body.dataset.seen = f.contentDocument.title</script>"
    )
    (tmp_path / "frame.html").write_text(frame, encoding="utf-8")
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--allow-file-access-from-files",
            "--virtual-time-budget=3000",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=1600,1000",
            "--dump-dom",
            (tmp_path / "frame.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    seen = re.search(r'data-seen="(\d+)/(\d+)"', done.stdout)
    assert seen is not None, done.stdout[-400:]
    content_width, window_width = int(seen[1]), int(seen[2])
    assert content_width <= window_width == width
