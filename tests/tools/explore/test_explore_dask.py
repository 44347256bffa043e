"""Workers of Dask: the same file as without, whatever is killed meanwhile."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

pytest.importorskip("distributed")
from flint.errors import FlintError
from flint.tools.explore.result import Status
from flint.tools.explore.study.run import explore_space
from flint.tools.explore.study.study import Study
from flint.tools.explore.workers.dask_pool import DaskKind, dask_executor, find_kind
from flint.tools.explore.workers.work import KILLED_TWICE
from tests.explore_points import (
    Here,
    evaluated,
    result_at,
    rows,
    space_of,
    undisturbed_rows,
    wait_until,
    work,
    workers,
)


def _explored(folder, how, **options):
    with dask_executor(how, **options) as executor:
        study = explore_space(space_of(folder), study=folder / "s.db", executor=executor)
    return study


def test_two_workers_make_the_same_file(tmp_path):
    model = tmp_path / "model.py"
    model.write_text("")
    _explored(tmp_path, work(tmp_path, reads=str(model)), kind=DaskKind.LOCAL, jobs=2)
    assert rows(tmp_path / "s.db") == undisturbed_rows(tmp_path)
    assert len(workers(tmp_path)) == 2 and len(set(evaluated(tmp_path))) == 80
    model.write_text("changed = 1")  # what workers read is known to the client
    again = explore_space(space_of(tmp_path), study=tmp_path / "s.db", executor=Here())
    assert again.notes == ("80 points from before no longer hold: model.py changed",)


def test_points_that_kill_workers_fail_and_others_go_on(tmp_path):
    how = work(tmp_path, kills="data=2,.*microbatches', '7'")
    study = _explored(tmp_path, how, kind=DaskKind.LOCAL, jobs=2)
    bad = [r for r in study.results if r not in list(map(result_at, space_of(tmp_path).points()))]
    assert all(r.reason.startswith(KILLED_TWICE) for r in bad) and len(bad) == 2
    assert {dict(r.point.pipeline)["microbatches"] for r in bad} == {"7"}


def test_points_that_do_not_come_back_fail_and_others_go_on(tmp_path):
    space = space_of(tmp_path, microbatches=[1], clusters=["h100-dgx"])  # a point a program
    with dask_executor(
        work(tmp_path, 1.0, stalls="data=2,model=4"), kind=DaskKind.LOCAL, jobs=1
    ) as executor:
        study = explore_space(space, executor=executor)
    late = [r for r in study.results if r.status is Status.FAILED]
    assert len(study.results) == 4 and late
    assert {r.reason for r in late} == {f"{KILLED_TWICE}, from outside or at its limit of 1 s"}
    assert "data=2,model=4" in {r.point.mesh for r in late}


def _started(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        process_group=0,
    )


@contextlib.contextmanager
def _scheduler(folder):
    """A scheduler: its process, its address, and a function that starts a worker."""
    with contextlib.ExitStack() as open_:

        def started(*arguments):
            process = _started(*arguments)
            open_.callback(process.wait)
            open_.callback(lambda: os.killpg(process.pid, signal.SIGKILL))
            return process

        file = folder / "scheduler.json"
        scheduler = started(
            "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0",
            "--no-dashboard", "--scheduler-file", str(file),
        )  # fmt: skip
        wait_until(lambda: file.exists() and file.read_text().endswith("}"))
        address = json.loads(file.read_text())["address"]

        def worker():
            return started(
                "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny",
                "--no-dashboard", "--death-timeout", "20",
            )  # fmt: skip

        yield scheduler, address, worker


def test_workers_come_and_go(tmp_path):
    how = work(tmp_path, seconds=0.05)
    with _scheduler(tmp_path) as (_, address, worker):
        first = worker()

        def disturb():
            wait_until(lambda: len(evaluated(tmp_path)) >= 9)
            os.kill(first.pid, signal.SIGKILL)
            worker()

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        _explored(tmp_path, how, scheduler=address)
        disturbing.join()
    assert rows(tmp_path / "s.db") == undisturbed_rows(tmp_path)
    assert len(workers(tmp_path)) == 2


def test_workers_that_stay_read_the_model_anew(tmp_path):
    model = tmp_path / "model.py"
    model.write_text("")
    how = work(tmp_path, reads=str(model))
    with _scheduler(tmp_path) as (_, address, worker):
        worker()
        _explored(tmp_path, how, scheduler=address)
        model.write_text("changed = 1")
        study = _explored(tmp_path, how, scheduler=address)
        assert study.notes == ("80 points from before no longer hold: model.py changed",)
        assert len(workers(tmp_path)) == 1
    model.write_text("changed = 2")  # what the second run read is known as well
    again = explore_space(space_of(tmp_path), study=tmp_path / "s.db", executor=Here())
    assert again.notes == ("80 points from before no longer hold: model.py changed",)


def test_a_scheduler_that_is_killed_loses_no_finished_point(tmp_path):
    how = work(tmp_path, seconds=0.05)
    with _scheduler(tmp_path) as (scheduler, address, worker):
        worker()

        def disturb():
            wait_until(lambda: len(evaluated(tmp_path)) >= 30)
            os.kill(scheduler.pid, signal.SIGKILL)

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        with pytest.raises(FlintError, match="scheduler ended") as error:
            _explored(tmp_path, how, scheduler=address)
        disturbing.join()
    assert error.value.code == "FL867"
    kept = Study.load(tmp_path / "s.db").results
    assert kept and list(kept) == [result_at(r.point) for r in kept]
    study = explore_space(space_of(tmp_path), study=tmp_path / "s.db", executor=Here())
    assert study.reused == len(kept) and rows(tmp_path / "s.db") == undisturbed_rows(tmp_path)


def test_what_cannot_be_used_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr("flint.tools.explore.workers.dask_pool._CONNECT_SECONDS", 1)
    with (
        pytest.raises(FlintError, match="Dask cannot be used at tcp://127.0.0.1:1: ") as error,
        dask_executor(work(tmp_path), scheduler="tcp://127.0.0.1:1"),
    ):
        pass
    assert error.value.code == "FL867"
    for kind, needs in (
        (DaskKind.SLURM, "dask-jobqueue"),
        (DaskKind.KUBERNETES, "dask-kubernetes"),
    ):
        module = needs.replace("-", "_")
        monkeypatch.setitem(sys.modules, module, None)
        with (
            pytest.raises(FlintError, match=f"{needs} is not installed") as error,
            dask_executor(work(tmp_path), kind=kind),
        ):
            pass
        assert f"pip install {needs}" in error.value.help
    with pytest.raises(FlintError, match="did you mean 'slurm'"):
        find_kind("slrm")
