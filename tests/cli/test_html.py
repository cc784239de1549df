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

from kvtune.analyzers.pool.figures import CapacityPoint
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


PROBE = """
<script>
const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const luminance = c => c.slice(0, 3).reduce((sum, v, i) => sum + channel(v) * [0.2126, 0.7152, 0.0722][i], 0);
const numbers = text => (text.match(/[0-9.]+/g) || []).map(Number);
const paper = node => {
  for (; node; node = node.parentElement) {
    const c = numbers(getComputedStyle(node).backgroundColor);
    if (c.length == 3 || c[3] == 1) return c;
  }
  return [255, 255, 255];
};
let least = 99, where = "";
for (const node of document.querySelectorAll("main *")) {
  const text = [...node.childNodes].some(child => child.nodeType == 3 && child.data.trim());
  if (!text || node.localName == "title") continue;
  const style = getComputedStyle(node);
  const ink = luminance(numbers(node instanceof SVGElement ? style.fill : style.color));
  const ground = luminance(paper(node));
  const ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  if (ratio < least) { least = ratio; where = node.localName + "." + node.getAttribute("class"); }
}
const body = luminance(numbers(getComputedStyle(document.body).backgroundColor));
const fetched = performance.getEntriesByType("resource").length;
const widths = [document.documentElement.scrollWidth, innerWidth];
document.title = [...widths, least.toFixed(2), body.toFixed(3), fetched, where].join(" ");
</script></body>
"""


def look(page: str, folder: Path, width: int, *, dark: bool) -> tuple[int, int, float, float, int, str]:
    """What a browser made of the page in a frame of `width` pixels: its width, the window's, the least contrast of any
    text, the ground's luminance, fetched resources, where the contrast is least. A script of the test's own measures.

    Raises:
        AssertionError: the page wrote to the console.
    """
    allowed = page.replace('content="default-src', "content=\"script-src 'unsafe-inline'; default-src")
    (folder / "page.html").write_text(allowed.replace("</body>", PROBE), encoding="utf-8")
    frame = (
        f'<iframe id="f" src="page.html" style="width:{width}px;height:900px;border:0;color-scheme:inherit"></iframe>'
        "<script>f.onload = () => document.body.dataset.seen = f.contentDocument.title</script>"
    )
    scheme = '<meta name="color-scheme" content="light dark">'
    (folder / "frame.html").write_text(scheme + frame, encoding="utf-8")
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--virtual-time-budget=3000",
            f"--user-data-dir={folder / 'profile'}",
            "--window-size=1600,1000",
            "--dump-dom",
            (folder / "frame.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, done.stderr[-600:]
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert seen is not None, done.stdout[-400:]
    found = seen[1].split(" ", 5)
    return int(found[0]), int(found[1]), float(found[2]), float(found[3]), int(found[4]), found[5]


@pytest.fixture
def full_page(report: Report) -> str:
    """A page with every section, and names that are long and hostile."""
    lever = msgspec.structs.replace(
        report.levers[0], what=HOSTILE, evidence="x" * 200, flags=("--a-flag " * 20,)
    )
    part = report.shared.ends_in
    whole = report.shared.histogram.counts
    ends = msgspec.structs.replace(
        part,
        user=msgspec.structs.replace(part.user, counts=whole),
        tool=msgspec.structs.replace(part.tool, counts=whole),
    )
    curve = [
        CapacityPoint(num_blocks=pool, unit=unit, engine_hit_tokens=pool * 900 - unit, evicted_blocks=9)
        for pool in (2_000, 5_000)
        for unit in (16, 96, 528)
    ]
    return render_html(
        msgspec.structs.replace(
            report,
            levers=(lever, *report.levers),
            families=tuple(
                msgspec.structs.replace(report.families[0], name=f"{HOSTILE} {number}") for number in (1, 2)
            ),
            shared=msgspec.structs.replace(report.shared, ends_in=ends),
            capacity=tuple(curve),
        )
    )


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_in_a_browser(full_page: str, tmp_path: Path, width: int, dark: bool) -> None:
    """Nothing wider than the window, nothing fetched, no word on the console, and text that can be read."""
    content_width, window_width, contrast, ground, fetched, where = look(
        full_page, tmp_path, width, dark=dark
    )
    assert content_width <= window_width == width
    assert fetched == 0
    assert (ground < 0.1) == dark
    assert contrast >= 4.5, where


def test_pools_are_lines_over_the_units(full_page: str) -> None:
    assert full_page.count('class="line pool') == 2
    assert "2k blocks" in full_page
    assert "5k blocks" in full_page
    assert full_page.count('aria-label="Ends in user"') == full_page.count('aria-label="Ends in tool"') == 1


def test_a_lever_is_the_headline_where_no_unit_pays(report: Report) -> None:
    advice = msgspec.structs.replace(report.recommendation, action="keep", flags=())
    lever = msgspec.structs.replace(report.levers[0], flags=("--a-flag 1",))
    page = unescape(render_html(msgspec.structs.replace(report, recommendation=advice, levers=(lever,))))
    assert "<h1>Warm up the shared prefix of 3,845 tokens</h1>" in page
    assert "<pre>vllm serve … --a-flag 1</pre>" in page
