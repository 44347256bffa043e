"""docs/errors.md has a section for each code that the sources use, and for no other."""

import re
from pathlib import Path

from flint.backends.chakra import CODES

ROOT = Path(__file__).resolve().parents[3]
DOCS = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")


def _codes_in_sources():
    files = [f for d in ("flint", "frontends", "passes", "backends") for f in _sources(ROOT / d)]
    assert len(files) > 40
    return {code for f in files for code in re.findall(r'"(FL\d{3})"', f.read_text("utf-8"))}


def _sources(folder):
    # flint/ also holds links to the other folders
    return [f for f in folder.rglob("*.py") if not any(p.is_symlink() for p in f.parents)]


def test_every_code_has_a_section_and_every_section_a_code():
    assert set(re.findall(r"^## (FL\d{3}) \w", DOCS, re.MULTILINE)) == _codes_in_sources()


def test_sections_are_in_order_and_say_something():
    sections = re.split(r"^## ", DOCS, flags=re.MULTILINE)[1:]
    codes = [s[:5] for s in sections]
    assert codes == sorted(codes)
    for section in sections:
        assert len(section.split("\n", 1)[1].split("\n# ")[0].strip()) > 20, section


def test_every_finding_of_check_is_explained():
    found = dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", DOCS, re.MULTILINE))
    assert found == CODES
