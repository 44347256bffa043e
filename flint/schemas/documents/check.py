"""What `flint check` says."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class FindingDocument(TypedDict):
    """One thing that is wrong."""

    code: str
    """Which of the findings of docs/errors.md it is."""
    rank: int
    """The rank in whose trace it is; -1 for all."""
    node: int
    """The id of the node; -1 where it is of none."""
    sentence: str
    """What is wrong there."""


class CheckDocument(TypedDict):
    """What was examined of traces, and what was found."""

    schema: Literal["flint.check/1"]
    """Kind and version of this document."""
    ok: bool
    """Whether nothing was found."""
    ranks: int
    """Traces that were read."""
    nodes: int
    """Nodes in them."""
    groups: int
    """Groups of communicators."""
    partial: bool
    """Whether only some ranks were there: nothing is said about the others."""
    deadlock_examined: bool
    """False where earlier findings or absent ranks leave nothing to prove."""
    proved: Literal["any-times", "these-times", "nothing"]
    """Whether the traces end whatever anything lasts, or at the times that they have."""
    doubt: str
    """Why it is not proved for any times; empty where it is, or where deadlock was not examined."""
    compared_files: int
    """Files that were held against the manifest."""
    notes: list[str]
    """Sentences about what is no fault, and about what could not be proved."""
    counts: dict[str, int]
    """Findings of each code, all of them."""
    findings: list[FindingDocument]
    """The first 20 of each code, by rank and node."""
