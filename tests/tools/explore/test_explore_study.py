"""Studies: what is in their file, when it is used again, and which files are refused."""

import json
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from flint.errors import FlintError
from flint.io.inputs import CHANGED, ReadInput, ReadInputKind, digest
from flint.io.records import record_of
from flint.tools.explore.answers.rank import ranked
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result, Status
from flint.tools.explore.space.conditions import parse_conditions
from flint.tools.explore.study.run import explore_space, open_study
from flint.tools.explore.study.study import Study
from flint.tools.explore.workers.work import groups_of
from tests.explore_points import Hashed, evaluated, result_at, space_of

OWN = 'base = "h100-dgx"\nname = "own"\ntitle = "one of ours"\n'


class Here:
    """Evaluates in this process."""

    def __init__(self, folder, inputs=(), **how):
        self._evaluator, self._inputs = Hashed(str(folder / "log"), **how)(), inputs

    def run(self, groups):
        from flint.tools.explore.workers.work import Done

        for group in groups:
            yield Done(tuple(self._evaluator.evaluate(group.points)), tuple(self._inputs))


def test_a_study_is_evaluated_once_and_read_again(tmp_path):
    space, path, seen = space_of(tmp_path), tmp_path / "s.db", []
    study = explore_space(space, study=path, executor=Here(tmp_path), progress=seen.append)
    assert len(study.results) == 80 == space.size() and study.reused == 0
    assert [r.point for r in study.results] == sorted(space.points())
    assert list(study.results) == [result_at(r.point) for r in study.results]
    assert (seen[-1].done, seen[-1].total) == (80, 80)
    loaded = Study.load(path)
    assert (loaded.results, loaded.subject, loaded.dimensions) == (
        study.results,
        space.subject,
        space.dimensions,
    )
    again = explore_space(space, study=path, executor=Here(tmp_path))
    assert (again.results, again.reused) == (study.results, 80)
    wider = explore_space(space_of(tmp_path, range(1, 12)), study=path, executor=Here(tmp_path))
    assert (len(wider.results), wider.reused, wider.notes) == (88, 80, ())
    assert len(evaluated(tmp_path)) == 88 == len(set(evaluated(tmp_path)))
    assert [p.name for p in tmp_path.iterdir() if p.name != "log"] == ["s.db"]


def test_a_file_of_several_explorations_says_what_all_its_points_have(tmp_path):
    space, path = space_of(tmp_path), tmp_path / "s.db"
    explore_space(space, study=path, executor=Here(tmp_path))
    narrow = space_of(tmp_path, range(1, 3), clusters=["h100-dgx"])
    conditions = parse_conditions(["model >= 2", "microbatches >= 1"], narrow.scope)
    narrow = replace(narrow, conditions=conditions)
    study = explore_space(narrow, study=path, executor=Here(tmp_path))
    assert (len(study.results), study.reused) == (6, 6)
    assert study.space["conditions"] == ["model >= 2", "microbatches >= 1"]
    loaded = Study.load(path)
    assert len(loaded.results) == 80
    assert loaded.space["conditions"] == ["microbatches >= 1"]
    assert {d.name: set(d.values) for d in loaded.dimensions} == {
        d.name: set(d.values) for d in space.dimensions
    }
    assert "74 points are from earlier explorations" in loaded.notes[-1]


def test_limits_may_have_words_of_options_that_are_not_explored(tmp_path):
    space = replace(space_of(tmp_path, range(1, 3)), fixed=(("layers", "scan"),))
    limits = parse_conditions(["layers == scan and time > 0s"], space.scope, {"layers": ("scan",)})
    study = explore_space(replace(space, limits=limits), executor=Here(tmp_path))
    assert ranked(study)[1].best is not None


def test_a_cluster_that_changes_while_it_is_explored_is_evaluated_again(tmp_path):
    own, path = tmp_path / "own.toml", tmp_path / "s.db"
    own.write_text(OWN)
    space = space_of(tmp_path, range(1, 2), clusters=[str(own)])

    class Edits(Here):
        def run(self, groups):
            for done in super().run(groups):
                own.write_text(OWN.replace("h100-dgx", "h200-dgx"))  # it has been read as it was
                yield done

    assert len(explore_space(space, study=path, executor=Edits(tmp_path)).results) == 4
    again = explore_space(space, study=path, executor=Here(tmp_path))
    assert again.reused == 0 and "own.toml" in again.notes[0]


def test_what_failed_is_tried_again(tmp_path):
    space, path = space_of(tmp_path), tmp_path / "s.db"
    first, *rest = space.points()
    with open_study(path, space) as file:
        file.add([Result(first, Status.FAILED, 8, "killed"), *map(result_at, rest)])
    study = explore_space(space, study=path, executor=Here(tmp_path))
    assert evaluated(tmp_path) == [first.key] and study.reused == 79
    assert all(r.status is not Status.FAILED for r in Study.load(path).results)


