"""The blocks of a page that are to be run, in order, and what running them has to print.

A block with a `title` is a file. `sh` and `python` blocks are run where the files are; `exit=1` in the
line of the fence is the status that is meant, `no-run` leaves a block alone. Each line of a `text`
block that follows is printed by the block before it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PLAIN = re.compile(r"flint( [\w./:=,+%@'-]+)* *( #.*)?")
_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Snippet:
    """One block: what it is written in, the words beside that, its text, and what it prints."""

    language: str
    options: str
    text: str
    printed: list[str] = field(default_factory=list)

    @property
    def file(self) -> str:
        """The file that it is; "" for one that is run."""
        found = re.search(r'title="([^"]+)"', self.options)
        return found[1] if found else ""

    @property
    def status(self) -> int:
        """The exit status that is meant."""
        found = re.search(r"exit=(\d+)", self.options)
        return int(found[1]) if found else 0


def snippets(markdown: str) -> list[Snippet]:
    """The blocks of a page."""
    found: list[Snippet] = []
    for language, options, text in _FENCE.findall(markdown):
        if language == "text" and found:
            found[-1].printed += [line for line in map(str.strip, text.splitlines()) if line]
        elif language in ("sh", "python", "toml") and "no-run" not in options:
            found.append(Snippet(language, options, text))
    return found


def run_page(page: Path, folder: Path) -> None:
    """Run a page in a folder of its own. Raises AssertionError where it does not keep its word."""
    commands = folder / "bin"
    commands.mkdir()
    (commands / "flint").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m flint "$@"\n')
    (commands / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for command in commands.iterdir():
        command.chmod(0o755)
    work = folder / "work"
    work.mkdir()
    for snippet in snippets(page.read_text()):
        if snippet.file:
            (work / snippet.file).write_text(snippet.text)
        elif snippet.language != "toml":
            _run(snippet, work, commands)


def _run(snippet: Snippet, work: Path, commands: Path) -> None:
    said, status = "", 0
    for command in _commands(snippet):
        done = subprocess.run(
            command,
            cwd=work,
            env=_environment(commands),
            capture_output=True,
            text=True,
            check=False,
        )
        said, status = said + done.stdout + done.stderr, done.returncode
        if status:
            break
    assert status == snippet.status, f"{snippet.text}\nexit {status}\n{said}"
    missing = list(_missing(snippet.printed, said))
    assert not missing, f"{snippet.text}\ndoes not print {missing}, but\n{said}"


def _commands(snippet: Snippet) -> list[list[str]]:
    """What is run, until one fails: by a shell, but for lines that are `flint` and plain words.

    Those start at once: `python -m flint` is a fork of a warm process (tests/warm.py).
    """
    if snippet.language == "python":
        return [[sys.executable, "-c", snippet.text]]
    lines = [line for line in snippet.text.replace("\\\n", " ").splitlines() if line.strip()]
    if not all(_PLAIN.fullmatch(line) for line in lines):
        return [["bash", "-euc", snippet.text]]
    return [[sys.executable, "-m", *shlex.split(line, comments=True)] for line in lines]


def _missing(expected: list[str], said: str) -> Iterator[str]:
    """Lines that nothing begins with, whatever the spaces."""
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for line in expected:
        short = " ".join(line.split())
        if not any(found.startswith(short) for found in lines):
            yield line


def _environment(commands: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "EXAMPLES": str(ROOT / "examples"),
    }
