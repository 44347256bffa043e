"""Links as they are written in the repository, where GitHub follows them, for the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

#: Pages whose place in the site is not the one in docs/.
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "docs/decisions/README.md": "decisions.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
#: Directories that stand for a page.
_FOLDERS = {"docs": "pages.md", "examples": "examples.md", "docs/notebooks": "notebooks.md"}
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_FENCE = re.compile(r"^\s*(```|~~~)", re.MULTILINE)


def original_of(path: str) -> str:
    """Where in the repository a page of the site is written."""
    return {v: k for k, v in MOVED.items()}.get(path, f"docs/{path}")


class Links:
    """The links of one page: `original` in the repository, `path` in the site."""

    def __init__(self, root: Path, original: str, path: str) -> None:
        self.root = root
        self.original = original
        self.path = path
        self.broken: list[str] = []

    def rewritten(self, markdown: str) -> str:
        """The page with its links led to where they are in the site."""
        lines, in_code = [], False
        for line in markdown.split("\n"):
            if _FENCE.match(line):
                in_code = not in_code
            lines.append(line if in_code else _LINK.sub(self._link, line))
        return "\n".join(lines)

    def _link(self, found: re.Match[str]) -> str:
        target, _, anchor = found["target"].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        folder = posixpath.dirname(self.original)
        asked = posixpath.normpath(posixpath.join(folder, target))
        place = self._in_site(asked)
        if place is None:
            return found["text"] if found["image"] else f"{found['text']} (`{asked}`)"
        relative = posixpath.relpath(place, posixpath.dirname(self.path) or ".")
        tail = f"#{anchor}" if anchor else ""
        return f"{found['image']}[{found['text']}]({relative}{tail})"

    def _in_site(self, asked: str) -> str | None:
        """The page or picture that a path of the repository is in the site; None for sources."""
        if asked in MOVED or asked in _FOLDERS:
            return {**MOVED, **_FOLDERS}[asked]
        made = asked.removeprefix("docs/")
        if (self.root / asked).exists():
            inside = asked.startswith("docs/") and not made.startswith(("_site", "notebooks/"))
            return made if inside else None
        if not self.original.startswith("docs/") or (self.root / self.original).exists():
            self.broken.append(asked)
        return made