def test_points_of_a_model_that_changed_no_longer_hold(tmp_path):
    model, path, space = tmp_path / "model.py", tmp_path / "s.db", space_of(tmp_path)
    model.write_text("one = 1")

    def reads():
        return [ReadInput(ReadInputKind.FILE, str(model), digest(model.read_bytes()))]

    explore_space(space, study=path, executor=Here(tmp_path, reads()))
    model.write_text("one = 2")
    study = explore_space(space, study=path, executor=Here(tmp_path, reads()))
    assert study.notes == ("80 points from before no longer hold: model.py changed",)
    assert (study.reused, len(evaluated(tmp_path))) == (0, 160)
    assert Study.load(path).notes == study.notes
    again = explore_space(space, study=path, executor=Here(tmp_path, reads()))
    assert (again.reused, again.notes) == (80, ())


def test_points_of_a_cluster_that_changed_no_longer_hold(tmp_path):
    own, path = tmp_path / "own.toml", tmp_path / "s.db"
    own.write_text(OWN)
    space = space_of(tmp_path, clusters=(str(own), "b200-dgx"))
    # A cluster's file is no input of the model: the other cluster's points still hold.
    inputs = [ReadInput(ReadInputKind.FILE, str(own), digest(own.read_bytes()))]
    explore_space(space, study=path, executor=Here(tmp_path, inputs))
    own.write_text(OWN.replace("ours", "theirs"))
    study = explore_space(space, study=path, executor=Here(tmp_path))
    assert study.reused == 40
    assert study.notes == (
        f"40 points from before no longer hold: {own} or another file that they name changed",
    )


def test_versions_and_variables_are_part_of_what_holds(tmp_path, monkeypatch):
    space, path = space_of(tmp_path), tmp_path / "s.db"
    explore_space(space, study=path, executor=Here(tmp_path))
    monkeypatch.setenv("JAX_OF_A_TEST", "1")
    study = explore_space(space, study=path, executor=Here(tmp_path))
    assert study.notes == ("80 points from before no longer hold: $JAX_OF_A_TEST changed",)


def test_a_file_that_changes_meanwhile_stops_a_study(tmp_path):
    space, path = space_of(tmp_path), tmp_path / "s.db"
    one, *others = space.points()
    with open_study(path, space) as file:
        file.add([result_at(one)], [ReadInput(ReadInputKind.FILE, "/m/model.py", "a")])
        with pytest.raises(FlintError, match="model.py changed during the exploration") as error:
            file.add([result_at(others[0])], [ReadInput(ReadInputKind.FILE, "/m/model.py", "b")])
        assert error.value.code == "FL872"
        file.add([result_at(others[1])], [ReadInput(ReadInputKind.NAMES, "/m", "a")])
        file.add([result_at(others[2])], [ReadInput(ReadInputKind.NAMES, "/m", "b")])
    assert len(Study.load(path).results) == 3  # of the second nothing was written
    with sqlite3.connect(path) as db:
        rows = dict(db.execute("SELECT kind, digest FROM inputs").fetchall())
    db.close()
    assert rows == {"file": "a", "names": CHANGED}


def test_files_that_are_no_studies_stay_as_they_are(tmp_path):
    space = space_of(tmp_path)
    text, other, newer = tmp_path / "t.db", tmp_path / "o.db", tmp_path / "n.db"
    text.write_text("not a database, but long enough to be one? " * 50)
    for path, statement in ((other, "CREATE TABLE x (y)"), (newer, "PRAGMA user_version=99")):
        if path is newer:
            explore_space(space, study=path, executor=Here(tmp_path))
        db = sqlite3.connect(path)
        db.execute(statement)
        db.close()
    before = {path: path.read_bytes() for path in (text, other, newer)}
    for path, said in (
        (text, "is not a study"),
        (other, "another program"),
        (newer, "newer Flint"),
    ):
        for open_it in (lambda p: explore_space(space, study=p), Study.load):
            with pytest.raises(FlintError, match=said) as error:
                open_it(path)
            assert error.value.code == "FL864"
    for path in (tmp_path, tmp_path / "nothing.db"):
        with pytest.raises(FlintError, match=r"a directory|no such file"):
            Study.load(path)
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE points SET finished='x'", "finished: should be a valid integer"),
        (f"UPDATE points SET finished={2**63 - 1}", "finished: should be less than"),
        (f"UPDATE points SET generation={2**63 - 1}", "generation: should be less than"),
    ],
)
def test_numbers_that_are_counted_on_from_leave_room(tmp_path, statement, said):
    space, path = space_of(tmp_path), tmp_path / "s.db"
    with open_study(path, space) as file:
        file.add([result_at(next(iter(space.points())))], [])
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()
    for open_it in (lambda p: explore_space(space, study=p), Study.load):
        with pytest.raises(FlintError, match=said) as error:
            open_it(path)
        assert error.value.code == "FL864"


