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


class MovedTotalDocument(TypedDict):
    """A total of the step, or what an estimate says of it, before and after."""

    name: str
    """What it is: "FLOPs", "bytes over axis0", "step time on h100-dgx" (ns), ..."""
    before: float
    """Of the original."""
    after: float
    """Of what was written."""
    share: float
    """after / before - 1."""


class MovesDocument(TypedDict):
    """How far sizes moved, as shares of what they were."""

    variables: int
    """Sizes that may change: what all dimensions are made of."""
    changed: int
    """How many of them changed."""
    least: float
    """The smallest change of those."""
    median: float
    """The change in the middle of those."""
    dimensions: float
    """The share of all dimensions longer than 1 that changed."""


class AnonymizeDocument(TypedDict):
    """What was written, and what still identifies it. It names what it finds: keep it to yourself."""

    schema: Literal["flint.anonymize/1"]
    """Kind and version of this document."""
    level: str
    """What was given up: "names" or "shapes"."""
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
    changes: list[MovedTotalDocument]
    """Totals before and after; empty for the level "names", which moves none."""
    moves: MovesDocument | None
    """How far sizes moved; null for the level "names"."""
    rewired: None
    """Always null: no level changes structure."""
    survivors: list[SurvivorDocument]
    """Texts that are neither of the public vocabulary nor generated; exit status 1 if there is one."""
    leaks: dict[str, Any] | None
    """The leak report; null for traces without a workload."""
