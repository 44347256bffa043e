"""How commands end: exit codes, streams, colour."""

import errno
import io
import os
import subprocess
import sys
from functools import partial

import pytest
import typer

from flint.cli import console
from flint.cli.exits import guarded
from flint.errors import FlintError
from tests.cpu import children_seconds


def _ends(command, **options):
    with pytest.raises(typer.Exit) as caught:
        guarded(command)(**options)
    return caught.value.exit_code


def test_a_user_error_is_printed_and_exits_2(capsys):
    def command():
        raise FlintError("FL101", "no", place="m.py:1", help="yes")

    assert _ends(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.split("\n") == ["error[FL101]: no", "  --> m.py:1", "  help: yes", ""]


def test_the_traceback_behind_a_user_error_needs_verbose(capsys):
    def command(verbose=False):
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise FlintError("FL203", "model.py raised") from error

    assert _ends(command) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert _ends(command, verbose=True) == 2
    assert "KeyError: 'inner'" in capsys.readouterr().err


def test_anything_else_is_a_bug_and_exits_70(capsys):
    def command():
        raise AssertionError("row 3 depends on row 4")

    assert _ends(command) == 70
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith(
        "AssertionError: row 3 depends on row 4\n\nthis is a bug in flint, please report it\n"
    )


def test_an_interrupt_exits_130(capsys):
    def command():
        raise KeyboardInterrupt

    assert _ends(command) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_exits_of_commands_pass():
    def command():
        raise typer.Exit(1)

    assert _ends(command) == 1


def test_a_reader_that_leaves_gets_what_shells_say_of_sigpipe():
    program = (
        "from flint.cli.exits import guarded\n"
        "import typer\n"
        "def command():\n"
        "    for _ in range(100000): print('x' * 100)\n"
        "app = typer.Typer()\n"
        "app.command()(guarded(command))\n"
        "app()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=30) == 141  # never 0: a check that found something said so in vain


@pytest.mark.cold
@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("clusters", "list")])
def test_a_full_disk_under_stdout_is_an_error(arguments):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flint", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error[FL502]: cannot write to standard output: No space left")
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_a_full_disk_under_stderr_stops_nothing(monkeypatch, capsys):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    console.print_note("a remark")
    console.print_text("the result")
    console.print_error(FlintError("FL101", "no"))
    assert capsys.readouterr().out == "the result\n"


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colour_is_for_terminals_without_no_color(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert console.has_colour(_Terminal())
    assert not console.has_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not console.has_colour(_Terminal())
    monkeypatch.setenv("NO_COLOR", "")
    assert console.has_colour(_Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not console.is_terminal(_Terminal())


def test_errors_say_the_same_in_colour(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = _Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    error = FlintError("FL101", "[bold]no[/] " + "x" * 200, place="m.py:1", help="yes")
    console.print_error(error)
    coloured = shown.getvalue()
    assert "\x1b[1;31m" in coloured
    import re

    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == f"{error}\n"


def test_progress_is_for_terminals(monkeypatch):
    with console.progress_bar("writing", quiet=False) as progress:
        assert progress is None
    shown = _Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm-256color")
    with console.progress_bar("writing", quiet=True) as progress:
        assert progress is None
    with console.progress_bar("writing", quiet=False) as progress:
        progress(3, 8)
    assert "3/8" in shown.getvalue()


def test_help_costs_little_more_than_its_libraries():
    def cost(*arguments):
        command = [sys.executable, *arguments]
        run = partial(subprocess.run, command, stdout=subprocess.DEVNULL, check=True)
        return min(children_seconds(run) for _ in range(3))

    libraries = cost("-c", "import typer, rich.console, rich.table, rich.panel, rich.markdown")
    assert cost("-c", "from flint.cli import main; main()", "--help") < 2 * libraries
