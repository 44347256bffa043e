"""What commands print: results on stdout, errors and progress on stderr, color where it helps."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TextIO

from flint.errors import FlintError
from flint.io.documents import as_json
from flint.text import printable, printable_json

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Called with (steps done, steps in all).
Progress = Callable[[int, int], None]


def print_any_character() -> None:
    """Let streams of a narrow encoding escape what they cannot hold, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at `stream`."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO) -> bool:
    """Whether to color `stream`: a terminal, and NO_COLOR unset or empty (no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def print_json(document: Mapping[str, object]) -> None:
    """Print one document; its first key is `schema`."""
    text = json.dumps(as_json(document), indent=2, ensure_ascii=False)
    with _told_if_lost():
        print(printable_json(text), flush=True)


def print_text(text: str, *, end: str = "\n") -> None:
    """Print text on stdout. Control characters of names are escaped."""
    with _told_if_lost():
        print(printable(text), end=end, flush=True)


@contextlib.contextmanager
def _told_if_lost() -> Iterator[None]:
    """What stdout does not take (its disk is full) is an error, unless its reader has enough.

    Raises FlintError FL502; BrokenPipeError passes.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise lost_output(error) from error


def lost_output(error: OSError) -> FlintError:
    """The FlintError FL502 for what could not be written to stdout."""
    return FlintError(
        "FL502",
        f"cannot write to standard output: {error.strerror or error}",
        help="free some space, or send the output elsewhere",
    )


def print_result(text: str, rich_form: Callable[[], RenderableType]) -> None:
    """Print a result: `rich_form()` on a terminal, else `text`."""
    if not is_terminal(sys.stdout):
        print_text(text)
        return
    from rich.console import Console
    from rich.segment import Segment, Segments

    console = Console(no_color=not has_colour(sys.stdout), highlight=False, markup=False)
    drawn = console.render(rich_form())
    safe = [s if s.control else Segment(printable(s.text), s.style) for s in drawn]
    with _told_if_lost():
        console.print(Segments(safe), end="")


#: So many characters of an error are shown without -v, and of the user's line in it.
_SHOWN, _SHOWN_LINE, _SHOWN_LEAST = 300, 72, 100
#: The start of a place, which is never cut: a file and its line, or all of what has no line.
_FILE_AND_LINE: Final = re.compile(r".*?:\d+(:\d+)?|.*")


def brief(error: FlintError) -> str:
    """The error in at most 300 characters, as far as its help allows: what is cut ends in "..."."""
    made = FlintError(error.code, error.message, place=error.place, help=error.help)
    if (over := len(str(made)) - _SHOWN) > 0 and made.place:
        found = _FILE_AND_LINE.match(made.place)
        where = found.end() if found else 0
        made.place = _cut(made.place, max(len(made.place) - over, _SHOWN_LINE, where + 4))
    if (over := len(str(made)) - _SHOWN) > 0:
        made.message = _cut(made.message, max(len(made.message) - over, _SHOWN_LEAST))
    return str(made)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 4].rstrip()} ..."


def print_error(error: FlintError, *, whole: bool = True) -> None:
    """Print a user error on stderr in the form of `str(error)`, or not the `whole` of it."""
    said = str(error) if whole else brief(error)
    if not has_colour(sys.stderr):
        _tell(said)
        return
    from rich.console import Console
    from rich.text import Text

    head, *rest = said.split("\n")
    label, _, message = head.partition(": ")
    text = Text(label, "bold red").append(f": {message}", "bold")
    for line in rest:
        style = "cyan" if line.startswith("  help:") else "blue" if "-->" in line else ""
        text.append("\n").append(line, style)
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)


def print_traceback(error: BaseException) -> None:
    """Print the traceback of `error` on stderr."""
    _tell("".join(traceback.format_exception(error)).rstrip("\n"))


def print_note(text: str, *, quiet: bool = False) -> None:
    """Print a remark on stderr, where it is in nobody's way."""
    if not quiet:
        _tell(printable(text))


def _tell(text: str) -> None:
    """Print on stderr. Where that cannot be written to, nobody can be told, and work goes on."""
    with contextlib.suppress(OSError):
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
