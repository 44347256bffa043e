"""The HTML report in a browser: it draws under its own policy, at any width, in the dark, on paper."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from flint.tools.report.page.document import report_html
from tests.estimates import layers, pipelined
from tests.pages import Page, browse, browser, told
from tests.tools.report.test_report_page import hostile

pytestmark = pytest.mark.usefixtures("chromium")


@pytest.fixture(scope="module")
def chromium() -> str:
    """Its path; tests are skipped without."""
    return browser()


def test_the_script_runs_under_the_policy_of_the_page_and_no_other_does(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    other = "<script>document.title = 'ran'</script>"
    path.write_text(report_html(layers()).replace("</body>", f"{other}</body>"))
    page = Page.of(browse(path))
    (canvas,) = page.with_tag("canvas")
    assert int(str(canvas["width"])) > 900
    assert canvas["height"] == canvas["data-height"]
    assert page.text["title"][:1] == [f"{layers().name} on h100-dgx - Flint"]


def test_a_narrow_page_does_not_scroll_sideways(tmp_path: Path) -> None:
    for number, html in enumerate((report_html(hostile()), layers().to_html(against=pipelined()))):
        size = "[w.innerWidth, d.documentElement.scrollWidth]"
        assert told(html, size, tmp_path / f"{number}.html", width=390) == [390, 390]


def test_the_timeline_is_drawn_and_moves_with_the_keyboard(tmp_path: Path) -> None:
    script = """(() => {
      const canvas = d.querySelector("canvas"), said = d.getElementById("step-said");
      const press = key => {
        canvas.dispatchEvent(new w.KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
        return [said.textContent, canvas.toDataURL()];
      };
      const colours = new Set();
      const shown = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      for (let i = 0; i < shown.length; i += 4) colours.add(shown.slice(i, i + 3).join());
      const before = canvas.toDataURL();
      const [first, chosen] = press("."), [second] = press("."), [below] = press("ArrowDown");
      const [, zoomed] = press("+"), [, moved] = press("ArrowRight"), [, whole] = press("0");
      return {colours: colours.size, first, second, below, all: new Set([before, chosen, zoomed, moved, whole]).size};
    })()"""
    found = told(report_html(layers()), script, tmp_path / "report.html")
    assert found["colours"] > 20
    assert "zoo.py:" in found["first"]
    assert found["first"] != found["second"] != found["below"]
    assert {"ib", "nvlink"} & set(found["below"].split("  \u00b7  "))
    assert found["all"] == 5


def test_text_can_be_read_in_the_light_and_in_the_dark(tmp_path: Path) -> None:
    """On the page, and on every colour of bars and boxes."""
    script = """(() => {
      const paper = w.getComputedStyle(d.body).backgroundColor;
      const texts = [...d.querySelectorAll("p, td, h2, svg text:not(.in-bar), a, .good, .bad")];
      const of = e => w.getComputedStyle(e)[e.tagName === "text" ? "fill" : "color"];
      const labels = [...d.querySelectorAll("svg rect ~ text.in-bar")];
      const on = e => w.getComputedStyle(e.parentNode.querySelector("rect")).fill;
      return [paper, [...new Set(texts.map(of))], labels.map(e => [of(e), on(e)])];
    })()"""
    html = layers().to_html(against=pipelined())
    papers = set()
    for scheme in ("0", "1"):
        dark = f"--blink-settings=preferredColorScheme={scheme}"
        paper, inks, labels = told(html, script, tmp_path / f"{scheme}.html", dark)
        papers.add(paper)
        assert len(inks) >= 5
        assert len({fill for _, fill in labels}) >= 5
        pairs = [*((ink, paper) for ink in inks), *labels]
        assert min(_contrast(*pair) for pair in pairs) >= 4.5
    assert len(papers) == 2


def _contrast(a: str, b: str) -> float:
    """As WCAG 2 has it, of two `rgb(...)`."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(n) / 255 for n in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_what_is_folded_is_printed(tmp_path: Path) -> None:
    html = report_html(layers())
    hidden = re.sub(r"details::details-content \{[^}]*\}", "", html)
    assert hidden != html
    printed = [_operators(text, tmp_path / f"{n}.html") for n, text in enumerate((html, hidden))]
    assert printed[0] > printed[1] > 1000


def _operators(html: str, path: Path) -> int:
    """How often text is written in the PDF of a page."""
    style = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    path.write_text(style)
    pdf = path.with_suffix(".pdf")
    browse(path, f"--print-to-pdf={pdf}", "--no-pdf-header-footer")
    streams = re.findall(rb"stream\r?\n(.*?)endstream", pdf.read_bytes(), re.DOTALL)
    return sum(_inflated(s).count(b" Tj") + _inflated(s).count(b"] TJ") for s in streams)


def _inflated(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""
