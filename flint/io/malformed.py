"""What a reader raises where a file does not hold what it has to: never for a fault of Flint's own.

Parsers look at what a file says before they use it, and raise `Malformed` in one sentence. Readers
turn that, and nothing else, into the error of their kind of file. Any other exception is a bug.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flint.errors import FlintError


class Malformed(Exception):
    """What is wrong with a file, in a sentence without its name."""


@contextmanager
def readable(code: str, subject: str, help: str | None = None) -> Iterator[None]:
    """Turn `Malformed` into FlintError `code`: `subject`, a colon, and what is wrong."""
    try:
        yield
    except Malformed as error:
        raise FlintError(code, f"{subject}: {error}", help=help) from error
