"""What an output may replace: only a file that Flint wrote, as the same kind. Every option of every command."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flint.backends.summary.graph import FORMATS
from flint.cli.command_line import app
from flint.cli.options import Reads, Writes, roles_of
from flint.errors import FlintError
from flint.io.outputs import OutputKind, refuse_same_place, refuse_to_replace, write_output
from flint.ir.text.printer import print_program
from flint.passes.pipeline.schedule.pictures import svg
from flint.passes.pipeline.schedule.simulate import TimedSchedule
from flint.tools.change.project import ci
from flint.tools.change.project.lock import Lock
from flint.tools.explore.answers.export import write_table
from flint.tools.explore.study.study_format import connect_to_write
from flint.tools.report.perfetto import write_perfetto
from tests.estimates import layers

REPOSITORY = Path(__file__).resolve().parents[3]
#: Who writes files of their own choice of names: caches, and into directories that they make.
OTHER_WRITERS = {
    "flint/io/files.py",
    "flint/io/outputs.py",
    "flint/tools/change/project/cache.py",
    "flint/tools/change/project/traces.py",
    "flint/tools/change/project/verify.py",
    "flint/tools/simulators/packets.py",
    "passes/compilers/cache.py",
}
#: Words of a metavar that say that a path may stand there.
PATH_WORDS = ("FILE", "DIR", "PATH", "MODEL", "STUDY", "CLUSTER")


def commands() -> Iterator[tuple[str, Callable[..., None], Any]]:
    """Name, function and click command of each."""

    def walk(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from walk(command, f"{prefix}{name} ")
            else:
                yield f"{prefix}{name}", command

    for name, command in walk(typer.main.get_command(app), ""):
        yield name, command.callback.__wrapped__.__wrapped__, command


def outputs() -> list[tuple[str, str, Writes]]:
    """Each output of each command: its name, the option, what it writes."""
    return [
        (name, next(o for o in parameter.opts if o.startswith("--")), role)
        for name, function, command in commands()
        for parameter in command.params
        if isinstance(role := roles_of(function).get(parameter.name), Writes)
    ]


def test_every_parameter_that_names_a_path_says_what_becomes_of_it() -> None:
    for name, function, command in commands():
        roles, hints = roles_of(function), typing.get_type_hints(function)
        for parameter in command.params:
            words = parameter.metavar or ""
            if "Path" in str(hints.get(parameter.name)) or any(w in words for w in PATH_WORDS):
                assert parameter.name in roles, f"{name} {parameter.name}: READS or Writes(...)"
        if any(isinstance(r, Writes) and r.kind and not r.adds for r in roles.values()):
            assert "force" in hints, name


def test_nothing_is_written_past_the_guard() -> None:
    """Whoever writes a file that a user named calls `write_output`."""
    found = set()
    for top in ("flint", "frontends", "passes", "backends"):
        for path in (REPOSITORY / top).rglob("*.py"):
            if "write_atomically(" in path.read_text():
                found.add(path.resolve().relative_to(REPOSITORY).as_posix())
    assert found == OTHER_WRITERS


def arguments_of(name: str, but: str) -> list[str]:
    """What a command needs, as long as nobody works with it, without the option `but`."""
    command, given = next(c for n, _, c in commands() if n == name), []
    for parameter in command.params:
        long = next((o for o in parameter.opts if o.startswith("--")), "")
        if parameter.required and long != but:
            given += [long, "given"] if long else ["given"]
    return given


@pytest.mark.parametrize(
    ("name", "option", "role"),
    [pytest.param(*output, id=" ".join(output[:2])) for output in outputs() if not output[2].adds],
)
def test_no_option_of_any_command_replaces_a_foreign_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, option: str, role: Writes
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("given", "train.csv", "given.flint", "folder/notes"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("epoch,loss\n1,2\n")
    Path("link").symlink_to("train.csv")
    files = ["train.csv", "given.flint", "link"] if role.kind else ["folder"]
    arguments = arguments_of(name, option)
    for file in files:
        done = CliRunner().invoke(app, [*name.split(), *arguments, option, file])
        assert done.exit_code == 2 and "error[FL50" in done.stderr, done.stderr
    assert {p.name for p in tmp_path.rglob("*")} - {"__pycache__"} == {
        *("given", "train.csv", "given.flint", "folder", "notes", "link")
    }
    assert {p.read_text() for p in tmp_path.rglob("*") if p.is_file()} == {"epoch,loss\n1,2\n"}


def written(folder: Path) -> dict[OutputKind, list[Path]]:
    """A file of each kind that has a mark, as Flint writes it."""
    from flint.backends.chakra.manifest import laid_out
    from flint.tools.explore.result import Result
    from flint.tools.interop.benchmark import write_benchmark
    from flint.tools.serve.serve import REQUEST_COLUMNS

    estimate = layers()
    program, found = estimate.workload.programs[0], {}

    def file(kind: OutputKind, name: str, data: str | bytes = b"") -> Path:
        found.setdefault(kind, []).append(folder / name)
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
        return folder / name

    file(OutputKind.WORKLOAD, "w.flint", estimate.workload.to_bytes())
    file(OutputKind.PAGE, "page.html", estimate.to_html())
    for name, text_of in FORMATS.items():
        file(OutputKind.GRAPH, f"graph.{name}", text_of(program))
    file(OutputKind.PROGRAM, "program.txt", print_program(program))
    write_perfetto(estimate, file(OutputKind.TIMELINE, "view.pftrace"))
    file(OutputKind.JUNIT, "junit.xml", ci.junit([]))
    file(OutputKind.COMMENT, "comment.md", ci.markdown([]))
    file(OutputKind.DRAWING, "drawing.svg", svg(drawn()))
    file(OutputKind.LEAKS, "leaks.json", '{\n "schema": "flint.leaks/1",\n "survivors": []\n}\n')
    schedule = laid_out({"schema": "flint.serve-schedule/1", "steps": []})
    file(OutputKind.SCHEDULE, "schedule.json", schedule)
    file(OutputKind.LOCK, "flint.lock", Lock().to_bytes())
    file(OutputKind.REQUESTS, "requests.csv", ",".join(REQUEST_COLUMNS) + "\n")
    for runner in ("torch", "nccl-tests", "param"):
        write_benchmark(estimate.workload, folder / runner, runner)
        found.setdefault(OutputKind.BENCHMARK, []).extend(sorted((folder / runner).iterdir())[:3])
    file(OutputKind.MODEL, "proposed.py", '"""m.py on 8 devices (written by flint propose).\n"""\n')
    key = "0" * 64
    file(OutputKind.RESULTS, "results.jsonl", f'{{"key": "{key}", "result": {{}}}}\n')
    results: list[Result] = []
    write_table(results, file(OutputKind.TABLE, "points.csv"))
    pytest.importorskip("pyarrow")
    write_table(results, file(OutputKind.TABLE, "points.parquet"))
    connect_to_write(file(OutputKind.STUDY, "s.study")).close()
    return found


def drawn() -> TimedSchedule:
    from flint.cli.commands.schedules import _timed

    found = _timed("1f1b", 2, 2, None)
    assert isinstance(found, TimedSchedule)
    return found


def test_each_kind_is_known_by_its_content_and_is_no_other(tmp_path: Path) -> None:
    found = written(tmp_path)
    assert set(found) == {kind for kind in OutputKind if kind.has_mark}
    for kind, paths in found.items():
        for path in paths:
            assert {k for k in OutputKind if k.is_in(path)} == {kind}, path.name
            path.rename(tmp_path / "any name")  # which says nothing
            refuse_to_replace(tmp_path / "any name", kind)
            other = next(k for k in OutputKind if k is not kind)
            with pytest.raises(FlintError, match=kind.text):
                refuse_to_replace(tmp_path / "any name", other)
            os.remove(tmp_path / "any name")


FOREIGN = {
    "a zip with a manifest": b"PK\x03\x04",
    "its own page, quoted in another": b'<p><meta name="generator" content="flint">',
    "a script that names a schema": b'SCHEMA = "flint.graph/1"',
    "a table with the same first columns": b"status,devices,mesh\nok,1,a\n",
    "somebody's lock": b'{"schema": "other.lock/1"}',
    "one blank": b" ",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_only_looks_like_it_stays(tmp_path: Path, what: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(FOREIGN[what])
    for kind in OutputKind:
        with pytest.raises(FlintError, match="FL508") as error:
            write_output(path, b"new", kind)
        no_mark = f"carries no mark of Flint as {kind.text}, and is" in error.value.message
        if no_mark and kind is not OutputKind.LOCK:
            assert str(error.value.help).startswith("older releases wrote none; give another name")
        other = re.search(r" (exists|is a file|is an? .* of flint)", error.value.message)
        assert no_mark != bool(other), error.value.message
    assert path.read_bytes() == FOREIGN[what] and os.listdir(tmp_path) == ["file"]
    write_output(path, b"new", OutputKind.PAGE, force=True)
    assert path.read_bytes() == b"new"


def test_an_empty_file_and_a_device_are_nobodys(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    write_output(tmp_path / "file", b"new", OutputKind.SCRIPT)
    assert (tmp_path / "file").read_bytes() == b"new"
    for _ in range(2):
        write_output(Path("/dev/null"), b"new", OutputKind.PAGE)
    (tmp_path / "to null").symlink_to("/dev/null")
    write_output(tmp_path / "to null", b"new", OutputKind.PAGE)
    assert Path("/dev/null").is_char_device()


def test_a_disk_is_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(st_mode=0o60660)
    monkeypatch.setattr("flint.io.files.os.stat", lambda *_, **__: found)
    with pytest.raises(FlintError, match="a disk"):
        write_output(Path("/dev/sda"), b"new", OutputKind.PAGE, force=True)


def test_a_link_that_leads_nowhere_makes_no_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("absent/report.html")
    with pytest.raises(FlintError, match="FL502.*folder is missing"):
        write_output(tmp_path / "link", b"new", OutputKind.PAGE, force=True)
    assert os.listdir(tmp_path) == ["link"]


def test_the_other_name_of_a_file_keeps_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("old")
    os.link(tmp_path / "one", tmp_path / "two")
    write_output(tmp_path / "two", b"new", OutputKind.PAGE, force=True)
    assert (tmp_path / "one").read_text() == "old" and (tmp_path / "two").read_text() == "new"


@pytest.mark.parametrize(
    ("paths", "inputs", "said"),
    [
        (["a", "./a"], [], "both write"),
        (["Page.html", "page.html"], [], "both write"),
        (["e\u0301.csv", "\u00e9.csv"], [], "both write"),
        (["in"], ["in"], "is an input"),
        (["hard"], ["in"], "is an input"),
        (["soft"], ["in"], "is an input"),
    ],
)
def test_outputs_are_apart_from_inputs_and_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str], inputs: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text("x")
    os.link("in", "hard")
    Path("soft").symlink_to("in")
    with pytest.raises(FlintError, match=said):
        refuse_same_place([(f"--{p}", Path(p)) for p in paths], [Path(i) for i in inputs])
    refuse_same_place([("--a", Path("/dev/null")), ("--b", Path("/dev/null"))], [])


FULL = """
import resource, sys
from pathlib import Path
from flint.errors import FlintError
from flint.io.outputs import OutputKind, write_output
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_output(Path(sys.argv[1]), b"x" * 2000, OutputKind.PAGE, force=True)
except FlintError as error:
    print(error.code)
