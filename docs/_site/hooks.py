"""What mkdocs calls: pages that are made when the site is built, and links between all of them."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import links
import made
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
#: Words beside the language of a block that are for the tests (tests/documentation).
_WORDS = re.compile(r"^(```\w+) (?:no-run|exit=\d+)$", re.MULTILINE)
log = logging.getLogger("mkdocs.hooks.flint")


def on_config(config: Any) -> Any:
    """Fill the part of the navigation that follows from schemas."""
    entries = {name: value for section in config.nav for name, value in section.items()}
    (documents,) = (e for e in entries["Reference"] if "Documents" in e)
    documents["Documents"][:] = sorted(made.document_pages())
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add what is made, and the pages of the repository that lie outside of docs/."""
    for path, text in made.pages(ROOT).items():
        files.append(File.generated(config, path, content=text))
    for original, path in links.MOVED.items():
        old = files.get_file_from_path(original.removeprefix("docs/"))
        if old is not None and original.startswith("docs/"):
            files.remove(old)
        text = (ROOT / original).read_text("utf-8")
        text += made.decisions_list(ROOT) if path == "decisions.md" else ""
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links of a page lead to pages of the site; what lies outside of it is named."""
    original = links.original_of(page.file.src_uri)
    found = links.Links(ROOT, original, page.file.src_uri)
    text = found.rewritten(_WORDS.sub(r"\1", markdown))
    for broken in found.broken:
        log.warning("%s links to %s, which is not there", original, broken)
    return text
