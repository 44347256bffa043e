"""What `flint synth` and `flint learn` say."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict


class SampleDocument(TypedDict):
    """One workload that was made."""

    path: str
    """The file, or the directory of traces, that was written."""
    seed: int
    """The seed that makes it again, with the same model and conditions."""
    asked: dict[str, Any]
    """Totals that were asked for, of one device in one step; null or absent where nothing was. `found` has them within 10 %."""
    found: dict[str, Any]
    """Totals that it has."""


class SynthDocument(TypedDict):
    """Workloads that were made. They follow all strict rules of captured programs."""

    schema: Literal["flint.synth/1"]
    """Kind and version of this document."""
    output: str
    """The directory that was written."""
    model: str
    """The folder of remembered programs, or "default"."""
    samples: list[SampleDocument]
    """One for each workload, in order."""


class LearnDocument(TypedDict):
    """Programs that were remembered."""

    schema: Literal["flint.learn/2"]
    """Kind and version of this document."""
    output: str
    """The folder that was written."""
    captures: int
    """Captures that were read."""
    remembered: int
    """Programs that were remembered. Left out are captures of several programs, recorded or compiled ones, profiles, and what differs from another capture in sizes alone."""
    rows: list[int]
    """Rows of each remembered program."""
