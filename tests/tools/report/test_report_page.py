"""The HTML report: what is in it, for which numbers, and that nothing in a name is markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flint.backends.cost.estimate import Estimate, estimate
from flint.cli import app
from flint.cluster.constants import numbers
from flint.cluster.models import Cluster
from flint.errors import FlintError
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import Collective, Kind
from flint.ir.workload import Workload
from flint.requests.estimate import EstimateRequest
from flint.text import format_bytes, format_duration
from flint.tools.report.page.comparison import comparison_html
from flint.tools.report.page.document import report_html
from flint.tools.report.page.markup import data, tag, text
from tests.estimates import layers, pipelined, zoo
from tests.pages import Page
from tests.program_rows import ProgramBuilder

SECTIONS = [
    "notes", "time", "timeline", "exposed", "memory", "kernels", "collectives", "path", "constants",
]  # fmt: skip
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x00\x1b[2J\u202e\u2028]]>-->" + "w" * 300


def hostile() -> Estimate:
    """One of everything that a name may hold."""
    b = ProgramBuilder(Mesh(("data",), (8,)))
    about = {"dtype": "bfloat16", "shape": (4096, 4096), "result_bytes": 2 * 4096**2}
    x = b.add("parameter", Kind.PARAMETER, name=HOSTILE, **about)
    b.add("stablehlo.dot_general", deps=[x, x], flops=2 * 4096**3, dims=(1, 4096, 4096, 4096),
          operand_bytes=4 * 4096**2, scope=f"{HOSTILE}/{HOSTILE}", location=HOSTILE, **about)  # fmt: skip
    found = estimate(
        Workload.single(b.build(), {"name": HOSTILE}), EstimateRequest(Cluster.load("h100-dgx"))
    )
    return replace(found, notes=(HOSTILE,))


def test_a_page_has_every_section_and_loads_nothing() -> None:
    html = report_html(layers())
    page = Page.of(html)
    headings = [str(a["id"]) for a in page.with_tag("h2")]
    assert headings == SECTIONS
    assert [str(a["href"]) for a in page.with_tag("a")[1:]] == [f"#{name}" for name in SECTIONS]
    assert len(page.ids()) == len(set(page.ids()))
    assert not re.findall(r"https?://(?!json)", re.sub(r"<td[^>]*>.*?</td>", "", html))
    assert {"src", "srcset", "action", "style", "onclick"}.isdisjoint(
        name for _, attributes in page.found for name in attributes
    )
    assert not page.with_tag("link")
    assert len(html.encode()) < 1_500_000
    assert report_html(layers()) == html


def test_every_picture_has_a_name_and_every_number_of_it_is_in_a_table() -> None:
    found = layers()
    page = Page.of(report_html(found))
    pictures = [a for t, a in page.found if t in ("svg", "canvas") and "role" in a]
    assert len(pictures) >= 7
    assert all(a["aria-label"] for a in pictures)
    (c,) = found.classes
    time = page.tables["time of the step by kind of work"]
    assert time[0] == ["what", "share", "of the step", "busy", "count"]
    gemm = next(row for row in time if row[0].strip() == "gemm")
    shares = [s for s in c.shares if s.kind == "gemm"]
    exposed = sum(s.exposed_ns for s in shares)
    assert gemm[1:] == [
        f"{exposed / c.end_ns:.1%}",
        format_duration(exposed),
        format_duration(sum(s.busy_ns for s in shares)),
        f"{sum(s.count for s in shares):,}",
    ]
    assert [row[0].strip() for row in page.tables["time of the step by phase"][1:]]
    memory = page.tables["memory at the peak by kind"]
    kind, size = next(iter(c.memory.breakdown.items()))
    assert memory[1][0].strip() == kind.replace("_", " ")
    assert memory[1][2] == format_bytes(size)
    sources = [row[-1] for row in next(t for k, t in page.tables.items() if "longest first" in k)]
    assert any(s.startswith("zoo.py:") for s in sources)


def test_every_constant_and_note_is_there() -> None:
    found = layers()
    page = Page.of(report_html(found))
    table = next(t for name, t in page.tables.items() if name.startswith("constants"))
    cluster = found.cluster.model_dump(mode="json", exclude_defaults=True)
    assert [tuple(row) for row in table[1:]] == numbers(cluster)
    assert set(found.notes) <= set(page.text["li"])


def test_the_timeline_holds_what_runs() -> None:
    html = report_html(layers())
    held = json.loads(re.findall(r'id="step-data">(.*?)</script>', html)[0])
    assert len(held["start"]) == len(held["length"]) == len(held["row"]) == len(held["stream"])
    assert held["end"] == round(layers().step_time_ns)
    assert max(held["bytes"]) == held["peak"] == layers().classes[0].memory.peak_bytes
    assert held["streams"][0] == "compute"
    assert all(step >= 0 for step in (*held["start"], *held["at"]))


def test_a_pipeline_has_a_picture_and_a_table_of_classes() -> None:
    page = Page.of(report_html(pipelined()))
    assert "pipeline" in page.ids()
    assert page.tables["time without computation"][1][0] == "pipe 0: embed, layers 0-1"
    assert page.tables["peak by rank class"][2][0] == "pipe 1: layers 2-3, head"
    assert "pipeline" in Page.of(layers().to_html(against=pipelined())).ids()
    other = Page.of(report_html(pipelined(), rank_class="pipe 1"))
    assert any("of pipe 1" in said for said in other.text["p"])
    with pytest.raises(FlintError, match="pipe 7"):
        report_html(pipelined(), rank_class="pipe 7")


def test_names_cannot_be_markup() -> None:
    for html in (report_html(hostile()), comparison_html(hostile(), layers(), (HOSTILE, "b"))):
        page = Page.of(html)
        assert not page.with_tag("img")
        assert len(page.with_tag("script")) == 2 + html.count("step-b-data")
        assert not set("\x00\x1b\u202e\u2028") & set(html)
        assert "onerror" not in {name for _, attributes in page.found for name in attributes}
    assert r"\x1b[2J" in html


def test_a_notebook_shows_the_same_parts(tmp_path: Path) -> None:
    found = layers()
    for html in (found._repr_html_(), hostile()._repr_html_()):
        page = Page.of(html)
        assert not page.with_tag("script")
        assert not page.with_tag("img")
        assert {a["class"] for a in page.with_tag("svg") if "role" in a} == {"bar"}
    cards = Page.of(found._repr_html_()).text["dd"]
    assert format_duration(found.step_time_ns) in cards
    assert set(cards) <= set(Page.of(found.to_html()).text["dd"])
    trace = Page.of(zoo("llama_fsdp_tp")._repr_html_())
    assert trace.tables["communication of one rank"][0][0] == "collective"


def test_markup_is_escaped() -> None:
    assert tag("p", "a<b", title='"x"', hidden=True, cls=None) == (
        '<p title="&quot;x&quot;" hidden>a&lt;b</p>'
    )
    assert tag("b", tag("i", "&")) == "<b><i>&amp;</i></b>"
    assert text("\x1b") == r"\x1b"
    assert data("d", ["</script>&"]) == (
        '<script type="application/json" id="d">["\\u003c/script\\u003e\\u0026"]</script>'
    )


def test_a_program_without_work_has_a_page() -> None:
    b = ProgramBuilder(Mesh(("data",), (1,)))
    b.add("parameter", Kind.PARAMETER, name="x", dtype="float32", shape=(4,), result_bytes=16)
    found = estimate(Workload.single(b.build()), EstimateRequest(Cluster.load("h100-dgx")))
    assert "notes" in Page.of(report_html(found)).ids()
    assert "equal" in comparison_html(found, found)


def test_a_page_stays_small_whatever_there_is(tmp_path: Path) -> None:
    """Thousands of kernels and collectives, each of a source of its own with a long name."""
    b = ProgramBuilder(Mesh(("data",), (8,)))
    about = {"dtype": "bfloat16", "shape": (4096, 4096), "result_bytes": 2 * 4096**2}
    x = b.add("parameter", Kind.PARAMETER, name="x", **about)
    for n in range(3000):
        where = {"scope": f"{'outer/' * 40}{n}x", "location": f"{'m' * 200}.py:{n}"}
        x = b.add("stablehlo.dot_general", deps=[x, x], flops=2 * 4096**3,
                  dims=(1, 4096, 4096, 4096), operand_bytes=4 * 4096**2, **about, **where)  # fmt: skip
        x = b.add("sdy.all_reduce", Kind.COLLECTIVE, deps=[x], collective=Collective.ALL_REDUCE,
                  group=Group((AxisRef("data"),)), comm_bytes=2 * 4096**2, cause="c" * 9000,
                  **about, **where)  # fmt: skip
    found = estimate(Workload.single(b.build()), EstimateRequest(Cluster.load("h100-dgx")))
    html = report_html(found)
    assert len(html.encode()) < 1_500_000
    assert "1,000 shorter ones" in html


def test_two_estimates_stand_side_by_side() -> None:
    other = zoo("llama_fsdp_tp").estimate("h200-dgx")
    page = Page.of(layers().to_html(against=other, names=("before", "after")))
    headings = [str(a["id"]) for a in page.with_tag("h2")]
    assert headings == [
        "causes", "totals", "time", "timeline", "memory", "collectives", "notes", "constants",
    ]  # fmt: skip
    assert any("h100-dgx -> h200-dgx" in said for said in page.text["li"])
    totals = {row[0]: row[1:] for row in page.tables["totals"]}
    assert totals["what"] == ["A: before", "B: after", "difference"]
    a, b = layers().step_time_ns, other.step_time_ns
    assert totals["step time"][:2] == [format_duration(a), format_duration(b)]
    assert totals["step time"][2].endswith(f"{abs(b / a - 1):.1%})")
    assert totals["devices"][2] == "equal"
    assert [name for name in page.ids() if name in ("step-a", "step-b")]


def test_the_cause_of_a_difference_comes_first() -> None:
    other = zoo("llama_dp_tp").estimate("h100-dgx")
    page = Page.of(layers().to_html(against=other))
    assert "pipeline" not in page.ids()
    assert any(said.startswith("sharding: ") for said in page.text["li"][: 3 + len(page.ids())])
    changes = next(t for name, t in page.tables.items() if name.startswith("kernels and coll"))
    gathers = [row for row in changes if "all_gather" in row[0] and row[1] == "data"]
    assert gathers
    assert all(row[-1].startswith("zoo.py:") for row in gathers)


def test_equal_estimates_are_said_to_be_equal() -> None:
    html = layers().to_html(against=layers())
    assert "The two estimates are equal." in html
    assert "kinds are equal." in html
    assert {row[3] for row in Page.of(html).tables["totals"][1:]} == {"equal"}


def test_the_command_writes_one_file_and_replaces_no_other(tmp_path: Path) -> None:
    saved = tmp_path / "step.flint"
    layers().workload.save(saved)
    out = tmp_path / "report.html"

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["report", str(saved), *arguments, "-c", "h100-dgx"])
        return done.exit_code, done.stderr

    assert run("-o", str(out))[0] == 0
    first = out.read_bytes()
    assert first.decode() == report_html(layers())
    assert str(tmp_path) not in first.decode()
    code, said = run("-o", str(saved))
    assert (code, "FL509" in said) == (2, True)
    assert run("-o", str(tmp_path))[0] == 2
    assert saved.read_bytes() == layers().workload.to_bytes()
    both = CliRunner().invoke(
        app, ["report", str(saved), str(saved), "-c", "h100-dgx", "-o", str(out), "--json"]
    )
    assert json.loads(both.stdout)["bytes"] == out.stat().st_size
    assert "The two estimates are equal." in out.read_text()
    with pytest.raises(FlintError, match="overwritten"):
        layers().report(saved)
