"""Errors that a user can mend. Anything else that is raised is a bug of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from flint.text import printable

#: Where an object lies in memory, in what Python prints for objects that have no text.
_ADDRESS = re.compile(r"(?: object)? at 0x[0-9a-fA-F]+")


class FlintError(Exception):
    """Something in the user's input that Flint cannot use, with what to do about it.

    `code` (`FL103`) is a section of docs/errors.md. `message` says what is wrong in the field's
    words. `place` is where in the *user's* source (`model.py:41  float32[1024,500]`), and `help`
    says what to change. The command line prints `str(error)`, in which control characters of names
    are escaped, and exits with `exit_code`.
    """

    exit_code = 2

    def __init__(
        self, code: str, message: str, *, place: str | None = None, help: str | None = None
    ) -> None:
        message = _ADDRESS.sub("", message)
        super().__init__(message)
        self.code = code
        self.message = message
        self.place = place
        self.help = help

    def __str__(self) -> str:
        lines = [f"error[{self.code}]: {self.message}"]
        if self.place:
            lines.append(f"  --> {self.place}")
        if self.help:
            lines.append(f"  help: {self.help}")
        return printable("\n".join(lines))


def nearest(name: str, known: list[str] | tuple[str, ...]) -> str:
    """Return `; did you mean 'x'?` for the known name closest to `name`, or an empty string.

    Capitals count only between names that are the same without them.
    """
    import difflib

    small = {k.lower(): k for k in reversed(known)}
    found = difflib.get_close_matches(name, known, n=1)
    found = found or [small[f] for f in difflib.get_close_matches(name.lower(), small, n=1)]
    return f"; did you mean '{found[0]}'?" if found else ""


# What a reader raises where a file does not hold what it has to: never for a fault of Flint's own.
#
# Parsers look at what a file says before they use it, and raise `Malformed` in one sentence. Readers
# turn that, and nothing else, into the error of their kind of file. Any other exception is a bug.


class Malformed(Exception):
    """What is wrong with a file, in a sentence without its name."""


@contextmanager
def readable(code: str, subject: str, help: str | None = None) -> Iterator[None]:
    """Turn `Malformed` into FlintError `code`: `subject`, a colon, and what is wrong."""
    try:
        yield
    except Malformed as error:
        raise FlintError(code, f"{subject}: {error}", help=help) from error
