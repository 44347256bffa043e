"""Search: what is found depends on the seed alone, is better than chance, and stays in its budget."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest

pytest.importorskip("optuna")
from flint.errors import FlintError
from flint.tools.explore.result import Status
from flint.tools.explore.space.conditions import parse_conditions
from flint.tools.explore.study.run import explore_space
from flint.tools.explore.study.search import SearchKind, search
from flint.tools.explore.study.study import Study
from tests.explore_points import evaluated, result_at, space_of, work


@dataclass(frozen=True)
class Memory:
    maximize: bool = False

    def value(self, result):
        return float(result.memory_bytes) if result.status is Status.FITS else None


@dataclass(frozen=True)
class Mfu:
    maximize: bool = True

    def value(self, result):
        return result.mfu or None


def _large(folder):
    return space_of(folder, range(1, 301))  # 2,400 points


def _found(space, seed=0, budget=150, **how):
    asked = []

    def evaluate(points):
        asked.extend(points)
        return [result_at(point) for point in points]

    return search(space, evaluate, budget, seed=seed, **how), asked


@pytest.mark.parametrize("kind", list(SearchKind))
def test_the_same_seed_finds_the_same(tmp_path, kind):
    goals = (Mfu(), Memory())
    how = {"budget": 60, "objectives": goals, "kind": kind}
    first, asked = _found(_large(tmp_path), **how)
    again, asked_again = _found(_large(tmp_path), **how)
    other, _ = _found(_large(tmp_path), seed=1, **how)
    assert asked == asked_again and first == again and other != first
    assert len(first) == len({p.key for p in asked}) == len(asked) <= 60


def test_a_search_finds_what_is_good(tmp_path):
    space = _large(tmp_path)
    best = min(r.step_time_ns for r in map(result_at, space.points()) if r.status is Status.FITS)
    found, _ = _found(space)
    times = sorted(r.step_time_ns for r in found if r.status is Status.FITS)
    chance, _ = _found(space, kind=SearchKind.RANDOM)
    by_chance = sorted(r.step_time_ns for r in chance if r.status is Status.FITS)
    assert times[0] <= 2 * best and times[9] < by_chance[9]
    # Most of a space does not fit; a search learns where it does.
    assert len(times) > 1.5 * len(by_chance)


def test_results_that_a_limit_forbids_are_not_looked_for(tmp_path):
    space = space_of(tmp_path, range(1, 65))
    # 21 microbatches and more, though fewer are faster
    limits = parse_conditions(["memory_bytes > 200"], space.scope)
    limited = replace(space, limits=limits)
    found = [
        explore_space(s, executor=_Here(tmp_path), budget=150).results for s in (limited, space)
    ]
    fit = [sum(r.status is Status.FITS and r.memory_bytes > 200 for r in f) for f in found]
    assert fit[0] > 1.3 * fit[1]


def test_conditions_hold_and_a_small_space_is_exhausted(tmp_path):
    space = space_of(tmp_path)
    text = "data * microbatches == 8"
    space = replace(space, conditions=parse_conditions([text], space.scope))
    all_of = {p.key for p in space.points()}
    _, asked = _found(space)
    assert {p.key for p in asked} == all_of and len(all_of) == 8


class _Here:
    def __init__(self, folder):
        self.evaluator = work(folder).factory()

    def run(self, groups):
        from flint.tools.explore.workers.work import Done

        for group in sorted(groups, key=lambda g: g.points[-1].key):  # in some other order
            yield Done(tuple(self.evaluator.evaluate(group.points)))


def test_a_killed_search_goes_on_from_its_file(tmp_path):
    space, path = _large(tmp_path), tmp_path / "s.db"
    whole = explore_space(space, executor=_Here(tmp_path), budget=100, seed=3)
    assert (len(whole.results), whole.not_explored) == (100, 2300)
    (tmp_path / "log").unlink()
    explore_space(space, study=path, executor=_Here(tmp_path), budget=50, seed=3)
    half = set(evaluated(tmp_path))
    study = explore_space(space, study=path, executor=_Here(tmp_path), budget=100, seed=3)
    assert study.results == whole.results and study.reused >= 32  # all batches before the last
    assert len(evaluated(tmp_path)) == len(set(evaluated(tmp_path)))
    assert {r.point.key for r in Study.load(path).results} == set(evaluated(tmp_path)) >= half


def test_a_budget_that_is_enough_means_all_points(tmp_path):
    study = explore_space(space_of(tmp_path), executor=_Here(tmp_path), budget=80)
    assert len(study.results) == 80 and study.not_explored == 0


_WITHOUT = """
import json, sys
from pathlib import Path
sys.modules["optuna"] = None
from flint.errors import FlintError
from flint.tools.explore.study.run import explore_space
from tests.explore_points import space_of

try:
    explore_space(space_of(Path(sys.argv[1])), budget=10)
except FlintError as error:
    print(json.dumps([error.code, error.help]))
"""


def test_without_optuna_only_a_search_is_refused(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", _WITHOUT, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    code, help_ = json.loads(run.stdout)
    assert code == "FL867" and "pip install 'flint-ir[explore]'" in help_


def test_a_search_that_ends_early_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "flint.tools.explore.space.space.MOST_TRIED", 100
    )  # nothing is counted before
    space = _large(tmp_path)

    def explored(condition):
        made = replace(space, conditions=parse_conditions([condition], space.scope))
        return explore_space(
            made, executor=_Here(tmp_path), budget=60, kind=SearchKind.RANDOM, seed=1
        )

    study = explored("microbatches * model <= 18")
    assert 0 < len(study.results) < 60
    assert any("ended before its budget of 60" in note for note in study.notes)
    with pytest.raises(FlintError, match="found no allowed point") as error:
        explored("microbatches * model == 9999")
    assert error.value.code == "FL862"
