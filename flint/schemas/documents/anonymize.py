"""What `flint anonymize` says."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict


class SurvivorDocument(TypedDict):
    """A text that may identify, in what was written."""

    place: str
    """What kind of place has it: "mesh axis", "opcode", ..."""
    where: str
    """The first such place."""
    text: str
    """The text itself."""


class AnonymizeDocument(TypedDict):
    """What was written, and what still identifies it. It names what it finds: keep it to yourself."""

    schema: Literal["flint.anonymize/1"]
    """Kind and version of this document."""
    level: str
    """What was given up: "names"."""
    promise: str
    """What the level promises, in a sentence."""
    output: str
    """The file or directory that was written."""
    files: int
    """How many files were written."""
    mesh: dict[str, int]
    """Axes with sizes; empty for traces without a workload."""
    rows: list[int]
    """Rows of each program; empty for traces without a workload."""
    survivors: list[SurvivorDocument]
    """Texts that are neither of the public vocabulary nor generated; exit status 1 if there is one."""
    leaks: dict[str, Any] | None
    """The leak report; null for traces without a workload."""
