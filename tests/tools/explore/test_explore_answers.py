"""Answers of a study: which points are best, why, and tables of all."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest

from flint.errors import FlintError
from flint.tools.explore.answers.against import against
from flint.tools.explore.answers.explain import explain, explanation_text
from flint.tools.explore.answers.export import (
    columns_of,
    to_arrow,
    to_pandas,
    to_polars,
    write_table,
)
from flint.tools.explore.answers.objectives import (
    OBJECTIVES,
    RATE,
    default_objective,
    names_of_result,
    objectives_of,
)
from flint.tools.explore.answers.rank import rank
from flint.tools.explore.result import ClassResult, PoolRole, Result, Status
from flint.tools.explore.space.conditions import parse_conditions
from flint.tools.explore.space.names import Scope
from flint.tools.explore.study.study import Study
from flint.tools.explore.subject import Subject
from tests.study_results import CAPACITY, result, study

TIME, MEMORY = objectives_of(["time,memory"])


def test_quantities_by_hand() -> None:
    r = dataclasses.replace(
        result(8, 2), step_time_ns=2e9, low_ns=1e9, high_ns=4e9, tokens=1000, price_per_hour=3.6, power_w=500.0
    )  # fmt: skip
    found = {name: o.value(r) for name, o in OBJECTIVES.items()}
    assert found["tokens_per_s"] == 500
    assert found["tokens_per_s_per_device"] == 500 / 16
    assert found["cost_per_step"] == pytest.approx(3.6 * 16 * 2 / 3600)
    assert found["cost_per_mtoken"] == pytest.approx(3.6 * 16 * 2 / 3600 * 1000)
    assert found["energy_per_mtoken"] == pytest.approx(500 * 16 * 2 / 3.6e6 * 1000)
    assert found["headroom"] == CAPACITY - r.memory_bytes
    assert OBJECTIVES["tokens_per_s"].range(r) == (250, 1000)
    assert OBJECTIVES["mfu"].range(r) == (r.mfu / 2, r.mfu * 2)
    assert OBJECTIVES["memory"].range(r) == (r.memory_bytes, r.memory_bytes)


def test_what_is_not_known_is_not_0() -> None:
    r = dataclasses.replace(result(8, 2), tokens=0)
    unknown = {
        "tokens_per_s",
        "tokens_per_s_per_device",
        "cost_per_mtoken",
        "cost_per_step",
        "energy_per_mtoken",
    }
    of_replays = {n for n in OBJECTIVES if n.startswith(("ttft_", "tpot_", "latency_", "goodput"))}
    unknown |= of_replays | {"requests_per_s"}
    assert {n for n, o in OBJECTIVES.items() if o.value(r) is None} == unknown
    assert OBJECTIVES["cost_per_step"].text(r) == "-"
    assert not unknown & names_of_result(r).keys()
    assert RATE.value(r) == 1e9 / r.step_time_ns
    found = rank([r, result(8, 4)], objectives_of(["tokens_per_s"]))
    assert found.results == (result(8, 4),)
    assert found.beyond_counts() == {"tokens/s is not known": 1}


def test_pools_are_paced_by_decoding() -> None:
    pools = (
        ClassResult("p", 8, 3e8, 1, role=PoolRole.PREFILL),
        ClassResult("d", 8, 5e8, 1, waiting_ns=3e8, role=PoolRole.DECODE),
    )
    r = dataclasses.replace(
        result(8, 2), step_time_ns=5e8, low_ns=4e8, high_ns=6e8, classes=pools, tokens=100
    )
    assert OBJECTIVES["tokens_per_s"].value(r) == 100 / 0.2
    assert OBJECTIVES["tpot"].range(r) == pytest.approx((1.6e8, 2.4e8))


def test_the_default_is_tokens_where_they_differ() -> None:
    same = [result(8, m) for m in (2, 4)]
    assert default_objective(same).name == "time"
    assert default_objective([*same, result(8, 2, tokens=5)]).name == "tokens_per_s"
    assert default_objective([*same, result(8, 2, tokens=0)]).name == "time"


def test_objectives_that_are_not_there() -> None:
    for text, said in (("tokens", "did you mean"), ("time,time", "twice")):
        with pytest.raises(FlintError, match=said) as error:
            objectives_of([text])
        assert error.value.code == "FL869"


def test_the_first_is_best_and_everything_is_somewhere() -> None:
    results = study()
    found = rank(results[::-1], [TIME])
    assert found == rank(results, [TIME])
    times = [r.step_time_ns for r in found.results]
    assert times == sorted(times)
    assert {r.status for r in found.results} == {Status.FITS}
    assert sorted((*found.results, *found.rejected), key=lambda r: r.point) == sorted(
        results, key=lambda r: r.point
    )
    first = found.results[0]
    overlap = [r for r in found.results[1:] if r.low_ns <= first.high_ns]
    assert 0 < found.within_error() == len(overlap) < len(found.results) - 1


def test_equal_ones_stand_by_memory() -> None:
    less, more = (dataclasses.replace(result(8, 2), memory_bytes=m) for m in (1, 2))
    more = dataclasses.replace(more, point=dataclasses.replace(more.point, mesh="a=16"))
    assert rank([more, less], [TIME]).results == (less, more)


@pytest.mark.parametrize("names", ["time,memory", "tokens_per_s_per_device,memory,devices"])
def test_the_front_is_what_no_other_is_better_than(names: str) -> None:
    goals = objectives_of([names])
    found = rank(study(), goals)
    costs = {r.point: tuple(g.order(r) for g in goals) for r in found.results}
    for r in found.results:
        beaten = any(
            o != costs[r.point] and all(a <= b for a, b in zip(o, costs[r.point], strict=True))
            for o in costs.values()
        )
        before = found.results[: found.results.index(r)]
        equal_before = any(costs[o.point] == costs[r.point] for o in before)
        assert (r in found.front) == (not beaten and not equal_before)
    assert found.results[: found.on_front] == found.front


def test_limits_reject_and_are_counted() -> None:
    scope = Scope(("data", "model"), ("remat",))
    limits = parse_conditions(["memory <= 40GiB", "cost_per_step <= 1"], scope)
    found = rank(study(), [TIME], limits[:1])
    assert all(r.memory_bytes <= 40 * 2**30 for r in found.results)
    broken = [r for r in study() if r.status is Status.FITS and r.memory_bytes > 40 * 2**30]
    assert found.beyond_counts() == {"memory <= 40GiB": len(broken)}
    nothing = rank(study(), [TIME], limits)
    assert nothing.best is None and nothing.within_error() == 0
    assert any("cannot be evaluated" in why for why in nothing.beyond_counts())


def test_why_one_is_better_adds_up() -> None:
    a, b = result(16, 2, "none"), result(4, 8, "full")
    a = dataclasses.replace(a, status=Status.FITS)
    found = explain(a, b)
    assert sum(p.delta for p in found.time) == pytest.approx(b.step_time_ns - a.step_time_ns)
    assert sum(p.delta for p in found.memory) == b.memory_bytes - a.memory_bytes
    deltas = [abs(p.delta) for p in found.time]
    assert deltas == sorted(deltas, reverse=True)
    assert found.choices == (("data", "16", "4"), ("model", "2", "8"), ("remat", "none", "full"))
    text = explanation_text(found)
    assert "exposed communication over model" in text.split("\n")[0]
    assert explain(a, a).verdict.startswith("both steps take")


def test_tables_have_a_row_for_each_result(tmp_path: Path) -> None:
    results = study()
    columns = {c.name: c for c in columns_of(results)}
    assert len({c.name for c in columns.values()}) == len(columns_of(results))
    assert columns["data"].cells[:2] == (8, 8)
    assert columns["step_time_ns"].cells[-1] is None and columns["code"].cells[-1] == "FL103"
    frame, table, other = to_pandas(results), to_arrow(results), to_polars(results)
    assert list(frame.columns) == table.column_names == other.columns == list(columns)
    for name in ("memory_bytes", "exposed_ns[model]", "remat"):
        cells = list(columns[name].cells)
        assert table[name].to_pylist() == cells == other[name].to_list()
        known = frame[name].notna()
        assert list(frame[name][known]) == [c for c in cells if c is not None]
    write_table(results, tmp_path / "points.csv")
    with (tmp_path / "points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["memory_bytes"] for r in rows] == [
        str(c or "") for c in columns["memory_bytes"].cells
    ]
    import pyarrow.parquet

    write_table(results, tmp_path / "points.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "points.parquet").equals(table)
    assert to_arrow([]).num_rows == 0 == len(to_pandas([])) == to_polars([]).height


def test_options_called_as_quantities_keep_their_own_column() -> None:
    point = dataclasses.replace(result(8, 2).point, settings=(("data", "x"), ("tokens", "7")))
    found = {c.name: c.cells for c in columns_of([Result(point, Status.FAILED, 16)])}
    assert (found["data"], found["set.data"], found["set.tokens"], found["tokens"]) == (
        (8,), ("x",), (7,), (None,),
    )  # fmt: skip


def test_the_best_of_a_study_that_is_compared_meets_its_limits() -> None:
    space = {"dimensions": [], "axes": ["data", "model"], "limits": ["memory <= 20GiB"]}
    limited = Study(Subject("model.py"), space, tuple(study()), {})
    free = Study(Subject("model.py"), {**space, "limits": []}, tuple(study()), {})
    limits = parse_conditions(["memory <= 20GiB"], Scope(("data", "model"), ()))
    small, fastest = rank(study(), [TIME], limits).best, rank(study(), [TIME]).best
    assert small is not None and small.memory_bytes <= 20 * 2**30
    assert fastest is not None and fastest.memory_bytes > 20 * 2**30
    for pair, best in [
        ((limited, limited), (small, small)),
        ((limited, free), (small, fastest)),
        ((free, limited), (fastest, small)),
    ]:
        found = against(*pair, [TIME])
        assert found.is_same and (found.first.best, found.second.best) == best
    assert "best: " in against(limited, free, [TIME]).to_text()
    assert "best in both: " in against(limited, limited, [TIME]).to_text()


def test_a_table_of_no_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlintError) as error:
        write_table([], tmp_path / "points.xlsx")
    assert error.value.code == "FL870"
