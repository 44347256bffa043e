"""The page of a study: its numbers are those of the results, and it stays small."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from flint.text import format_bytes, format_duration
from flint.tools.explore.answers.objectives import OBJECTIVES, objectives_of
from flint.tools.explore.answers.rank import Ranking, rank
from flint.tools.explore.page.document import study_html
from flint.tools.explore.page.sections import MEMORY, TIME, pareto
from flint.tools.explore.point import Point, choices, varying
from flint.tools.explore.result import Result, Status
from flint.tools.explore.space.conditions import parse_conditions
from flint.tools.explore.space.names import Scope
from tests.pages import Page, browser, told
from tests.study_results import study

SECTIONS = ["front", "coordinates", "maps", "scaling", "bottlenecks", "best", "rejected"]


def _ranked(results: list[Result], *objectives: str, limits: Sequence[str] = ()) -> Ranking:
    conditions = parse_conditions(list(limits), Scope(("data", "model"), ()), {})
    return rank(results, objectives_of(objectives or ("time",)), conditions)


def _page(ranking: Ranking) -> Page:
    return Page.of(study_html(ranking, title="a study"))


def _fitting() -> list[Result]:
    return [r for r in study() if r.status is Status.FITS]


def test_what_a_point_chose_is_named_as_it_is_typed() -> None:
    point = Point(
        "data=4,model=2", "h100-dgx", (("data", "x"), ("remat", "none")), (("chunks", "2"),),
        (("ib.bandwidth", "50GB/s"),), estimate=(("policy", "in-order"),),
    )  # fmt: skip
    found = choices(point)
    assert found["data"] == "4"
    assert found["--set data"] == "x"
    assert found["cluster.ib.bandwidth"] == "50GB/s"
    assert found["overlap"] == "in-order"
    other = dataclasses.replace(point, mesh="data=16,model=2", estimate=())
    assert varying([other, point]) == {"data": ["4", "16"], "overlap": ["", "in-order"]}


def test_the_front_is_what_nothing_else_is_better_than() -> None:
    """Held against the definition, point by point."""
    fitting = _fitting()
    found = {r.point for r in pareto(fitting, TIME, MEMORY)}
    for r in fitting:
        beaten = any(
            (TIME.order(o), MEMORY.order(o)) != (TIME.order(r), MEMORY.order(r))
            and TIME.order(o) <= TIME.order(r)
            and MEMORY.order(o) <= MEMORY.order(r)
            for o in fitting
        )
        assert (r.point in found) == (not beaten)


def test_any_two_objectives_make_a_front_of_what_is_known() -> None:
    fitting = _fitting()
    priced = [dataclasses.replace(r, price_per_hour=2.0) for r in fitting[1:]]
    page = _page(_ranked([fitting[0], *priced], "cost_per_mtoken", "time"))
    cost = OBJECTIVES["cost_per_mtoken"]
    (best,) = (rows for caption, rows in page.tables.items() if caption.startswith("points that"))
    assert len(best) == len(priced) + 1
    assert cost.text(min(priced, key=cost.order)) in best[1]
    assert pareto(fitting, TIME, cost) == []


def test_a_page_has_every_part_with_the_numbers_of_the_results() -> None:
    results = study()
    html = study_html(_ranked(results), title="a study")
    page = Page.of(html)
    assert [str(a["id"]) for a in page.with_tag("h2")] == SECTIONS
    ranked = sorted(_fitting(), key=lambda r: (r.step_time_ns, r.memory_bytes))
    (best,) = (rows for caption, rows in page.tables.items() if caption.startswith("points that"))
    first = ranked[0]
    assert best[1][0] == "1"
    assert best[1][-3:] == [
        format_duration(first.step_time_ns), f"{first.mfu:.1%}", format_bytes(first.memory_bytes)
    ]  # fmt: skip
    assert len(best) == len(ranked) + 1
    time = next(rows for caption, rows in page.tables.items() if caption.startswith("time of"))
    assert time[0][2:] == ["computing", "over data", "over model", "waiting for ranks"]
    assert time[1][2] == format_duration(first.compute_ns)
    assert study_html(_ranked(results), title="a study") == html


def test_every_rejected_point_is_counted_with_its_reason() -> None:
    results = study()
    (rows,) = (t for caption, t in _page(_ranked(results)).tables.items() if "rejected" in caption)
    counted = {row[0]: int(row[1]) for row in rows[1:]}
    large = sum(r.status is Status.TOO_LARGE for r in results)
    assert counted == {"too large": large, "refused": 2}
    assert ["refused", "2", "FL103: does not divide", "model.py:41"] in [r[:4] for r in rows]


def test_a_limit_is_a_reason() -> None:
    page = _page(_ranked(study(), limits=["memory <= 40GiB"]))
    (rows,) = (t for caption, t in page.tables.items() if "rejected" in caption)
    beyond = sum(r.memory_bytes > 40 * 2**30 for r in _fitting())
    assert ["fits", str(beyond), "not: memory <= 40GiB", "a limit"] in [row[:4] for row in rows]
    (best,) = (t for caption, t in page.tables.items() if caption.startswith("points that"))
    assert len(best) == len(_fitting()) - beyond + 1


def test_nothing_fits() -> None:
    results = [r for r in study() if r.status is not Status.FITS]
    page = _page(_ranked(results))
    assert [str(a["id"]) for a in page.with_tag("h2")] == ["rejected"]
    assert "No point fits and meets the limits." in page.text["p"]
    assert "too large" in "".join(page.text["span"])


def test_ten_thousand_points_are_a_small_page_that_says_what_it_leaves_out() -> None:
    many = [
        dataclasses.replace(
            r, point=dataclasses.replace(r.point, changes=(("ib.latency", f"{n}us"),)),
            step_time_ns=r.step_time_ns * (1 + (n * 37 % 101) / 100),
        )
        for n, r in zip(range(10_000), itertools.cycle(_fitting()), strict=False)
    ]  # fmt: skip
    html = study_html(_ranked(many), title="many")
    page = Page.of(html)
    assert len(html) < 1_000_000
    assert any("points are not drawn" in text for text in page.text["p"])
    assert len(page.with_tag("circle")) < 2500


def test_names_are_text() -> None:
    hostile = "</script><img src=x>\"'&\u202e"
    results = [
        dataclasses.replace(
            r, point=dataclasses.replace(r.point, estimate=(("stack", f"{hostile}{n}"),))
        )
        for n, r in enumerate(study())
    ]
    page = Page.of(study_html(_ranked(results), title=hostile, said=[hostile]))
    assert not page.with_tag("img")
    assert not page.with_tag("link")


@pytest.mark.parametrize("scheme", ["0", "1"])
def test_a_browser_draws_it_narrow_in_the_light_and_in_the_dark(
    tmp_path: Path, scheme: str
) -> None:
    browser()
    html = study_html(_ranked(study()), title="a study")
    script = """(() => {
      const at = e => { const r = e.getBoundingClientRect(); return [r.left, r.right]; };
      const seen = [...d.querySelectorAll("svg.chart circle, svg.chart .thread line")].map(at);
      const ink = w.getComputedStyle(d.querySelector("text.strong")).fill;
      return {wide: d.documentElement.scrollWidth, ink, outlines: w.getComputedStyle(d.querySelector("main")).stroke,
              inside: seen.every(([l, r]) => l >= -6 && r <= w.innerWidth + 6), count: seen.length};
    })()"""
    dark = f"--blink-settings=preferredColorScheme={scheme}"
    found = told(html, script, tmp_path / "study.html", dark, width=500)
    assert found["wide"] == 500
    assert found["inside"]
    assert found["outlines"] == "none"
    assert found["count"] > 100
    assert re.findall(r"\d+", found["ink"]) == (
        ["228", "232", "238"] if scheme == "0" else ["23", "32", "44"]
    )
