"""What commands print: results on stdout, errors and progress on stderr, colour where it helps."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from flint.errors import FlintError

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Called with (steps done, steps in all).
Progress = Callable[[int, int], None]


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at `stream`."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO) -> bool:
    """Whether to colour `stream`: a terminal, and NO_COLOR unset or empty (no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def print_json(schema: str, document: Mapping[str, Any]) -> None:
    """Print one JSON document whose first key is its schema version."""
    print(json.dumps({"schema": schema, **document}, indent=2, ensure_ascii=False))


def print_result(text: str, rich_form: Callable[[], RenderableType]) -> None:
    """Print a result: `rich_form()` on a terminal, else `text`."""
    if not is_terminal(sys.stdout):
        print(text)
        return
    from rich.console import Console

    Console(no_color=not has_colour(sys.stdout), highlight=False).print(rich_form())


def print_error(error: FlintError) -> None:
    """Print a user error on stderr in the form of `str(error)`."""
    if not has_colour(sys.stderr):
        print(error, file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    head, *rest = str(error).split("\n")
    label, _, message = head.partition(": ")
    text = Text(label, "bold red").append(f": {message}", "bold")
    for line in rest:
        style = "cyan" if line.startswith("  help:") else "blue" if "-->" in line else ""
        text.append("\n").append(line, style)
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)


def print_traceback(error: BaseException) -> None:
    """Print the traceback of `error` on stderr."""
    traceback.print_exception(error, file=sys.stderr)


def print_note(text: str, *, quiet: bool = False) -> None:
    """Print a remark on stderr, where it is in nobody's way."""
    if not quiet:
        print(text, file=sys.stderr)


@contextlib.contextmanager
def progress_bar(label: str, *, quiet: bool) -> Iterator[Progress | None]:
    """Give a callback that draws a bar on stderr, or None where nobody would see one."""
    if quiet or not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, no_color=not has_colour(sys.stderr))
    with RichProgress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
