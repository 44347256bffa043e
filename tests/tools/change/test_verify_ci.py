"""What CI is told: annotations, the summary, outputs and JUnit XML, of any names and any number."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from flint.io.inputs import ReadInput, ReadInputKind
from flint.tools.change.diff.budgets import broken, parse_budgets
from flint.tools.change.diff.difference import compare
from flint.tools.change.project import ci
from flint.tools.change.project.cache import Entry
from flint.tools.change.project.captures import Captured
from flint.tools.change.project.verify import Verdict
from tests.tools.change.test_compare import program, side

NASTY = "a%b\r\n::error::x,y:z<b>@all `|*\ud800\x00\ufffe"


def verdict(
    name: str = "train", gathers: int = 3, budgets: str = "bytes=+0", many: int = 1
) -> Verdict:
    before, after = side(program("a"), "h100-dgx"), side(program("a", gathers=gathers), "h100-dgx")
    found = compare(before, after)
    lines = [replace(c, source=f"m.py:{n}") for c in found.changes for n in range(many)]
    found = replace(found, changes=tuple(lines))
    return Verdict(
        name, "h100-dgx", found, tuple(broken(found, parse_budgets(budgets))), bool(budgets)
    )


def captured(root: Path, *files: str, model: str = "m.py") -> Captured:
    inputs = tuple(ReadInput(ReadInputKind.FILE, str(root / f), "x") for f in files)
    snapshot = side(program("a")).snapshot
    return Captured("train", model, Entry(snapshot, root / "w.flint", inputs), False)


def commands(found: Verdict, one: Captured, root: Path) -> list[str]:
    return list(ci.workflow_commands([found], {found.name: one}, root))


def test_lines_that_broke_a_budget_are_errors_and_others_notices(tmp_path: Path) -> None:
    told = commands(verdict(), captured(tmp_path, "m.py"), tmp_path)
    assert told[0].startswith(
        "::error file=m.py,line=0,title=flint::train on h100-dgx: communication "
    )
    assert any(t.startswith("::notice file=m.py,line=") for t in told)
    told = commands(verdict(budgets=""), captured(tmp_path, "m.py"), tmp_path)
    assert told[0].startswith("::error title=flint::train on h100-dgx: changed: ")
    assert "no budgets" in told[0]


def test_files_are_those_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    root = tmp_path / "perf"
    root.mkdir()

    def file(*files: str, model: str = "m.py") -> str:
        told = commands(verdict(), captured(tmp_path, *files, model=model), root)[0]
        return told.partition("file=")[2].partition(",")[0]

    assert file("perf/m.py") == "perf/m.py"
    assert file("src/m.py") == "src/m.py", "the repository is larger than the project"
    assert file("perf/m.py", "src/m.py") == "perf/m.py", "the model"
    assert file("src/m.py", "lib/m.py", model="other.py") == "", "which of them is not known"
    assert file("perf/other.py") == ""


def test_at_most_ten_of_a_kind(tmp_path: Path) -> None:
    told = commands(verdict(many=40), captured(tmp_path, "m.py"), tmp_path)
    assert len(told) == len(set(told))
    kinds = [t.split(" ", 1)[0] for t in told]
    assert (kinds.count("::error"), kinds.count("::notice")) == (1, 10)


def test_names_cannot_end_a_command(tmp_path: Path) -> None:
    told = commands(verdict(NASTY), captured(tmp_path, "m.py"), tmp_path)
    assert all(re.fullmatch(r"::(error|notice) [^\r\n]*?::[^\r\n]*", t) for t in told)
    assert "a%25b%0D%0A::error::x,y:z" in told[0]
    assert (
        ci.command("error", "m", file="a,b:c%\n") == "::error file=a%2Cb%3Ac%25%0A,title=flint::m"
    )


def test_junit_counts_and_holds_any_name() -> None:
    same = compare(side(program("a")), side(program("a")))
    found = [verdict(), verdict(NASTY, budgets=""), Verdict("equal", "", same, (), False)]
    suite = ET.fromstring(ci.junit(found))
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    cases = suite.findall("testcase")
    assert len(cases) == 3 and len(suite.findall("testcase/failure")) == 2
    assert cases[0].get("name") == "train on h100-dgx"
    assert "over budget: communication" in (cases[0].findtext("failure") or "")


def test_the_runner_gets_a_summary_and_one_line_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.setenv(name, str(tmp_path / name))
        (tmp_path / name).write_text("before\n")
    within = verdict(budgets="bytes=+1GiB")
    ci.tell_runner([within], ci.markdown([within]))
    said = (tmp_path / "GITHUB_OUTPUT").read_text()
    assert said == "before\nverdict=changed\nsummary=1 capture: 1 changed\n"
    assert (
        (tmp_path / "GITHUB_STEP_SUMMARY").read_text().startswith("before\n<!-- flint verify -->")
    )
    assert ci.word([within, verdict()]) == "over-budget"


@pytest.mark.parametrize("count", [1, 60, 1_000])
def test_a_comment_fits(count: int) -> None:
    found = [replace(verdict(many=30), name=f"{n} {'long ' * 100}") for n in range(1)] * count
    text = ci.markdown(found)
    assert len(text.encode()) <= ci.MOST_COMMENT_BYTES < 65_536
    assert text.startswith(f"{ci.MARKER}\n### {count:,} capture" if count < 1_000 else ci.MARKER)
    assert "over budget" in text.splitlines()[1]
    assert ("and 920 more" in text) is (count == 1_000)


def test_names_are_no_markdown() -> None:
    text = ci.markdown([verdict("<b>@all `x` | y ![](z)")])
    assert "<b>" not in text and "@all" not in text and "\\`x\\`" in text
