"""Pages for tests: what is in their HTML, and what a browser makes of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

#: Elements without an end.
_VOID = {"meta", "br", "hr", "img", "input", "link"}


@dataclass
class Page(HTMLParser):
    """A page taken apart: elements with their attributes, tables, and text by element."""

    found: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    text: dict[str, list[str]] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, html: str) -> Page:
        """Take a page apart. Elements that do not nest are an error."""
        page = cls()
        HTMLParser.__init__(page, convert_charrefs=True)
        page.feed(html)
        page.close()
        assert not page.open, f"not closed: {page.open}"
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "table":
            self._rows: list[list[str]] = []
            self._caption = ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> in {self.open}"
        self.open.pop()
        if tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)
        if "caption" in self.open:
            self._caption += data
        elif "td" in self.open or "th" in self.open:
            self._rows[-1][-1] += data

    def ids(self) -> list[str]:
        """All ids, in order."""
        return [str(a["id"]) for _, a in self.found if "id" in a]

    def with_tag(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of the elements of a kind."""
        return [a for t, a in self.found if t == tag]


def browser() -> str:
    """The path of a Chromium; skips the test where none is."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no chromium is installed")
    return found


def browse(path: Path, *options: str) -> str:
    """The document that a browser has after it ran the page's scripts, and nothing else."""
    command = (
        browser(),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--dump-dom",
        f"--user-data-dir={path.parent / 'profile'}",
        "--window-size=1200,900",
        *options,
        path.as_uri(),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=True)
    return done.stdout


#: A page that shows all of another one as wide as is asked, for windows are no narrower than 500 pixels,
#: and says what a function of its window and document returns when it is there.
_AROUND = """<!DOCTYPE html><body style="margin:0"><script>
const told = (w, d) => (SCRIPT);
const frame = document.createElement("iframe");
frame.onload = () => {
  document.body.dataset.told = JSON.stringify(told(frame.contentWindow, frame.contentDocument));
};
frame.style = "border:0;width:WIDTHpx;height:30000px";
frame.src = "NAME";
document.body.append(frame);
</script></body>
"""


def told(html: str, script: str, path: Path, *options: str, width: int = 1200) -> Any:
    """What an expression of JavaScript, of a page's window `w` and document `d`, is in a browser."""
    path.write_text(html)
    around = path.with_suffix(".around.html")
    page = _AROUND.replace("WIDTH", str(width)).replace("NAME", path.name)
    around.write_text(page.replace("SCRIPT", script))
    shown = Page.of(browse(around, "--allow-file-access-from-files", *options))
    return json.loads(str(shown.with_tag("body")[0]["data-told"]))
