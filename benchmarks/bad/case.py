"""A case: files, and the commands that are run on them; an outcome: what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Special(Enum):
    """What may be where a file is expected."""

    FIFO = "a pipe"
    ZERO = "a link to /dev/zero"
    DIRECTORY = "a directory"
    SPARSE = "a sparse file of 64 GiB"
    DANGLING = "a link to nothing"


@dataclass(frozen=True)
class Case:
    """Files by name, and command lines: the first, and those that are run if it accepts them.

    `number` makes it again, together with the kind and the seed. `change` says what was done.
    """

    kind: str
    number: int
    change: str
    files: dict[str, bytes | Special]
    commands: tuple[tuple[str, ...], ...]


class Verdict(Enum):
    """What came of a case; the value says whether it is as it should be."""

    REJECTED = ("rejected", True)
    ACCEPTED = ("accepted", True)
    FOUND = ("found", True)  #: `check` found something
    UNCLEAR = ("unclear", False)  #: exit status 2 without a code of Flint
    BUG = ("exit 70", False)
    HANG = ("hang", False)
    MEMORY = ("over 2 GB", False)
    SIGNAL = ("signal", False)
    ODD = ("odd exit", False)
    RAW = ("raw output", False)  #: control characters in what was printed or exported
    ABSURD = ("absurd", False)  #: a negative number, or none, in what was accepted

    def __init__(self, title: str, fine: bool) -> None:
        self.title = title
        self.fine = fine


@dataclass
class Outcome:
    """The verdict on a case, the command that it is about, and what that printed."""

    verdict: Verdict
    command: tuple[str, ...] = ()
    printed: str = field(default="", repr=False)
    cpu_seconds: float = 0.0
