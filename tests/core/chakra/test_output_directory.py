"""A trace takes the place of what Flint wrote, and of nothing else, whatever ends the writer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from flint.backends.chakra import write
from flint.backends.chakra.manifest import (
    NAME,
    ListedFile,
    Manifest,
    Options,
    digest,
    matches,
    read_manifest,
)
from flint.backends.chakra.writing import output
from flint.backends.chakra.writing.output import left_behind, refuse_output
from flint.errors import FlintError
from flint.ir.workload import Workload
from tests.chakra_traces import layered_program

#: This file is also a program; what it imports from `tests` lies in no package that pip installs.
FINDS_TESTS = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}

WORKLOADS = {n: Workload.single(layered_program(f"data={n},model=2", 1)) for n in (1, 2, 4)}


def save(out: Path, data: int) -> None:
    write(WORKLOADS[data], out)


def put(out: Path, data: int) -> None:
    """A trace of no ranks, which takes less time to write."""
    options = Options(granularity="", groups="", link=False, ranks="", tensor_size="")
    listed = ListedFile(name="file", size_bytes=4, digest=digest("sha256", [b"text"]))
    manifest = Manifest(
        mesh={"data": data},
        prefix="trace",
        options=options,
        ranks=0,
        trace_bytes=0,
        classes=(),
        files=(listed,),
        traces=(),
    )
    with output.replaced_directory(out) as working:
        (working / "file").write_bytes(b"text")
        (working / "manifest").write_bytes(manifest.to_bytes())
        (working / "manifest").rename(working / NAME)


def whole(out: Path) -> int:
    """The size of the data axis of a trace in which nothing is missing, broken or foreign."""
    manifest = read_manifest(out)
    assert isinstance(manifest, Manifest)
    assert {*manifest.listing, NAME} == set(os.listdir(out))
    assert all(matches(x, [(out / n).read_bytes()]) for n, x in manifest.listing.items())
    return manifest.mesh["data"]


def refused(out: Path, *, inputs: tuple[Path, ...] = ()) -> FlintError:
    """Refused before the work and by the writer alike, and nothing is touched."""
    before = snapshot(out)
    with pytest.raises(FlintError) as caught:
        refuse_output(out, inputs)
    if not inputs:
        with pytest.raises(FlintError):
            save(out, 1)
    assert snapshot(out) == before
    return caught.value


def snapshot(place: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in place.parent.rglob("*") if p.is_file()}


def test_a_trace_takes_the_place_of_a_trace(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    for data in (2, 4, 1):
        refuse_output(out)
        save(out, data)
        assert whole(out) == data and os.listdir(out.parent) == ["out"]
    out.chmod(0o750)
    (out / "network.yml").unlink()  # what is gone is nobody's loss
    save(out, 2)
    assert whole(out) == 2 and out.stat().st_mode & 0o777 == 0o750


def test_a_bare_directory_and_a_link_to_one_are_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    save(tmp_path / "link", 2)
    assert (tmp_path / "link").is_symlink() and whole(tmp_path / "real") == 2


@pytest.mark.parametrize("name", ["notes.txt", "trace.9.et", "trace.0.et.bak", "other.0.et", ".x"])
def test_what_is_added_is_named_and_kept(tmp_path: Path, name: str) -> None:
    save(tmp_path / "out", 2)
    (tmp_path / "out" / name).write_text("mine")
    assert name in refused(tmp_path / "out").message


def test_directories_in_a_trace_are_named_and_kept(tmp_path: Path) -> None:
    save(tmp_path / "out", 2)
    (tmp_path / "out" / ".git").mkdir()
    (tmp_path / "out" / "results").symlink_to(tmp_path)
    error = refused(tmp_path / "out")
    assert error.code == "FL501" and ": .git/, results/" in error.message


@pytest.mark.parametrize("name", ["network.yml", "README.txt", "trace.1.et", NAME])
def test_what_was_edited_is_named_and_kept(tmp_path: Path, name: str) -> None:
    save(tmp_path / "out", 2)
    path = tmp_path / "out" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # the size stays
    time.sleep(0.02)  # a tick of the clock that files are dated by
    path.write_bytes(data)
    assert name in refused(tmp_path / "out").message


def test_an_edit_is_found_after_the_clock_was_set_back(tmp_path: Path) -> None:
    save(tmp_path / "out", 2)
    path = tmp_path / "out" / "trace.1.et"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    later = time.time_ns() + 10**12
    os.utime(tmp_path / "out" / NAME, ns=(later, later))
    assert "trace.1.et (changed)" in refused(tmp_path / "out").message


def test_what_became_longer_or_a_link_is_named_and_kept(tmp_path: Path) -> None:
    save(tmp_path / "out", 2)
    longer, linked = (tmp_path / "out" / name for name in ("trace.1.et", "README.txt"))
    before = longer.stat()
    longer.write_bytes(longer.read_bytes() + b"x")
    os.utime(longer, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ": trace.1.et (changed)" in refused(tmp_path / "out").message
    linked.rename(tmp_path / "kept")
    linked.symlink_to(tmp_path / "kept")
    assert ": README.txt (changed), trace.1.et (changed)" in refused(tmp_path / "out").message


def test_a_copied_trace_is_still_ours(tmp_path: Path) -> None:
    """Times say nothing of a copy, digests do."""
    save(tmp_path / "out", 2)
    (tmp_path / "copy").mkdir()
    for name in sorted(os.listdir(tmp_path / "out"), reverse=True):
        shutil.copyfile(tmp_path / "out" / name, tmp_path / "copy" / name)
        time.sleep(0.005)
    save(tmp_path / "copy", 4)
    assert whole(tmp_path / "copy") == 4


def test_a_trace_of_november_2026_is_replaced_unless_it_was_edited(tmp_path: Path) -> None:
    old = Path(__file__).parents[2] / "compat" / "data" / "manifest-2026-11-21.json"
    out = tmp_path / "out"
    out.mkdir()
    for name in (*json.loads(old.read_text())["files"], "trace.3.et", "trace.7.et"):
        (out / name).write_text("old")
    shutil.copyfile(old, out / NAME)
    refuse_output(out)
    os.utime(out / "network.yml", (time.time() + 9, time.time() + 9))
    assert "network.yml (changed)" in refused(out).message
    os.utime(out / "network.yml", (1, 1))
    (out / "trace.8.et").write_text("a rank that the mesh has not")
    assert "trace.8.et" in refused(out).message
    (out / "trace.8.et").unlink()
    save(out, 2)
    assert whole(out) == 2


@pytest.mark.parametrize("foreign", ['{"manifest_version": 3}', '{"schema": "flint.manifest/1"}'])
def test_a_manifest_of_others_makes_nothing_ours(tmp_path: Path, foreign: str) -> None:
    (tmp_path / "webext").mkdir()
    (tmp_path / "webext" / NAME).write_text(foreign)
    (tmp_path / "webext" / "background.js").write_text("mine")
    assert NAME in refused(tmp_path / "webext").message


def test_places_that_no_trace_can_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, model = tmp_path / "work", tmp_path / "work" / "model.py"
    work.mkdir()
    model.write_text("")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(work)
    cases = {
        work: ("FL501", "is the current directory"),
        tmp_path: ("FL501", "holds the current directory"),
        Path(): ("FL501", "is the current directory"),
        Path(".."): ("FL501", "holds the current directory"),
        Path("/"): ("FL502", "root"),
        model: ("FL501", "is a file"),
        model / "out": ("FL502", "Not a directory"),
        Path("x" * 300): ("FL502", "name too long"),
        Path("x" * 250): ("FL502", "name too long"),
        Path("/".join(["x" * 200] * 25)): ("FL502", "name too long"),
        tmp_path / "loop": ("FL502", "symbolic link"),
        Path("/proc"): ("FL501", "is a mount point"),
        Path("empty-out"): ("FL505", "empty"),
    }
    for place, (code, words) in cases.items():
        with pytest.raises(FlintError) as caught:
            refuse_output(place, [model])
        assert caught.value.code == code and words in caught.value.message, place
        assert caught.value.help
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FlintError, match="is a file"):
        refuse_output(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FlintError, match=r"holds .*model\.py"):
        refuse_output(work, [model])
    assert not (tmp_path / "x").exists() and os.listdir(work) == ["model.py"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_parent_that_may_not_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(FlintError, match="is not writable"):
        refuse_output(tmp_path / "locked" / "deep" / "out")


def test_what_is_added_while_the_trace_is_written_is_kept(tmp_path: Path) -> None:
    save(tmp_path / "out", 2)

    def add(done: int, total: int) -> None:
        (tmp_path / "out" / "notes.txt").write_text("mine")

    for one_step in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not one_step:
                patch.setattr(output, "_exchange", lambda one, other: False)
            with pytest.raises(FlintError, match=r"out contains .*notes\.txt"):
                write(WORKLOADS[4], tmp_path / "out", progress=add)
        assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
        (tmp_path / "out" / "notes.txt").unlink()
        assert whole(tmp_path / "out") == 2 and os.listdir(tmp_path) == ["out"]


def test_two_writers_take_turns(tmp_path: Path) -> None:
    command = [sys.executable, __file__, "repeat", str(tmp_path / "out")]
    writers = [subprocess.Popen([*command, data], env=FINDS_TESTS) for data in ("2", "4")]
    assert [w.wait(timeout=120) for w in writers] == [0, 0]
    assert whole(tmp_path / "out") in (2, 4) and os.listdir(tmp_path) == ["out"]


def test_a_writer_does_not_wait_for_ever(tmp_path: Path) -> None:
    with (
        output.locked(tmp_path / ".out.flint-lock"),
        pytest.raises(FlintError, match="FL506"),
        output.locked(tmp_path / ".out.flint-lock", 0.1),
    ):
        raise AssertionError("not reached")


@pytest.mark.long
def test_at_every_step_one_whole_trace_is_left(tmp_path: Path) -> None:
    """The writer ends before its first file operation, its second, and so on to its last."""
    (tmp_path / "beside.txt").write_text("mine")
    command = [sys.executable, __file__, "end", str(tmp_path / "out")]
    done = subprocess.run(
        command, env=FINDS_TESTS, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)
    assert len(points) == len(ENDS) and min(points) >= 8, points
    assert (tmp_path / "beside.txt").read_text() == "mine"


#: Who writes, how it ends, whether the system exchanges directories in one step, what stood there.
ENDS = (
    (save, "killed", "one step", "a trace"),
    (put, "killed", "two renames", "a trace"),
    (put, "killed", "one step", "nothing"),
    (put, "interrupted", "one step", "a trace"),
    (put, "interrupted", "two renames", "a trace"),
)


_exchange = output._exchange


def _end_at_each_step(
    writer: Callable[[Path, int], None], how: str, out: Path, steps: str, start: str
) -> int:
    """Count the points at which the writer was ended, having looked at what it left."""
    output._exchange = _exchange if steps == "one step" else lambda one, other: False
    for point in count(1):
        shutil.rmtree(out, ignore_errors=True)
        if start == "a trace":
            writer(out, 1)
        if _ends_well(writer, how, out, point):
            assert whole(out) == 2
            return point - 1
        beside = set(os.listdir(out.parent)) - {"beside.txt"}
        if how == "interrupted":
            assert beside <= {"out"}
        if out.exists():
            assert whole(out) in (1, 2) and left_behind(out) is None
        elif start == "a trace":
            assert steps == "two renames" and left_behind(out)
        if point % 2:
            refuse_output(out)  # the next run, which may then fail for another reason
            assert not out.exists() or whole(out) in (1, 2)
            assert out.exists() or start == "nothing"
        else:
            writer(out, 1)
            assert whole(out) == 1
        assert set(os.listdir(out.parent)) <= {"beside.txt", "out"}
    raise AssertionError("not reached")


def _ends_well(writer: Callable[[Path, int], None], how: str, out: Path, point: int) -> bool:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    left = point

    def end(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        if event == "open" or event.startswith(("os.", "shutil.")):
            left -= 1
            if left == 0 and how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if left == 0:
                raise KeyboardInterrupt

    code = 1
    try:
        sys.addaudithook(end)
        writer(out, 2)
        code = 0
    except KeyboardInterrupt:
        pass
    finally:
        left = 0
        os._exit(code)
    raise AssertionError("not reached")


if __name__ == "__main__":
    if sys.argv[1] == "repeat":
        for _ in range(15):
            save(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        out = Path(sys.argv[2])
        print(
            json.dumps([_end_at_each_step(writer, how, out, *rest) for writer, how, *rest in ENDS])
        )