"""


def test_on_a_full_disk_the_old_file_stays_and_nothing_else(tmp_path: Path) -> None:
    assert resource.RLIM_INFINITY  # the limit stands for a disk: Python gets the same kind of error
    (tmp_path / "old").write_text("old")
    for name in ("old", "new/folder/file"):
        done = subprocess.run(
            [sys.executable, "-c", FULL, str(tmp_path / name)],
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.stdout == "FL502\n", done.stderr
    assert os.listdir(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "old"


def test_a_folder_that_may_not_be_written_to_is_said_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flint.io.outputs.os.access", lambda *_: False)  # root may write anywhere
    with pytest.raises(FlintError, match="FL502.*is not writable"):
        refuse_to_replace(tmp_path / "file", OutputKind.PAGE)


def test_roles_are_of_two_kinds() -> None:
    roles = [role for _, function, _ in commands() for role in roles_of(function).values()]
    assert {type(role) for role in roles} == {Reads, Writes}
    assert len(outputs()) >= 20
    # What is added to: test_explore_study.py has the study, and its folders are refused one by one.
    added = {(name, option) for name, option, role in outputs() if role.adds}
    assert added == {
        ("explore", "--study"),
        ("explore", "--output"),
        ("propose", "--study"),
        ("serve", "--export"),
        ("simulate", "--files"),
    }