def test_a_study_of_another_model_is_refused(tmp_path):
    from dataclasses import replace

    space, path = space_of(tmp_path), tmp_path / "s.db"
    explore_space(space, study=path, executor=Here(tmp_path))
    before = path.read_bytes()
    for other, said in (
        (space_of(tmp_path, name="other.py"), "model '.*model.py' instead of '.*other.py'"),
        (
            replace(space, subject=replace(space.subject, settings=(("layers", "2"),))),
            "settings '' instead of 'layers=2'",
        ),
    ):
        with pytest.raises(FlintError, match=said) as error:
            explore_space(other, study=path, executor=Here(tmp_path))
        assert error.value.code == "FL865"
    assert path.read_bytes() == before
    # How points are evaluated is not what they are of, but their results differ.
    otherwise = replace(space, subject=replace(space.subject, keep_infeasible=True))
    study = explore_space(otherwise, study=path, executor=Here(tmp_path))
    assert study.notes == ("80 points from before no longer hold: --keep-infeasible changed",)


def test_one_process_writes_and_others_read(tmp_path):
    space, path = space_of(tmp_path), tmp_path / "s.db"
    with open_study(path, space) as file:
        file.add(map(result_at, list(space.points())[:7]))
        assert len(Study.load(path).results) == 7
        with pytest.raises(FlintError, match="another process writes") as error:
            explore_space(space, study=path)
    assert error.value.code == "FL866"


_FULL = """
import resource, signal, sys
from pathlib import Path
from flint.errors import FlintError
from flint.tools.explore.study.run import open_study
from tests.explore_points import result_at, space_of

folder = Path(sys.argv[1])
space = space_of(folder, range(1, 200))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
written = 0
with open_study(folder / "s.db", space) as file:
    try:
        for point in space.points():
            file.add([result_at(point)])
            written += 1
    except FlintError as error:
        print(written, error.code, error.message)
"""


def test_a_study_that_cannot_begin_leaves_no_file(tmp_path):
    script = _FULL[: _FULL.index("with open_study")].replace("300_000", "100") + (
        "try:\n    with open_study(folder / 's.db', space): pass\n"
        "except FlintError as error: print(error.code)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.stdout == "FL502\n", run.stderr
    assert not list(tmp_path.glob("*s.db*"))


def test_a_point_without_mesh_or_cluster_is_read_back():
    for point in (Point("", "h100-dgx"), Point("data=2", ""), Point("", "")):
        assert record_of(Point, point.to_json()) == point


def test_a_full_disk_is_one_error_and_loses_no_point(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    written, code, message = run.stdout.split(maxsplit=2)
    assert code == "FL502" and "cannot write" in message, run.stderr
    study = Study.load(tmp_path / "s.db")
    assert 20 < len(study.results) == int(written)
    assert all(result_at(r.point) == r for r in study.results)


@pytest.mark.long
def test_ten_thousand_points_load_fast(tmp_path):
    space, path = space_of(tmp_path, range(1, 1251)), tmp_path / "s.db"
    with open_study(path, space) as file:
        for group in groups_of(space.points()):
            file.add(map(result_at, group.points))
    begin = time.process_time()
    assert len(Study.load(path).results) == 10_000
    assert time.process_time() - begin < 3


def test_groups_are_of_one_program_and_begin_with_something_to_show(tmp_path):
    space = space_of(tmp_path, range(2), clusters=("h100-dgx",) * 1)
    points = [
        Point(mesh, cluster) for mesh in ("data=8", "data=4") for cluster in map(str, range(250))
    ]
    groups = list(groups_of(points, first=1))
    assert [len(g.points) for g in groups] == [1, 100, 100, 49, 100, 100, 50]
    assert [p for g in groups for p in g.points] == points
    assert all(len({p.program for p in g.points}) == 1 for g in groups)
    assert [len(g.points) for g in groups_of(space.points(), first=99)] == [1] * 8


def test_results_go_through_json_as_they_are(tmp_path):
    space, path = space_of(tmp_path), tmp_path / "s.db"
    odd = Result(
        next(space.points()),
        Status.FITS,
        8,
        step_time_ns=1 / 3,
        low_ns=5e-324,
        high_ns=0.4,
        mfu=1e-300,
    )
    with open_study(path, space) as file:
        file.add([odd])
    assert Study.load(path).results == (odd,)
    db = sqlite3.connect(path)
    row = db.execute("SELECT step_time_ns, status, result FROM points").fetchone()
    db.close()
    assert row[:2] == (1 / 3, "fits") and json.loads(row[2])["mfu"] == 1e-300
