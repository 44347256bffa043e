"""Processes that evaluate points: what becomes of points when one of them, or their client, is killed."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from flint.tools.explore.result import Status
from flint.tools.explore.study.run import explore_space
from flint.tools.explore.study.study import Study
from flint.tools.explore.workers.local import LocalExecutor
from flint.tools.explore.workers.work import KILLED_TWICE, groups_of
from tests.explore_points import (
    evaluated,
    result_at,
    rows,
    space_of,
    undisturbed_rows,
    wait_until,
    work,
    workers,
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Rows of a study that nothing happened to; its folder is that of the model for all."""
    return undisturbed_rows(tmp_path_factory.mktemp("undisturbed"))


def _explored(folder, jobs=2, **how):
    with LocalExecutor(work(folder, **how), jobs) as executor:
        study = explore_space(space_of(folder), study=folder / "s.db", executor=executor)
    return _Explored(study, folder / "s.db")


class _Explored:
    def __init__(self, study, path):
        self.results, self.path, self.study = study.results, path, study


def test_a_process_that_is_killed_once_costs_nothing(tmp_path, undisturbed):
    _explored(tmp_path, kills="data=2,model=4", once=True)
    assert (tmp_path / "log.killed").exists()
    assert rows(tmp_path / "s.db") == undisturbed


def test_points_that_kill_their_process_fail_and_others_go_on(tmp_path, undisturbed):
    found = _explored(tmp_path, kills="data=2,.*microbatches', '7'")
    bad = [r for r in found.results if r.status is Status.FAILED]
    assert {dict(r.point.pipeline)["microbatches"] for r in bad} == {"7"} and len(bad) == 2
    assert {r.reason for r in bad} == {KILLED_TWICE} and {r.devices for r in bad} == {8}
    assert [r for r in found.results if r not in bad] == [
        result_at(r.point) for r in found.results if r not in bad
    ]
    again = _explored(tmp_path)
    assert again.study.reused == 78 and rows(again.path) == undisturbed


def test_a_group_that_does_not_come_back_is_given_up(tmp_path):
    space = space_of(tmp_path, range(1, 3), clusters=("h100-dgx",))
    with LocalExecutor(work(tmp_path, 1.0, stalls="data=2,model=4"), 2) as executor:
        study = explore_space(space, executor=executor)
    late = [r for r in study.results if r.status is Status.FAILED]
    assert {(r.point.mesh, r.reason) for r in late} == {
        ("data=2,model=4", "it did not finish in 1 seconds")
    }
    assert len(late) == 2 and len(study.results) == 8


@pytest.mark.long
def test_random_kills_lose_no_point(tmp_path, undisturbed):
    rng, over = random.Random(1), threading.Event()

    def kill_some():
        wait_until(lambda: evaluated(tmp_path))
        for _ in range(3):
            if over.wait(rng.uniform(0.0, 2.5)):
                return
            if children := multiprocessing.active_children():
                os.kill(rng.choice(children).pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_some)
    killer.start()
    try:
        found = _explored(tmp_path, seconds=0.05)
        if any(r.status is Status.FAILED for r in found.results):  # it was hit three times
            found = _explored(tmp_path)
    finally:
        over.set()
        killer.join()
    assert rows(found.path) == undisturbed


def _client(folder):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.explore_client", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


def _is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="tells processes by /proc")
@pytest.mark.parametrize(("signal_", "after"), [(9, 37), (2, 20)])
def test_a_client_that_ends_leaves_no_process_and_loses_no_point(
    tmp_path, undisturbed, signal_, after
):
    client = _client(tmp_path)
    try:
        wait_until(lambda: len(evaluated(tmp_path)) >= after or client.poll() is not None)
        client.send_signal(signal_)
        said = client.communicate(timeout=30)
    finally:
        client.kill()
    if signal_ != 9:
        assert (client.returncode, said[0]) == (128 + signal_, "")
        assert said[1] in ("interrupted\n", "terminated\n")
    wait_until(lambda: all(map(_is_gone, workers(tmp_path))), 10)
    before, kept = evaluated(tmp_path), Study.load(tmp_path / "s.db").results
    assert list(kept) == [result_at(r.point) for r in kept]
    assert len(before) - len(kept) <= 3 * 20  # groups under way
    found = _explored(tmp_path)
    assert found.study.reused == len(kept) and rows(found.path) == undisturbed
    assert len(evaluated(tmp_path)) - len(before) == 80 - len(kept)


def test_a_script_that_does_not_guard_its_call_is_told(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from tests.explore_client import _explore\n"
        f"_explore(Path({str(tmp_path)!r}), '')\n"
    )
    run = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert run.returncode and "processes that evaluate points end before they begin" in run.stderr


def test_nothing_is_evaluated_for_nobody(tmp_path):
    with LocalExecutor(work(tmp_path, seconds=0.05), 1) as executor:
        running = executor.run(groups_of(space_of(tmp_path).points(), 4))
        next(running)
        running.close()
        count = len(evaluated(tmp_path))
        time.sleep(0.3)
        assert len(evaluated(tmp_path)) == count
        pids = workers(tmp_path)
    assert all(map(_is_gone, pids))


def test_what_killed_processes_kept_is_removed(tmp_path, monkeypatch):
    """An interruption kills processes; their scratch folders go with them, not at the next command."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    first, second, *_ = groups_of(space_of(tmp_path).points(), 4)
    stalls = repr(second.points[0])
    with (
        pytest.raises(KeyboardInterrupt),
        LocalExecutor(work(tmp_path, stalls=stalls), 1) as executor,
    ):
        running = executor.run([first, second])
        next(running)
        wait_until(
            lambda: len(os.listdir(place)) == 2
        )  # the executor's own, and the second group's
        raise KeyboardInterrupt
    assert os.listdir(place) == []
